// Nodes of a group, joined by loopback links: roles, and what a change of them ends. Who dials whom is the
// test's.
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/member.h>

#include "loopback_link.h"
#include "reactor/null_io.h"
#include "shadow_applier.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr HistoryId kGroupHistory{0x6a0b};
constexpr std::uint64_t kGroupSeed = 77;

/// A table that is small enough for one range.
class ShadowSource final : public SnapshotSource {
 public:
  explicit ShadowSource(const ShadowApplier& table) : table_(table) {}
  std::uint64_t walk(std::uint64_t, std::size_t, Visit visit, void* context) const override {
    for (const auto& [key, record] : table_.map)
      visit(context, {as_bytes(key), as_bytes(record.value), {record.lsn}});
    return 0;
  }
  bool find(Bytes, Record&) const override { return false; }

 private:
  const ShadowApplier& table_;
};

struct MemberNode final : MemberWatcher {
  MemberNode(std::uint32_t number, const GroupOptions& group) {
    MemberOptions options;
    options.group = group;
    options.group.node = number;
    options.log_bytes = 64 * 1024;
    options.routing_seed = kGroupSeed;
    auto made = Member::create(*side.reactor, side.clock, {table, &table, &source}, options);
    REQUIRE(made);
    member = *std::move(made);
    member->watch(this);
  }
  void role_changed(MemberRole, const std::string& why) override { roles.push_back(why); }
  void promise_given(std::uint32_t to, Epoch epoch) override { given.emplace_back(to, epoch); }
  void promise_void(std::uint32_t to, Epoch epoch, const std::string&) override {
    given_in_vain.emplace_back(to, epoch);
  }
  void asked_to_lead() override { ++asked; }
  void fetched() override { ++fetches; }
  void fetch_failed(const std::string& why) override { roles.push_back(why); }
  void link_lost(std::uint32_t other, const std::string&) override { lost.push_back(other); }

  using Promised = std::vector<std::pair<std::uint32_t, Epoch>>;
  Rig side;
  ShadowApplier table;
  ShadowSource source{table};
  std::unique_ptr<Member> member;
  std::vector<std::string> roles;
  Promised given, given_in_vain;
  int asked = 0;
  int fetches = 0;
  std::vector<std::uint32_t> lost;
};

struct MemberRig {
  explicit MemberRig(std::uint32_t count, std::uint32_t c) {
    GroupOptions group;
    for (std::uint32_t i = 1; i <= count; ++i) group.nodes.push_back(i);
    group.c = c;
    group.group_bytes_max = 16 * 1024;
    for (std::uint32_t i = 1; i <= count; ++i) nodes.push_back(std::make_unique<MemberNode>(i, group));
    pass(group.lease);
  }
  ~MemberRig() {
    for (const auto& node : nodes) node->member->close("the test is over");
    turns(3);
    for (const auto& node : nodes) node->side.end();
    for (const auto& node : nodes) node->member.reset();
  }
  /// It comes back with nothing. A lease passes.
  void restart(std::uint32_t number) {
    MemberNode& old = node(number);
    const GroupOptions group = old.member->membership().options();
    old.member->close("it is started anew");
    turns(3);
    old.side.end();
    old.member.reset();
    nodes[number - 1] = std::make_unique<MemberNode>(number, group);
    pass(group.lease);
  }
  MemberNode& node(std::uint32_t number) { return *nodes[number - 1]; }
  Member& member(std::uint32_t number) { return *node(number).member; }
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      for (const auto& each : nodes) each->side.reactor->turn();
    }
  }
  void pass(Duration span) {
    for (const auto& each : nodes) each->side.clock.advance(span);
  }
  /// Whoever leads has heard nobody for long enough, and no lease of it runs any more. No link has noticed.
  void leases_end() { pass(seconds(6)); }
  void heartbeat() {
    pass(milliseconds(60));
    turns(3);
  }

  /// What the other end says; if that makes a link, its ends. The dialing one is for the caller.
  std::optional<Refusal> dial(std::uint32_t from, std::uint32_t to, const Hello& hello) {
    const Verdict verdict = member(to).judge(hello);
    if (const auto* refusal = std::get_if<Refusal>(&verdict)) return *refusal;
    answer = std::get<Hello>(verdict);
    wire = std::make_shared<LoopbackWire>(FrameContext{answer.history, answer.generation, ShardId{}},
                                          LoopbackOptions{});
    const bool candidate = hello.role == NodeRole::candidate;
    const auto end = [&](std::uint32_t whose, bool sends) {
      return std::make_unique<LoopbackLink>(wire, sends ? NodeRole::primary : NodeRole::replica,
                                            node(whose).side.clock);
    };
    near = end(from, candidate);
    attached = member(to).attach(end(to, !candidate), hello, answer);
    return std::nullopt;
  }
  Status follow(std::uint32_t from, std::uint32_t to) {
    const Said says = member(from).hello();
    if (const auto refusal = dial(from, to, says)) return Error(ReplicationErrc::refused, describe(*refusal));
    REQUIRE(attached);
    const Status followed = member(from).follow({std::move(near), answer}, says);
    turns(3);
    return followed;
  }
  /// Of a dial() with its own hello that the test has done.
  Status follow_on(std::uint32_t from) {
    return member(from).follow({std::move(near), answer}, member(from).hello());
  }
  Hello candidate(std::uint32_t number, bool founding) {
    const Lineage line = member(number).lineage();
    HelloFlags flags;
    flags.promise = true;
    flags.founding = founding;
    return member(number).candidate_hello(line.epoch, founding ? kGroupHistory : line.history, flags);
  }
  /// A promise of `giver`, confirmed by the echo of a stamp.
  void promise(std::uint32_t number, std::uint32_t giver, bool founding) {
    const Hello asks = candidate(number, founding);
    REQUIRE_FALSE(dial(number, giver, asks));
    REQUIRE(attached);
    CHECK(answer.flags.promise);
    CHECK(answer.flags.founding == founding);
    ControlFrame stamp;
    stamp.history = asks.history;
    stamp.epoch = asks.epoch;
    stamp.set_stamp(17);
    REQUIRE(near->send_control(stamp));
    turns(2);
    const auto echoed = near->receive_control();
    REQUIRE(echoed);
    CHECK(echoed->echo() == 17);
    near->close("it has it");
    turns(1);
  }
  Status lead(std::uint32_t number, std::uint32_t c) {
    return member(number).lead(member(number).lineage().epoch, c);
  }
  /// Node 1 begins the history, the others promise.
  void found(std::uint32_t c) {
    REQUIRE_FALSE(member(1).found(kGroupHistory, 0));
    for (std::uint32_t other = 2; other <= nodes.size(); ++other) promise(1, other, true);
    REQUIRE(lead(1, c));
  }
  Lsn put(std::uint32_t number, const std::string& key, const std::string& value) {
    const auto lsn = member(number).primary().try_append(EntryKind::put, as_bytes(key), as_bytes(value));
    REQUIRE(lsn);
    node(number).table.map[key] = {value, lsn->value};
    return *lsn;
  }
  Error put_fails(std::uint32_t number) {
    const auto lsn = member(number).primary().try_append(EntryKind::put, as_bytes("x"), as_bytes("y"));
    REQUIRE_FALSE(lsn);
    return lsn.error();
  }
  Lsn committed(std::uint32_t number) { return member(number).log().commit_lsn(); }

  std::vector<std::unique_ptr<MemberNode>> nodes;
  std::shared_ptr<LoopbackWire> wire;
  std::unique_ptr<Link> near;
  Hello answer;
  Status attached;
};

