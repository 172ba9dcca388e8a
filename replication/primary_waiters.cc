// Who waits for an LSN to reach a level: FIFO lists by LSN, one timer for all deadlines.
#include <algorithm>
#include <optional>

#include "primary_state.h"

namespace tidelock {
namespace {

/// A fiber's wait. On its stack: only this core's loop touches it, and it leaves the list before it returns.
struct FiberWaiter : AckWaiter {
  WaitQueue queue;
  std::optional<Status> outcome;
};

}  // namespace

bool Primary::reached(Lsn lsn, AckLevel level) const { return state_->reached(lsn, level); }
void Primary::add_waiter(AckWaiter& waiter) { state_->add_waiter(waiter); }

bool Primary::State::reached(Lsn lsn, AckLevel level) const {
  switch (level) {
    case AckLevel::local:
      return lsn <= log->last_lsn();
    case AckLevel::received:
      return lsn <= received;
    case AckLevel::applied:
      return lsn <= applied;
  }
  return false;
}

Status Primary::wait(Lsn lsn, AckLevel level, Instant deadline) {
  State& state = *state_;
  if (state.reached(lsn, level)) return {};
  if (state.closed) return state.unknown();
  FiberWaiter waiter;
  waiter.lsn = lsn;
  waiter.level = level;
  waiter.deadline = Instant::never();  // the queue's own wait has it
  waiter.done = [](AckWaiter& base, Status status) {
    auto& self = static_cast<FiberWaiter&>(base);
    self.outcome = std::move(status);
    self.queue.notify_one();
  };
  state.waiters_of(level).insert(waiter);
  const Wakeup wakeup = waiter.queue.wait(deadline);
  // An answer counts even if the deadline woke the fiber first. After it nothing of the primary is touched:
  // it may be what has ended.
  if (waiter.outcome.has_value()) return *std::move(waiter.outcome);
  state.waiters_of(level).remove(waiter);
  if (wakeup == Wakeup::cancelled) return ReactorErrc::cancelled;
  return state.unknown();
}

ReplicationErrc Primary::State::unknown() {
  bump(stats.outcome_unknown);
  return ReplicationErrc::outcome_unknown;
}

void Primary::State::add_waiter(AckWaiter& waiter) {
  if (reached(waiter.lsn, waiter.level)) return waiter.done(waiter, {});
  if (closed) return waiter.done(waiter, unknown());
  waiters_of(waiter.level).insert(waiter);
  // Deadlines mostly ascend, so the timer seldom moves; when it fires it looks for the next one.
  if (!expiry.armed() || waiter.deadline < expiry.deadline()) reactor.timers().arm(expiry, waiter.deadline);
}

/// Each call of `done` may add waiters and append; the list is consistent before every call.
void Primary::State::wake_reached() {
  set_gauge(stats.received_lsn, received.value);
  set_gauge(stats.applied_lsn, applied.value);
  while (AckWaiter* waiter = received_waiters.pop_reached(received)) waiter->done(*waiter, {});
  while (AckWaiter* waiter = applied_waiters.pop_reached(applied)) waiter->done(*waiter, {});
}

void Primary::State::expire_waiters() {
  const Instant now = reactor.now();
  Instant next = Instant::never();
  LsnList<AckWaiter> expired;
  for (LsnList<AckWaiter>* list : {&received_waiters, &applied_waiters}) {
    for (AckWaiter* waiter = list->head(); waiter != nullptr;) {
      AckWaiter* const following = waiter->next;
      if (waiter->deadline <= now) {
        list->remove(*waiter);
        expired.insert(*waiter);
      } else {
        next = std::min(next, waiter->deadline);
      }
      waiter = following;
    }
  }
  if (next != Instant::never()) reactor.timers().arm(expiry, next);
  while (AckWaiter* waiter = expired.pop_reached(Lsn{~0ULL})) {
    waiter->done(*waiter, unknown());
  }
}

void Primary::State::fail_waiters() {
  for (LsnList<AckWaiter>* list : {&received_waiters, &applied_waiters}) {
    while (AckWaiter* waiter = list->pop_reached(Lsn{~0ULL})) {
      waiter->done(*waiter, unknown());
    }
  }
  expiry.disarm();
}

}  // namespace tidelock
