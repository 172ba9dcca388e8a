// Each fault of a wire by hand: what each end sees, and that it counts as a hit only when it took effect.
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "wire_rig.h"

using namespace tidelock;
using namespace tidelock::test;
using sim::FaultKind;
using sim::Side;
using testing::LinkTraffic;

namespace {

/// A pair of links with batches under way.
struct Pair {
  WireFixture fixture{1, steady()};
  LinkTraffic traffic{fixture};
  sim::World& world = fixture.world;
  sim::Wire& wire = *fixture.wire;

  /// Latencies of 10 us, and 1 us for the smallest batches.
  static sim::WireOptions steady() {
    sim::WireOptions options;
    options.latency_least = options.latency_most = microseconds(10);
    return options;
  }
  void send(int batches = 1, std::uint64_t bytes = 800) {
    for (int i = 0; i < batches; ++i) REQUIRE(traffic.publish(bytes));
    fixture.primary().flush();
  }
  [[nodiscard]] std::uint64_t hits(FaultKind kind) const { return fixture.counts[kind].hit; }
  /// The error that the next receive() gives.
  Error refusal() {
    const auto batch = fixture.replica().receive();
    REQUIRE_FALSE(batch);
    return batch.error();
  }
};

}  // namespace

TEST_CASE("sim/wire: a delayed frame comes later, and in order") {
  Pair pair;
  pair.wire.delay(1, milliseconds(5));
  pair.send(2);
  CHECK(pair.hits(FaultKind::delay) == 0);
  // 1: before its time. Expect: nothing
  pair.world.run_for(milliseconds(4));
  CHECK(pair.hits(FaultKind::delay) == 1);
  CHECK(pair.refusal() == ReplicationErrc::link_empty);
  // 2: after it. Expect: both
  pair.world.run_for(milliseconds(2));
  pair.traffic.receive_and_release_all();
  CHECK(pair.traffic.received() == 2);
  // 3: many frames, one fault. Expect: it counts once
  pair.wire.delay(100, milliseconds(5));
  pair.send(3);
  pair.world.run_for(milliseconds(10));
  CHECK(pair.hits(FaultKind::delay) == 2);
}

TEST_CASE("sim/wire: a cut loses what is in flight, and each end learns of it in its time") {
  Pair pair;
  pair.send();
  pair.world.run_for(microseconds(100));
  pair.send();
  pair.world.run_for(microseconds(5));  // gathered, not landed
  pair.wire.cut(100, milliseconds(2), milliseconds(4));
  CHECK(pair.hits(FaultKind::cut) == 0);
  // 1: what had arrived before is given. Expect: no more
  pair.world.run_for(milliseconds(1));
  CHECK(pair.hits(FaultKind::cut) == 1);
  pair.traffic.receive_and_release_all();
  CHECK(pair.traffic.received() == 1);
  CHECK(pair.fixture.primary().poll(64) == 1);  // the first batch's completion
  CHECK(pair.fixture.primary().state() == LinkState::ready);
  // 2: the primary learns
  pair.world.run_for(milliseconds(2));
  pair.fixture.primary().poll(64);
  CHECK(pair.fixture.primary().state() == LinkState::closed);
  CHECK(pair.fixture.replica().state() == LinkState::ready);
  // 3: the replica learns; the primary's end is drained without the second completion
  pair.world.run_for(seconds(2));
  pair.fixture.replica().poll(64);
  CHECK(pair.fixture.replica().state() == LinkState::closed);
  CHECK(pair.fixture.primary().batches_completed() == 1);
  CHECK(pair.fixture.primary().drained());
}

TEST_CASE(
    "sim/wire: a way that swallows one frame gives nothing any more, and its sender learns or does not") {
  for (const bool learns : {true, false}) {
    Pair pair;
    const Duration after = learns ? milliseconds(500) : Duration{Instant::never().ns};
    pair.wire.swallow(Side::replica, pair.world.now() + milliseconds(1), after, FaultKind::half_open);
    // 1: nothing sent. Expect: nothing lost
    pair.world.run_for(microseconds(500));
    CHECK(pair.hits(FaultKind::half_open) == 0);
    // 2: sent within. Expect: lost, and what follows, too
    pair.send();
    pair.world.run_for(milliseconds(5));
    CHECK(pair.hits(FaultKind::half_open) == 1);
    pair.send();
    pair.world.run_for(milliseconds(5));
    CHECK(pair.refusal() == ReplicationErrc::link_empty);
    // 3: the other way is open
    REQUIRE(pair.fixture.replica().send_control(testing::control_frame(pair.fixture, 1)));
    pair.fixture.replica().flush();
    CHECK(pair.fixture.primary().receive_control());
    // 4: the retries are over
    pair.world.run_for(seconds(1));
    pair.fixture.primary().poll(64);
    CHECK((pair.fixture.primary().state() == LinkState::closed) == learns);
    CHECK(pair.hits(FaultKind::half_open) == 1);
  }
  // A window in which nothing was sent does no harm.
  Pair pair;
  pair.wire.swallow(Side::replica, pair.world.now() + milliseconds(1), milliseconds(500),
                    FaultKind::half_open);
  pair.world.run_for(milliseconds(2));
  pair.send();
  pair.world.run_for(milliseconds(1));
  pair.traffic.receive_and_release_all();
  CHECK(pair.traffic.received() == 1);
  CHECK(pair.hits(FaultKind::half_open) == 0);
}

