#include <algorithm>

#include <tidelock/base/check.h>
#include <tidelock/reactor/timer.h>

namespace tidelock {
namespace {
constexpr std::size_t kChildren = 4;
}

Timer::~Timer() { disarm(); }

void Timer::disarm() {
  if (owner_ != nullptr) owner_->remove(*this);
}

Timers::Timers(std::size_t reserve_entries) { heap_.reserve(reserve_entries); }

Timers::~Timers() {
  for (const Entry& entry : heap_) entry.timer->owner_ = nullptr;
}

void Timers::arm(Timer& timer, Instant deadline) {
  TL_ASSERT(timer.owner_ == nullptr || timer.owner_ == this, "a timer is armed with another reactor");
  timer.deadline_ = deadline;
  const Entry entry{deadline, &timer};
  if (timer.owner_ == nullptr) {
    timer.owner_ = this;
    heap_.push_back(entry);
    sift_up(heap_.size() - 1, entry);
    return;
  }
  const std::size_t index = timer.index_;
  if (deadline < heap_[index].deadline) {
    sift_up(index, entry);
  } else {
    sift_down(index, entry);
  }
}

Instant Timers::next_deadline() const { return heap_.empty() ? Instant::never() : heap_.front().deadline; }

std::uint32_t Timers::fire(Instant now, std::uint32_t budget) {
  std::uint32_t fired = 0;
  while (fired < budget && !heap_.empty() && heap_.front().deadline <= now) {
    Timer& timer = *heap_.front().timer;
    remove(timer);
    ++fired;
    timer.callback_(timer);  // may end the timer's life
  }
  return fired;
}

void Timers::remove(Timer& timer) {
  timer.owner_ = nullptr;
  const std::size_t index = timer.index_;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (index == heap_.size()) return;
  // The last entry takes the hole's place and may belong above or below it.
  if (index > 0 && last.deadline < heap_[(index - 1) / kChildren].deadline) {
    sift_up(index, last);
  } else {
    sift_down(index, last);
  }
}

void Timers::place(std::size_t index, Entry entry) {
  heap_[index] = entry;
  entry.timer->index_ = index;
}

void Timers::sift_up(std::size_t index, Entry entry) {
  while (index > 0) {
    const std::size_t parent = (index - 1) / kChildren;
    if (heap_[parent].deadline <= entry.deadline) break;
    place(index, heap_[parent]);
    index = parent;
  }
  place(index, entry);
}

void Timers::sift_down(std::size_t index, Entry entry) {
  while (true) {
    const std::size_t first = index * kChildren + 1;
    if (first >= heap_.size()) break;
    const std::size_t end = std::min(first + kChildren, heap_.size());
    std::size_t least = first;
    for (std::size_t child = first + 1; child < end; ++child) {
      if (heap_[child].deadline < heap_[least].deadline) least = child;
    }
    if (entry.deadline <= heap_[least].deadline) break;
    place(index, heap_[least]);
    index = least;
  }
  place(index, entry);
}

}  // namespace tidelock
