#include "streams_world.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <tidelock/base/check.h>

#include "inject.h"
#include "values.h"

namespace tidelock::sim {
namespace {

constexpr Duration kLookEvery = milliseconds(100);
constexpr Duration kSettleMost = seconds(20);
constexpr Duration kTurnMost = seconds(70);  ///< that a replica may wait for its next snapshot
constexpr Duration kEndMost = seconds(10);

}  // namespace

StreamsWorld::StreamsWorld(World& world, const Shape& shape, std::vector<Fault> plan, const Planted& planted)
    : world_(world),
      shape_(shape),
      planted_(planted),
      oracle_(shape_.keys),
      plan_(std::move(plan)),
      target_(world.add(*this)),
      stalls_before_(shape_.replicas + 1),
      slow_until_(shape_.replicas + 1) {
  shape_.node.looks_before_sleep = planted.looks_before_sleep;
  primary_ = std::make_unique<PrimaryHost>(scene());
  std::vector<DialHost*> hosts{primary_.get()};
  for (std::uint32_t i = 0; i < shape_.replicas; ++i) {
    replicas_.push_back(std::make_unique<ReplicaHost>(scene(), i));
    hosts.push_back(replicas_.back().get());
  }
  DialWatcher& watcher = *this;
  dialer_ = std::make_unique<SimDialer>(scene(), std::move(hosts), watcher);
  workload_ = std::make_unique<Workload>(scene(), *primary_, replicas_, history_);
}

StreamsWorld::~StreamsWorld() {
  dialer_->dies(0);
  primary_->kill();
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    dialer_->dies(i + 1);
    replicas_[i]->kill();
  }
  world_.remove(target_);
}

void StreamsWorld::start_primary() {
  primary_->start();
  workload_->primary_started();
  // Whoever had been refused may follow this one, once it has begun anew.
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i]->given_up()) restart_refused(i);
  }
}

void StreamsWorld::start_replica(std::size_t replica) {
  replicas_[replica]->start(dialer_->of(replica + 1));
  workload_->replica_started(replica);
}

void StreamsWorld::run() {
  start_primary();
  for (std::size_t i = 0; i + 1 < replicas_.size(); ++i) start_replica(i);
  world_.schedule(shape_.last_starts_at, target_, restart, replicas_.size());
  for (std::size_t i = 0; i < plan_.size(); ++i) world_.schedule(plan_[i].at, target_, fault_due, i);
  world_.schedule(world_.now() + kLookEvery, target_, look);
  world_.run_until(shape_.faults_until);

  // Faults are over; links heal, dead nodes start. What is under way ends within its deadlines.
  workload_->stop();
  dialer_->heal();
  for (std::size_t i = 0; i <= replicas_.size(); ++i) node(i).heal();
  Instant last = world_.now() + kSettleMost;
  const Instant last_turn = world_.now() + kTurnMost;
  do {
    world_.run_for(kLookEvery);
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      if (waits_its_turn(i)) last = std::max(last, std::min(last_turn, world_.now()) + kSettleMost);
    }
    if (!settled() || !enough()) continue;
    workload_->last_put(seconds(1));  // one that nobody has; a link that is broken without a word shows now
    world_.run_for(kLookEvery * 3);
  } while (!(settled() && (workload_->succeeded() || !enough())) && world_.now() < last && !world_.stopped());
  if (primary_->up()) primary_->count();
  if (world_.stopped()) return;
  over_ = true;
  if (!workload_->succeeded() && settled() && enough()) {  // one is not waited for any more: the others can
    workload_->last_put(seconds(1));
    world_.run_for(kLookEvery * 3);
  }
  check_converged();
  check_linearizable();
  check_nothing_left();
}

// ---- what the dialer sees -------------------------------------------------------------------------------

