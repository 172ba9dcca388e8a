#include <array>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/mailbox.h>

#include "core_id.h"
#include "village.h"

using namespace tidelock;
using tidelock::test::core;
using tidelock::test::Rig;
using tidelock::test::Village;

namespace {

MailboxOptions tiny(std::uint32_t slots = 4, Carrier carrier = Carrier::shared_memory) {
  return {.lane_slots = slots, .carrier = carrier};
}

/// Expects 0, 1, 2, ... from each sender.
struct Receiver {
  std::array<std::uint32_t, 256> next{};
  std::uint64_t received = 0;
  std::uint64_t misplaced = 0;
  void take(std::size_t from, std::uint32_t number) {
    if (next[from] != number) ++misplaced;
    next[from] = number + 1;
    ++received;
  }
};

/// Sends 0, 1, ... `count - 1` from a fiber that waits whenever the lane is full.
void send_numbers(Village& village, std::size_t from, std::size_t to, Receiver& receiver,
                  std::uint32_t count) {
  village.spawn(from, [&village, from, to, &receiver, count] {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::uint32_t>(from);
      Receiver* target = &receiver;
      const Status sent = village.mailbox(from).post(
          core(to), [target, id, i](Reactor&) { target->take(id, i); }, village.clock.now() + seconds(100));
      CHECK(sent);
      if (i % 97 == 0) this_fiber::sleep_for(microseconds(50));
    }
  });
}

}  // namespace

TEST_CASE("reactor/mailbox: messages arrive once and in order, on the target's loop") {
  Village village(2);
  Receiver receiver;
  for (std::uint32_t i = 0; i < 100; ++i) {
    Receiver* target = &receiver;
    Village* all = &village;
    CHECK(village.mailbox(0).try_post(core(1), [target, all, i](Reactor& reactor) {
      CHECK(&reactor == all->at(1).reactor.get());
      CHECK(Reactor::current() == &reactor);
      CHECK_FALSE(this_fiber::exists());
      target->take(0, i);
    }));
  }
  CHECK(receiver.received == 0);
  village.run_for(milliseconds(1));
  CHECK(receiver.received == 100);
  CHECK(receiver.misplaced == 0);
  CHECK(village.mailbox(0).stats().sent == 100);
  CHECK(village.mailbox(1).stats().received == 100);
  CHECK(village.mailbox(0).stats().lanes == 1);
  CHECK(village.mailbox(0).stats().lane_bytes >= 256 * 64);
}

TEST_CASE("reactor/mailbox: a full lane refuses try_post and delays a fiber's post") {
  Village village(2, tiny());
  Receiver receiver;
  village.at(1).held = true;
  send_numbers(village, 0, 1, receiver, 10);
  village.run_for(milliseconds(1));
  CHECK_FALSE(village.mailbox(0).try_post(core(1), [](Reactor&) {}));
  CHECK(village.mailbox(0).try_post(core(1), [](Reactor&) {}).error() == ReactorErrc::lane_full);
  CHECK(village.mailbox(0).stats().sent == 4);
  village.at(1).held = false;
  village.run_for(milliseconds(10));
  CHECK(receiver.received == 10);
  CHECK(receiver.misplaced == 0);
}

TEST_CASE("reactor/mailbox: a fiber that waits for a full lane ends at its deadline or its cancellation") {
  Village village(2, tiny());
  village.at(1).held = true;
  for (int i = 0; i < 4; ++i) CHECK(village.mailbox(0).try_post(core(1), [](Reactor&) {}));
  Status late;
  Status cancelled;
  village.spawn(0, [&] {
    late = village.mailbox(0).post(
        core(1), [](Reactor&) {}, village.clock.now() + milliseconds(5));
  });
  auto handle = village.at(0).reactor->spawn("cancelled", [&] {
    cancelled = village.mailbox(0).post(
        core(1), [](Reactor&) {}, village.clock.now() + seconds(5));
  });
  REQUIRE(handle);
  village.run_for(milliseconds(10));
  REQUIRE_FALSE(late);
  CHECK(late.error() == ReactorErrc::deadline_exceeded);
  CHECK(cancelled);  // still waiting
  handle->cancel();
  village.at(0).woken = true;
  village.run_for(milliseconds(1));
  REQUIRE_FALSE(cancelled);
  CHECK(cancelled.error() == ReactorErrc::cancelled);
  // Neither left anything behind that would keep a free slot from others.
  village.at(1).held = false;
  village.run_for(milliseconds(1));
  for (int i = 0; i < 4; ++i) CHECK(village.mailbox(0).try_post(core(1), [](Reactor&) {}));
  village.at(0).woken = true;  // staged behind its back
}

