// The simulated link does what every link must do, and keeps what only it can check.
#include <doctest/doctest.h>

#include "replication/stream_rig.h"
#include "replication/stream_writers.h"
#include "wire_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// Primary and Replica on hand-turned reactors, joined by a wire whose world keeps step with their clocks.
struct SimStream {
  explicit SimStream(std::uint64_t seed, std::uint64_t log_bytes)
      : world(seed), random(seed), rig(log_of(log_bytes)) {}
  static PrimaryOptions log_of(std::uint64_t bytes) {
    PrimaryOptions options;
    options.log_bytes = bytes;
    return options;
  }
  Status connect() {
    const FrameContext context{kHistory, Generation{++rig.generation}, ShardId{}};
    auto wire = sim::Wire::make(world, counts, rig.generation, context, {});
    auto far = wire->take(sim::Side::replica, nullptr);
    auto near = wire->take(sim::Side::primary, nullptr);
    REQUIRE(far->start(*rig.replica_side.reactor));
    REQUIRE(near->start(*rig.primary_side.reactor));
    REQUIRE(rig.replica->attach(std::move(far), kHistory, kEpoch));
    return rig.attach(std::move(near));
  }
  void advance(Duration by) {
    rig.advance(by);
    world.run_for(by);
  }
  void settle() {
    for (int i = 0; i < 2'000; ++i) {
      advance(microseconds(100));
      rig.turns(1);
    }
  }

  sim::World world;
  sim::FaultCounts counts;
  Random random;
  Writers writers{rig, random, {}, 0};
  StreamRig rig;  ///< last: its fibers use all of the above
};

void run_sim_disorder(std::uint64_t log_bytes, bool cut, std::uint64_t seed) {
  CAPTURE(seed);
  SimStream stream(seed, log_bytes);
  StreamRig& rig = stream.rig;
  REQUIRE(stream.connect());
  for (int i = 0; i < 3; ++i) stream.writers.spawn(100);
  int cuts = 0;
  for (int i = 0; i < 200'000 && stream.writers.running > 0; ++i) {
    if (stream.random.below(2) == 0) rig.turn_primary();
    if (stream.random.below(3) == 0) rig.turn_replica();
    stream.advance(microseconds(static_cast<std::int64_t>(stream.random.below(200))));
    if (!cut || stream.random.below(20) != 0) continue;
    if (stream.random.below(2) == 0) {
      rig.replica->close("cut");
    } else {
      rig.near->close("cut");
    }
    while (rig.primary->replicas() > 0 || rig.replica->connected()) {
      stream.advance(microseconds(50));
      rig.turns(1);
    }
    if (stream.connect()) ++cuts;
  }
  REQUIRE(stream.writers.running == 0);
  if (cut) CHECK(cuts >= 3);
  stream.settle();
  REQUIRE(rig.replica->applied_lsn() == rig.primary->last_lsn());
  CHECK(rig.applier.map == stream.writers.model);
  CHECK(stream.world.verdict().passed());
}

}  // namespace

TEST_CASE("sim/link: keeps the contract of all links") {
  testing::check_link_conformance([] { return std::make_unique<WireFixture>(); });
}

TEST_CASE("sim/link: in any order of turns both ends of a stream agree, over a log of 64 KiB") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) run_sim_disorder(64 * 1024, false, seed);
}

TEST_CASE("sim/link: a link that breaks at any moment loses nothing that the log still holds") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) run_sim_disorder(64 << 20, true, seed);
}

TEST_CASE("sim/link: log bytes that change before their completion break the contract") {
  for (const bool before_leaving : {true, false}) {
    sim::World world(1);
    sim::FaultCounts counts;
    auto wire = sim::Wire::make(world, counts, 1, WireFixture::kContext, {});
    const auto replica = wire->take(sim::Side::replica, nullptr);
    const auto primary = wire->take(sim::Side::primary, nullptr);
    std::vector<std::byte> log(4096);
    REQUIRE(primary->attach(log));
    FrameHeader header;
    header.history = WireFixture::kContext.history;
    header.entries = 1;
    header.first_lsn = header.last_lsn = Lsn{1};
    wire->complete_late(1, milliseconds(1));
    const Bytes range(log.data(), 64);
    REQUIRE(primary->publish(header, {&range, 1}));
    if (!before_leaving) primary->flush();
    if (!before_leaving) world.run_for(microseconds(500));
    log[63] = std::byte{1};
    if (before_leaving) primary->flush();
    world.run_for(milliseconds(10));
    REQUIRE(world.verdict().failures().size() == 1);
    CHECK(world.verdict().failures()[0].checker == "link_contract");
    CHECK(primary->wire().number() == 1);
  }
}

TEST_CASE(
    "sim/link: log bytes that change before their link is destroyed without their completion break the "
    "contract") {
  for (const bool changes : {false, true}) {
    sim::World world(1);
    sim::FaultCounts counts;
    auto wire = sim::Wire::make(world, counts, 1, WireFixture::kContext, {});
    const auto replica = wire->take(sim::Side::replica, nullptr);
    const auto primary = wire->take(sim::Side::primary, nullptr);
    std::vector<std::byte> log(4096);
    REQUIRE(primary->attach(log));
    FrameHeader header;
    header.history = WireFixture::kContext.history;
    header.entries = 1;
    header.first_lsn = header.last_lsn = Lsn{1};
    wire->lose_completion();
    const Bytes range(log.data(), 64);
    REQUIRE(primary->publish(header, {&range, 1}));
    primary->flush();
    world.run_for(milliseconds(1));
    // 1: closed. Expect: the card may read on until the end is destroyed
    primary->close("the test says so");
    CHECK_FALSE(primary->drained());
    if (changes) log[63] = std::byte{1};
    CHECK(world.verdict().passed());
    world.run_for(seconds(2));
    CHECK(primary->drained());
    CHECK(world.verdict().passed() == !changes);
    if (changes) CHECK(world.verdict().failures()[0].checker == "link_contract");
  }
}
