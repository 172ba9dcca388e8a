#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/sync.h>

#include "null_io.h"

using namespace tidelock;
using tidelock::test::kNever;
using tidelock::test::Rig;

namespace {

template <class F>
auto start(Rig& rig, F&& closure) {
  auto handle = rig.reactor->spawn("worker", std::forward<F>(closure));
  REQUIRE(handle);
  return *std::move(handle);
}

std::error_code code_of(const Status& status) { return status ? std::error_code{} : status.error().code(); }

}  // namespace

TEST_CASE("reactor/sync: a mutex goes to its waiters in order, across suspensions of the owner") {
  Rig rig;
  Mutex mutex;
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    REQUIRE(rig.reactor->spawn_detached("locker", [&mutex, &order, name] {
      const auto guard = MutexGuard::acquire(mutex, kNever);
      REQUIRE(guard);
      order += name;
      this_fiber::sleep_for(milliseconds(1));
      order += name;
    }));
  }
  rig.run_for(milliseconds(10));
  CHECK(order == "aabbcc");
  CHECK(mutex.try_lock());
  CHECK_FALSE(mutex.try_lock());
  mutex.unlock();
}

TEST_CASE("reactor/sync: a mutex that was handed over is not overtaken") {
  Rig rig;
  Mutex mutex;
  bool waiter_has_it = false;
  REQUIRE(mutex.try_lock());
  auto waiter = start(rig, [&] {
    REQUIRE(mutex.lock(kNever));
    waiter_has_it = true;
  });
  rig.run();
  mutex.unlock();
  CHECK_FALSE(mutex.try_lock());  // the waiter has not run yet, but it is the owner
  rig.run();
  CHECK(waiter_has_it);
  mutex.unlock();
}

TEST_CASE("reactor/sync: a waiter cancelled after the hand-over owns the mutex and gives it back") {
  Rig rig;
  Mutex mutex;
  REQUIRE(mutex.try_lock());
  auto waiter = start(rig, [&] {
    const bool owner = mutex.lock(kNever).has_value();
    if (owner) mutex.unlock();
    return owner;
  });
  rig.run();
  mutex.unlock();
  waiter.cancel();
  rig.run();
  CHECK(*waiter.join(kNever));
  CHECK(mutex.try_lock());
  mutex.unlock();
}

TEST_CASE("reactor/sync: a mutex is not held after a deadline or a cancellation") {
  Rig rig;
  Mutex mutex;
  REQUIRE(mutex.try_lock());
  auto late = start(rig, [&] { return code_of(mutex.lock(rig.reactor->now() + milliseconds(1))); });
  auto cancelled = start(rig, [&] { return code_of(mutex.lock(kNever)); });
  rig.run_for(milliseconds(2));
  cancelled.cancel();
  rig.run();
  CHECK(*late.join(kNever) == make_error_code(ReactorErrc::deadline_exceeded));
  CHECK(*cancelled.join(kNever) == make_error_code(ReactorErrc::cancelled));
  mutex.unlock();
  CHECK(mutex.try_lock());
  mutex.unlock();
}

TEST_CASE("reactor/sync: a condition is waited for until its predicate holds") {
  Rig rig;
  Condition changed;
  int value = 0;
  auto reader = start(rig, [&] {
    const Status status = changed.wait_until([&] { return value >= 3; }, rig.reactor->now() + seconds(1));
    return status.has_value() ? value : -1;
  });
  rig.run();
  for (int i = 0; i < 3; ++i) {
    ++value;
    changed.notify_all();
    rig.run();
    CHECK(reader.finished() == (value == 3));
  }
  CHECK(*reader.join(kNever) == 3);
}

TEST_CASE("reactor/sync: a condition's deadline passes, unless the predicate came true without a word") {
  Rig rig;
  Condition changed;
  bool flag = false;
  const auto waiting = [&] {
    return code_of(changed.wait_until([&] { return flag; }, rig.reactor->now() + milliseconds(1)));
  };
  auto in_vain = start(rig, waiting);
  rig.run_for(milliseconds(2));
  CHECK(*in_vain.join(kNever) == make_error_code(ReactorErrc::deadline_exceeded));
  auto lucky = start(rig, waiting);
  rig.run();
  flag = true;
  rig.run_for(milliseconds(2));
  CHECK(*lucky.join(kNever) == std::error_code{});
}

TEST_CASE("reactor/sync: a large request at a semaphore's head is not overtaken by small ones") {
  Rig rig;
  Semaphore permits(3);
  std::string order;
  const auto taker = [&](char name, std::uint64_t count) {
    REQUIRE(rig.reactor->spawn_detached("taker", [&permits, &order, name, count] {
      REQUIRE(permits.acquire(count, kNever));
      order += name;
    }));
  };
  taker('a', 2);
  taker('L', 4);
  taker('b', 1);
  rig.run();
  CHECK(order == "a");
  CHECK(permits.available() == 1);
  CHECK_FALSE(permits.try_acquire(1));
  permits.release(2);
  rig.run();
  CHECK(order == "a");
  permits.release(2);
  rig.run();
  CHECK(order == "aLb");
  CHECK(permits.available() == 0);
}

TEST_CASE("reactor/sync: those behind a large request go on when it gives up") {
  Rig rig;
  Semaphore permits(1);
  auto large = start(rig, [&] { return code_of(permits.acquire(5, kNever)); });
  auto late = start(rig, [&] { return code_of(permits.acquire(5, rig.reactor->now() + milliseconds(1))); });
  auto small = start(rig, [&] { return code_of(permits.acquire(1, kNever)); });
  rig.run();
  large.cancel();
  rig.run();
  CHECK_FALSE(small.finished());
  rig.run_for(milliseconds(2));
  CHECK(*large.join(kNever) == make_error_code(ReactorErrc::cancelled));
  CHECK(*late.join(kNever) == make_error_code(ReactorErrc::deadline_exceeded));
  CHECK(*small.join(kNever) == std::error_code{});
  CHECK(permits.available() == 0);
}

