/// How a member's sleep is ended from outside: MSG_RING, or the eventfd where there is none.
#include <cerrno>
#include <sched.h>
#include <unistd.h>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>

#include "group_member.h"

namespace tidelock {

namespace {

/// Tries of a wakeup that has no fallback left, before it is left to the back-stop.
constexpr int kHostTries = 1000;

// Senders of several threads count into one member's numbers.
void count_shared(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

void GroupMember::wake(CoreId from) {
  GroupMember& sender = *shared_.members[from.value];
  bump(sender.park_stats_.wakeups_sent);
  if (!wakes_by_ring_) {
    write_event();
  } else if (!sender.ring_->send_message(ring_fd_, 0, &GroupMember::on_wake_refused, this)) {
    repeat_wake();
  }
}

void GroupMember::on_wake_refused(void* context, std::uint64_t) {
  static_cast<GroupMember*>(context)->repeat_wake();
}

void GroupMember::repeat_wake() {
  count_shared(park_stats_.wakeups_failed);
  flag_.repeat([this] { wake_from_host(); });
}

void GroupMember::wake_from_host() {
  if (event_fd_ >= 0) {
    write_event();
    return;
  }
  for (int i = 0; i < kHostTries; ++i) {
    if (UringBackend::send_from_host(ring_fd_, 0)) return;
    ::sched_yield();
  }
  count_shared(park_stats_.wakeups_failed);
}

bool GroupMember::announce(CoreId from, std::uint64_t data) {
  if (shared_.options.mailbox.carrier == Carrier::eventfd) {
    write_event();
    return true;
  }
  GroupMember& sender = *shared_.members[from.value];
  return sender.ring_->send_message(ring_fd_, data, &GroupMember::on_announcement_refused, this).has_value();
}

void GroupMember::on_announcement_refused(void* context, std::uint64_t) {
  auto& target = *static_cast<GroupMember*>(context);
  // Runs on the sender's loop.
  Reactor::current()->mailbox()->on_announcement_failed(target.id_);
}

/// A counter at its maximum refuses with EAGAIN (eventfd(2)). That loses nothing: it is not zero then, and so
/// its owner has an event before it that it has not drained.
void GroupMember::write_event() {
  const std::uint64_t one = 1;
  count_shared(park_stats_.event_writes);
  const ssize_t written = ::write(event_fd_, &one, sizeof one);
  if (written == static_cast<ssize_t>(sizeof one)) return;
  TL_ASSERT(errno == EAGAIN, "an eventfd refuses a write only when it is saturated");
  count_shared(park_stats_.event_saturated);
}

void GroupMember::drain_event() {
  std::uint64_t value = 0;
  while (::read(event_fd_, &value, sizeof value) == static_cast<ssize_t>(sizeof value)) {
    bump(park_stats_.event_drains);
    if (value > park_stats_.event_count_max.load(std::memory_order_relaxed)) {
      park_stats_.event_count_max.store(value, std::memory_order_relaxed);
    }
  }
  mailbox_->on_event();
}

Status GroupMember::submit(HostTask& task) {
  if (!host_queue_.enter()) return ReactorErrc::closed;
  host_queue_.push(task);
  fence_before_claims();  // pairs with the fence in ParkProtocol::prepare()
  if (flag_.claim()) {
    count_shared(park_stats_.host_wakeups);
    wake_from_host();
  }
  host_queue_.leave();
  return {};
}

void GroupMember::close_to_hosts() {
  host_queue_.close();
  fence_before_claims();  // `stopping` was set before; pairs with the fence in ParkProtocol::prepare()
  if (flag_.claim()) wake_from_host();
}

}  // namespace tidelock
