// Set-up, the link coming and going, and those who wait for an LSN. The data path is in replica_datapath.cc.
#include <cerrno>
#include <utility>

#include <tidelock/base/check.h>

#include "replica_state.h"

namespace tidelock {
namespace {

std::string epoch_text(Epoch epoch) {
  return std::to_string(epoch.counter) + "." + std::to_string(epoch.node);
}

}  // namespace

Result<std::unique_ptr<Replica>> Replica::create(Reactor& reactor, Applier& applier,
                                                 const ReplicaOptions& options) {
  TL_TRY(check_liveness(options.heartbeat, options.link_timeout));
  if (options.group != nullptr && options.policy != nullptr) {
    return Error::from_errno(EINVAL, "an ApplyPolicy, in a group: it knows of no log");
  }
  std::unique_ptr<Replica> replica(new Replica(std::make_unique<State>(reactor, applier, options)));
  reactor.add_source(*replica);
  return replica;
}

Replica::Replica(std::unique_ptr<State> state) : state_(std::move(state)) {}

Replica::~Replica() {
  close("the replica has ended");
  TL_ASSERT(state_->waiters.head() == nullptr, "a fiber still waits for an LSN");
  state_->reactor.remove_source(*this);
}

Status Replica::attach(std::unique_ptr<Link> link, HistoryId history, Epoch epoch, bool snapshot_comes) {
  return state_->attach(std::move(link), history, epoch, snapshot_comes);
}
const Link* Replica::link() const { return state_->link.get(); }
bool Replica::connected() const { return state_->link && state_->link->state() == LinkState::ready; }
bool Replica::counted() const { return connected() && state_->counted; }
bool Replica::heard() const {
  if (!connected()) return false;
  const LinkCounters& counters = state_->link->counters();
  return counters.control_in.load(std::memory_order_relaxed) +
             counters.batches_in.load(std::memory_order_relaxed) >
         0;
}
void Replica::on_link_lost(std::function<void(const std::string& reason)> handler) {
  state_->link_lost = std::move(handler);
}
bool Replica::takes_snapshots() const { return state_->options.snapshot != nullptr; }
Lsn Replica::applied_lsn() const {
  return state_->group != nullptr ? state_->group->last_lsn() : state_->applied;
}
HistoryId Replica::history() const { return state_->history; }
Epoch Replica::epoch() const { return state_->epoch; }
const ReplicaStats& Replica::stats() const { return state_->stats; }
Status Replica::wait_applied(Lsn lsn, Instant deadline) { return state_->wait_applied(lsn, deadline); }
void Replica::forget() { state_->forget(); }
void Replica::close(const std::string& reason) { state_->dismiss(reason); }

Status Replica::State::attach(std::unique_ptr<Link> next, HistoryId its_history, Epoch its_epoch,
                              bool snapshot_comes) {
  const auto refuse = [&next](ReplicationErrc code, const std::string& detail) {
    Error error(code, detail);
    next->close(error.message());
    return error;
  };
  if (history != HistoryId{} && its_history != history) {
    return refuse(ReplicationErrc::wrong_context,
                  "the primary follows history " + std::to_string(its_history.value) + ", this replica " +
                      std::to_string(history.value) + ": start it empty to follow another");
  }
  if (its_epoch < epoch) {
    return refuse(ReplicationErrc::old_epoch, "the primary is in epoch " + epoch_text(its_epoch) +
                                                  ", this replica has seen " + epoch_text(epoch) +
                                                  ": connect to the newest primary");
  }
  if (group != nullptr && group->spoiled() && !snapshot_comes) {
    return refuse(ReplicationErrc::gap,
                  "the table ran out of memory amid entries that it shows in part: only a snapshot mends it");
  }
  dismiss("another link takes over");
  history = its_history;
  epoch = its_epoch;
  link = std::move(next);
  wakeups_seen = 0;
  if (options.policy != nullptr) applied = options.policy->resume_from(applied);
  if (group != nullptr) {  // it may have led meanwhile
    applied = group->last_lsn();
    entry_epoch = group->line().last_epoch();
  }
  prefix = group == nullptr || !snapshot_comes;
  told = {};
  whole_acknowledged = false;
  echo = echoed = 0;
  received = applied;
  received_acknowledged = applied_acknowledged = applied_here();
  fresh = true;
  counted = false;
  // What it has applied is acknowledged at once: no hello counts.
  sent_at = reactor.now() + Duration{-options.heartbeat.ns};
  set_gauge(stats.received_lsn, received.value);
  set_gauge(stats.applied_lsn, applied.value);
  set_gauge(stats.link_up, 1);
  arm_tick();
  return {};
}

void Replica::State::dismiss(const std::string& reason) {
  if (!link) return;
  if (link->state() == LinkState::ready) {
    send_ack(true);
    link->flush();
  }
  link->close(reason);
  lose_link(false);
}

void Replica::State::forget() {
  TL_ASSERT(group != nullptr && !link, "only who follows nobody forgets");
  history = {};
  epoch = entry_epoch = {};
  received = applied = told = {};
  set_gauge(stats.received_lsn, 0);
  set_gauge(stats.applied_lsn, 0);
  set_gauge(stats.commit_lsn, 0);
}

/// The link is closed: what was half received is forgotten, what is applied stays.
void Replica::State::lose_link(bool report) {
  const std::unique_ptr<Link> lost = std::move(link);
  static_cast<void>(apply_deferred(~0ULL));
  assembly = {};
  goodbye = false;
  abandon_snapshot();
  applier.abandon_fragments();
  if (group != nullptr) group->cut_to_whole();
  heartbeat.disarm();
  set_gauge(stats.link_up, 0);
  if (!report) return;
  bump(stats.links_lost);
  if (link_lost) link_lost(lost->close_reason());
}

void Replica::State::arm_tick() {
  // Half of the heartbeat, so that two ticks never leave more than a whole one between two frames.
  if (link) reactor.timers().arm(heartbeat, reactor.now() + Duration{options.heartbeat.ns / 2});
}

/// Drops a silent primary. The heartbeat itself leaves in the flush of the same turn.
void Replica::State::tick() {
  if (link && reactor.now() - link->last_heard() > options.link_timeout) {
    link->close("the primary said nothing for " + milliseconds_text(options.link_timeout));
    lose_link(true);
  }
  arm_tick();
}

Status Replica::State::wait_applied(Lsn lsn, Instant deadline) {
  if (lsn <= applied) return {};
  Waiter waiter;
  waiter.lsn = lsn;
  waiters.insert(waiter);
  const Wakeup wakeup = waiter.queue.wait(deadline);
  if (waiter.reached) return {};
  waiters.remove(waiter);
  return to_status(wakeup);
}

/// From here on readers of this core see `lsn`.
void Replica::State::publish_applied(Lsn lsn) {
  applied = lsn;
  set_gauge(stats.applied_lsn, lsn.value);
  if (group != nullptr) group->appended();
  if (options.owner != nullptr && prefix) options.owner->applied(lsn);
  const Lsn wakes_to = options.policy != nullptr ? options.policy->wakes_to(lsn) : lsn;
  while (Waiter* waiter = waiters.pop_reached(wakes_to)) {
    waiter->reached = true;
    waiter->queue.notify_one();
  }
}

}  // namespace tidelock