/// Who is left behind, refused or given a snapshot for it, is so by the oracle's own sum.
void StreamsWorld::judged(std::size_t, const Hello& theirs, const tidelock::Verdict& verdict) {
  const auto* const refusal = std::get_if<Refusal>(&verdict);
  const bool behind = refusal != nullptr ? refusal->reason == RefusalReason::behind_log
                                         : std::get<Hello>(verdict).flags.snapshot;
  if (!behind) return;
  const PrimaryLife& life = primary_->life();
  scene().check("excused", "replica " + std::to_string(theirs.node),
                check_left_behind(*life.line, theirs.last_lsn, life.primary->log().capacity(),
                                  life.primary->fragmenting() ? kLargePutBytesMost : 0));
}

void StreamsWorld::made(std::size_t, std::size_t, const Hello& theirs, const Hello&, Wire& wire) {
  Line* const line = primary_->life().line;
  wire.watch({[line, node = theirs.node](Lsn lsn) { line->received(node, lsn); },
              [this, line](Lsn commit) {
                line->told(commit);
                scene().check("one_commit", "node 1 tells",
                              check_commit(*line, Lsn{}, commit, replicas_to_commit(shape_)));
              }});
}

void StreamsWorld::attached(std::size_t, const Hello&, const Hello& ours) {
  if (ours.flags.snapshot) workload_->snapshot_begins();
}

void StreamsWorld::refused(std::size_t from, const Refusal& refusal) {
  if (refusal.reason != RefusalReason::busy) replicas_[from - 1]->life().refusal = refusal;
}

// ---- faults ---------------------------------------------------------------------------------------------

/// A fault of a node befalls the primary as often as all replicas together.
Node& StreamsWorld::node_of(const Fault& fault) {
  return (fault.detail & 1) != 0 ? primary_->node() : replicas_[fault.replica]->node();
}

void StreamsWorld::inject(const Fault& fault) {
  counts_.injected(fault.kind);
  world_.trace().mix(static_cast<std::uint64_t>(fault.kind) << 32 | fault.replica);
  switch (fault.kind) {
    case FaultKind::partition:
      return part(fault);
    case FaultKind::duplicate_connect:
      return dialer_->duplicate(fault.replica + 1, (fault.detail & 2) != 0, fault.length);
    case FaultKind::pause: {
      Node& node = node_of(fault);
      if (!node.up()) return;
      return node.pause(fault.length, (fault.detail & 2) != 0, &counts_);
    }
    case FaultKind::kill:
      return kill(fault);
    case FaultKind::slow_core:
      return slow(fault);
    case FaultKind::clock_jump: {
      Node& node = node_of(fault);
      if (!node.up()) return;
      if (node.jump(fault.length)) counts_.hit(FaultKind::clock_jump);
      return;
    }
    case FaultKind::corrupt:
      if (fault.detail % 4 == 3) {
        return dialer_->corrupt(fault.replica + 1, static_cast<std::uint32_t>(1 + fault.detail / 4 % 8));
      }
      [[fallthrough]];
    default:
      if (const auto wire = dialer_->wire(fault.replica + 1)) inject_on_wire(world_, fault, *wire);
  }
}

/// Replicas have no links among each other: a partition cuts some of them off from the primary.
void StreamsWorld::part(const Fault& fault) {
  const Instant until = world_.now() + fault.length;
  Random random = world_.stream("fault", fault.number);
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (i != fault.replica && ((fault.detail >> i) & 1) == 0) continue;
    dialer_->block(0, i + 1, until);
    const auto wire = dialer_->wire(i + 1);
    if (wire == nullptr) continue;
    part_wire(*wire, random, until, ((fault.detail >> (8 + i)) & 1) != 0);
  }
}

void StreamsWorld::kill(const Fault& fault) {
  // The primary seldom: each time a history ends, and everything begins anew.
  const bool primary = fault.detail % 4 == 0;
  const std::size_t index = primary ? 0 : fault.replica + 1;
  if (!node(index).up()) return;
  slow_until_[index] = Instant{};
  if (primary) {
    if (primary_->life().primary->replicas() > 0) counts_.hit(FaultKind::kill);
    dialer_->dies(0);
    primary_->kill();
  } else {
    if (replicas_[fault.replica]->life().replica->connected()) counts_.hit(FaultKind::kill);
    dialer_->dies(index);
    replicas_[fault.replica]->kill();
  }
  world_.schedule(world_.now() + fault.length, target_, restart, index);
}

