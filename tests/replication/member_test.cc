// Nodes of a group: roles, and what a change of them ends.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "member_rig.h"

using namespace tidelock;
using namespace tidelock::test;

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
