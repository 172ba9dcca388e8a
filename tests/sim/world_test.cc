// The event queue, its time, its random numbers and its trace.
#include "world.h"

#include <algorithm>
#include <cstdint>
#include <malloc.h>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace tidelock;
using namespace tidelock::sim;

namespace {

/// Notes what it is told, and when.
class Recorder final : public EventTarget {
 public:
  explicit Recorder(World& world) : world_(world), id(world.add(*this)) {}
  void on_event(const Event& event) override {
    seen.push_back(event.a);
    at.push_back(world_.now());
    if (event.kind == 1) world_.schedule(world_.now(), id, 0, event.a + 100);
    if (event.kind == 2) world_.schedule(world_.now(), id, 2);
  }
  [[nodiscard]] std::string describe(const Event& event) const override {
    return "recorder " + std::to_string(event.a);
  }

 private:
  World& world_;

 public:
  TargetId id;
  std::vector<std::uint64_t> seen;
  std::vector<Instant> at;
};

std::vector<std::uint64_t> first_draws(Random random) {
  std::vector<std::uint64_t> draws;
  for (int i = 0; i < 8; ++i) draws.push_back(random.next());
  return draws;
}

}  // namespace

TEST_CASE("sim/world: events run by time, those of one instant in the order in which they were scheduled") {
  World world(1);
  Recorder recorder(world);
  world.schedule(Instant{20}, recorder.id, 0, 3);
  world.schedule(Instant{10}, recorder.id, 1, 1);
  world.schedule(Instant{10}, recorder.id, 0, 2);
  // Expect: what an event schedules for its own instant comes after what is there already
  while (world.step()) {
  }
  CHECK(recorder.seen == std::vector<std::uint64_t>{1, 2, 101, 3});
  CHECK(recorder.at == std::vector<Instant>{{10}, {10}, {10}, {20}});
  // Expect: the past is now
  world.schedule(Instant{5}, recorder.id, 0, 4);
  REQUIRE(world.step());
  CHECK(recorder.at.back() == Instant{20});
  CHECK_FALSE(world.step());
}

TEST_CASE("sim/world: an event for a target that is gone does nothing, whoever came after it") {
  World world(1);
  Recorder gone(world);
  world.schedule(Instant{10}, gone.id, 0, 1);
  world.remove(gone.id);
  Recorder next(world);
  world.run_until(Instant{30});
  CHECK(gone.seen.empty());
  CHECK(next.seen.empty());
  CHECK(world.now() == Instant{30});
}

TEST_CASE("sim/world: what a turn schedules comes after what it has used up") {
  World world(1);
  Recorder recorder(world);
  world.run_until(Instant{1'000});
  world.begin_turn();
  world.spend(nanoseconds(250));
  CHECK(world.now() == Instant{1'250});
  world.schedule(world.now() + nanoseconds(1), recorder.id, 0, 1);
  CHECK(world.end_turn() == nanoseconds(250));
  CHECK(world.now() == Instant{1'000});
  while (world.step()) {
  }
  CHECK(recorder.at == std::vector<Instant>{{1'251}});
}

TEST_CASE("sim/world: a run without end fails as a livelock and goes no further") {
  World world(1, 0, {.events = 1'000, .events_an_instant = 50});
  Recorder recorder(world);
  world.schedule(Instant{10}, recorder.id, 2);
  while (world.step()) {
  }
  REQUIRE(world.verdict().failures().size() == 1);
  CHECK(world.verdict().failures()[0].checker == "livelock");
  CHECK(world.verdict().failures()[0].at == Instant{10});
  CHECK(recorder.seen.size() == 51);
  CHECK(world.stopped());
}

TEST_CASE("sim/world: the first failure of each checker counts") {
  World world(1);
  world.fail("one", "first");
  world.run_until(Instant{5});
  world.fail("one", "second");
  world.fail("two", "third");
  REQUIRE(world.verdict().failures().size() == 2);
  CHECK(world.verdict().failures()[0].text == "first");
  CHECK(world.verdict().failures()[1].at == Instant{5});
}

TEST_CASE("sim/streams: a stream depends on seed, name and entity, and on no other stream") {
  const Streams streams(7);
  const auto base = first_draws(streams.make("wire", 3));
  Random other = streams.make("node", 3);
  static_cast<void>(other.next());
  CHECK(first_draws(streams.make("wire", 3)) == base);
  CHECK(first_draws(streams.make("wire", 4)) != base);
  CHECK(first_draws(streams.make("wirf", 3)) != base);
  CHECK(first_draws(Streams(8).make("wire", 3)) != base);
}

TEST_CASE("sim/streams: draws keep their limits, magnitudes use all of theirs") {
  Random random(1);
  std::uint64_t short_ones = 0;
  std::uint64_t long_ones = 0;
  bool inside = true;
  for (int i = 0; i < 10'000; ++i) {
    const Duration drawn = draw_magnitude(random, microseconds(1), seconds(2));
    inside = inside && drawn >= microseconds(1) && drawn <= seconds(2);
    short_ones += drawn < microseconds(100) ? 1 : 0;
    long_ones += drawn > milliseconds(100) ? 1 : 0;
    const std::int64_t number = draw(random, -3, 3);
    inside = inside && number >= -3 && number <= 3;
  }
  CHECK(inside);
  CHECK(short_ones > 2'000);
  CHECK(long_ones > 1'500);
}

TEST_CASE("sim/trace: the hash tells order and content, and does not depend on memory or kept text") {
  const auto hash = [](std::size_t lines, std::int64_t first, std::int64_t second) {
    World world(1, lines);
    Recorder recorder(world);
    world.schedule(Instant{first}, recorder.id, 0, 1);
    world.schedule(Instant{second}, recorder.id, 1, 2);
    while (world.step()) {
    }
    CHECK(world.trace().lines().size() == std::min<std::size_t>(lines, 3));
    return world.trace().hash();
  };
  const std::uint64_t base = hash(0, 10, 20);
  CHECK(hash(2, 10, 20) == base);
  CHECK(hash(0, 20, 10) != base);
  ::mallopt(M_PERTURB, 0x5a);
  CHECK(hash(0, 10, 20) == base);
  ::mallopt(M_PERTURB, 0);
}
