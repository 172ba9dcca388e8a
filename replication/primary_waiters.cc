// Who waits for an LSN to reach a level: FIFO lists by LSN, one timer for all deadlines.
#include <algorithm>
#include <bit>
#include <optional>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {
namespace {

/// A fiber's wait. On its stack: only this core's loop touches it, and it leaves the list before it returns.
struct FiberWaiter : AckWaiter {
  WaitQueue queue;
  std::optional<Status> outcome;
};

}  // namespace

bool Primary::reached(Lsn lsn, AckLevel level, std::uint32_t replicas) const {
  return state_->reached(lsn, level, state_->level_of(replicas));
}
void Primary::add_waiter(AckWaiter& waiter) { state_->add_waiter(waiter); }

// ---- how far how many are -------------------------------------------------------------------------------

/// The k-th greatest, by node, of whole ones.
Lsn Primary::State::kth(std::uint32_t replicas, Lsn Peer::*lsn) {
  const std::vector<Peer>& peers = sender.peers();
  if (replicas == 1 || peers.size() < replicas) {
    Lsn furthest{};
    for (const Peer& peer : peers) furthest = std::max(furthest, peer.counts() ? peer.*lsn : Lsn{});
    return replicas == 1 ? furthest : Lsn{};
  }
  counts.clear();
  for (const Peer& peer : peers) {
    if (peer.counts()) counts.push_back({peer.node(), peer.*lsn});
  }
  return kth_applied(counts, replicas);
}

void Primary::State::measure(std::uint32_t replicas) {
  Level& level = levels[replicas - 1];
  level.received = std::max(level.received, kth(replicas, &Peer::received));
  level.applied = std::max(level.applied, kth(replicas, &Peer::applied));
}

void Primary::State::measure_all() {
  forget_idle_levels();
  for (std::uint64_t left = levels_standing | levels_waited; left != 0; left &= left - 1) {
    measure(static_cast<std::uint32_t>(std::countr_zero(left)) + 1);
  }
}

/// Those whose waiters have all gone by their deadlines.
void Primary::State::forget_idle_levels() {
  for (std::uint64_t left = levels_waited; left != 0; left &= left - 1) {
    const int level = std::countr_zero(left);
    if (levels[static_cast<std::size_t>(level)].idle()) levels_waited &= ~(std::uint64_t{1} << level);
  }
}

// ---- who waits ------------------------------------------------------------------------------------------

Status Primary::wait(Lsn lsn, AckLevel level, Instant deadline, std::uint32_t replicas) {
  State& state = *state_;
  State::Level& counted = state.level_of(replicas);
  if (state.reached(lsn, level, counted)) return {};
  if (state.closed || !state.leads) return state.unknown();
  FiberWaiter waiter;
  waiter.lsn = lsn;
  waiter.level = level;
  waiter.replicas = replicas;
  waiter.deadline = Instant::never();  // the queue's own wait has it
  waiter.done = [](AckWaiter& base, Status status) {
    auto& self = static_cast<FiberWaiter&>(base);
    self.outcome = std::move(status);
    self.queue.notify_one();
  };
  state.waiters_at(counted, level).insert(waiter);
  const Wakeup wakeup = waiter.queue.wait(deadline);
  // An answer counts even if the deadline woke the fiber first. After it nothing of the primary is touched:
  // it may be what has ended.
  if (waiter.outcome.has_value()) return *std::move(waiter.outcome);
  counted.waiters(level).remove(waiter);
  if (wakeup == Wakeup::cancelled) return ReactorErrc::cancelled;
  return state.unknown();
}

ReplicationErrc Primary::State::unknown() {
  bump(stats.outcome_unknown);
  return options.policy == nullptr ? ReplicationErrc::outcome_unknown : options.policy->expired();
}

void Primary::State::add_waiter(AckWaiter& waiter) {
  Level& level = level_of(waiter.replicas);
  if (reached(waiter.lsn, waiter.level, level)) return waiter.done(waiter, {});
  if (closed || !leads) return waiter.done(waiter, unknown());
  waiters_at(level, waiter.level).insert(waiter);
  // Deadlines mostly ascend, so the timer seldom moves; when it fires it looks for the next one.
  if (!expiry.armed() || waiter.deadline < expiry.deadline()) reactor.timers().arm(expiry, waiter.deadline);
}

/// Each call of `done` may add waiters and append; the lists are consistent before every call.
void Primary::State::wake_reached() {
  set_gauge(stats.received_lsn, levels[0].received.value);
  set_gauge(stats.applied_lsn, levels[0].applied.value);
  if (!serves()) return;
  const auto wakes_to = [this](Lsn lsn) {
    return options.policy == nullptr ? lsn : options.policy->wakes_to(lsn);
  };
  for (std::uint64_t left = levels_waited; left != 0; left &= left - 1) {
    Level& level = levels[static_cast<std::size_t>(std::countr_zero(left))];
    while (AckWaiter* waiter = level.received_waiters.pop_reached(wakes_to(level.received)))
      waiter->done(*waiter, {});
    while (AckWaiter* waiter = level.applied_waiters.pop_reached(wakes_to(level.applied)))
      waiter->done(*waiter, {});
  }
}

void Primary::State::expire_waiters() {
  const Instant now = reactor.now();
  Instant next = Instant::never();
  LsnList<AckWaiter> expired;
  for (Level& level : levels) {
    for (LsnList<AckWaiter>* list : {&level.received_waiters, &level.applied_waiters}) {
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
  }
  if (next != Instant::never()) reactor.timers().arm(expiry, next);
  while (AckWaiter* waiter = expired.pop_reached(Lsn{~0ULL})) {
    waiter->done(*waiter, unknown());
  }
}

void Primary::State::fail_waiters() {
  for (Level& level : levels) {
    for (LsnList<AckWaiter>* list : {&level.received_waiters, &level.applied_waiters}) {
      while (AckWaiter* waiter = list->pop_reached(Lsn{~0ULL})) waiter->done(*waiter, unknown());
    }
  }
  expiry.disarm();
}

}  // namespace tidelock