/// Two nodes, c = 1: node 1 leads, node 2 follows it.
struct TwoMembers : MemberRig {
  TwoMembers() : MemberRig(2, 1) {
    found(1);
    REQUIRE(follow(2, 1));
    heartbeat();
  }
};

/// Three, c = 1: node 1 leads, and node 2 alone follows it, by `wire`.
struct LeaseMembers : MemberRig {
  LeaseMembers() : MemberRig(3, 1) {
    found(1);
    REQUIRE(follow(3, 1));
    REQUIRE(follow(2, 1));
    heartbeat();
    heartbeat();
    member(3).step_down("it is not needed any more");
    heartbeat();
  }
  Hello stands() {
    Hello hello = candidate(2, false);
    hello.epoch = {9, 2};
    return hello;
  }
  void silent_for(Duration span) {
    wire->hold_controls = true;
    for (Duration at{}; at < span; at = at + milliseconds(100)) {
      pass(milliseconds(100));
      turns(1);
    }
  }
};

}  // namespace

TEST_CASE("replication/member: all promise a new history, and it commits by as many as any other") {
  MemberRig rig(3, 1);
  CHECK(rig.put_fails(1) == ReplicationErrc::not_primary);
  rig.found(1);
  CHECK(rig.member(1).role() == MemberRole::leading);
  CHECK(rig.member(1).log().last_lsn() == Lsn{1});
  CHECK(rig.put_fails(1) == ReplicationErrc::no_replica);
  REQUIRE(rig.follow(2, 1));
  rig.heartbeat();
  CHECK(rig.member(2).role() == MemberRole::following);
  CHECK(rig.member(2).membership().memory());
  CHECK(rig.member(2).lineage().routing_seed == kGroupSeed);
  const Lsn first = rig.put(1, "a", "1");
  rig.heartbeat();
  CHECK(rig.member(1).primary().reached(first, AckLevel::applied));
  CHECK(rig.committed(1) == first);
  REQUIRE(rig.follow(3, 1));
  rig.heartbeat();
  CHECK(rig.node(3).table.map["a"].value == "1");
  rig.heartbeat();
  CHECK(rig.committed(2) == first);
  CHECK(rig.committed(3) == first);
}

TEST_CASE("replication/member: acknowledgements count from when they say that the node is whole") {
  TwoMembers rig;
  CHECK(rig.member(1).primary().nodes() == 1);
  rig.member(2).step_down("the test cuts it");
  rig.turns(3);
  const auto refusal = rig.dial(2, 1, rig.member(2).hello());
  REQUIRE_FALSE(refusal);
  rig.wire->tamper_ack = [](ControlFrame& frame) { frame.whole = false; };
  REQUIRE(rig.follow_on(2));
  rig.heartbeat();
  CHECK(rig.member(2).role() == MemberRole::following);
  CHECK(rig.member(1).primary().nodes() == 0);
  CHECK(rig.put_fails(1) == ReplicationErrc::no_replica);
  rig.wire->tamper_ack = {};
  rig.heartbeat();
  CHECK(rig.member(1).primary().nodes() == 1);
  CHECK(rig.put(1, "a", "1") == Lsn{2});
}

TEST_CASE("replication/member: what an earlier epoch left commits with the new one's no-op, not before") {
  TwoMembers rig;
  rig.wire->tamper_ack = [](ControlFrame& frame) { frame.received_lsn = frame.applied_lsn = {1}; };
  const Lsn left = rig.put(1, "a", "1");
  rig.heartbeat();
  CHECK(rig.committed(1) == Lsn{1});
  // Node 2 has it, and leads next.
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(1, false));
  rig.promise(2, 1, false);
  CHECK(rig.member(1).role() == MemberRole::none);
  REQUIRE(rig.lead(2, 1));
  CHECK(rig.member(2).log().last_lsn() == left.next());
  const auto refusal = rig.dial(1, 2, rig.member(1).hello());
  REQUIRE_FALSE(refusal);
  REQUIRE(rig.attached);
  rig.wire->tamper_ack = [left](ControlFrame& frame) {
    frame.received_lsn = frame.applied_lsn = std::min(frame.applied_lsn, left);
  };
  REQUIRE(rig.follow_on(1));
  rig.heartbeat();
  CHECK(rig.member(2).primary().stats().applied_lsn == left.value);
  CHECK_FALSE(rig.member(2).primary().reached(left, AckLevel::applied));
  std::optional<Status> written;
  REQUIRE(rig.node(2).side.reactor->spawn_detached(
      "written", [&] { written = rig.member(2).primary().wait(left, AckLevel::applied, Instant::never()); }));
  rig.heartbeat();
  rig.heartbeat();
  CHECK_FALSE(written);
  CHECK(rig.committed(2) == Lsn{1});
  rig.wire->tamper_ack = {};
  rig.heartbeat();
  CHECK(rig.committed(2) == left.next());
  REQUIRE(written);
  CHECK(*written);
  rig.heartbeat();
  CHECK(rig.committed(1) == left.next());
  CHECK(rig.member(1).log().line().last_epoch() == rig.member(2).primary().epoch());
}