TEST_CASE("sim/wire: a length that contradicts the completion is refused by the link") {
  Pair pair;
  pair.wire.corrupt_batch(sim::Wire::Damage::length, 0);
  pair.send();
  pair.world.run_for(milliseconds(1));
  CHECK(pair.hits(FaultKind::corrupt) == 0);
  CHECK(pair.refusal() == ReplicationErrc::bad_length);  // its sum is right
  CHECK(pair.hits(FaultKind::corrupt) == 1);
  CHECK(pair.fixture.replica().state() == LinkState::closed);
}

TEST_CASE("sim/wire: a damaged payload shows in its bytes, and counts once the owner refuses it") {
  for (const auto damage : {sim::Wire::Damage::bits, sim::Wire::Damage::stale}) {
    int refused = 0;
    int in_payload = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      WireFixture fixture(seed);
      LinkTraffic traffic(fixture);
      fixture.wire->corrupt_batch(damage, 3);
      REQUIRE(traffic.publish(4000));
      fixture.primary().flush();
      fixture.world.run_for(milliseconds(1));
      const auto batch = fixture.replica().receive();
      if (batch) {
        ++in_payload;
        CHECK_FALSE(testing::payload_intact(1, batch->payload));
        CHECK(fixture.counts[FaultKind::corrupt].hit == 0);
        fixture.replica().close("a bad CRC");
      }
      ++refused;
      CHECK(fixture.counts[FaultKind::corrupt].hit == 1);
    }
    CHECK(refused == 20);
    CHECK(in_payload > 0);
  }
}

TEST_CASE("sim/wire: a damaged control frame is refused") {
  Pair pair;
  pair.wire.corrupt_control(Side::primary, 1);
  REQUIRE(pair.fixture.replica().send_control(testing::control_frame(pair.fixture, 1)));
  pair.fixture.replica().flush();
  CHECK(pair.hits(FaultKind::corrupt) == 0);
  CHECK_FALSE(pair.fixture.primary().receive_control());
  CHECK(pair.hits(FaultKind::corrupt) == 1);
  CHECK(pair.fixture.primary().state() == LinkState::closed);
}

TEST_CASE(
    "sim/wire: a batch that is told of before all of its bytes are there shows, and is no hit if nobody "
    "looks") {
  int of_header = 0;
  int of_payload = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    for (const bool looks : {true, false}) {
      WireFixture fixture(seed, Pair::steady());
      LinkTraffic traffic(fixture);
      fixture.wire->notify_early(1, milliseconds(1));
      REQUIRE(traffic.publish(200));
      fixture.primary().flush();
      fixture.world.run_for(microseconds(100));
      CHECK(fixture.counts[FaultKind::notify_before_data].hit == 0);
      if (looks) {
        // Some of it is there, never all.
        const auto early = fixture.replica().receive();
        if (early) CHECK_FALSE(testing::payload_intact(1, early->payload));
        ++(early ? of_payload : of_header);
        CHECK(fixture.counts[FaultKind::notify_before_data].hit == 1);
        fixture.replica().close("a bad CRC");
        continue;
      }
      fixture.world.run_for(milliseconds(2));
      traffic.receive_and_release_all();
      CHECK(traffic.received() == 1);
      CHECK(fixture.counts[FaultKind::notify_before_data].hit == 0);
    }
  }
  CHECK(of_header > 0);
  CHECK(of_payload > 0);
}

TEST_CASE("sim/wire: a late completion keeps the log's bytes although the peer has given the batch back") {
  for (const bool missing : {false, true}) {
    Pair pair;
    if (missing) {
      pair.wire.lose_completion();
    } else {
      pair.wire.complete_late(2, milliseconds(5));  // counts once
    }
    const FaultKind kind = missing ? FaultKind::completion_missing : FaultKind::completion_late;
    pair.send(2);
    pair.world.run_for(milliseconds(1));
    CHECK(pair.hits(kind) == 0);
    pair.traffic.receive_and_release_all();
    pair.fixture.replica().flush();
    CHECK(pair.hits(kind) == 1);
    CHECK(pair.hits(missing ? FaultKind::completion_late : FaultKind::completion_missing) == 0);
    pair.fixture.primary().poll(64);
    CHECK(pair.fixture.primary().batches_completed() == (missing ? 0 : 2));
  }
}

