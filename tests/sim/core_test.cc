// Nodes and cores: the same object code that production runs, turned, parked, paused and killed by events.
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/fiber.h>

#include "node.h"

using namespace tidelock;
using namespace tidelock::sim;

namespace {

NodeOptions node_of(std::uint32_t cores) {
  NodeOptions options;
  options.cores = cores;
  options.reactor.prepared_fibers = 2;
  options.reactor.max_fibers = 64;
  return options;
}

/// Talks to the other core of its node: sleeps, posts, calls.
void play(Node& node, std::size_t self, std::uint64_t& done) {
  Core& core = node.core(self);
  Reactor& reactor = core.reactor();
  const CoreId other{static_cast<std::uint16_t>(1 - self)};
  std::uint64_t* const counter = &done;
  for (int i = 0; i < 200; ++i) {
    const auto pause = static_cast<std::int64_t>(reactor.random().below(90));
    this_fiber::sleep_for(milliseconds(pause));
    static_cast<void>(core.mailbox().post(
        other, [counter](Reactor&) { ++*counter; }, reactor.clock().now() + seconds(10)));
    const auto answer = core.mailbox().call_in_fiber(
        other,
        [pause](Reactor& target) {
          this_fiber::sleep_for(milliseconds(pause));
          return target.random().next();
        },
        reactor.clock().now() + seconds(10));
    if (!answer) return;  // killed meanwhile
    ++done;
  }
}

struct Played {
  std::uint64_t hash = 0;
  std::uint64_t done = 0;
  std::uint64_t wakes = 0;
  std::vector<Failure> failures;
};

Played simulate(std::uint64_t seed, NodeOptions options, Instant kill_at = Instant::never()) {
  World world(seed);
  Node node(world, 1, options);
  Played played;
  node.start();
  for (std::size_t self = 0; self < 2; ++self) {
    for (int fibers = 0; fibers < 4; ++fibers) {
      REQUIRE(node.spawn(self, "play", [&node, &played, self] { play(node, self, played.done); }));
    }
  }
  world.run_until(std::min(kill_at, Instant{} + seconds(100)));
  if (kill_at == Instant::never()) {
    CHECK(node.core(0).reactor().idle());
    CHECK(node.core(1).reactor().idle());
    played.wakes = node.core(0).wakes() + node.core(1).wakes();
  }
  node.kill({});
  played.hash = world.trace().hash();
  played.failures = world.verdict().failures();
  return played;
}

}  // namespace

TEST_CASE("sim/core: one seed, one trace; another seed, another; no wakeup is lost, with any carrier") {
  for (const Carrier carrier : {Carrier::shared_memory, Carrier::msg_ring, Carrier::eventfd}) {
    for (const Duration spin : {Duration{0}, microseconds(200)}) {
      NodeOptions options = node_of(2);
      options.mailbox = {.lane_slots = 4, .carrier = carrier};
      options.spin = spin;
      const Played first = simulate(7, options);
      const Played again = simulate(7, options);
      const Played other = simulate(8, options);
      CHECK(first.done == std::uint64_t{2 * 4 * 200 * 2});
      CHECK(first.failures.empty());
      if (carrier == Carrier::shared_memory) CHECK(first.wakes > 100);
      CHECK(first.hash == again.hash);
      CHECK(first.hash != other.hash);
    }
  }
}

TEST_CASE("sim/core: a core that does not look again before it sleeps is found by its back-stop") {
  NodeOptions options = node_of(2);
  options.looks_before_sleep = false;
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    for (const Failure& failure : simulate(seed, options).failures) {
      CHECK(failure.checker == "lost_wakeup");
      ++found;
    }
  }
  CHECK(found > 0);
}

TEST_CASE("sim/core: a source that forgets what it has is found when its core goes to sleep") {
  struct Forgetful final : PollSource {
    std::uint32_t poll(std::uint32_t) override { return 0; }
    bool has_work() const override { return knows && arrived; }
    bool knows = true;
    bool arrived = false;
  };
  for (const bool knows : {true, false}) {
    World world(1);
    Node node(world, 1, node_of(1));
    node.start();
    Forgetful source;
    source.knows = knows;
    node.core().reactor().add_source(source);
    node.core().watch([&] { return source.arrived; });
    world.run_for(milliseconds(10));
    REQUIRE(node.core().asleep());
    // 1: it comes amid a turn. Expect: the core does not sleep, unless its source says that there is nothing
    REQUIRE(node.spawn(0, "arrival", [&] { source.arrived = true; }));
    world.run_for(milliseconds(1));
    CHECK(node.core().asleep() == !knows);
    CHECK(world.verdict().passed() == knows);
    if (!knows) CHECK(world.verdict().failures()[0].checker == "lost_wakeup");
    node.core().reactor().remove_source(source);
  }
}

