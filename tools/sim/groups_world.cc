#include "groups_world.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <tidelock/base/check.h>

#include "inject.h"
#include "sim_link.h"
#include "values.h"

namespace tidelock::sim {
namespace {

constexpr Duration kGroupLookEvery = milliseconds(200);
constexpr Duration kGroupSettleMost = seconds(30);
constexpr Duration kGroupEndMost = seconds(10);
/// A group without a primary for so long has an operator who does something about it.
constexpr Duration kPatience = seconds(2);

}  // namespace

GroupsWorld::GroupsWorld(World& world, const Shape& shape, std::vector<Fault> plan, const Planted& planted)
    : world_(world),
      shape_(shape),
      planted_(planted),
      histories_(GroupLoad::keys_of(shape)),
      plan_(std::move(plan)),
      target_(world.add(*this)),
      stalls_before_(shape.replicas + 1),
      slow_until_(shape.replicas + 1) {
  shape_.node.looks_before_sleep = planted.looks_before_sleep;
  std::vector<DialHost*> hosts;
  for (std::uint32_t i = 0; i <= shape_.replicas; ++i) {
    nodes_.push_back(std::make_unique<GroupHost>(scene(), histories_, i + 1));
    hosts.push_back(nodes_.back().get());
  }
  DialWatcher& watcher = *this;
  dialer_ = std::make_unique<SimDialer>(scene(), std::move(hosts), watcher);
  load_ = std::make_unique<GroupLoad>(scene(), nodes_, history_);
}

GroupsWorld::~GroupsWorld() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    dialer_->dies(i);
    nodes_[i]->kill();
  }
  world_.remove(target_);
}

void GroupsWorld::start(std::size_t node) {
  nodes_[node]->start(dialer_->of(node));
  load_->started(*nodes_[node]);
}

void GroupsWorld::run() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) start(i);
  for (std::size_t i = 0; i < plan_.size(); ++i) world_.schedule(plan_[i].at, target_, fault_due, i);
  world_.schedule(world_.now() + kGroupLookEvery, target_, look);
  world_.run_until(shape_.faults_until);

  // Faults are over; links heal, dead nodes start. What is under way ends within its deadlines.
  load_->stop();
  dialer_->heal();
  for (const auto& host : nodes_) host->node().heal();
  const Instant last = world_.now() + kGroupSettleMost;
  do {
    world_.run_for(kGroupLookEvery);
    if (!settled()) continue;
    load_->last_put(*primary(), seconds(1));
    world_.run_for(kGroupLookEvery);
  } while (!(settled() && load_->succeeded()) && world_.now() < last && !world_.stopped());
  for (const auto& host : nodes_) {
    if (host->up()) host->count();
  }
  if (world_.stopped()) return;
  if (!shape_.group.beyond) {
    check_converged();
    check_linearizable();
  }
  check_nothing_left();
}

// ---- what the dialer sees -------------------------------------------------------------------------------

void GroupsWorld::judged(std::size_t by, const Hello& theirs, const tidelock::Verdict& verdict) {
  const auto* const refusal = std::get_if<Refusal>(&verdict);
  world_.trace().note([&] {
    return fmt::format("  node {} judges node {}, role {}: {}", by + 1, theirs.node,
                       static_cast<int>(theirs.role),
                       refusal != nullptr ? tidelock::describe(*refusal) : "welcome");
  });
}

/// What no healthy group ever hears.
void GroupsWorld::refused(std::size_t from, const Refusal& refusal) {
  if (shape_.group.beyond || refusal.reason != RefusalReason::diverged) return;
  world_.fail("refused", fmt::format("node {} is refused: {}", from + 1, tidelock::describe(refusal)));
}

// ---- faults ---------------------------------------------------------------------------------------------

/// That the node follows by, else the newest that it has dialed.
std::shared_ptr<Wire> GroupsWorld::wire_of(std::size_t node) {
  if (nodes_[node]->up()) {
    if (const Link* const link = std::as_const(nodes_[node]->member()).replica().link())
      return static_cast<const SimLink*>(link)->shared_wire();
  }
  return dialer_->wire(node);
}

void GroupsWorld::inject(const Fault& fault) {
  counts_.injected(fault.kind);
  world_.trace().mix(static_cast<std::uint64_t>(fault.kind) << 32 | fault.replica);
  GroupHost& host = *nodes_[fault.replica];
  switch (fault.kind) {
    case FaultKind::partition:
      return part(fault);
    case FaultKind::duplicate_connect:
      return dialer_->duplicate(fault.replica, (fault.detail & 2) != 0, fault.length);
    case FaultKind::pause:
      if (host.up()) host.node().pause(fault.length, (fault.detail & 2) != 0, &counts_);
      return;
    case FaultKind::kill:
      return kill(fault);
    case FaultKind::slow_core:
      return slow(fault);
    case FaultKind::clock_jump:
      if (!host.up()) return;
      clock_jumped_ = true;
      if (host.node().jump(fault.length)) counts_.hit(FaultKind::clock_jump);
      return;
    case FaultKind::promotion_race:
      return race(fault);
    case FaultKind::corrupt:
      if (fault.detail % 4 == 3) {
        return dialer_->corrupt(fault.replica, static_cast<std::uint32_t>(1 + fault.detail / 4 % 8));
      }
      [[fallthrough]];
    default:
      if (const auto wire = wire_of(fault.replica)) inject_on_wire(world_, fault, *wire);
  }
}

