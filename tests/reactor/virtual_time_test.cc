// Two reactors and their fibers, messages, calls and timers on ONE thread, with no io_uring and a clock that
// the test turns: what a simulator needs, and the same object code that production runs.
#include <chrono>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/mailbox.h>

#include "village.h"

using namespace tidelock;
using tidelock::test::Village;

namespace {

constexpr CoreId kLeft{0};
constexpr CoreId kRight{1};

/// FNV-1a over everything that happened, and when.
struct Trace {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  std::uint64_t events = 0;
  void note(std::uint64_t what, Instant when) {
    for (const std::uint64_t word : {what, static_cast<std::uint64_t>(when.ns)}) {
      hash = (hash ^ word) * 0x100000001b3ULL;
    }
    ++events;
  }
};

struct Run {
  Trace trace;
  Instant end;
  std::uint64_t lost_wakeups;
  std::uint64_t wakes;
};

void play(Village& village, Trace& trace, std::size_t self) {
  Reactor& reactor = *village.at(self).reactor;
  Mailbox& mailbox = village.mailbox(self);
  const CoreId other = self == 0 ? kRight : kLeft;
  Trace* log = &trace;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto pause = static_cast<std::int64_t>(reactor.random().below(90));
    this_fiber::sleep_for(seconds(pause));
    log->note(self << 32 | i, reactor.clock().now());
    CHECK(mailbox.post(
        other, [log, i](Reactor& target) { log->note(1'000 + i, target.clock().now()); },
        reactor.clock().now() + seconds(10)));
    const auto answer = mailbox.call_in_fiber(
        other,
        [pause](Reactor& target) {
          this_fiber::sleep_for(milliseconds(pause));
          return target.random().next();
        },
        reactor.clock().now() + seconds(10));
    REQUIRE(answer);
    log->note(*answer, reactor.clock().now());
  }
}

Run simulate(std::uint64_t seed) {
  Village village(2, {.lane_slots = 4}, seed);
  Trace trace;
  for (std::size_t self = 0; self < 2; ++self) {
    for (int fibers = 0; fibers < 4; ++fibers) {
      village.spawn(self, [&village, &trace, self] { play(village, trace, self); });
    }
  }
  village.run_for(seconds(100'000));
  return {trace, village.clock.now(), village.lost_wakeups, village.at(0).wakes + village.at(1).wakes};
}

}  // namespace

TEST_CASE("reactor/virtual time: one seed, one trace; another seed, another") {
  const Run first = simulate(7);
  const Run again = simulate(7);
  const Run other = simulate(8);
  CHECK(first.trace.events == 2 * 4 * 200 * 3);
  CHECK(first.lost_wakeups == 0);
  CHECK(first.wakes > 100);
  CHECK(first.trace.events == again.trace.events);
  CHECK(first.trace.hash == again.trace.hash);
  CHECK(first.wakes == again.wakes);
  CHECK(other.trace.hash != first.trace.hash);
}

TEST_CASE("reactor/virtual time: a message to a parked reactor wakes it, and only then") {
  Village village(2);
  village.run_for(seconds(1));
  REQUIRE(village.at(0).parked);
  REQUIRE(village.at(1).parked);
  const std::uint64_t turns = village.at(1).turns;
  village.run_for(seconds(3'600));
  CHECK(village.at(1).turns == turns);

  int ran = 0;
  village.spawn(0, [&] {
    int* counter = &ran;
    CHECK(village.mailbox(0).try_post(kRight, [counter](Reactor&) { ++*counter; }));
  });
  village.run_for(seconds(1));
  CHECK(ran == 1);
  CHECK(village.at(1).wakes == 1);
  CHECK(village.at(1).parked);
  // A target that is awake costs no wakeup.
  CHECK(village.mailbox(0).stats().wakeups_sent == 1);
}

TEST_CASE("reactor/virtual time: hours pass in no time, and no deadline passes early") {
  Village village(2);
  std::int64_t slept_ns = 0;
  Status outcome;
  village.spawn(0, [&] {
    const Instant start = village.clock.now();
    this_fiber::sleep_for(seconds(10 * 3'600));
    slept_ns = (village.clock.now() - start).ns;
    const auto late = village.mailbox(0).call_in_fiber(
        kRight, [](Reactor&) { this_fiber::sleep_for(seconds(7'200)); },
        village.clock.now() + seconds(3'600));
    outcome = late;
  });
  village.run_for(seconds(20 * 3'600));
  CHECK(slept_ns == seconds(10 * 3'600).ns);
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error() == ReactorErrc::deadline_exceeded);
  CHECK(village.at(0).turns < 1'000);
}
