// What a node of a group may say of epochs, leases and memory: each rule by itself.
#include <optional>

#include <doctest/doctest.h>

#include <tidelock/replication/membership.h>

#include "membership_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// Node 1, long after its start, which follows node 2 in epoch 5.
struct FollowerRig {
  FollowerRig() {
    CHECK(node.answered(2, kLine, {5, 2}, 1, node.say({}), now));
    CHECK(node.answered(3, kLine, {4, 3}, 1, node.say({}), now));
    const Hello primary = hello_of(2, NodeRole::primary, {5, 2});
    CHECK(reason(node.may_follow(primary, node.say({}), now)) == RefusalReason::none);
    node.follow(primary);
    node.applied(Lsn{});
    REQUIRE(node.memory());
  }
  Membership node{group_of(1), Instant{}};
  Instant now = Instant{} + kLease;
};

}  // namespace

TEST_SUITE_BEGIN("replication/membership");

TEST_CASE("a promise is kept: nothing below it is promised or followed") {
  FollowerRig rig;
  CHECK(reason(rig.node.asked(candidate(3, 5), false, rig.now)) == RefusalReason::none);  // {5, 3} > {5, 2}
  CHECK(rig.node.promised() == Epoch{5, 3});
  CHECK(reason(rig.node.asked(candidate(2, 5), false, rig.now)) == RefusalReason::promised);
  CHECK(reason(rig.node.may_follow(hello_of(2, NodeRole::primary, {5, 2}), rig.node.say({}), rig.now)) ==
        RefusalReason::promised);
  // To whom it was given it may be given again, until that one leads.
  CHECK(reason(rig.node.asked(candidate(3, 5), false, rig.now)) == RefusalReason::none);
  const Hello primary = hello_of(3, NodeRole::primary, {5, 3});
  CHECK(reason(rig.node.may_follow(primary, rig.node.say({}), rig.now)) == RefusalReason::none);
  rig.node.follow(primary);
  CHECK(reason(rig.node.asked(candidate(3, 5), false, rig.now)) == RefusalReason::promised);
}

TEST_CASE("without memory only a primary that was forced is followed before enough have answered") {
  Membership node(group_of(1), Instant{});
  Hello primary = hello_of(2, NodeRole::primary, {5, 2});
  const Instant now = Instant{} + kLease;
  CHECK(reason(node.may_follow(primary, node.say({}), now)) == RefusalReason::no_memory);
  primary.flags.forced = true;
  CHECK(reason(node.may_follow(primary, node.say({}), Instant{})) == RefusalReason::lease);  // as ever
  CHECK(reason(node.may_follow(primary, node.say({}), now)) == RefusalReason::none);
  primary.last_lsn = Lsn{7};
  node.follow(primary);
  node.applied(Lsn{6});
  CHECK_FALSE(node.memory());
  node.applied(Lsn{7});
  CHECK(node.memory());
}

TEST_CASE("to be asked whether it would promise binds nobody") {
  FollowerRig rig;
  CHECK(reason(rig.node.asked(candidate(3, 9, false), false, rig.now)) == RefusalReason::none);
  CHECK(rig.node.promised() == Epoch{5, 2});
}