TEST_CASE(
    "replication/member: deposed, each that waits hears its own error, and nothing is written any more") {
  TwoMembers rig;
  rig.wire->hold_controls = true;  // of node 2: nothing is acknowledged any more
  Primary& primary = rig.member(1).primary();
  Reactor& core = *rig.node(1).side.reactor;
  std::optional<Status> written, room, large, reader;
  const Lsn lsn = rig.put(1, "a", "1");
  REQUIRE(core.spawn_detached("written",
                              [&] { written = primary.wait(lsn, AckLevel::applied, Instant::never()); }));
  const Epoch epoch = primary.epoch();
  REQUIRE(core.spawn_detached(
      "reader", [&] { reader = rig.member(1).log().wait_committed(epoch, lsn, Instant::never()); }));
  const std::string value(500'000, 'v');
  REQUIRE(core.spawn_detached("large", [&] {
    const auto put = primary.append_fragments(as_bytes("l"), as_bytes(value), Instant::never());
    large = put ? Status() : Status(put.error());
  }));
  core.turn();
  CHECK(primary.fragmenting());
  REQUIRE(core.spawn_detached("room", [&] { room = primary.wait_for_room(1000, Instant::never()); }));
  core.turn();
  CHECK_FALSE((written || room || large || reader));

  rig.member(1).step_down("the test deposes it");
  CHECK(rig.put_fails(1) == ReplicationErrc::not_primary);
  CHECK(rig.committed(1) == Lsn{1});
  rig.turns(3);
  REQUIRE((written && room && large));
  CHECK(written->error() == ReplicationErrc::outcome_unknown);
  CHECK(room->error() == ReplicationErrc::not_primary);
  CHECK(large->error() == ReplicationErrc::not_primary);
  CHECK_FALSE(reader);  // it may yet be committed by another
  CHECK(primary.departed());
  CHECK(rig.node(1).roles.back() == "the test deposes it");
  std::optional<Status> late;
  REQUIRE(core.spawn_detached("late",
                              [&] { late = primary.wait(lsn.next(), AckLevel::applied, Instant::never()); }));
  core.turn();
  REQUIRE(late);
  CHECK(late->error() == ReplicationErrc::outcome_unknown);

  // It leads again: what was half in is cut, nobody is left over.
  CHECK(rig.member(1).log().last_lsn() == lsn);
  rig.leases_end();
  REQUIRE_FALSE(rig.member(1).stand(1, false));
  rig.promise(1, 2, false);
  REQUIRE(rig.lead(1, 1));
  const Log& log = rig.member(1).log().log();
  for (EntryReader reader_of(log.run_at(log.begin(), 64 * 1024).bytes); !reader_of.at_end();) {
    const auto entry = reader_of.next();
    REQUIRE(entry);
    CHECK(entry->kind != EntryKind::fragment);
  }
  CHECK(rig.member(1).log().last_lsn() == lsn.next());
  REQUIRE(rig.follow(2, 1));
  rig.heartbeat();
  CHECK(rig.committed(1) == lsn.next());
  REQUIRE(reader);
  CHECK(*reader);
  CHECK(rig.node(2).table.map.count("l") == 0);
}

TEST_CASE("replication/member: whoever does not lead says so, and lower epochs are refused") {
  TwoMembers rig;
  const Hello old = rig.member(2).hello();
  const auto by_follower = rig.dial(1, 2, rig.member(1).hello());
  REQUIRE(by_follower);
  CHECK(by_follower->reason == RefusalReason::not_primary);
  CHECK(epoch_of_value(by_follower->ours) == rig.member(1).lineage().epoch);
  // A second link of a node that has one, then one that has promised more than its primary leads.
  CHECK(rig.dial(2, 1, old)->reason == RefusalReason::busy);
  Hello higher = old;
  higher.epoch = {9, 2};
  const auto deposed = rig.dial(2, 1, higher);
  REQUIRE(deposed);
  CHECK(deposed->reason == RefusalReason::not_primary);
  CHECK(rig.member(1).role() == MemberRole::none);
  CHECK(rig.node(1).roles.back().find("has promised epoch 9.2") != std::string::npos);
  rig.turns(3);
  CHECK(rig.member(2).role() == MemberRole::none);
  // What stands for less than it has promised gets nothing.
  Hello lower = rig.candidate(2, false);
  lower.epoch = {1, 2};
  Hello promised_higher = rig.candidate(2, false);
  promised_higher.epoch = {5, 2};
  REQUIRE_FALSE(rig.dial(2, 1, promised_higher));
  rig.near.reset();
  const auto refused = rig.dial(2, 1, lower);
  REQUIRE(refused);
  CHECK(refused->reason == RefusalReason::promised);
  // And a hello of another group, or with this node's own number, none either.
  Hello other = rig.candidate(2, false);
  ++other.group_sum;
  CHECK(rig.dial(2, 1, other)->reason == RefusalReason::group);
  Hello own = rig.candidate(1, false);
  CHECK(rig.dial(2, 1, own)->reason == RefusalReason::node);
}

TEST_CASE("replication/member: entries that only a deposed primary has are replaced by a snapshot") {
  TwoMembers rig;
  rig.put(1, "a", "1");
  rig.heartbeat();
  const Lsn cut = rig.put(1, "cut", "2");  // has not left when the other is promised its epoch
  const Epoch cut_epoch = rig.member(1).primary().epoch();
  Status reader;
  bool answered = false;
  rig.member(2).step_down("it will stand");
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(1, false));
  rig.promise(2, 1, false);
  REQUIRE(rig.node(1).side.reactor->spawn_detached("reader", [&] {
    reader = rig.member(1).log().wait_committed(cut_epoch, cut, Instant::never());
    answered = true;
  }));
  rig.node(1).side.reactor->turn();
  CHECK_FALSE(answered);
  REQUIRE(rig.lead(2, 1));
  CHECK(rig.member(2).log().last_lsn() == cut);  // another entry with that LSN: its no-op
  CHECK(rig.member(1).hello().hello().last_lsn == cut);
  REQUIRE(rig.follow(1, 2));
  CHECK(rig.answer.flags.snapshot);
  for (int i = 0; i < 5; ++i) rig.heartbeat();
  CHECK(rig.node(1).table.map == rig.node(2).table.map);
  CHECK(rig.node(1).table.map.count("cut") == 0);
  CHECK(rig.member(1).log().line().last_epoch() == rig.member(2).primary().epoch());
  CHECK(answered);
  CHECK(reader.error() == ReplicationErrc::history_lost);
  CHECK(rig.committed(2) == cut);
  const Lsn next = rig.put(2, "b", "3");
  rig.heartbeat();
  CHECK(rig.committed(2) == next);
  CHECK(rig.node(1).table.map == rig.node(2).table.map);
}