/// Some nodes are cut off from the others.
void GroupsWorld::part(const Fault& fault) {
  const Instant until = world_.now() + fault.length;
  Random random = world_.stream("fault", fault.number);
  const auto first = [&](std::size_t node) {
    return node == fault.replica || ((fault.detail >> node) & 1) != 0;
  };
  for (std::size_t a = 0; a < nodes_.size(); ++a) {
    for (std::size_t b = a + 1; b < nodes_.size(); ++b) {
      if (first(a) == first(b)) continue;
      dialer_->block(a, b, until);
      const bool learns = ((fault.detail >> (8 + a * nodes_.size() + b)) & 1) != 0;
      for (const auto& wire : dialer_->wires_between(a, b)) part_wire(*wire, random, until, learns);
    }
  }
}

/// As many memories may be lost at once as the group can bear, and can teach again.
std::uint32_t GroupsWorld::memories_to_lose() const {
  if (shape_.group.beyond || planted_.loses_too_much) return shape_.replicas + 1;
  return std::min(*shape_.c, std::max(shape_.replicas - *shape_.c, 1U));
}

void GroupsWorld::kill(const Fault& fault) {
  // Whoever leads as often as anybody.
  GroupHost* const leader = primary();
  const std::size_t index =
      leader != nullptr && (fault.detail & 1) != 0 ? leader->number() - 1 : fault.replica;
  if (!nodes_[index]->up()) return;
  std::uint32_t lost = 1;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (i != index && !nodes_[i]->remembers()) ++lost;
  }
  if (lost > memories_to_lose()) return;
  if (nodes_[index]->remembers()) counts_.hit(FaultKind::kill);
  slow_until_[index] = Instant{};
  dialer_->dies(index);
  nodes_[index]->kill();
  world_.schedule(world_.now() + fault.length, target_, restart, index);
}

void GroupsWorld::slow(const Fault& fault) {
  GroupHost& host = *nodes_[fault.replica];
  if (!host.up()) return;
  end_slowness(fault.replica);  // of the one before, which this one takes over from
  host.node().set_slowness(static_cast<std::int64_t>(4 + fault.detail / 4 % 397));
  stalls_before_[fault.replica] = host.node().core().reactor().stats().stalls.load(std::memory_order_relaxed);
  slow_until_[fault.replica] = world_.now() + fault.length;
  world_.schedule(slow_until_[fault.replica], target_, slow_ends, fault.replica, host.node().incarnation());
}

void GroupsWorld::end_slowness(std::size_t node) {
  if (slow_until_[node] == Instant{}) return;
  slow_until_[node] = Instant{};
  Node& slowed = nodes_[node]->node();
  slowed.set_slowness(1);
  if (slowed.core().reactor().stats().stalls.load(std::memory_order_relaxed) > stalls_before_[node])
    counts_.hit(FaultKind::slow_core);
}

void GroupsWorld::race(const Fault& fault) {
  load_->promote(*nodes_[fault.replica], seconds(1));
  const std::size_t second = (fault.replica + 1 + fault.detail % shape_.replicas) % nodes_.size();
  world_.schedule(world_.now() + fault.length, target_, second_stands, second);
}

/// A group that nobody leads is not left so.
void GroupsWorld::operate() {
  if (primary() != nullptr) leaderless_since_ = world_.now();
  if (shape_.group.stands || world_.now() - leaderless_since_ < kPatience || load_->promoting() > 0) return;
  Random random = world_.stream("operator", ++operations_);
  const auto first = static_cast<std::size_t>(random.below(nodes_.size()));
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    GroupHost& host = *nodes_[(first + i) % nodes_.size()];
    if (!host.remembers()) continue;
    load_->promote(host, seconds(3));
    return;
  }
}

