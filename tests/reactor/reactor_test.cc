#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/sync.h>

#include "null_io.h"

using namespace tidelock;
using tidelock::test::NullIoBackend;
using tidelock::test::Rig;

namespace {

/// A source with `items` to hand out, and whatever a test wants to happen in poll().
struct Source final : PollSource {
  std::uint32_t poll(std::uint32_t budget) override {
    ++polls;
    if (on_poll) on_poll();
    const std::uint32_t took = std::min(budget, items);
    items -= took;
    handled += took;
    return took;
  }
  void flush() override {
    ++flushes;
    if (on_flush) on_flush();
  }
  void arm() override { armed = true; }
  void disarm() override { armed = false; }
  [[nodiscard]] bool has_work() const override { return items > 0; }

  std::uint32_t items = 0;
  std::uint32_t handled = 0;
  int polls = 0;
  int flushes = 0;
  bool armed = false;
  std::function<void()> on_poll;
  std::function<void()> on_flush;
};

/// Time that runs: every look at it costs a microsecond.
class TickingClock final : public Clock {
 public:
  [[nodiscard]] Instant now() override {
    time_ = time_ + microseconds(1);
    return time_;
  }

 private:
  Instant time_{1};
};

}  // namespace

TEST_CASE("reactor/reactor: options out of range are refused with the range") {
  ManualClock clock;
  NullIoBackend io;
  Random random(1);
  const auto refused = [&](auto change) {
    ReactorOptions options;
    change(options);
    const auto made = Reactor::create(options, clock, io, random);
    return !made && made.error().code() == std::errc::invalid_argument;
  };
  CHECK(refused([](ReactorOptions& options) { options.stack_bytes = 4096; }));
  CHECK(refused([](ReactorOptions& options) { options.stack_bytes = 16 << 20; }));
  CHECK(refused([](ReactorOptions& options) { options.max_fibers = 0; }));
  CHECK(refused([](ReactorOptions& options) { options.max_fibers = 65'537; }));
  CHECK(refused([](ReactorOptions& options) { options.source_budget = 0; }));
  CHECK(refused([](ReactorOptions& options) { options.idle_looks = 0; }));
  CHECK(refused([](ReactorOptions& options) { options.idle_looks = 65; }));
}

TEST_CASE("reactor/reactor: turn() says when it wants to run again") {
  Rig rig;
  CHECK(rig.reactor->turn() == Instant::never());
  CHECK_FALSE(rig.reactor->has_work());
  const Instant deadline = rig.clock.now() + milliseconds(3);
  REQUIRE(rig.reactor->spawn_detached("sleeper", [deadline] { this_fiber::sleep_until(deadline); }));
  CHECK(rig.reactor->has_work());
  CHECK(rig.reactor->turn() == deadline);
  CHECK_FALSE(rig.reactor->has_work());
  rig.clock.advance_to(deadline);
  CHECK(rig.reactor->has_work());
  CHECK(rig.reactor->turn() == Instant::never());
}

TEST_CASE("reactor/reactor: a source that used its budget wants another turn") {
  Rig rig;
  Source source;
  source.items = 100;
  rig.reactor->add_source(source);
  CHECK(rig.reactor->has_work());
  CHECK(rig.reactor->turn() == Instant{0});
  CHECK(source.handled == 64);
  CHECK(rig.reactor->turn() == Instant::never());
  CHECK(source.handled == 100);
  CHECK(source.flushes == 2);
  CHECK(rig.io.flushes == 2);
  CHECK(rig.reactor->stats().turns.load() == 2);
  CHECK(rig.reactor->stats().busy_turns.load() == 2);
  rig.reactor->turn();
  CHECK(rig.reactor->stats().busy_turns.load() == 2);
  rig.reactor->remove_source(source);
}

TEST_CASE("reactor/reactor: an idle turn looks several times, up to the first find, and ends once") {
  ManualClock clock;
  NullIoBackend io;
  Random random(1);
  ReactorOptions options;
  options.idle_looks = 8;
  auto reactor = Reactor::create(options, clock, io, random);
  REQUIRE(reactor);
  Source source;
  (*reactor)->add_source(source);
  (*reactor)->turn();
  CHECK(source.polls == 8);
  CHECK(source.flushes == 1);
  CHECK((*reactor)->stats().busy_turns.load() == 0);
  source.polls = 0;
  source.on_poll = [&] {
    if (source.polls == 3) source.items = 1;
  };
  (*reactor)->turn();
  CHECK(source.handled == 1);
  CHECK(source.polls == 3);
  CHECK(source.flushes == 2);
  CHECK((*reactor)->stats().busy_turns.load() == 1);
  // What a look makes ready runs in the same turn.
  source.polls = 0;
  bool ran = false;
  source.on_poll = [&] {
    if (source.polls == 2) REQUIRE((*reactor)->spawn_detached("found", [&] { ran = true; }));
  };
  (*reactor)->turn();
  CHECK(source.polls == 2);
  CHECK(ran);
  (*reactor)->remove_source(source);
}

TEST_CASE("reactor/reactor: sources are armed and disarmed for the park") {
  Rig rig;
  Source source;
  rig.reactor->add_source(source);
  rig.reactor->arm_sources();
  CHECK(source.armed);
  rig.reactor->disarm_sources();
  CHECK_FALSE(source.armed);
  rig.reactor->remove_source(source);
}

TEST_CASE("reactor/reactor: a callback may remove sources, itself included, and add others") {
  Rig rig;
  auto first = std::make_unique<Source>();
  auto second = std::make_unique<Source>();
  Source third, added;
  for (Source* source : {first.get(), second.get(), &third}) rig.reactor->add_source(*source);
  first->on_poll = [&] {
    rig.reactor->remove_source(*second);
    second.reset();  // as dead as can be: a later call would be seen by ASan
    rig.reactor->add_source(added);
    rig.reactor->remove_source(*first);
  };
  rig.reactor->turn();
  CHECK(first->polls == 1);
  CHECK(first->flushes == 0);
  CHECK(third.polls == 1);
  CHECK(added.flushes == 1);
  third.on_flush = [&] { rig.reactor->remove_source(third); };
  rig.reactor->turn();
  rig.reactor->turn();
  CHECK(first->polls == 1);
  CHECK(third.polls == 2);
  CHECK(added.polls >= 2);
  rig.reactor->remove_source(added);
}

TEST_CASE(
    "reactor/reactor: fibers that wake each other stop at the quota, and staged work leaves meanwhile") {
  TickingClock clock;
  NullIoBackend io;
  Random random(1);
  auto reactor = Reactor::create(Rig::small(), clock, io, random);
  REQUIRE(reactor);
  Source source;
  (*reactor)->add_source(source);
  Condition ping, pong;
  std::uint64_t rounds = 0;
  bool stop = false;
  REQUIRE((*reactor)->spawn_detached("ping", [&] {
    while (!stop) {
      ++rounds;
      pong.notify_one();
      if (ping.wait(Instant::never()) == Wakeup::cancelled) return;
    }
  }));
  REQUIRE((*reactor)->spawn_detached("pong", [&] {
    while (!stop) {
      ping.notify_one();
      if (pong.wait(Instant::never()) == Wakeup::cancelled) return;
    }
  }));
  CHECK((*reactor)->turn() == Instant{0});
  // 500 us at a microsecond a look and a look every 16 switches.
  CHECK(rounds > 1'000);
  CHECK(rounds < 10'000);
  CHECK(source.flushes >= 20);
  CHECK(source.flushes <= 30);
  (*reactor)->cancel_all();
  for (int i = 0; i < 100 && !(*reactor)->idle(); ++i) (*reactor)->turn();
  CHECK((*reactor)->idle());
  (*reactor)->remove_source(source);
}

TEST_CASE("reactor/reactor: after a stall all that came in is handled before timers fire") {
  Rig rig;
  Source source;
  Condition arrived;
  bool heard = false;
  rig.reactor->add_source(source);
  source.on_poll = [&] {
    if (source.items == 1) arrived.notify_all();  // the last of many: beyond the first turn's budget
  };
  REQUIRE(rig.reactor->spawn_detached("listener", [&] {
    arrived.wait(Instant::never());
    heard = true;
  }));
  bool heard_at_deadline = false;
  REQUIRE(rig.reactor->spawn_detached("watchdog", [&] {
    this_fiber::sleep_for(milliseconds(10));
    heard_at_deadline = heard;
  }));
  rig.run();
  source.items = 64 * 20 + 1;
  rig.clock.advance(seconds(2));  // as after SIGSTOP
  rig.run();
  CHECK(heard);
  CHECK(heard_at_deadline);
  rig.reactor->remove_source(source);
}

TEST_CASE("reactor/reactor: input that never ends does not keep timers from firing") {
  Rig rig;
  Source source;
  source.on_poll = [&] { source.items = 1'000; };
  rig.reactor->add_source(source);
  bool fired = false;
  REQUIRE(rig.reactor->spawn_detached("sleeper", [&] {
    this_fiber::sleep_for(milliseconds(10));
    fired = true;
  }));
  rig.reactor->turn();
  rig.clock.advance(seconds(2));
  for (int i = 0; i < 3; ++i) rig.reactor->turn();
  CHECK(fired);
  rig.reactor->remove_source(source);
}

TEST_CASE("reactor/reactor: a long turn is counted as a stall") {
  Rig rig;
  REQUIRE(rig.reactor->spawn_detached("busy", [&] { rig.clock.advance(milliseconds(30)); }));
  rig.run();
  CHECK(rig.reactor->stats().stalls.load() == 1);
  CHECK(rig.reactor->stats().stall_ns_max.load() == 30'000'000);
  REQUIRE(rig.reactor->spawn_detached("brief", [&] { rig.clock.advance(milliseconds(1)); }));
  rig.run();
  CHECK(rig.reactor->stats().stalls.load() == 1);
}

TEST_CASE("reactor/reactor: current() is set inside a turn only, and nests") {
  Rig outer, inner;
  CHECK(Reactor::current() == nullptr);
  Reactor* seen_inside = nullptr;
  REQUIRE(inner.reactor->spawn_detached("inner", [&] { seen_inside = Reactor::current(); }));
  outer.run_fiber([&] {
    CHECK(Reactor::current() == outer.reactor.get());
    inner.reactor->turn();
    CHECK(Reactor::current() == outer.reactor.get());
    CHECK(this_fiber::yield() == Wakeup::notified);
    CHECK(Reactor::current() == outer.reactor.get());
  });
  CHECK(seen_inside == inner.reactor.get());
  CHECK(Reactor::current() == nullptr);
}

TEST_CASE("reactor/reactor: two reactors take turns on one thread") {
  Rig left, right;
  std::string order;
  WaitQueue at_left, at_right;
  const auto player = [&order](WaitQueue& mine, WaitQueue& theirs, char name) {
    return [&order, &mine, &theirs, name] {
      for (int i = 0; i < 3; ++i) {
        if (mine.wait(Instant::never()) != Wakeup::notified) return;
        order += name;
        theirs.notify_one();  // wakes a fiber of the other reactor
      }
    };
  };
  REQUIRE(left.reactor->spawn_detached("left", player(at_left, at_right, 'l')));
  REQUIRE(right.reactor->spawn_detached("right", player(at_right, at_left, 'r')));
  left.run();
  right.run();
  at_left.notify_one();
  for (int i = 0; i < 6; ++i) {
    left.run();
    right.run();
  }
  CHECK(order == "lrlrlr");
}

TEST_CASE("reactor/reactor: a turn may run on another thread than the one before") {
  Rig rig;
  std::string caught;
  Reactor* seen = nullptr;
  REQUIRE(rig.reactor->spawn_detached("traveller", [&] {
    try {
      try {
        throw std::runtime_error("luggage");
      } catch (const std::runtime_error&) {
        this_fiber::sleep_for(milliseconds(1));
        seen = Reactor::current();
        throw;
      }
    } catch (const std::exception& error) {
      caught = error.what();
    }
  }));
  rig.run();
  std::thread other([&] {
    rig.run_for(milliseconds(2));
    CHECK(Reactor::current() == nullptr);
  });
  other.join();
  CHECK(caught == "luggage");
  CHECK(seen == rig.reactor.get());
}

TEST_CASE("reactor/reactor: cancel_all ends every fiber, and idle() says when") {
  Rig rig;
  Channel<int> channel(1);
  for (int i = 0; i < 5; ++i) {
    REQUIRE(rig.reactor->spawn_detached("sleeper", [] { this_fiber::sleep_until(Instant::never()); }));
    REQUIRE(rig.reactor->spawn_detached("receiver", [&] { (void)channel.receive(Instant::never()); }));
  }
  rig.run();
  CHECK_FALSE(rig.reactor->idle());
  rig.reactor->cancel_all();
  CHECK_FALSE(rig.reactor->idle());
  rig.run();
  CHECK(rig.reactor->idle());
}

TEST_CASE("reactor/reactor: now() stands still within a turn and moves with the switches") {
  Rig rig;
  Instant before{}, after{};
  REQUIRE(rig.reactor->spawn_detached("reader", [&] {
    before = rig.reactor->now();
    rig.clock.advance(milliseconds(1));
    CHECK(rig.reactor->now() == before);
    after = rig.reactor->refresh_now();
  }));
  rig.run();
  CHECK(after - before == milliseconds(1));
}