TEST_CASE(
    "replication/member: a log that is no prefix needs a snapshot, one without the committed is refused") {
  TwoMembers rig;
  rig.put(1, "a", "1");
  rig.heartbeat();
  Hello theirs = rig.member(2).hello();
  rig.member(2).step_down("the test cuts it");
  rig.turns(3);
  CHECK(theirs.last_lsn == Lsn{2});
  CHECK_FALSE(rig.dial(2, 1, theirs));
  CHECK_FALSE(rig.answer.flags.snapshot);
  rig.near.reset();
  rig.turns(3);
  Hello forked = theirs;
  forked.last_lsn = {3};  // beyond what its epoch's primary has
  forked.flags.snapshot = false;
  forked.flags.snapshot = false;
  CHECK(rig.dial(2, 1, forked)->reason == RefusalReason::behind_log);
  Hello diverged = theirs;
  diverged.last_lsn = diverged.commit_lsn = {4};
  diverged.commit_epoch = diverged.last_epoch;
  CHECK(rig.dial(2, 1, diverged)->reason == RefusalReason::diverged);
}

TEST_CASE("replication/member: a history of which nobody heard is learned by who promised it, from anybody") {
  MemberRig rig(2, 1);
  rig.found(1);
  const Epoch epoch = rig.member(1).membership().promised();
  rig.member(1).step_down("it is cut off");
  CHECK(rig.member(1).lineage().history == kGroupHistory);
  // Node 2 heard nothing, and would begin another.
  const HistoryId second{0x5ec0};
  REQUIRE_FALSE(rig.member(2).found(second, 5));
  Hello asks = rig.candidate(2, true);
  asks.history = second;
  const auto refusal = rig.dial(2, 1, asks);
  REQUIRE(refusal);
  CHECK(refusal->reason == RefusalReason::history);
  CHECK(refusal->ours == kGroupHistory.value);
  // Expect: that refusal is all that it needs.
  CHECK(rig.member(2).answered(1, kGroupHistory, epoch, 1, rig.member(2).hello()));
  CHECK(rig.member(2).membership().memory());
  CHECK(rig.member(2).membership().founding() == HistoryId{});
  REQUIRE_FALSE(rig.member(2).stand(1, false));
  rig.promise(2, 1, false);
  REQUIRE(rig.lead(2, 1));
  REQUIRE(rig.follow(1, 2));
  rig.heartbeat();
  CHECK(rig.committed(2) == rig.member(2).log().last_lsn());
}

TEST_CASE("replication/member: who has memory by now echoes no founder") {
  MemberRig rig(3, 1);
  rig.found(1);
  // Node 2 has not heard of that, and promises another.
  REQUIRE_FALSE(rig.member(3).found(HistoryId{0x5ec0}, 5));
  Hello asks = rig.candidate(3, true);
  asks.history = HistoryId{0x5ec0};
  REQUIRE_FALSE(rig.dial(3, 2, asks));
  REQUIRE(rig.attached);
  CHECK(rig.member(2).answered(1, kGroupHistory, {1, 1}, 1, rig.member(2).hello()));
  CHECK(rig.member(2).membership().memory());
  ControlFrame stamp;
  stamp.history = asks.history;
  stamp.epoch = asks.epoch;
  stamp.set_stamp(3);
  REQUIRE(rig.near->send_control(stamp));
  rig.turns(3);
  while (const auto frame = rig.near->receive_control()) CHECK(frame->echo() == 0);
  rig.turns(1);
  CHECK(rig.near->state() == LinkState::closed);
}

