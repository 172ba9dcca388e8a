#include "call.h"

#include <tidelock/engine/errc.h>

namespace tidelock {
namespace {

/// A slot that once carried a large value does not keep its memory for ever.
constexpr std::size_t kKeptBytes = 256 * 1024;

void trim(std::string& text) {
  text.clear();
  if (text.capacity() > kKeptBytes) text.shrink_to_fit();
}

void reset(Call& call) {
  trim(call.key);
  trim(call.value);
  call.items.clear();
  call.status = {};
  call.callback = nullptr;
  call.finished = call.abandoned = false;
}

}  // namespace

CallPool::CallPool(std::uint32_t slots)
    : calls_(std::make_unique<Call[]>(slots)),
      free_(slots),
      busy_(EngineErrc::busy, "all " + std::to_string(slots) + " host_slots are in use") {
  for (std::uint32_t i = 0; i < slots; ++i) calls_[i].pool = this;
}

Status CallPool::enter() {
  // Sequentially consistent, like shut() and inside(): either this call sees `shut_`, or close() sees the
  // call.
  inside_.fetch_add(1);
  if (!shut_.load()) return {};
  leave();
  return EngineErrc::closed;
}

void CallPool::leave() { inside_.fetch_sub(1); }

Result<Call*> CallPool::take() {
  TL_TRY(enter());
  std::uint32_t slot = 0;
  if (free_.pop(slot)) return &calls_[slot];
  leave();
  return busy_;
}

void CallPool::give_back(Call& call) {
  reset(call);
  free_.push(static_cast<std::uint32_t>(&call - calls_.get()));
  leave();
}

void CallPool::shut() { shut_.store(true); }

CallSlab::CallSlab(std::uint32_t slots_max)
    : slots_max_(slots_max),
      busy_(EngineErrc::busy, "the fibers of this core have " + std::to_string(slots_max) +
                                  " calls to other cores in flight, two for each of max_fibers") {}

Result<Call*> CallSlab::take() {
  if (free_.empty()) {
    if (all_.size() == slots_max_) return busy_;
    all_.push_back(std::make_unique<Call>());
    all_.back()->slab = this;
    free_.reserve(all_.size());  // so that giving back never allocates
    free_.push_back(all_.back().get());
  }
  Call* call = free_.back();
  free_.pop_back();
  return call;
}

void CallSlab::give_back(Call& call) {
  reset(call);
  free_.push_back(&call);
}

}  // namespace tidelock