TEST_CASE("reactor/mailbox: a call brings back its result, also void, also from the caller's own core") {
  Village village(2);
  int done = 0;
  village.spawn(0, [&] {
    const Instant deadline = village.clock.now() + seconds(1);
    for (std::size_t target = 0; target < 2; ++target) {
      const std::uint64_t seven = 7;
      const auto sum = village.mailbox(0).call(
          core(target), [seven](Reactor& reactor) { return seven + reactor.id().value; }, deadline);
      REQUIRE(sum);
      CHECK(*sum == 7 + target);
      int* counter = &done;
      CHECK(village.mailbox(0).call(
          core(target), [counter](Reactor&) { ++*counter; }, deadline));
      CHECK(village.mailbox(0).call_in_fiber(
          core(target),
          [counter](Reactor&) {
            CHECK(this_fiber::exists());
            this_fiber::sleep_for(milliseconds(3));
            ++*counter;
          },
          deadline));
    }
  });
  village.run_for(seconds(1));
  CHECK(done == 4);
  CHECK(village.mailbox(0).stats().calls == 6);
}

TEST_CASE("reactor/mailbox: posts and calls to one target run in the order in which they were sent") {
  Village village(2, tiny(8));
  std::vector<int> order;
  village.spawn(0, [&] {
    auto* list = &order;
    const Instant deadline = village.clock.now() + seconds(1);
    for (int i = 0; i < 30; i += 3) {
      CHECK(village.mailbox(0).post(
          core(1), [list, i](Reactor&) { list->push_back(i); }, deadline));
      CHECK(village.mailbox(0).post(
          core(1), [list, i](Reactor&) { list->push_back(i + 1); }, deadline));
      CHECK(village.mailbox(0).call(
          core(1), [list, i](Reactor&) { list->push_back(i + 2); }, deadline));
    }
  });
  village.run_for(seconds(1));
  REQUIRE(order.size() == 30);
  for (int i = 0; i < 30; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("reactor/mailbox: a call's deadline detaches the caller, and its late reply is harmless") {
  Village village(2, tiny());
  int ran = 0;
  int* counter = &ran;
  std::vector<Status> outcomes;
  village.at(1).held = true;
  // Two credits with four slots: the third caller never sends.
  for (int i = 0; i < 3; ++i) {
    village.spawn(0, [&, counter] {
      const auto result = village.mailbox(0).call(
          core(1),
          [counter](Reactor&) {
            ++*counter;
            return 42;
          },
          village.clock.now() + milliseconds(2));
      outcomes.push_back(result ? Status{} : Status{result.error()});
    });
  }
  village.run_for(milliseconds(10));
  REQUIRE(outcomes.size() == 3);
  for (const Status& outcome : outcomes) {
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error() == ReactorErrc::deadline_exceeded);
  }
  CHECK(ran == 0);
  village.at(1).held = false;
  village.run_for(milliseconds(1));
  CHECK(ran == 2);
  CHECK(village.mailbox(0).stats().late_replies == 2);
  // The slots of the late replies serve again.
  int answers = 0;
  for (int i = 0; i < 10; ++i) {
    village.spawn(0, [&] {
      const auto result = village.mailbox(0).call(
          core(1), [](Reactor&) { return 43; }, village.clock.now() + seconds(1));
      if (result && *result == 43) ++answers;
    });
  }
  village.run_for(seconds(1));
  CHECK(answers == 10);
}

TEST_CASE("reactor/mailbox: a cancelled caller lets go of its call") {
  Village village(2, tiny());
  Status outcome;
  bool ended = false;
  auto handle = village.at(0).reactor->spawn("caller", [&] {
    const auto result = village.mailbox(0).call_in_fiber(
        core(1),
        [](Reactor&) {
          this_fiber::sleep_for(milliseconds(50));
          return 1;
        },
        village.clock.now() + seconds(10));
    outcome = result ? Status{} : Status{result.error()};
    ended = true;
  });
  REQUIRE(handle);
  village.run_for(milliseconds(5));
  CHECK_FALSE(ended);
  handle->cancel();
  village.at(0).woken = true;
  village.run_for(milliseconds(1));
  REQUIRE(ended);
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error() == ReactorErrc::cancelled);
  handle->detach();
  village.run_for(seconds(1));
  CHECK(village.mailbox(0).stats().late_replies == 1);
}

