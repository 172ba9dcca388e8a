// A group's primary and the leases of its epoch: what its control frames are stamped with, what echoes are
// worth, and who waits for one.
#include <algorithm>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

bool Primary::lease_held() const { return state_->lease_held(); }
bool Primary::stamped_lately() const { return state_->leases && state_->leases->stamped_lately(); }
Status Primary::wait_lease(Instant deadline) { return state_->wait_lease(deadline); }

bool Primary::State::lease_held() const { return leases && !closed && serves() && leases->held(); }

/// Of late: a replica answers every new stamp, so they change a few times a heartbeat only, but for those who
/// wait.
std::uint64_t Primary::State::stamp() {
  if (!leases || closed) return 0;
  const std::uint64_t now = leases->stamp(serves());
  const auto keeps_for = static_cast<std::uint64_t>(options.heartbeat.ns / 4);
  const bool wanted = lease_waiters.head() != nullptr;
  if (now == 0 || wanted || now - stamped >= keeps_for) stamped = now;
  return stamped;
}

bool Primary::State::heard(std::uint32_t node, std::uint64_t echo, bool whole) {
  if (!leases) return echo == 0;
  if (!whole) return echo <= leases->mark();
  if (!leases->heard(node, echo)) return false;
  if (lease_waiters.head() != nullptr) wake_leases();
  return true;
}

/// What was stamped before the call says nothing of what was read before it.
Status Primary::State::wait_lease(Instant deadline) {
  if (lease_held()) return {};
  if (closed) return ReactorErrc::closed;
  if (!leases) return ReplicationErrc::not_primary;
  LeaseWaiter waiter;
  waiter.lsn = {leases->mark()};
  lease_waiters.insert(waiter);
  sender.tell_all();
  const Wakeup wakeup = waiter.queue.wait(deadline);
  // After an answer nothing of the primary is touched: it may be what has ended.
  if (waiter.outcome.has_value()) return *std::move(waiter.outcome);
  lease_waiters.remove(waiter);
  return to_status(wakeup);
}

void Primary::State::wake_leases() {
  if (!serves()) return;
  const bool held = lease_held();
  while (lease_waiters.head() != nullptr && (held || leases->confirmed(lease_waiters.head()->lsn.value)))
    answer_lease(*lease_waiters.head(), {});
}

/// The epoch's leases are over: nothing is stamped, held or confirmed from here on.
void Primary::State::end_leases() {
  if (leases) leases->end();
  leases.reset();
  stamped = 0;
  while (lease_waiters.head() != nullptr) {
    answer_lease(*lease_waiters.head(),
                 closed ? Status(ReactorErrc::closed) : Status(ReplicationErrc::not_primary));
  }
}

void Primary::State::answer_lease(LeaseWaiter& waiter, Status status) {
  lease_waiters.remove(waiter);
  waiter.outcome = std::move(status);
  waiter.queue.notify_one();
}

}  // namespace tidelock