void StreamsWorld::restart_node(std::size_t index) {
  if (index == 0) {
    if (!primary_->up()) start_primary();
    return;
  }
  if (replicas_[index - 1]->up()) {  // an operator takes it down first
    dialer_->dies(index);
    replicas_[index - 1]->kill();
  }
  start_replica(index - 1);
}

void StreamsWorld::restart_refused(std::size_t replica) {
  ++restarted_;
  restart_node(replica + 1);
}

void StreamsWorld::slow(const Fault& fault) {
  Node& slowed = node_of(fault);
  if (!slowed.up()) return;
  end_slowness(slowed);  // of the one before, which this one takes over from
  slowed.set_slowness(static_cast<std::int64_t>(4 + fault.detail / 4 % 397));
  const std::size_t index = slowed.number() - 1;
  stalls_before_[index] = slowed.core().reactor().stats().stalls.load(std::memory_order_relaxed);
  slow_until_[index] = world_.now() + fault.length;
  world_.schedule(slow_until_[index], target_, slow_ends, index, slowed.incarnation());
}

/// A hit if some turn took longer than it may.
void StreamsWorld::end_slowness(Node& slowed) {
  const std::size_t index = slowed.number() - 1;
  if (slow_until_[index] == Instant{}) return;
  slow_until_[index] = Instant{};
  slowed.set_slowness(1);
  if (slowed.core().reactor().stats().stalls.load(std::memory_order_relaxed) > stalls_before_[index])
    counts_.hit(FaultKind::slow_core);
}

/// What an operator would do: a replica that was refused for good is started again, empty. One that the log
/// has left behind would be refused again.
void StreamsWorld::look_after() {
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i]->given_up() && !replicas_[i]->behind_log()) restart_refused(i);
  }
}

void StreamsWorld::on_event(const Event& event) {
  switch (event.kind) {
    case fault_due:
      return inject(plan_[event.a]);
    case restart:
      return restart_node(event.a);
    case slow_ends: {
      Node& slowed = node(event.a);
      // The next slowness, or the next life, is not ended by the end of the one before.
      if (!slowed.up() || slowed.incarnation() != event.b || world_.now() < slow_until_[event.a]) return;
      return end_slowness(slowed);
    }
    case look:
      look_after();
      world_.schedule(world_.now() + kLookEvery, target_, look);
      return;
    default:
      TL_ASSERT(false, "an event that no world has");
  }
}

std::string StreamsWorld::describe(const Event& event) const {
  switch (event.kind) {
    case fault_due:
      return fmt::format("fault {} replica {} length {} ns", name_of(plan_[event.a].kind),
                         plan_[event.a].replica, plan_[event.a].length.ns);
    case restart:
      return fmt::format("node {} starts again", event.a + 1);
    case slow_ends:
      return fmt::format("node {} is fast again", event.a + 1);
    default:
      return "a look at who was refused";
  }
}

// ---- the end --------------------------------------------------------------------------------------------

/// All nodes are up, and whoever can follow has everything.
bool StreamsWorld::settled() {
  if (!primary_->up()) return false;
  // A link that nobody holds at its other end is dropped in time.
  if (primary_->life().primary->replicas() != followers()) return false;
  const Lsn last = primary_->life().primary->last_lsn();
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (!replicas_[i]->up()) return false;
    if (excused(i)) continue;
    const Replica& replica = *replicas_[i]->life().replica;
    if (!replica.connected() || replica.history() != primary_->life().line->id() ||
        replica.applied_lsn() != last)
      return false;
  }
  return primary_->node().core().reactor().idle();
}

std::size_t StreamsWorld::followers() const {
  std::size_t count = 0;
  for (std::size_t i = 0; i < replicas_.size(); ++i) count += excused(i) ? 0 : 1;
  return count;
}