TEST_CASE("reactor/mailbox: two cores with full lanes to each other, all calling, go on") {
  for (const bool in_fiber : {false, true}) {
    CAPTURE(in_fiber);
    Village village(2, tiny());
    std::array<int, 2> answers{};
    constexpr int kFibers = 50;
    constexpr int kCalls = 20;
    for (std::size_t self = 0; self < 2; ++self) {
      for (int i = 0; i < kFibers; ++i) {
        village.spawn(self, [&village, &answers, self, in_fiber] {
          for (int n = 0; n < kCalls; ++n) {
            const Instant deadline = village.clock.now() + seconds(100);
            CHECK(village.mailbox(self).post(
                core(1 - self), [](Reactor&) {}, deadline));
            const auto twice = [n](Reactor&) { return 2 * n; };
            const auto result = in_fiber
                                    ? village.mailbox(self).call_in_fiber(core(1 - self), twice, deadline)
                                    : village.mailbox(self).call(core(1 - self), twice, deadline);
            if (result && *result == 2 * n) ++answers[self];
          }
        });
      }
    }
    village.run_for(seconds(50));
    CHECK(answers[0] == kFibers * kCalls);
    CHECK(answers[1] == kFibers * kCalls);
  }
}

TEST_CASE("reactor/mailbox: calls that find no fiber on the target wait there, and none is lost") {
  ReactorOptions few = Rig::small();
  few.max_fibers = 24;
  Village village(2, tiny(64), 1, few);
  // Others hold nearly all of the target's fibers for a while.
  for (int i = 0; i < 22; ++i) village.spawn(1, [] { this_fiber::sleep_for(milliseconds(100)); });
  int answers = 0;
  for (int i = 0; i < 20; ++i) {
    village.spawn(0, [&village, &answers, i] {
      const auto result = village.mailbox(0).call_in_fiber(
          core(1),
          [i](Reactor&) {
            this_fiber::sleep_for(milliseconds(30));
            return i;
          },
          village.clock.now() + seconds(10));
      if (result && *result == i) ++answers;
    });
  }
  village.run_for(milliseconds(90));
  CHECK(answers > 0);
  CHECK(answers < 20);
  village.run_for(seconds(5));
  CHECK(answers == 20);
}

TEST_CASE("reactor/mailbox: a handler may itself send") {
  Village village(3);
  int hops = 0;
  struct Hop {
    int* count;
    int left;
    void operator()(Reactor& reactor) const {
      ++*count;
      if (left == 0) return;
      const CoreId next{static_cast<std::uint16_t>((reactor.id().value + 1) % 3)};
      CHECK(reactor.mailbox()->try_post(next, Hop{count, left - 1}));
    }
  };
  CHECK(village.mailbox(0).try_post(core(1), Hop{&hops, 99}));
  village.run_for(milliseconds(1));
  CHECK(hops == 100);
}

TEST_CASE("reactor/mailbox: a sender that parks while its lane is full is woken by the free slot") {
  Village village(2, tiny());
  Receiver receiver;
  village.at(1).held = true;
  send_numbers(village, 0, 1, receiver, 50);
  village.run_for(milliseconds(1));
  CHECK(village.at(0).parked);
  const std::uint64_t wakes = village.at(0).wakes;
  village.at(1).held = false;
  village.run_for(milliseconds(10));
  CHECK(receiver.received == 50);
  CHECK(village.at(0).wakes > wakes);
  CHECK(village.lost_wakeups == 0);
}