TEST_CASE("replication/member: it leads the epoch that it stood for, once, and no other") {
  TwoMembers rig;
  rig.member(2).step_down("it will stand");
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(0, false));
  const Epoch own = rig.member(2).lineage().epoch;
  CHECK(rig.member(2).lead({own.counter + 1, 2}, 1).error() == ReplicationErrc::old_epoch);
  CHECK(rig.member(2).lead(own, 2).error().code() == std::errc::invalid_argument);
  // Somebody else's promise, given in between.
  Hello other = rig.candidate(1, false);
  other.epoch = {own.counter + 1, 1};
  REQUIRE_FALSE(rig.dial(1, 2, other));
  CHECK(rig.member(2).lead(own, 1).error() == ReplicationErrc::old_epoch);
  CHECK(rig.member(2).role() == MemberRole::none);
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(0, false));
  const Epoch next = rig.member(2).lineage().epoch;
  REQUIRE(rig.member(2).lead(next, 1));
  CHECK(rig.member(2).lead(next, 1).error() == ReplicationErrc::old_epoch);
  rig.member(2).step_down("that was all");
  CHECK(rig.member(2).lead(next, 1).error() == ReplicationErrc::old_epoch);
  rig.restart(2);
  REQUIRE_FALSE(rig.member(2).found({0x5ec0}, 0));
  CHECK_FALSE(rig.member(2).answered(1, {}, {}, 1, rig.member(2).hello()));
  CHECK(rig.member(2).answered(1, kGroupHistory, {}, 1, rig.member(2).hello()));
  CHECK(rig.lead(2, 1).error() == ReplicationErrc::not_primary);
}

TEST_CASE("replication/member: a hello that is no longer so is not followed up") {
  TwoMembers rig;
  rig.member(2).step_down("the test cuts it");
  rig.turns(3);
  const Said said = rig.member(2).hello();
  REQUIRE_FALSE(rig.dial(2, 1, said));
  const auto link = std::exchange(rig.near, nullptr);
  const Hello answer = rig.answer;
  // Another primary brings it an entry that the one of that answer does not have at that LSN.
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(0, false));
  REQUIRE(rig.lead(2, 1));
  rig.member(2).step_down("a moment only");
  Hello again = answer;
  again.epoch = {rig.member(2).lineage().epoch.counter + 1, 1};  // it would be followed for that
  auto wire = std::make_shared<LoopbackWire>(FrameContext{kGroupHistory, answer.generation, ShardId{}},
                                             LoopbackOptions{});
  const auto far = std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.node(1).side.clock);
  auto mine = std::make_unique<LoopbackLink>(wire, NodeRole::replica, rig.node(2).side.clock);
  CHECK(rig.member(2).follow({std::move(mine), again}, said).error() == ReplicationErrc::wrong_context);
  CHECK(far->state() == LinkState::closed);
  CHECK(rig.member(2).role() == MemberRole::none);
}

TEST_CASE("replication/member: who answered in between, and told what it knew, follows up no older hello") {
  MemberRig rig(3, 2);
  rig.found(2);
  REQUIRE(rig.follow(2, 1));
  rig.member(2).step_down("the test cuts it");
  rig.turns(3);
  const Said said = rig.member(2).hello();
  REQUIRE_FALSE(rig.dial(2, 1, said));
  const auto link = std::exchange(rig.near, nullptr);
  const Hello answer = rig.answer;
  // Expect: node 3, which has lost its memory, will never hear that node 2 followed this.
  rig.restart(3);
  const auto refusal = rig.dial(3, 2, rig.member(3).hello());
  REQUIRE(refusal);
  CHECK(refusal->reason == RefusalReason::not_primary);
  auto wire = std::make_shared<LoopbackWire>(FrameContext{kGroupHistory, answer.generation, ShardId{}},
                                             LoopbackOptions{});
  const auto far = std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.node(1).side.clock);
  auto mine = std::make_unique<LoopbackLink>(wire, NodeRole::replica, rig.node(2).side.clock);
  CHECK(rig.member(2).follow({std::move(mine), answer}, said).error() == ReplicationErrc::wrong_context);
  CHECK(rig.member(2).role() == MemberRole::none);
}

TEST_CASE("replication/member: what is left of a history that came to nothing is in no other") {
  MemberRig rig(3, 1);
  rig.found(1);
  REQUIRE(rig.follow(2, 1));
  REQUIRE(rig.follow(3, 1));
  rig.heartbeat();
  rig.put(1, "a", "1");
  rig.put(1, "b", "2");
  rig.heartbeat();
  rig.heartbeat();
  // Node 3 is started anew, and what it follows then breaks off before it has learnt what it had.
  rig.restart(3);
  const auto learn = [&](HistoryId history) {
    for (const std::uint32_t other : {1U, 2U})
      rig.member(3).answered(other, history, rig.member(1).lineage().epoch, 1, rig.member(3).hello());
  };
  const auto follow_in_part = [&] {
    learn(kGroupHistory);
    const Said says = rig.member(3).hello();
    REQUIRE_FALSE(rig.dial(3, 1, says));
    rig.wire->tamper = [](std::vector<std::byte>& batch) { batch.back() ^= std::byte{1}; };
    REQUIRE(rig.member(3).follow({std::move(rig.near), rig.answer}, says));
    rig.turns(3);
    CHECK(rig.member(3).role() == MemberRole::none);
    CHECK_FALSE(rig.member(3).membership().memory());
    CHECK(rig.member(3).log().last_lsn() > Lsn{0});
  };
  follow_in_part();
  learn({});  // the others have lost it, too

  SUBCASE("it founds the next one") {
    rig.member(3).log().spoil();
    REQUIRE_FALSE(rig.member(3).found({0x5ec0}, 0));
    REQUIRE(rig.lead(3, 1));
    CHECK_FALSE(rig.member(3).log().spoiled());
    CHECK(rig.member(3).log().commit_lsn() == Lsn{0});
  }
  SUBCASE("it follows whoever does") {
    rig.restart(1);
    REQUIRE_FALSE(rig.member(1).found({0x5ec0}, 9));
    Hello asks = rig.candidate(1, true);
    asks.history = {0x5ec0};
    REQUIRE_FALSE(rig.dial(1, 3, asks));
    ControlFrame stamp;
    stamp.history = asks.history;
    stamp.epoch = asks.epoch;
    stamp.set_stamp(3);
    REQUIRE(rig.near->send_control(stamp));
    rig.turns(2);
    REQUIRE(rig.lead(1, 1));
    const Said says = rig.member(3).hello();
    CHECK(says.hello().history == HistoryId{});
    REQUIRE_FALSE(rig.dial(3, 1, says));
    REQUIRE(rig.member(3).follow({std::move(rig.near), rig.answer}, says));
    rig.heartbeat();
    CHECK(rig.member(3).role() == MemberRole::following);
    CHECK(rig.member(3).membership().memory());
  }
  CHECK(rig.member(3).lineage().history == HistoryId{0x5ec0});
  CHECK(rig.member(3).lineage().routing_seed == kGroupSeed);
  CHECK(rig.member(3).log().last_lsn() == Lsn{1});
  CHECK(rig.member(3).log().line().starts().size() == 1);
  CHECK(rig.node(3).table.map.empty());
}

