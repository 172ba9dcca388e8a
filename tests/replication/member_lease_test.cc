// A group's primary and its leases: who grants them, what holds and ends them, and a handover, which ends
// them for good.
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include "member_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

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