TEST_CASE("reactor/mailbox: more reactors than a turn polls: none lost, none reordered, all pairs") {
  for (const std::uint32_t cores : {8U, 9U, 12U, 66U}) {
    CAPTURE(cores);
    Village village(cores, tiny(8), cores);
    std::vector<std::unique_ptr<Receiver>> receivers;
    for (std::uint32_t i = 0; i < cores; ++i) receivers.push_back(std::make_unique<Receiver>());
    const std::uint32_t count = cores > 16 ? 20 : 200;
    const std::size_t stride = cores > 16 ? 13 : 1;  // not every pair, but senders in each word of the bitmap
    std::vector<std::uint64_t> expected(cores);
    for (std::size_t from = 0; from < cores; ++from) {
      for (std::size_t to = from % stride; to < cores; to += stride) {
        send_numbers(village, from, to, *receivers[to], count);
        expected[to] += count;
      }
    }
    int answers = 0;
    int asked = 0;
    for (std::size_t from = 0; from < cores; ++from) {
      village.spawn(from, [&village, &answers, &asked, from, cores, stride] {
        for (std::size_t to = from % stride; to < cores; to += stride) {
          ++asked;
          const auto result = village.mailbox(from).call_in_fiber(
              core(to), [](Reactor& reactor) { return reactor.id().value; },
              village.clock.now() + seconds(100));
          if (result && *result == to) ++answers;
        }
      });
    }
    village.run_for(seconds(50));
    for (std::size_t to = 0; to < cores; ++to) {
      CHECK(receivers[to]->received == expected[to]);
      CHECK(receivers[to]->misplaced == 0);
    }
    CHECK(answers == asked);
    CHECK(asked >= static_cast<int>(cores));
  }
}

TEST_CASE("reactor/mailbox: announced lanes are read only as far as announced, and refusals are repeated") {
  for (const Carrier carrier : {Carrier::msg_ring, Carrier::eventfd}) {
    for (const std::uint32_t cores : {2U, 9U}) {
      CAPTURE(cores);
      Village village(cores, tiny(8, carrier));
      Receiver receiver;
      if (carrier == Carrier::msg_ring) village.at(1).refuse_announcements = 100;
      send_numbers(village, 0, 1, receiver, 500);
      int answers = 0;
      village.spawn(1, [&] {
        for (int i = 0; i < 50; ++i) {
          const auto result = village.mailbox(1).call(
              core(0), [i](Reactor&) { return i; }, village.clock.now() + seconds(10));
          if (result && *result == i) ++answers;
        }
      });
      village.run_for(seconds(10));
      CHECK(receiver.received == 500);
      CHECK(receiver.misplaced == 0);
      CHECK(answers == 50);
      CHECK(village.at(1).refuse_announcements == 0);
    }
  }
}

TEST_CASE("reactor/mailbox: a message without its announcement stays where it is") {
  Village village(2, tiny(8, Carrier::msg_ring));
  int ran = 0;
  int* counter = &ran;
  CHECK(village.mailbox(0).try_post(core(1), [counter](Reactor&) { ++*counter; }));
  village.mailbox(0).flush();
  std::vector<std::uint64_t> kept;
  kept.swap(village.at(1).announced);
  REQUIRE(kept.size() == 1);
  village.at(1).reactor->turn();
  CHECK(ran == 0);
  village.at(1).mailbox->on_announcement(kept[0]);
  village.at(1).reactor->turn();
  CHECK(ran == 1);
  village.at(1).mailbox->on_announcement(kept[0]);  // a repeated one brings nothing twice
  village.at(1).reactor->turn();
  CHECK(ran == 1);
}

TEST_CASE("reactor/mailbox: a lost wakeup would be noticed, a sender on its way is not mistaken for one") {
  Village village(2);
  CHECK(village.mailbox(0).try_post(core(1), [](Reactor&) {}));
  CHECK_FALSE(village.mailbox(1).has_settled_work());  // staged, not flushed
  village.mailbox(0).flush();
  CHECK(village.mailbox(1).has_settled_work());
  village.run_for(milliseconds(1));
  CHECK_FALSE(village.mailbox(1).has_settled_work());
}