TEST_CASE("replication/member: an answer that promises more ends what is followed, with link and role") {
  MemberRig rig(3, 1);
  rig.found(1);
  REQUIRE(rig.follow(2, 1));
  REQUIRE(rig.follow(3, 1));
  rig.heartbeat();
  rig.restart(3);
  for (const std::uint32_t other : {1U, 2U})
    rig.member(3).answered(other, kGroupHistory, rig.member(1).lineage().epoch, 1, rig.member(3).hello());
  const Said says = rig.member(3).hello();
  REQUIRE_FALSE(rig.dial(3, 1, says));
  REQUIRE(rig.member(3).follow({std::move(rig.near), rig.answer}, says));
  CHECK(rig.member(3).role() == MemberRole::following);
  CHECK(rig.member(3).answered(2, kGroupHistory, {7, 2}, 1, rig.member(3).hello()));
  CHECK(rig.member(3).role() == MemberRole::none);
  CHECK_FALSE(rig.member(3).replica().connected());
}

TEST_CASE("replication/member: an epoch that cannot be deposes nobody, one that can is outbid") {
  TwoMembers rig;
  Hello says = rig.member(2).hello();
  says.epoch = {1U << 30, 2};
  const auto refused = rig.dial(2, 1, says);
  REQUIRE(refused);
  CHECK(refused->reason == RefusalReason::malformed);
  CHECK(rig.member(1).role() == MemberRole::leading);
  says.epoch = {9, 2};
  REQUIRE(rig.dial(2, 1, says));
  CHECK(rig.member(1).role() == MemberRole::none);
  REQUIRE_FALSE(rig.member(1).stand(0, false));
  CHECK(rig.member(1).lineage().epoch == Epoch{10, 1});
}

TEST_CASE("replication/member: its watcher hears of promises, of those in vain, and of who is gone") {
  TwoMembers rig;
  rig.member(2).step_down("it will stand");
  rig.turns(3);
  CHECK(rig.node(1).lost == std::vector<std::uint32_t>{2});
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(0, false));
  const Epoch epoch = rig.member(2).lineage().epoch;
  REQUIRE_FALSE(rig.dial(2, 1, rig.candidate(2, false)));
  CHECK(rig.node(1).given == MemberNode::Promised{{2, epoch}});
  rig.turns(3);
  CHECK(rig.node(1).given_in_vain.empty());
  rig.near->close("the candidate has ended");
  rig.turns(3);
  CHECK(rig.node(1).given_in_vain == MemberNode::Promised{{2, epoch}});
}

TEST_CASE("replication/member: a primary that says `lead` is heard, by a link that stays") {
  TwoMembers rig;
  rig.member(2).step_down("the test cuts it");
  rig.turns(3);
  const Said says = rig.member(2).hello();
  const Verdict verdict = rig.member(1).judge(says);
  const Hello answer = std::get<Hello>(verdict);
  const auto wire = std::make_shared<LoopbackWire>(FrameContext{kGroupHistory, answer.generation, ShardId{}},
                                                   LoopbackOptions{});
  LoopbackLink primary(wire, NodeRole::primary, rig.node(1).side.clock);
  REQUIRE(rig.member(2).follow(
      {std::make_unique<LoopbackLink>(wire, NodeRole::replica, rig.node(2).side.clock), answer}, says));
  ControlFrame frame;
  frame.history = answer.history;
  frame.epoch = answer.epoch;
  frame.lead = true;
  REQUIRE(primary.send_control(frame));
  rig.turns(2);
  CHECK(rig.node(2).asked == 1);
  CHECK(rig.member(2).role() == MemberRole::following);
}

TEST_CASE("replication/member: a spoiled table with an empty log needs no snapshot") {
  MemberRig rig(2, 1);
  rig.found(1);
  rig.node(2).table.map["half"] = {"x", 1};
  rig.member(2).log().spoil();
  REQUIRE(rig.follow(2, 1));
  rig.heartbeat();
  CHECK(rig.member(2).role() == MemberRole::following);
  CHECK_FALSE(rig.member(2).log().spoiled());
  CHECK(rig.node(2).table.map.empty());
  CHECK(rig.committed(1) == Lsn{1});
}

TEST_CASE(
    "replication/member: a primary that is heard holds leases, and those who granted them stand by it") {
  LeaseMembers rig;
  rig.heartbeat();
  rig.heartbeat();
  Primary& primary = rig.member(1).primary();
  CHECK(primary.lease_held());
  const auto by_itself = rig.member(2).stand(0, false);
  REQUIRE(by_itself);
  CHECK(by_itself->reason == RefusalReason::lease);
  const auto by_primary = rig.dial(2, 1, rig.stands());
  REQUIRE(by_primary);
  CHECK(by_primary->reason == RefusalReason::lease);
  CHECK(rig.member(1).role() == MemberRole::leading);

  // Batches in every turn do not keep control frames from renewing them.
  for (int i = 0; i < 200; ++i) {
    rig.put(1, "a", std::to_string(i));
    rig.pass(milliseconds(20));
    rig.turns(1);
  }
  CHECK(primary.lease_held());
  // Nothing is heard any more: no lease, and once the last one ends it asks for none and is in nobody's way.
  rig.silent_for(milliseconds(2500));
  CHECK_FALSE(primary.lease_held());
  CHECK(rig.member(1).role() == MemberRole::leading);
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(0, false));
  CHECK_FALSE(rig.dial(2, 1, rig.stands()));
}