TEST_CASE("sim/wire: a receiver that is not ready makes a batch wait, or breaks the sender's end") {
  Pair waits;
  waits.wire.receiver_not_ready(milliseconds(3), false);
  waits.send();
  waits.world.run_for(milliseconds(2));
  CHECK(waits.refusal() == ReplicationErrc::link_empty);
  CHECK(waits.hits(FaultKind::receiver_not_ready) == 1);
  waits.world.run_for(milliseconds(2));
  waits.traffic.receive_and_release_all();
  CHECK(waits.traffic.received() == 1);

  Pair fails;
  fails.wire.receiver_not_ready(milliseconds(3), true);
  fails.send();
  fails.world.run_for(milliseconds(10));
  CHECK(fails.refusal() == ReplicationErrc::link_empty);
  fails.fixture.primary().poll(64);
  CHECK(fails.fixture.primary().state() == LinkState::closed);
  CHECK(fails.hits(FaultKind::receiver_not_ready) == 1);
}

TEST_CASE("sim/wire: a slow peer fills the ring; a hit once a publish is refused for it") {
  Pair pair;
  pair.wire.slow_down(pair.world.now() + seconds(1));
  pair.send(4, 40'000);
  CHECK(pair.hits(FaultKind::slow_peer) == 0);
  pair.world.run_for(milliseconds(1));
  while (pair.traffic.publish(40'000)) {
  }
  CHECK(pair.hits(FaultKind::slow_peer) == 1);
  CHECK(pair.refusal() == ReplicationErrc::link_empty);
}

TEST_CASE("sim/wire: a peer that scribbles changes what was received and not released, nothing else") {
  Pair pair;
  pair.send();
  pair.world.run_for(milliseconds(1));
  pair.wire.scribble();
  pair.wire.scribble_now();
  CHECK(pair.hits(FaultKind::scribble) == 0);
  const auto batch = pair.fixture.replica().receive();
  REQUIRE(batch);
  CHECK(testing::payload_intact(1, batch->payload));
  pair.wire.scribble_now();
  CHECK(pair.hits(FaultKind::scribble) == 1);
  CHECK_FALSE(testing::payload_intact(1, batch->payload));
}

TEST_CASE("sim/wire: of a node that dies a part of what it sent last never left, and nothing after it") {
  std::uint64_t arrived = 0;
  std::uint64_t runs = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed, ++runs) {
    WireFixture fixture(seed);
    LinkTraffic traffic(fixture);
    for (int i = 0; i < 4; ++i) REQUIRE(traffic.publish(800));
    fixture.primary().flush();
    fixture.wire->die(Side::primary);
    // 1: what it does from now on goes nowhere
    REQUIRE(fixture.primary().send_control(testing::control_frame(fixture, 9)));
    fixture.primary().close("a farewell");
    CHECK(fixture.primary().drained());
    fixture.world.run_for(seconds(10));
    traffic.receive_and_release_all();
    arrived += traffic.received();
    CHECK(testing::newest_control(fixture.replica()) == 0);
    CHECK(fixture.replica().state() == LinkState::ready);
  }
  CHECK(arrived > 0);
  CHECK(arrived < 4 * runs);
}

TEST_CASE("sim/wire: what the rest of a turn sends after its node died in it never left") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    // 1: the primary stands still amid a turn, and dies meanwhile
    WireFixture primary(seed);
    LinkTraffic traffic(primary);
    primary.world.begin_turn();
    primary.world.spend(seconds(1));
    for (int i = 0; i < 3; ++i) REQUIRE(traffic.publish(800));
    REQUIRE(primary.primary().send_control(testing::control_frame(primary, 9)));
    primary.primary().flush();
    primary.world.end_turn();
    primary.world.run_for(milliseconds(500));
    primary.wire->die(Side::primary);
    primary.world.run_for(seconds(10));
    traffic.receive_and_release_all();
    CHECK(traffic.received() == 0);
    CHECK(testing::newest_control(primary.replica()) == 0);

    // 2: the replica does. Expect: neither its acknowledgement nor the credit for what it released
    sim::WireOptions options;
    options.batch_slots = 1;
    WireFixture fixture(seed, options);
    LinkTraffic of_replica(fixture);
    REQUIRE(of_replica.publish(800));
    fixture.primary().flush();
    fixture.world.run_for(milliseconds(1));
    fixture.primary().poll(64);
    fixture.world.begin_turn();
    fixture.world.spend(seconds(1));
    of_replica.receive_and_release_all();
    REQUIRE(fixture.replica().send_control(testing::control_frame(fixture, 9)));
    fixture.raw_replica().flush();
    fixture.world.end_turn();
    fixture.world.run_for(milliseconds(500));
    fixture.wire->die(Side::replica);
    fixture.world.run_for(seconds(10));
    CHECK(testing::newest_control(fixture.primary()) == 0);
    CHECK_FALSE(of_replica.publish(800));
  }
}