TEST_CASE("who granted a lease neither promises, follows another epoch nor stands before it ends") {
  FollowerRig rig;
  rig.node.stamped(rig.now);
  const auto refusal = rig.node.asked(candidate(3, 6), false, rig.now + milliseconds(500));
  REQUIRE(reason(refusal) == RefusalReason::lease);
  CHECK(refusal->ours == 1'500);
  CHECK(reason(rig.node.may_follow(hello_of(3, NodeRole::primary, {6, 3}), rig.node.say({}), rig.now)) ==
        RefusalReason::lease);
  CHECK(reason(rig.node.may_follow(hello_of(2, NodeRole::primary, {5, 2}), rig.node.say({}), rig.now)) ==
        RefusalReason::none);
  CHECK(reason(rig.node.stand(0, false, rig.now)) == RefusalReason::lease);
  CHECK(rig.node.promised() == Epoch{5, 2});
  CHECK(reason(rig.node.asked(candidate(3, 6), false, rig.now + kLease)) == RefusalReason::none);
}

TEST_CASE("a primary that hands over ends the leases of its own epoch, and of no other") {
  FollowerRig rig;
  rig.node.stamped(rig.now);
  Hello successor = candidate(3, 6);
  successor.flags.released = true;
  successor.last_epoch = {4, 9};
  CHECK(reason(rig.node.asked(successor, false, rig.now)) == RefusalReason::lease);
  successor.last_epoch = {5, 2};
  CHECK(reason(rig.node.asked(successor, false, rig.now)) == RefusalReason::none);
  FollowerRig other;
  other.node.stamped(other.now);
  CHECK(reason(other.node.stand(5, true, other.now)) == RefusalReason::none);
  CHECK(other.node.promised() == Epoch{6, 1});
}

TEST_CASE("a primary that serves is left alone") {
  FollowerRig rig;
  const auto refusal = rig.node.asked(candidate(3, 6), true, rig.now);
  CHECK(reason(refusal) == RefusalReason::lease);
  CHECK(refusal->ours == 2'000);
}

TEST_CASE("only who is of the group is listened to") {
  FollowerRig rig;
  Hello other = candidate(3, 6);
  other.group_sum ^= 1;
  CHECK(reason(rig.node.asked(other, false, rig.now)) == RefusalReason::group);
  CHECK(reason(rig.node.may_follow(other, rig.node.say({}), rig.now)) == RefusalReason::group);
  CHECK(reason(rig.node.asked(candidate(4, 6), false, rig.now)) == RefusalReason::malformed);
  CHECK(reason(rig.node.asked(candidate(1, 6), false, rig.now)) == RefusalReason::malformed);
  Hello borrowed = candidate(3, 6);
  borrowed.epoch.node = 2;
  CHECK(reason(rig.node.asked(borrowed, false, rig.now)) == RefusalReason::malformed);
  Hello elsewhere = candidate(3, 6);
  elsewhere.history = HistoryId{8};
  CHECK(reason(rig.node.asked(elsewhere, false, rig.now)) == RefusalReason::history);
  CHECK_FALSE(rig.node.answered(9, kLine, {9, 9}, 1, rig.node.say({}), rig.now));
}

TEST_CASE("nobody uses up the counter of epochs in one step") {
  FollowerRig rig;
  CHECK(reason(rig.node.asked(candidate(3, 0xffff'ffff), false, rig.now)) == RefusalReason::malformed);
  CHECK(reason(rig.node.may_follow(hello_of(3, NodeRole::primary, {0xffff'ffff, 3}), rig.node.say({}),
                                   rig.now)) == RefusalReason::malformed);
  CHECK(rig.node.promised() == Epoch{5, 2});
  // What it is told by a refusal is heeded only so far that the others still take what it makes of it.
  CHECK(reason(rig.node.stand(0xffff'ffff, false, rig.now)) == RefusalReason::none);
  FollowerRig other;
  CHECK(reason(other.node.asked(candidate(3, rig.node.promised().counter), false, other.now)) ==
        RefusalReason::none);
  CHECK(reason(other.node.may_follow(hello_of(2, NodeRole::primary, {6, 3}), other.node.say({}),
                                     other.now)) == RefusalReason::malformed);
}

TEST_CASE("group sums differ with nodes, c, lease and largest group, and with nothing else") {
  GroupOptions options = group_of(1);
  const std::uint32_t sum = options.sum();
  CHECK(sum != 0);
  CHECK(group_of(2).sum() == sum);
  CHECK(group_of(1, 3, 2).sum() != sum);
  CHECK(group_of(1, 4).sum() != sum);
  options.lease = kLease + microseconds(1);
  CHECK(options.sum() != sum);
  options = group_of(1);
  ++options.group_bytes_max;
  CHECK(options.sum() != sum);
}

TEST_CASE("without memory a node waits a lease, hears enough others, and applies what a primary had") {
  Membership node(group_of(1), Instant{});
  const Hello primary = [] {
    Hello hello = hello_of(2, NodeRole::primary, {5, 2});
    hello.last_lsn = Lsn{40};
    return hello;
  }();
  CHECK(reason(node.may_follow(primary, node.say({}), Instant{})) == RefusalReason::lease);
  const Instant later = node.fresh_until();
  CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::no_memory);
  CHECK(node.answered(2, kLine, {5, 2}, 1, node.say({}), later));
  CHECK(node.answered(2, kLine, {5, 2}, 1, node.say({}), later));  // the same node counts once
  CHECK(node.heard() == HistoryId{});
  CHECK(node.answered(3, kLine, {6, 3}, 1, node.say({}), later));
  CHECK(node.heard() == kLine);
  CHECK(node.promised() == Epoch{6, 3});  // it may have been its own promise
  CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::promised);
  Hello newer = primary;
  newer.node = 3;
  newer.epoch = {6, 3};
  CHECK(reason(node.may_follow(newer, node.say({}), later)) == RefusalReason::none);
  node.follow(newer);
  CHECK(reason(node.asked(candidate(2, 7), false, later)) == RefusalReason::no_memory);
  CHECK(reason(node.stand(6, false, later)) == RefusalReason::no_memory);
  node.applied(Lsn{39});
  CHECK_FALSE(node.memory());
  node.applied(Lsn{40});
  CHECK(node.memory());
}

TEST_CASE("what a link that broke had brought is no memory") {
  Membership node(group_of(1), Instant{});
  const Instant later = node.fresh_until();
  CHECK(node.answered(2, kLine, {5, 2}, 1, node.say({}), later));
  CHECK(node.answered(3, kLine, {5, 2}, 1, node.say({}), later));
  Hello primary = hello_of(2, NodeRole::primary, {5, 2});
  primary.last_lsn = Lsn{40};
  CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::none);
  node.follow(primary);
  node.unfollow();
  node.applied(Lsn{40});
  CHECK_FALSE(node.memory());
}

TEST_CASE("answers count by history, and a node for the one that it told of last") {
  Membership node(group_of(1, 5, 2), Instant{});
  const Instant later = node.fresh_until();
  CHECK(node.answered(2, HistoryId{8}, {1, 2}, 2, node.say({}), later));  // founded, then overtaken
  CHECK(node.answered(3, kLine, {5, 2}, 2, node.say({}), later));
  CHECK(node.answered(4, kLine, {5, 2}, 2, node.say({}), later));
  CHECK(node.heard() == HistoryId{});
  Hello primary = hello_of(2, NodeRole::primary, {5, 2});
  primary.group_sum = node.options().sum();
  CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::no_memory);
  SUBCASE("of which enough tell, that it may join") {
    CHECK(node.answered(5, kLine, {5, 2}, 2, node.say({}), later));
    CHECK(node.heard() == kLine);
    CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::none);
    primary.history = HistoryId{8};
    CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::no_memory);
  }
  SUBCASE("who was started anew tells of another") {
    CHECK(node.answered(4, HistoryId{8}, {5, 2}, 2, node.say({}), later));
    CHECK(node.answered(5, kLine, {5, 2}, 2, node.say({}), later));
    CHECK(node.heard() == HistoryId{});
    CHECK(node.answered(2, kLine, {5, 2}, 2, node.say({}), later));
    CHECK(node.heard() == kLine);
  }
  SUBCASE("too few keep nobody from founding") {
    Hello ours = founder(5, 6, HistoryId{20});
    ours.group_sum = node.options().sum();
    CHECK(reason(node.asked(ours, false, later)) == RefusalReason::none);
    CHECK(reason(node.found(HistoryId{30}, 6)) == RefusalReason::none);
    CHECK(node.answered(4, kLine, {5, 2}, 2, node.say({}), later));
    CHECK(node.founding() == HistoryId{30});
    CHECK(node.answered(5, kLine, {5, 2}, 2, node.say({}), later));
    CHECK(node.founding() == HistoryId{});
    CHECK(reason(node.found(HistoryId{40}, 7)) == RefusalReason::history);
    CHECK(reason(node.asked(ours, false, later)) == RefusalReason::history);
  }
}

TEST_CASE("who has lost its memory counts no longer for the history that it told of") {
  Membership node(group_of(1), Instant{});
  const Instant later = node.fresh_until();
  for (const std::uint32_t other : {2U, 3U})
    CHECK(node.answered(other, kLine, {5, 2}, 1, node.say({}), later));
  CHECK(node.heard() == kLine);
  // Expect: once both say that they hold nothing, a history may be founded again
  for (const std::uint32_t other : {2U, 3U})
    CHECK_FALSE(node.answered(other, HistoryId{}, {}, 1, node.say({}), later));
  CHECK(node.heard() == HistoryId{});
  CHECK(reason(node.asked(founder(2, 6, HistoryId{20}), false, later)) == RefusalReason::none);
}

TEST_CASE("while it follows, what is told of another history gives no memory in that") {
  Membership node(group_of(1, 5), Instant{});
  const Instant later = node.fresh_until();
  const auto of_five = [&](Hello hello) {
    hello.group_sum = node.options().sum();
    return hello;
  };
  CHECK(reason(node.asked(of_five(founder(4, 1, HistoryId{20})), false, later)) == RefusalReason::none);
  CHECK(node.echo({1, 4}, HistoryId{20}));
  for (const std::uint32_t other : {2U, 3U})
    CHECK(node.answered(other, kLine, {5, 2}, 1, node.say({}), later));
  Hello primary = of_five(hello_of(2, NodeRole::primary, {5, 2}));
  primary.last_lsn = Lsn{40};
  REQUIRE(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::none);
  node.follow(primary);
  CHECK(node.answered(4, HistoryId{20}, {1, 4}, 1, node.say({}), later));
  CHECK_FALSE(node.memory());
  CHECK(node.history() == kLine);
  node.applied(Lsn{40});
  CHECK(node.memory());
  CHECK(node.history() == kLine);
}

TEST_CASE("what it followed without memory binds nobody to that history") {
  Membership node(group_of(1), Instant{});
  const Instant later = node.fresh_until();
  for (const std::uint32_t other : {2U, 3U})
    CHECK(node.answered(other, HistoryId{8}, {5, 2}, 1, node.say({}), later));
  Hello primary = hello_of(2, NodeRole::primary, {5, 2}, HistoryId{8});
  primary.last_lsn = Lsn{40};
  node.follow(primary);
  CHECK(node.history() == HistoryId{8});
  node.unfollow();
  CHECK(node.history() == HistoryId{});
  for (const std::uint32_t other : {2U, 3U})
    CHECK(node.answered(other, kLine, {6, 3}, 1, node.say({}), later));
  primary = hello_of(3, NodeRole::primary, {6, 3});
  CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::none);
}

TEST_CASE("a founding: who promised it, and was stamped, has memory once it hears that it came to be") {
  Membership node(group_of(1), Instant{});
  // At once: if all promise, nobody's lease is of any matter.
  CHECK(reason(node.asked(founder(2, 1, HistoryId{20}), false, Instant{})) == RefusalReason::none);
  CHECK(node.echo({1, 2}, HistoryId{20}));
  CHECK_FALSE(node.memory());
  const Instant later = node.fresh_until();
  CHECK(reason(node.asked(founder(3, 2, HistoryId{30}), false, later)) == RefusalReason::none);
  CHECK(reason(node.asked(founder(2, 1, HistoryId{20}), false, later)) == RefusalReason::promised);
  CHECK(reason(node.asked(candidate(2, 7), false, later)) == RefusalReason::no_memory);
  Hello primary = hello_of(3, NodeRole::primary, {2, 3}, HistoryId{30});
  SUBCASE("from its primary") {
    CHECK(node.echo({2, 3}, HistoryId{30}));
    CHECK(reason(node.may_follow(primary, node.say({}), Instant{})) == RefusalReason::none);
    node.follow(primary);
    CHECK(node.memory());
  }
  SUBCASE("but not if no stamp came: the founder's hello may have come when it led") {
    CHECK_FALSE(node.echo({1, 2}, HistoryId{20}));
    CHECK(reason(node.may_follow(primary, node.say({}), later)) == RefusalReason::no_memory);
    CHECK(node.answered(3, HistoryId{30}, {2, 3}, 1, node.say({}), later));
    CHECK_FALSE(node.memory());
  }
  SUBCASE("of an earlier one, from anybody: the later one has not come to be then") {
    CHECK(node.answered(3, HistoryId{20}, {4, 3}, 1, node.say({}), Instant{}));
    CHECK(node.memory());
    CHECK(node.history() == HistoryId{20});
    CHECK(node.promised() == Epoch{4, 3});
  }
  SUBCASE("of one that it did not promise") {
    CHECK(node.answered(3, HistoryId{40}, {4, 3}, 1, node.say({}), later + kLease));
    CHECK_FALSE(node.memory());
    CHECK(node.history() == HistoryId{});
  }
}

TEST_CASE("a founder that hears of a history joins that") {
  Membership node(group_of(1), Instant{});
  CHECK(reason(node.found(HistoryId{10}, 3)) == RefusalReason::none);
  CHECK(node.founding() == HistoryId{10});
  CHECK(node.promised() == Epoch{4, 1});
  SUBCASE("it leads") {
    node.lead({4, 1}, HistoryId{10});
    CHECK(node.memory());
    CHECK(node.history() == HistoryId{10});
  }
  SUBCASE("it joins") {
    CHECK(node.answered(2, kLine, {3, 2}, 1, node.say({}), node.fresh_until()));
    CHECK(node.founding() == HistoryId{10});  // that may be a minority's
    CHECK(node.answered(3, kLine, {9, 2}, 1, node.say({}), node.fresh_until()));
    CHECK(node.founding() == HistoryId{});
    CHECK(reason(node.found(HistoryId{11}, 9)) == RefusalReason::history);
  }
}

TEST_CASE("a promise is echoed as long as it is the last thing that this node did") {
  FollowerRig rig;
  CHECK_FALSE(rig.node.echo({}, {}));
  CHECK_FALSE(rig.node.echo({5, 2}, kLine));  // of whom it follows
  CHECK_FALSE(rig.node.asked(candidate(3, 6, false), false, rig.now));
  CHECK_FALSE(rig.node.echo({6, 3}, kLine));
  CHECK_FALSE(rig.node.asked(candidate(3, 6), false, rig.now));
  CHECK(rig.node.echo({6, 3}, kLine));
  CHECK(rig.node.echo({6, 3}, kLine));
  CHECK_FALSE(rig.node.echo({6, 3}, HistoryId{20}));
  SUBCASE("until it promises another") {
    CHECK_FALSE(rig.node.asked(candidate(2, 7), false, rig.now));
    CHECK(rig.node.echo({7, 2}, kLine));
  }
  SUBCASE("until it follows") { rig.node.follow(hello_of(3, NodeRole::primary, {6, 3})); }
  SUBCASE("until it stands itself") { CHECK_FALSE(rig.node.stand(0, false, rig.now)); }
  CHECK_FALSE(rig.node.echo({6, 3}, kLine));
}

TEST_CASE("who has memory by now echoes no founder") {
  Membership node(group_of(1), Instant{});
  CHECK_FALSE(node.asked(founder(2, 1, HistoryId{20}), false, Instant{}));
  CHECK(node.echo({1, 2}, HistoryId{20}));
  CHECK_FALSE(node.asked(founder(3, 2, HistoryId{30}), false, Instant{}));
  CHECK(node.echo({2, 3}, HistoryId{30}));
  CHECK(node.answered(2, HistoryId{20}, {1, 2}, 1, node.say({}), Instant{}));
  CHECK(node.memory());
  CHECK_FALSE(node.echo({2, 3}, HistoryId{30}));
}

TEST_CASE("what answers a hello is void once somebody was told, who counts that, what this node knows") {
  FollowerRig rig;
  const Hello primary = hello_of(3, NodeRole::primary, {6, 3});
  Hello replica = hello_of(3, NodeRole::replica, {});
  const Said said = rig.node.say(replica);
  // Who has memory has counted its answers, and to refuse another group tells nothing.
  CHECK_FALSE(rig.node.visited(replica));
  CHECK_FALSE(rig.node.asked(candidate(3, 6, false), false, rig.now));
  replica.flags.memory = false;
  replica.group_sum ^= 1;
  CHECK(reason(rig.node.visited(replica)) == RefusalReason::group);
  CHECK(rig.node.stands(said));
  CHECK_FALSE(rig.node.may_follow(primary, said, rig.now));
  replica.group_sum ^= 1;
  SUBCASE("who would follow") { CHECK_FALSE(rig.node.visited(replica)); }
  SUBCASE("even if that is refused") {
    replica.history = HistoryId{8};
    CHECK(reason(rig.node.visited(replica)) == RefusalReason::history);
  }
  SUBCASE("who would found") {
    Hello asks = founder(3, 6, HistoryId{20});
    asks.flags.memory = false;
    CHECK(reason(rig.node.asked(asks, false, rig.now)) == RefusalReason::history);
  }
  CHECK_FALSE(rig.node.stands(said));
  CHECK(reason(rig.node.may_follow(primary, said, rig.now)) == RefusalReason::busy);
  CHECK_FALSE(rig.node.may_follow(primary, rig.node.say(replica), rig.now));
}

TEST_CASE("a node without memory tells nothing but a founder, by its echo") {
  Membership node(group_of(1), Instant{});
  const Instant later = node.fresh_until();
  const Said said = node.say({});
  Hello replica = hello_of(3, NodeRole::replica, {}, {});
  replica.flags.memory = false;
  CHECK(reason(node.visited(replica)) == RefusalReason::no_memory);
  CHECK_FALSE(node.asked(founder(2, 1, HistoryId{20}), false, later));
  CHECK(node.answered(3, kLine, {4, 3}, 1, said, later));
  CHECK_FALSE(node.asked(founder(2, 5, HistoryId{20}), false, later));
  CHECK(node.echo({5, 2}, HistoryId{20}));
  CHECK_FALSE(node.answered(2, kLine, {5, 2}, 1, said, later));
  CHECK(node.heard() == HistoryId{});
  CHECK(node.answered(2, kLine, {5, 2}, 1, node.say({}), later));
  CHECK(node.heard() == kLine);
}

TEST_CASE("a replica's hello is judged for what it is, whoever leads") {
  FollowerRig rig;
  Hello replica = hello_of(3, NodeRole::replica, {0xffff'ffff, 3});
  CHECK(reason(rig.node.visited(replica)) == RefusalReason::malformed);
  replica.epoch = {9, 3};
  CHECK_FALSE(rig.node.visited(replica));
  CHECK(rig.node.promised() == Epoch{5, 2});
  CHECK_FALSE(rig.node.stand(0, false, rig.now));
  CHECK(rig.node.promised() == Epoch{10, 1});  // above what it heard of
  replica.history = {};
  replica.last_lsn = Lsn{1};
  CHECK(reason(rig.node.visited(replica)) == RefusalReason::history);
}

TEST_CASE("a hostile founder does not fill the memory of who promises") {
  Membership node(group_of(1), Instant{});
  for (std::uint32_t i = 1; i <= 3'000; ++i) {
    CHECK_FALSE(node.asked(founder(2, i, HistoryId{i}), false, node.fresh_until()));
    CHECK(node.echo({i, 2}, HistoryId{i}) == (i <= 1'024));  // what is not remembered counts for nobody
  }
  const auto follows = [&](std::uint32_t history) {
    return !node.may_follow(hello_of(2, NodeRole::primary, {3'000, 2}, HistoryId{history}), node.say({}),
                            node.fresh_until());
  };
  CHECK(follows(1'024));
  CHECK_FALSE(follows(1'025));
}

TEST_SUITE_END();