TEST_CASE("replication/member: only whole nodes count for a lease, and no echo that was not stamped") {
  LeaseMembers rig;
  rig.heartbeat();
  rig.heartbeat();
  Primary& primary = rig.member(1).primary();
  CHECK(primary.lease_held());
  SUBCASE("not whole") {
    rig.wire->tamper_ack = [](ControlFrame& frame) { frame.whole = false; };
    for (int i = 0; i < 50; ++i) rig.heartbeat();
    CHECK(primary.nodes() == 1);  // it has been
    CHECK_FALSE(primary.lease_held());
  }
  SUBCASE("not stamped") {
    bool whole = true;
    SUBCASE("whole") {}
    SUBCASE("not whole") { whole = false; }
    rig.wire->tamper_ack = [whole](ControlFrame& frame) {
      frame.set_echo(~0ULL >> 1);
      frame.whole = whole;
    };
    rig.heartbeat();
    CHECK(rig.wire->closed_by_primary == "the replica echoes a stamp that it was not sent");
  }
}

TEST_CASE(
    "replication/member: who waits for a lease waits for stamps of afterwards, or for the end of the term") {
  LeaseMembers rig;
  rig.heartbeat();
  rig.silent_for(milliseconds(2500));
  Primary& primary = rig.member(1).primary();
  Reactor& core = *rig.node(1).side.reactor;
  REQUIRE_FALSE(primary.lease_held());
  std::optional<Status> lease, late;
  const Instant soon = rig.node(1).side.clock.now() + milliseconds(300);
  REQUIRE(core.spawn_detached("late", [&] { late = primary.wait_lease(soon); }));
  REQUIRE(core.spawn_detached("lease", [&] { lease = primary.wait_lease(Instant::never()); }));
  rig.turns(2);
  CHECK_FALSE(lease);
  // An echo of what was stamped before.
  rig.wire->hold_controls = false;
  rig.wire->tamper_ack = [](ControlFrame& frame) { frame.set_echo(1); };
  for (int i = 0; i < 8; ++i) rig.heartbeat();
  CHECK_FALSE(lease);
  REQUIRE(late);
  CHECK(late->error() == ReactorErrc::deadline_exceeded);
  rig.wire->tamper_ack = {};
  SUBCASE("it comes") {
    rig.heartbeat();
    rig.heartbeat();
    REQUIRE(lease);
    CHECK(*lease);
    CHECK(primary.lease_held());
    std::optional<Status> at_once;
    REQUIRE(core.spawn_detached("at once", [&] { at_once = primary.wait_lease(Instant::never()); }));
    core.turn();
    REQUIRE(at_once);
    CHECK(*at_once);
  }
  SUBCASE("the term ends") {
    rig.member(1).step_down("the test deposes it");
    rig.turns(2);
    REQUIRE(lease);
    CHECK(lease->error() == ReplicationErrc::not_primary);
    CHECK_FALSE(primary.lease_held());
    CHECK_FALSE(primary.stamped_lately());
  }
}

TEST_CASE("replication/member: a node that does not count yet is heard all the same") {
  TwoMembers rig;
  rig.wire->tamper_ack = [](ControlFrame& frame) { frame.whole = false; };
  const auto wire = rig.wire;
  rig.heartbeat();
  Hello again = rig.member(2).hello();
  CHECK(rig.dial(2, 1, again)->ours > 0);
  for (int i = 0; i < 8; ++i) rig.heartbeat();
  // Expect: it has spoken since its number was asked for, so that is taken.
  const auto refused = rig.dial(2, 1, again);
  REQUIRE(refused);
  CHECK(refused->reason == RefusalReason::busy);
  CHECK(refused->ours == 0);
  CHECK_FALSE(wire->primary_closed);
}

TEST_CASE("replication/member: a parked core sends a promise's heartbeats, and notices a dead candidate") {
  TwoMembers rig;
  rig.leases_end();
  REQUIRE_FALSE(rig.member(2).stand(0, false));
  const Epoch epoch = rig.member(2).lineage().epoch;
  const Hello asks = rig.candidate(2, false);
  Rig& side = rig.node(1).side;
  side.run();
  SUBCASE("by its link") {
    REQUIRE_FALSE(rig.dial(2, 1, asks));
    REQUIRE(rig.attached);
    side.run();
    // Expect: turned at its timers only, it says something as often as a heartbeat.
    for (int i = 0; i < 20; ++i) {
      while (rig.near->receive_control()) continue;
      side.run_for(milliseconds(100));
      CHECK(rig.near->receive_control());
    }
    CHECK(rig.node(1).given_in_vain.empty());
    side.run_for(seconds(2));
    CHECK(rig.near->close_reason() == "closed by the peer");
  }
  SUBCASE("which never came") {
    REQUIRE(std::holds_alternative<Hello>(rig.member(1).judge(asks)));
    side.run_for(seconds(2));
    CHECK(rig.node(1).given_in_vain.empty());
    side.run_for(seconds(2));
  }
  CHECK(rig.node(1).given_in_vain == MemberNode::Promised{{2, epoch}});
}

TEST_CASE("replication/member: readers hear at once that a member is closed") {
  TwoMembers rig;
  std::optional<Status> reader;
  const Epoch epoch = rig.member(1).primary().epoch();
  REQUIRE(rig.node(1).side.reactor->spawn_detached(
      "reader", [&] { reader = rig.member(1).log().wait_committed(epoch, {100}, Instant::never()); }));
  rig.turns(2);
  CHECK_FALSE(reader);
  rig.member(1).close("the node ends");
  rig.turns(2);
  REQUIRE(reader);
  CHECK(reader->error() == ReactorErrc::closed);
}