TEST_CASE("reactor/mailbox: replies, however many, do not keep requests from being served") {
  for (const std::uint32_t budget : {64U, 1U}) {
    CAPTURE(budget);
    Village village(2);
    int answers = 0;
    for (int i = 0; i < 100; ++i) {
      village.spawn(0, [&village, &answers] {
        const auto answer = village.mailbox(0).call(
            core(1), [](Reactor&) { return 1; }, village.clock.now() + seconds(100));
        if (answer) ++answers;
      });
    }
    village.at(0).reactor->turn();
    village.at(0).held = true;
    int served = 0;
    int* counter = &served;
    CHECK(village.mailbox(1).try_post(core(0), [counter](Reactor&) { ++*counter; }));
    village.at(1).woken = true;
    village.run_for(milliseconds(1));
    CHECK(village.mailbox(1).stats().received == 100);
    // Now a hundred replies and one request wait: more replies than a poll takes.
    CHECK(village.mailbox(0).poll(budget) == budget);
    if (budget == 1) CHECK(village.mailbox(0).poll(budget) == budget);
    CHECK(served == 1);
    CHECK(village.mailbox(0).stats().received == (budget == 1 ? 2 : budget));
    village.at(0).held = false;
    village.at(0).woken = true;
    village.run_for(milliseconds(1));
    CHECK(answers == 100);
  }
}

TEST_CASE("reactor/mailbox: where senders set bits, none of them is served first for ever") {
  for (const std::uint32_t cores : {9U, 66U}) {
    CAPTURE(cores);
    Village village(cores, tiny(64));
    village.at(0).held = true;
    std::vector<std::uint32_t> served(cores);
    for (const std::size_t from : {std::size_t{1}, std::size_t{5}, std::size_t{cores - 1}}) {
      std::uint32_t* counter = &served[from];
      for (int i = 0; i < 60; ++i) {
        CHECK(village.mailbox(from).try_post(core(0), [counter](Reactor&) { ++*counter; }));
      }
      village.mailbox(from).flush();
    }
    // Each poll's budget is less than what any of the three has sent.
    for (std::uint32_t round = 1; round <= 5; ++round) {
      for (int i = 0; i < 3; ++i) CHECK(village.mailbox(0).poll(4) == 4);
      CHECK(served[1] == 4 * round);
      CHECK(served[5] == 4 * round);
      CHECK(served[cores - 1] == 4 * round);
    }
    village.at(0).held = false;
    village.at(0).woken = true;
    village.run_for(milliseconds(1));
    CHECK(village.mailbox(0).stats().received == 180);
  }
}

TEST_CASE("reactor/mailbox: calls that wait for a stack do not keep their reactor busy") {
  ReactorOptions few = Rig::small();
  few.max_fibers = 4;
  Village village(2, {}, 1, few);
  Reactor& target = *village.at(1).reactor;
  // Ended, but their stacks are held by their handles.
  std::vector<JoinHandle<void>> handles;
  for (int i = 0; i < 4; ++i) {
    auto handle = target.spawn("held", [] {});
    REQUIRE(handle);
    handles.push_back(*std::move(handle));
  }
  CHECK_FALSE(target.can_spawn());
  village.at(1).woken = true;
  village.run_for(milliseconds(1));
  CHECK(target.stats().fibers_live == 0);
  int answers = 0;
  village.spawn(0, [&village, &answers] {
    const auto answer = village.mailbox(0).call_in_fiber(
        core(1), [](Reactor&) { return 1; }, village.clock.now() + seconds(100));
    if (answer) ++answers;
  });
  village.at(0).reactor->turn();
  target.turn();
  CHECK(village.mailbox(1).stats().received == 1);
  const std::uint64_t busy_turns = target.stats().busy_turns;
  for (int i = 0; i < 5; ++i) target.turn();
  CHECK(target.stats().busy_turns == busy_turns);
  CHECK_FALSE(target.has_work());
  handles.pop_back();
  CHECK(target.can_spawn());
  village.at(1).woken = true;
  village.run_for(milliseconds(1));
  CHECK(answers == 1);
  handles.clear();
}