bool StreamsWorld::waits_its_turn(std::size_t replica) const {
  const ReplicaHost& host = *replicas_[replica];
  return primary_->up() && host.up() && !host.life().replica->connected() &&
         primary_->life().primary->snapshot_wait(host.number()) > Duration{};
}

bool StreamsWorld::excused(std::size_t replica) const {
  return replicas_[replica]->behind_log() || (over_ && waits_its_turn(replica));
}

bool StreamsWorld::enough() const {
  return followers() >= std::max<std::size_t>(1, replicas_to_commit(shape_));
}

void StreamsWorld::check_converged() {
  const auto wrong = [&](const std::string& text) { world_.fail("converged", text); };
  if (!primary_->up()) return wrong("the primary did not come back");
  const PrimaryLife& life = primary_->life();
  behind_log_ = replicas_.size() - followers();
  if (enough() && !workload_->succeeded()) wrong("20 s after the last fault no put is applied by a replica");
  if (life.primary->replicas() != followers())
    wrong(fmt::format("{} replicas follow, and the primary has {} links", followers(),
                      life.primary->replicas()));
  const Lsn last = life.primary->last_lsn();
  if (!life.primary->backlog() && enough() && life.primary->commit_lsn() != last)
    wrong(fmt::format("LSN {} is not committed", last.value));
  for (std::uint32_t key = 0; key < shape_.keys; ++key) {
    if (life.table->at(key) != life.line->newest(key))
      wrong(fmt::format("node 1: \"{}\" is not the newest", key_text(key)));
  }
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (excused(i)) continue;
    const ReplicaHost& host = *replicas_[i];
    if (!replicas_[i]->up()) return wrong(host.name() + " did not come back");
    const ReplicaLife& its = replicas_[i]->life();
    if (!its.replica->connected()) {
      wrong(host.name() + " has no link 20 s after the last fault");
    } else if (its.replica->applied_lsn() != last || its.applier->line() != life.line) {
      wrong(fmt::format("{} stands at LSN {}, the primary at {}", host.name(),
                        its.replica->applied_lsn().value, last.value));
    } else {
      for (std::uint32_t key = 0; key < shape_.keys; ++key) {
        if (its.applier->at(key) != life.line->newest(key))
          wrong(fmt::format("{}: \"{}\" is not the newest", host.name(), key_text(key)));
      }
    }
  }
}

void StreamsWorld::check_linearizable() {
  for (const auto& line : oracle_.lines()) {
    for (std::uint32_t key = 0; key < shape_.keys; ++key) {
      const auto calls = history_.linear(line->number(), key);
      const LinearVerdict verdict = check_linear(calls);
      if (verdict == LinearVerdict::undecided) ++undecided_;
      if (verdict != LinearVerdict::violated) continue;
      world_.fail("linearizable", fmt::format("no order of the {} calls on \"{}\" explains what they found",
                                              calls.size(), key_text(key)));
    }
  }
}

/// Everybody says goodbye; then nothing is left of fibers, links and what they kept.
void StreamsWorld::check_nothing_left() {
  dialer_->stop();
  if (!primary_->up()) return;
  Primary& primary = *primary_->life().primary;
  primary_->node().core().post([&primary] { primary.close("the run is over"); });
  for (const auto& host : replicas_) {
    if (!host->up()) continue;
    host->node().core().post([&host = *host] { host.farewell("the run is over"); });
  }
  world_.run_for(kEndMost);
  const auto left = [&](const std::string& text) { world_.fail("no_leak", text); };
  if (!primary.departed()) left("node 1 still waits for a link to let go of the log");
  const auto half = static_cast<std::uint32_t>(primary.log().capacity() / 2);
  if (primary.departed() && !primary.can_append(half)) left("the log has no room although nothing reads it");
  for (std::size_t i = 0; i <= replicas_.size(); ++i) {
    if (node(i).up() && !node(i).core().reactor().idle()) left(fmt::format("node {} has fibers left", i + 1));
  }
  if (dialer_->wires() > 0) left(fmt::format("{} links are left", dialer_->wires()));
}

}  // namespace tidelock::sim