TEST_CASE("replication/member: a group that some log would not take is refused") {
  Rig side;
  ShadowApplier table;
  MemberOptions options;
  options.group.node = 1;
  options.group.nodes = {1};
  options.group.group_bytes_max = 32 * 1024;
  options.log_bytes = 64 * 1024;
  const auto made = Member::create(*side.reactor, side.clock, {table}, options);
  REQUIRE_FALSE(made);
  CHECK(made.error().code() == std::errc::invalid_argument);
}

TEST_CASE("replication/member: to ask for an answer costs no snapshot") {
  MemberRig rig(3, 1);
  rig.found(1);
  REQUIRE(rig.follow(2, 1));
  rig.heartbeat();
  Hello asks = rig.member(3).hello();  // of a log that is no prefix
  asks.history = kGroupHistory;
  asks.last_lsn = {1};
  asks.last_epoch = asks.commit_epoch = {};
  asks.commit_lsn = {};
  for (int i = 0; i < 3; ++i) {
    REQUIRE_FALSE(rig.dial(3, 1, asks));
    CHECK(rig.answer.flags.snapshot);
    REQUIRE(rig.attached);
    rig.near->close("it has its answer");
    rig.turns(3);
  }
  // Expect: whoever takes one up is to wait before the next.
  REQUIRE_FALSE(rig.dial(3, 1, asks));
  ControlFrame frame;
  frame.history = kGroupHistory;
  frame.epoch = rig.answer.epoch;
  REQUIRE(rig.near->send_control(frame));
  rig.turns(3);
  rig.near->close("it breaks");
  rig.turns(3);
  const auto refused = rig.dial(3, 1, asks);
  REQUIRE(refused);
  CHECK(refused->reason == RefusalReason::busy);
  CHECK(refused->ours > 1000);
}

TEST_CASE(
    "replication/member: a primary hands over what is applied and committed, and its leases end with that") {
  LeaseMembers rig;
  Reactor& core = *rig.node(1).side.reactor;
  Primary& primary = rig.member(1).primary();
  REQUIRE(primary.lease_held());
  rig.wire->hold_controls = true;
  const Lsn last = rig.put(1, "a", "1");
  std::optional<Status> written, handed;
  REQUIRE(core.spawn_detached("written",
                              [&] { written = primary.wait(last, AckLevel::applied, Instant::never()); }));
  REQUIRE(core.spawn_detached("hands over", [&] { handed = rig.member(1).hand_over(2, Instant::never()); }));
  rig.turns(3);
  CHECK_FALSE((handed || written));
  CHECK(rig.put_fails(1) == ReplicationErrc::log_full);  // held back
  CHECK(primary.lease_held());
  std::optional<Status> room, again;
  REQUIRE(core.spawn_detached("room", [&] { room = primary.wait_for_room(100, Instant::never()); }));
  REQUIRE(core.spawn_detached("again", [&] { again = rig.member(1).hand_over(2, Instant::never()); }));
  rig.turns(2);
  CHECK_FALSE(room);
  REQUIRE(again);
  CHECK(again->error() == ReplicationErrc::peer_busy);

  rig.wire->hold_controls = false;
  rig.heartbeat();
  REQUIRE((handed && written && room));
  CHECK(*handed);
  CHECK(*written);
  CHECK(room->error() == ReplicationErrc::not_primary);
  CHECK(rig.committed(1) == last);
  CHECK(rig.member(1).role() == MemberRole::none);
  CHECK_FALSE(primary.lease_held());
  CHECK(rig.node(2).asked == 1);
  CHECK(rig.member(2).role() == MemberRole::none);
  CHECK(rig.member(2).log().last_lsn() == last);
  // Expect: the successor need not wait for the leases of that epoch, its own included.
  CHECK(rig.member(2).stand(0, false));
  REQUIRE_FALSE(rig.member(2).stand(0, true));
  Hello asks = rig.candidate(2, false);
  asks.flags.released = true;
  CHECK_FALSE(rig.dial(2, 1, asks));
  CHECK_FALSE(rig.dial(2, 3, asks));
  REQUIRE(rig.lead(2, 1));
}

TEST_CASE("replication/member: a handover that takes too long, or whose successor goes, lets writes go on") {
  LeaseMembers rig;
  Reactor& core = *rig.node(1).side.reactor;
  Primary& primary = rig.member(1).primary();
  std::optional<Status> handed, room;
  const auto hands_over = [&](std::uint32_t successor, Instant deadline) {
    handed.reset();
    REQUIRE(core.spawn_detached(
        "hands over", [&, successor, deadline] { handed = rig.member(1).hand_over(successor, deadline); }));
    rig.turns(2);
  };
  hands_over(3, Instant::never());  // does not follow
  REQUIRE(handed);
  CHECK(handed->error() == ReplicationErrc::no_replica);
  rig.wire->hold_controls = true;
  rig.put(1, "a", "1");
  SUBCASE("too long") {
    hands_over(2, core.now() + milliseconds(100));
    REQUIRE(core.spawn_detached("room", [&] { room = primary.wait_for_room(100, Instant::never()); }));
    rig.turns(2);
    CHECK_FALSE((handed || room));
    rig.heartbeat();
    rig.heartbeat();
    REQUIRE((handed && room));
    CHECK(handed->error() == ReactorErrc::deadline_exceeded);
    CHECK(*room);
    CHECK(rig.put(1, "b", "2") > Lsn{1});
    CHECK(rig.node(2).asked == 0);
  }
  SUBCASE("gone") {
    hands_over(2, Instant::never());
    rig.member(2).step_down("the test cuts it");
    rig.turns(3);
    REQUIRE(handed);
    CHECK(handed->error() == ReplicationErrc::no_replica);
    CHECK(rig.put_fails(1) == ReplicationErrc::no_replica);
    CHECK(rig.member(1).role() == MemberRole::leading);
  }
  SUBCASE("deposed") {
    hands_over(2, Instant::never());
    rig.member(1).step_down("the test deposes it");
    rig.turns(2);
    REQUIRE(handed);
    CHECK(handed->error() == ReplicationErrc::not_primary);
    CHECK(rig.node(2).asked == 0);
  }
}
