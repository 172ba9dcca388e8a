#include <atomic>
#include <cstdint>

#include <doctest/doctest.h>

#include "group_fixture.h"
#include "stop_barrier.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

struct Tally {
  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> ran{0};
};

/// Posts itself on to the other core of two until `left` is used up. On each core it leaves a fiber that
/// would sleep for ever; the end of a cancelled one starts a chain of its own.
struct Link {
  Tally* tally;
  int left;
  void operator()(Reactor& reactor) const {
    tally->ran.fetch_add(1);
    if (left == 0) return;
    static_cast<void>(reactor.spawn_detached("link", [link = *this] {
      this_fiber::sleep_for(seconds(3'600));
      post_from(*Reactor::current(), {link.tally, link.left / 2 - 1});
    }));
    post_from(reactor, {tally, left - 1});
  }
  static void post_from(Reactor& reactor, Link next) {
    if (next.left < 0) return;
    if (reactor.mailbox()->try_post(core(1U - reactor.id().value), next)) next.tally->accepted.fetch_add(1);
  }
};

}  // namespace

TEST_CASE("reactor/stop_barrier: opens when all have said twice that they rest and nothing is on its way") {
  StopBarrier barrier(2);
  CHECK_FALSE(barrier.report(0, {true, 1, 0}));
  CHECK_FALSE(barrier.report(1, {true, 0, 1}));
  CHECK_FALSE(barrier.report(0, {true, 1, 0}));
  CHECK_FALSE(barrier.report(0, {true, 1, 0}));  // nobody confirms for another
  CHECK(barrier.report(1, {true, 0, 1}));
  CHECK(barrier.report(0, {true, 1, 0}));
}

TEST_CASE("reactor/stop_barrier: whoever rested and is busy again holds all of them") {
  StopBarrier barrier(2);
  CHECK_FALSE(barrier.report(0, {true, 0, 0}));
  CHECK_FALSE(barrier.report(0, {true, 0, 0}));
  CHECK_FALSE(barrier.report(1, {false, 1, 0}));
  CHECK_FALSE(barrier.report(0, {false, 0, 1}));  // the message started a fiber
  for (int round = 0; round < 3; ++round) {
    CHECK_FALSE(barrier.report(1, {true, 1, 0}));
    CHECK_FALSE(barrier.report(0, {false, 0, 1}));
  }
  CHECK_FALSE(barrier.report(0, {true, 0, 1}));
  CHECK_FALSE(barrier.report(1, {true, 1, 0}));
  CHECK(barrier.report(0, {true, 0, 1}));
}

TEST_CASE("reactor/stop_barrier: a message on its way holds all of them, also one that the sums hide") {
  StopBarrier lost(2);
  for (int round = 0; round < 3; ++round) {
    CHECK_FALSE(lost.report(0, {true, 1, 0}));
    CHECK_FALSE(lost.report(1, {true, 0, 0}));
  }
  // 1 has said 0, 0; then 2 sent to 1, and 1, before its next report, to 0: the sums of what was said agree.
  StopBarrier hidden(3);
  CHECK_FALSE(hidden.report(1, {true, 0, 0}));
  CHECK_FALSE(hidden.report(2, {true, 1, 0}));
  CHECK_FALSE(hidden.report(0, {true, 0, 1}));
  CHECK_FALSE(hidden.report(2, {true, 1, 0}));
  CHECK_FALSE(hidden.report(0, {true, 0, 1}));
  CHECK_FALSE(hidden.report(1, {false, 1, 1}));
}

TEST_CASE("reactor/group: stop() waits for chains of posts that start fibers, and each accepted one runs") {
  for (const Carrier carrier : {Carrier::shared_memory, Carrier::eventfd}) {
    const int rounds = carrier == Carrier::shared_memory ? 100 : 10;
    for (int round = 0; round < rounds; ++round) {
      CAPTURE(round);
      Tally tally;
      ReactorGroupOptions options = group_options(2);
      options.mailbox.carrier = carrier;
      auto group = start_group(options);
      CHECK(group->run(
          core(1),
          [&tally] {
            Tally* shared = &tally;
            CHECK(Reactor::current()->spawn_detached("first", [shared] {
              this_fiber::sleep_for(seconds(3'600));
              Link::post_from(*Reactor::current(), {shared, 6});
            }));
          },
          kPatience));
      stop_group(*group);
      CHECK(tally.accepted > 6);
      CHECK(tally.ran == tally.accepted);
    }
  }
}