TEST_CASE("reactor/sync: permits granted before a cancellation do not leak") {
  Rig rig;
  Semaphore permits(0);
  auto taker = start(rig, [&] { return code_of(permits.acquire(2, kNever)); });
  rig.run();
  permits.release(2);
  taker.cancel();
  rig.run();
  CHECK(*taker.join(kNever) == std::error_code{});
  CHECK(permits.available() == 0);
}

TEST_CASE("reactor/sync: a gate refuses newcomers and closes when the last has left") {
  Rig rig;
  Gate gate;
  REQUIRE(gate.enter());
  REQUIRE(gate.enter());
  auto first = start(rig, [&] { return code_of(gate.close(rig.reactor->now() + milliseconds(1))); });
  rig.run();
  CHECK(gate.closed());
  CHECK(gate.enter().error() == ReactorErrc::closed);
  gate.leave();
  rig.run_for(milliseconds(2));
  CHECK(*first.join(kNever) == make_error_code(ReactorErrc::deadline_exceeded));
  auto second = start(rig, [&] { return code_of(gate.close(kNever)); });
  rig.run();
  CHECK_FALSE(second.finished());
  gate.leave();
  rig.run();
  CHECK(*second.join(kNever) == std::error_code{});
  CHECK(gate.inside() == 0);
}

TEST_CASE("reactor/sync: a channel keeps order and its bound") {
  Rig rig;
  Channel<int> channel(4);
  std::vector<int> got;
  REQUIRE(rig.reactor->spawn_detached("sender", [&] {
    for (int i = 0; i < 100; ++i) {
      REQUIRE(channel.send(i, kNever));
      CHECK(channel.size() <= 4);
    }
    channel.close();
  }));
  auto receiver = start(rig, [&] {
    while (true) {
      const auto value = channel.receive(kNever);
      if (!value) return value.error().code();
      got.push_back(*value);
    }
  });
  rig.run();
  CHECK(*receiver.join(kNever) == make_error_code(ReactorErrc::closed));
  REQUIRE(got.size() == 100);
  for (int i = 0; i < 100; ++i) REQUIRE(got[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("reactor/sync: a closed channel is drained, wakes all who wait and refuses senders") {
  Rig rig;
  Channel<std::unique_ptr<int>> channel(1);
  REQUIRE(
      rig.reactor->spawn_detached("first", [&] { REQUIRE(channel.send(std::make_unique<int>(1), kNever)); }));
  auto blocked = start(rig, [&] { return code_of(channel.send(std::make_unique<int>(2), kNever)); });
  rig.run();
  channel.close();
  rig.run();
  CHECK(*blocked.join(kNever) == make_error_code(ReactorErrc::closed));
  rig.run_fiber([&] {
    auto last = channel.receive(kNever);
    REQUIRE(last);
    CHECK(**last == 1);
    CHECK(channel.receive(kNever).error() == ReactorErrc::closed);
    CHECK(channel.send(nullptr, kNever).error() == ReactorErrc::closed);
  });
  Channel<int> empty(1);
  auto waiting = start(rig, [&] { return empty.receive(kNever).error().code(); });
  rig.run();
  empty.close();
  rig.run();
  CHECK(*waiting.join(kNever) == make_error_code(ReactorErrc::closed));
}

TEST_CASE("reactor/sync: waiting at a channel ends by deadline and by cancellation") {
  Rig rig;
  Channel<int> channel(1);
  auto late =
      start(rig, [&] { return channel.receive(rig.reactor->now() + milliseconds(1)).error().code(); });
  auto cancelled = start(rig, [&] { return channel.receive(kNever).error().code(); });
  rig.run_for(milliseconds(2));
  cancelled.cancel();
  rig.run();
  CHECK(*late.join(kNever) == make_error_code(ReactorErrc::deadline_exceeded));
  CHECK(*cancelled.join(kNever) == make_error_code(ReactorErrc::cancelled));
  rig.run_fiber([&] {
    REQUIRE(channel.send(9, kNever));  // whoever gave up is not served
    CHECK(channel.send(10, rig.reactor->now() + milliseconds(1)).error() == ReactorErrc::deadline_exceeded);
    CHECK(*channel.receive(kNever) == 9);
  });
}

TEST_CASE("reactor/sync: senders and receivers in any number lose and double nothing") {
  Rig rig;
  Channel<int> channel(3);
  int senders = 5;
  std::vector<int> times(500);
  for (int sender = 0; sender < 5; ++sender) {
    REQUIRE(rig.reactor->spawn_detached("sender", [&, sender] {
      for (int i = 0; i < 100; ++i) {
        REQUIRE(channel.send(sender * 100 + i, kNever));
        if (rig.random.below(3) == 0) this_fiber::yield();
      }
      if (--senders == 0) channel.close();
    }));
  }
  for (int receiver = 0; receiver < 4; ++receiver) {
    REQUIRE(rig.reactor->spawn_detached("receiver", [&] {
      while (auto value = channel.receive(kNever)) {
        ++times[static_cast<std::size_t>(*value)];
        if (rig.random.below(3) == 0) this_fiber::sleep_for(microseconds(10));
      }
    }));
  }
  rig.run_for(seconds(1));
  for (const int seen : times) REQUIRE(seen == 1);
}