void GroupsWorld::on_event(const Event& event) {
  switch (event.kind) {
    case fault_due:
      return inject(plan_[event.a]);
    case restart:
      if (!nodes_[event.a]->up()) start(event.a);
      return;
    case slow_ends: {
      GroupHost& host = *nodes_[event.a];
      // The next slowness, or the next life, is not ended by the end of the one before.
      if (!host.up() || host.node().incarnation() != event.b || world_.now() < slow_until_[event.a]) return;
      return end_slowness(event.a);
    }
    case second_stands: {
      const bool at_once = load_->promoting() > 0;
      if (load_->promote(*nodes_[event.a], seconds(1)) && at_once) counts_.hit(FaultKind::promotion_race);
      return;
    }
    case look:
      if (over_) return;  // nobody leads any more, and nobody is to
      operate();
      world_.schedule(world_.now() + kGroupLookEvery, target_, look);
      return;
    default:
      TL_ASSERT(false, "an event that no world has");
  }
}

std::string GroupsWorld::describe(const Event& event) const {
  switch (event.kind) {
    case fault_due:
      return fmt::format("fault {} node {} length {} ns", name_of(plan_[event.a].kind),
                         plan_[event.a].replica + 1, plan_[event.a].length.ns);
    case restart:
      return fmt::format("node {} starts again", event.a + 1);
    case slow_ends:
      return fmt::format("node {} is fast again", event.a + 1);
    case second_stands:
      return fmt::format("node {} is to stand, too", event.a + 1);
    default:
      return "a look at who leads";
  }
}

// ---- the end --------------------------------------------------------------------------------------------

GroupHost* GroupsWorld::primary() {
  GroupHost* found = nullptr;
  for (const auto& host : nodes_) {
    if (!host->leads()) continue;
    if (found == nullptr || found->member().primary().epoch() < host->member().primary().epoch())
      found = host.get();
  }
  return found;
}

bool GroupsWorld::waits_its_turn(GroupHost& leader, GroupHost& host) {
  return host.up() && host.member().role() != MemberRole::following &&
         leader.member().primary().snapshot_wait(host.number()) > Duration{};
}

/// One leads, the others follow it, and all have all of it.
bool GroupsWorld::settled() {
  GroupHost* const leader = primary();
  if (leader == nullptr) return false;
  const GroupLog& log = leader->member().log();
  std::size_t others = 0;
  for (const auto& host : nodes_) {
    if (!host->up()) return false;
    if (host.get() == leader || waits_its_turn(*leader, *host)) continue;
    ++others;
    if (!host->remembers() || host->member().role() != MemberRole::following ||
        host->member().log().last_lsn() != log.last_lsn())
      return false;
  }
  return others >= *shape_.c && leader->member().primary().nodes() == others &&
         log.commit_lsn() == log.last_lsn();
}

void GroupsWorld::check_converged() {
  const auto wrong = [&](const std::string& text) { world_.fail("converged", text); };
  GroupHost* const leader = primary();
  if (leader == nullptr) return wrong("nobody leads 30 s after the last fault");
  if (!load_->succeeded()) wrong("30 s after the last fault no put is committed");
  leader->look_at_log();
  scene().check("one_line", leader->name(), leader->life().tree->check_leads(leader->life().last));
  for (const auto& host : nodes_) {
    if (!host->up()) return wrong(host->name() + " did not come back");
    host->look_at_log();
    if (host.get() != leader && waits_its_turn(*leader, *host)) {
      ++excused_;
      continue;
    }
    if (!host->remembers()) wrong(host->name() + " has no memory");
    if (host->life().tree != leader->life().tree || host->life().last != leader->life().last)
      wrong(fmt::format("{} stands at LSN {}, the primary at {}", host->name(),
                        host->member().log().last_lsn().value, leader->member().log().last_lsn().value));
    host->check_table("at the end");
  }
}

void GroupsWorld::check_linearizable() {
  for (const auto& tree : histories_.all()) {
    for (std::uint32_t key = 0; key < shape_.keys; ++key) {
      const auto calls = history_.linear(tree->number(), key);
      const LinearVerdict verdict = check_linear(calls);
      if (verdict == LinearVerdict::undecided) ++undecided_;
      if (verdict != LinearVerdict::violated) continue;
      world_.fail("linearizable", fmt::format("no order of the {} calls on \"{}\" explains what they found",
                                              calls.size(), key_text(key)));
    }
  }
}

/// Everybody says goodbye; then nothing is left of fibers, links and what they kept.
void GroupsWorld::check_nothing_left() {
  over_ = true;
  dialer_->stop();
  for (const auto& host : nodes_) {
    if (host->up()) host->node().core().post([&host = *host] { host.farewell(); });
  }
  world_.run_for(kGroupEndMost);
  const auto left = [&](const std::string& text) { world_.fail("no_leak", text); };
  for (const auto& host : nodes_) {
    if (!host->up()) continue;
    if (!host->life().node->stopped()) left(host->name() + " has not stopped");
    if (!host->member().departed()) left(host->name() + " still waits for a link to let go of the log");
    if (!host->node().core().reactor().idle()) left(host->name() + " has fibers left");
  }
  if (dialer_->wires() > 0) left(fmt::format("{} links are left", dialer_->wires()));
}

}  // namespace tidelock::sim