TEST_CASE("sim/core: a message to a parked core wakes it, and only then") {
  World world(1);
  Node node(world, 1, node_of(2));
  node.start();
  world.run_for(milliseconds(10));
  REQUIRE(node.core(0).asleep());
  REQUIRE(node.core(1).asleep());
  int ran = 0;
  const std::uint64_t wakes = node.core(1).wakes();
  REQUIRE(node.spawn(0, "sender", [&] {
    int* counter = &ran;
    CHECK(node.core(0).mailbox().try_post(CoreId{1}, [counter](Reactor&) { ++*counter; }));
  }));
  world.run_for(milliseconds(10));
  CHECK(ran == 1);
  CHECK(node.core(1).wakes() == wakes + 1);
  CHECK(node.core(1).asleep());
}

TEST_CASE("sim/core: hours pass in no time, and no deadline passes early") {
  World world(3);
  Node node(world, 1, node_of(2));
  node.start();
  std::int64_t slept_ns = 0;
  Status outcome;
  REQUIRE(node.spawn(0, "sleeper", [&] {
    Clock& clock = node.clock();
    const Instant start = clock.now();
    this_fiber::sleep_for(seconds(10 * 3'600));
    slept_ns = (clock.now() - start).ns;
    const auto late = node.core(0).mailbox().call_in_fiber(
        CoreId{1}, [](Reactor&) { this_fiber::sleep_for(seconds(7'200)); }, clock.now() + seconds(3'600));
    outcome = late;
  }));
  world.run_for(seconds(20 * 3'600));
  CHECK(slept_ns >= seconds(10 * 3'600).ns);
  CHECK(slept_ns < seconds(10 * 3'600).ns + milliseconds(1).ns);
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error() == ReactorErrc::deadline_exceeded);
  CHECK(world.verdict().passed());
}

TEST_CASE("sim/core: clocks differ in offset and pace, and by less than a hundredth") {
  World world(5);
  Node one(world, 1, node_of(1));
  Node two(world, 2, node_of(1));
  const Instant one_before = one.clock().now();
  const Instant two_before = two.clock().now();
  CHECK(one_before != two_before);
  world.run_for(seconds(1'000));
  const std::int64_t one_ns = (one.clock().now() - one_before).ns;
  const std::int64_t two_ns = (two.clock().now() - two_before).ns;
  CHECK(one_ns != two_ns);
  CHECK(std::abs(one_ns - two_ns) < seconds(10).ns);
  for (const Instant at : {Instant{1}, Instant{1'000'003}, Instant{987'654'321'123}}) {
    const Instant shown = one.clock().local(at);
    CHECK(one.clock().world_time(shown) <= at);
    CHECK(one.clock().local(one.clock().world_time(shown)) >= shown);
  }
}

TEST_CASE("sim/core: a turn with much to do passes its quota, which never happens while time stands still") {
  World world(1);
  NodeOptions options = node_of(1);
  options.reactor.fiber_quota = microseconds(5);
  Node node(world, 1, options);
  node.start();
  int ran = 0;
  for (int i = 0; i < 60; ++i) {
    REQUIRE(node.spawn(0, "busy", [&] {
      for (int looks = 0; looks < 20; ++looks) static_cast<void>(node.clock().now());
      ++ran;
    }));
  }
  world.run_for(seconds(1));
  CHECK(ran == 60);
  // 60 fibers of 20 looks of at least 20 ns, 16 of them between two looks at the quota.
  CHECK(node.core().turns() >= 4);
}

TEST_CASE("sim/core: after a pause what came in meanwhile is handled before overdue timers fire") {
  for (const bool amid_turn : {false, true}) {
    World world(1);
    Node node(world, 1, node_of(1));
    node.start();
    world.run_for(milliseconds(10));
    WaitQueue arrived;
    Wakeup wakeup = Wakeup::cancelled;
    REQUIRE(node.spawn(0, "waiter", [&] { wakeup = arrived.wait(node.clock().now() + milliseconds(100)); }));
    world.run_for(milliseconds(1));
    node.pause(milliseconds(500), amid_turn);
    if (amid_turn) REQUIRE(node.spawn(0, "work", [] {}));  // a turn that does nothing looks once
    world.run_for(milliseconds(200));
    const std::uint64_t turns = node.core().turns();
    node.core().post([&] { arrived.notify_one(); });
    world.run_for(milliseconds(250));
    CHECK(node.core().turns() == turns);
    world.run_for(milliseconds(100));
    CHECK(wakeup == Wakeup::notified);
  }
}

TEST_CASE("sim/core: a pause counts once it holds a turn that is due, a jump if it goes over a timer") {
  FaultCounts counts;
  const FaultCounts::Count& pauses = counts[FaultKind::pause];
  World world(1);
  Node node(world, 1, node_of(1));
  node.start();
  world.run_for(milliseconds(10));
  // 1: nothing is due meanwhile. Expect: no hit
  node.pause(milliseconds(100), false, &counts);
  world.run_for(milliseconds(200));
  CHECK(pauses.hit == 0);
  CHECK_FALSE(node.jump(milliseconds(100)));
  // 2: a timer and a task are. Expect: one hit
  REQUIRE(node.spawn(0, "sleeper", [] { this_fiber::sleep_for(milliseconds(50)); }));
  world.run_for(milliseconds(1));
  node.pause(milliseconds(100), false, &counts);
  world.run_for(milliseconds(20));
  CHECK(pauses.hit == 0);
  world.run_for(milliseconds(50));
  node.core().post([] {});
  world.run_for(milliseconds(200));
  CHECK(pauses.hit == 1);
  // 3: amid a turn. Expect: a hit once one stood still
  node.pause(milliseconds(100), true, &counts);
  CHECK(pauses.hit == 1);
  REQUIRE(node.spawn(0, "work", [&] { static_cast<void>(node.clock().now()); }));
  world.run_for(milliseconds(200));
  CHECK(pauses.hit == 2);
  // 4: a jump over a timer, and one that stops short of it
  REQUIRE(node.spawn(0, "sleeper", [] { this_fiber::sleep_for(seconds(10)); }));
  world.run_for(milliseconds(1));
  CHECK_FALSE(node.jump(seconds(5)));
  CHECK(node.jump(seconds(6)));
}

TEST_CASE("sim/core: a slow core takes longer turns, and a clock that jumps fires timers early") {
  World world(1);
  Node node(world, 1, node_of(1));
  node.start();
  Duration longest{};
  node.after_turn([&](Core&, Duration inner) { longest = std::max(longest, inner); });
  world.run_for(milliseconds(10));
  const Duration usual = longest;
  node.set_slowness(400);
  node.core().turn_now();
  world.run_for(milliseconds(10));
  CHECK(longest > usual * 10);
  node.set_slowness(1);
  Wakeup wakeup = Wakeup::notified;
  WaitQueue nobody;
  REQUIRE(node.spawn(0, "waiter", [&] { wakeup = nobody.wait(node.clock().now() + seconds(3'600)); }));
  world.run_for(seconds(1));
  CHECK(wakeup == Wakeup::notified);
  node.jump(seconds(3'600));
  world.run_for(milliseconds(1));
  CHECK(wakeup == Wakeup::deadline);
}

TEST_CASE(
    "sim/core: a node killed at any moment unwinds its fibers, leaves nothing, and starts again empty") {
  for (std::int64_t at = 0; at < 40; ++at) {
    NodeOptions options = node_of(2);
    options.mailbox = {.lane_slots = 4};
    const Played killed = simulate(9, options, Instant{} + milliseconds(at * 37));
    CHECK(killed.failures.empty());
  }
  World world(1);
  Node node(world, 1, node_of(1));
  node.start();
  bool unwound = false;
  struct Note {
    bool& done;
    ~Note() { done = true; }
  };
  REQUIRE(node.spawn(0, "sleeper", [&] {
    const Note note{unwound};
    this_fiber::sleep_for(seconds(3'600));
  }));
  world.run_for(seconds(1));
  bool destroyed = false;
  node.kill([&] {
    CHECK(unwound);
    destroyed = true;
  });
  CHECK(destroyed);
  CHECK_FALSE(node.up());
  world.run_for(seconds(1));
  node.start();
  CHECK(node.incarnation() == 2);
  bool ran = false;
  REQUIRE(node.spawn(0, "again", [&] { ran = true; }));
  world.run_for(milliseconds(1));
  CHECK(ran);
}
