// Leases: a primary and who grants one, each with a clock of its own that the test turns. A part of the order
// left out (a clock read before the frame, or before the capture) must give a stale read.
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/replication/lease.h>

#include "membership_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr Duration kGone = milliseconds(500);  ///< a link_timeout

/// Runs faster than true time by `ppm`, from wherever it stands.
class SkewedClock final : public Clock {
 public:
  SkewedClock(const Instant& truth, Duration ahead, std::int64_t ppm)
      : truth_(truth), ahead_(ahead), ppm_(ppm) {}
  Instant now() override {
    if (frozen_) return *frozen_;
    return Instant{truth_.ns + truth_.ns / 1'000'000 * ppm_} + ahead_;
  }
  /// What a turn's time would be: read once, and used for all that happens later.
  void freeze() {
    frozen_.reset();
    frozen_ = now();
  }
  void thaw() { frozen_.reset(); }

 private:
  const Instant& truth_;
  Duration ahead_;
  std::int64_t ppm_;
  std::optional<Instant> frozen_;
};

enum class Order : std::uint8_t {
  right,
  grant_before_frame,   ///< who grants reads its clock, then takes the frame
  clock_before_capture  ///< the primary reads its clock, then captures
};

/// How the other primary comes to commit: with the promise of who granted, or by being followed.
enum class Way : std::uint8_t { promise, follow };

/// Node 1 leads, node 2 grants it a lease, node 3 would lead after it as soon as node 2 lets it.
struct LeaseRig {
  explicit LeaseRig(Way by, std::int64_t ppm = 0, Duration relied_on = kLease)
      : way(by),
        primary_clock(truth, seconds(7), -ppm),
        granter_clock(truth, seconds(90), ppm),
        leases(Quorum{2, 1}, relied_on, kGone, primary_clock),
        granter(group_of(2), granter_clock.now()) {
    truth = truth + kLease + kLease;
    for (const std::uint32_t other : {1U, 3U}) {
      REQUIRE(granter.answered(other, kLine, {1, 1}, 1, granter.say({}), granter_clock.now()));
    }
    granter.follow(hello_of(1, NodeRole::primary, {1, 1}));
    granter.applied(Lsn{});
    REQUIRE(granter.memory());
  }

  /// Whatever the others can do now, they do: node 3 has all other votes that it needs.
  void others_try() {
    if (overtaken || granter_stands || !others_are_there) return;
    const Instant now = granter_clock.now();
    const auto refusal = way == Way::promise ? granter.asked(candidate(3, 2), false, now)
                                             : granter.may_follow(hello_of(3, NodeRole::primary, {2, 3}),
                                                                  granter.say({}), now);
    overtaken = !refusal;
  }
  /// Time passes, while one of the two may stand still.
  void pass(Duration duration, bool granter_stands_still) {
    granter_stands = granter_stands_still;
    const Instant until = truth + duration;
    while (truth < until) {
      truth = std::min(until, truth + milliseconds(7));
      others_try();
    }
    granter_stands = false;
  }

  /// Its next turn judges what came; reads that were captured before may answer.
  void answer() {
    if (captured && (leases.held() || (echo_wanted && leases.confirmed(*echo_wanted)))) {
      ++reads;
      stale = stale || *captured;
      captured.reset();
    }
  }

  Way way;
  Instant truth = Instant{} + seconds(1);
  SkewedClock primary_clock, granter_clock;
  Leases leases;
  Membership granter;
  bool granter_stands = false;
  bool others_are_there = true;
  bool overtaken = false;        ///< another has committed what this primary does not know
  std::optional<bool> captured;  ///< a read: what it captured was overtaken when it began
  std::optional<std::uint64_t> echo_wanted;
  std::uint64_t stamp = 0;
  bool stale = false;
  int reads = 0;
};

struct LeaseStep {
  bool granters;  ///< it is who grants that stands still if the stop is before this step
  std::function<void(LeaseRig&)> run;
};

std::vector<LeaseStep> steps_in(Order order) {
  const auto frozen = [order](Order if_order, bool granters) {
    return LeaseStep{granters, [=](LeaseRig& rig) {
                       SkewedClock& clock = granters ? rig.granter_clock : rig.primary_clock;
                       if (order == if_order) clock.freeze();
                     }};
  };
  return {
      frozen(Order::grant_before_frame, true),
      {false,
       [](LeaseRig& rig) {
         CHECK(rig.leases.heard(2, 0));  // what it said before
         rig.stamp = rig.leases.stamp(true);
       }},
      {true,
       [](LeaseRig& rig) {
         if (rig.overtaken) rig.stamp = 0;  // it has closed the link
         if (!rig.overtaken) rig.granter.stamped(rig.granter_clock.now());
         rig.granter_clock.thaw();
         rig.others_are_there = true;
       }},
      {false, [](LeaseRig& rig) { CHECK(rig.leases.heard(2, rig.stamp)); }},
      frozen(Order::clock_before_capture, false),
      {false,
       [](LeaseRig& rig) {
         rig.captured = rig.overtaken;
         rig.answer();
         rig.primary_clock.thaw();
       }},
      {false, [](LeaseRig& rig) { rig.answer(); }},
  };
}

/// With a stop before each step in turn, and one of a little time everywhere else. True: a read was stale.
bool stale_with(Order order, Way way, std::int64_t ppm, Duration relied_on, int& reads) {
  bool stale = false;
  const std::vector<LeaseStep> steps = steps_in(order);
  for (std::size_t at = 0; at <= steps.size(); ++at) {
    for (const Duration stop : {milliseconds(1), milliseconds(1'900), milliseconds(1'985),
                                milliseconds(2'000), milliseconds(2'010), seconds(60)}) {
      for (const bool from_the_start : {true, false}) {  // or from when a lease was granted
        LeaseRig rig(way, ppm, relied_on);
        rig.others_are_there = from_the_start;
        for (std::size_t i = 0; i < steps.size(); ++i) {
          if (i == at) rig.pass(stop, steps[i].granters);
          steps[i].run(rig);
          rig.others_try();
        }
        stale = stale || rig.stale;
        reads += rig.reads;
      }
    }
  }
  return stale;
}

}  // namespace

TEST_SUITE_BEGIN("replication/lease");

TEST_CASE(
    "no read is stale, wherever either side stands still for however long, with clocks 0.4 % apart each") {
  for (const Way way : {Way::promise, Way::follow}) {
    for (const std::int64_t ppm : {0, 4'000, -4'000}) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(ppm);
      int reads = 0;
      CHECK_FALSE(stale_with(Order::right, way, ppm, kLease, reads));
      CHECK(reads > 10);
    }
  }
}

TEST_CASE("a clock that is read before the frame is taken, or before the capture, gives a stale read") {
  for (const Order order : {Order::grant_before_frame, Order::clock_before_capture}) {
    CAPTURE(static_cast<int>(order));
    int reads = 0;
    CHECK(stale_with(order, Way::promise, 0, kLease, reads));
    CHECK(stale_with(order, Way::follow, 0, kLease, reads));
  }
}

TEST_CASE("without the margin, clocks that drift apart give a stale read") {
  int reads = 0;
  const Duration all_of_it{(kLease.ns + 1'000'000) * 100 / 99};
  CHECK(Leases::usable(all_of_it) >= kLease - microseconds(1));
  CHECK(stale_with(Order::right, Way::promise, 4'000, all_of_it, reads));
  CHECK_FALSE(stale_with(Order::right, Way::promise, 0, all_of_it, reads));
}

TEST_CASE("without a lease a read waits for the echo of a stamp that left after its capture") {
  for (const bool heeded : {true, false}) {
    LeaseRig rig(Way::promise);
    CHECK(rig.leases.heard(2, 0));
    const std::uint64_t early = rig.leases.stamp(true);
    rig.granter.stamped(rig.granter_clock.now());
    rig.pass(seconds(3), false);
    CHECK(rig.overtaken);
    rig.captured = rig.overtaken;
    rig.echo_wanted = heeded ? rig.leases.mark() : 0;
    CHECK(rig.leases.heard(2, early));  // it was on its way
    rig.answer();
    CHECK(rig.stale == !heeded);
  }
  LeaseRig rig(Way::promise);
  CHECK(rig.leases.heard(2, 0));
  rig.captured = rig.overtaken;
  rig.echo_wanted = rig.leases.mark();
  const std::uint64_t stamp = rig.leases.stamp(true);
  rig.granter.stamped(rig.granter_clock.now());
  rig.pass(milliseconds(1'995), false);
  CHECK(rig.leases.heard(2, stamp));
  CHECK_FALSE(rig.leases.held());
  rig.answer();
  CHECK(rig.reads == 1);
}

TEST_CASE("who granted a lease and is started anew waits until it would have ended") {
  for (const bool waits : {true, false}) {
    ManualClock clock;
    clock.advance(seconds(10));
    Leases leases(Quorum{3, 2}, kLease, kGone, clock);
    for (const std::uint32_t node : {2U, 4U}) CHECK(leases.heard(node, 0));
    const std::uint64_t stamp = leases.stamp(true);
    // Node 2 took it, and restarts. Node 3 leads by the promise of node 4, and needs one more to commit.
    Membership anew(group_of(2, 4, 2), waits ? clock.now() : Instant{});
    CHECK(leases.heard(2, stamp));
    Hello later = hello_of(3, NodeRole::primary, {2, 3});
    later.group_sum = anew.options().sum();
    bool stale = false;
    for (int i = 0; i < 300; ++i, clock.advance(milliseconds(10))) {
      anew.answered(1, kLine, {1, 1}, 2, anew.say({}), clock.now());
      for (const std::uint32_t node : {3U, 4U})
        anew.answered(node, kLine, {2, 3}, 2, anew.say({}), clock.now());
      const bool committed = !anew.may_follow(later, anew.say({}), clock.now());
      stale = stale || (committed && leases.held());
      if (i == 299) CHECK(committed);
    }
    CHECK(stale == !waits);
  }
}

TEST_CASE("a primary without c others stops to stamp, so that another can lead") {
  ManualClock clock;
  clock.advance(seconds(10));
  Leases leases(Quorum{4, 2}, kLease, kGone, clock);
  CHECK(leases.stamp(true) == 0);  // nobody is there yet
  CHECK(leases.heard(2, 0));
  CHECK(leases.stamp(true) == 0);
  CHECK(leases.heard(3, 0));
  CHECK(leases.stamp(false) == 0);  // nor before it serves
  CHECK(leases.stamp(true) != 0);
  Membership last(group_of(2, 5, 2), Instant{});
  for (const std::uint32_t node : {1U, 3U, 4U})
    CHECK(last.answered(node, kLine, {1, 1}, 2, last.say({}), clock.now()));
  last.follow(hello_of(1, NodeRole::primary, {1, 1}));
  last.applied(Lsn{});
  Hello other = candidate(4, 2);
  other.group_sum = last.options().sum();
  bool promised = false;
  const Instant until = clock.now() + kGone + kLease + milliseconds(200);
  while (!promised && clock.now() < until) {  // only node 2 is still there, and takes all that comes
    clock.advance(milliseconds(50));
    if (const std::uint64_t stamp = leases.stamp(true); stamp != 0) {
      last.stamped(clock.now());
      CHECK(leases.heard(2, stamp));
    } else {
      CHECK(leases.heard(2, 0));
    }
    promised = !last.asked(other, false, clock.now());
  }
  CHECK(promised);
  CHECK_FALSE(leases.held());
}

TEST_CASE("leases of as many others as are needed count, each with its newest echo") {
  ManualClock clock;
  clock.advance(seconds(10));
  Leases leases(Quorum{4, 2}, kLease, kGone, clock);
  for (const std::uint32_t node : {2U, 3U, 4U}) CHECK(leases.heard(node, 0));
  const std::uint64_t first = leases.stamp(true);
  CHECK(leases.heard(2, first));
  CHECK_FALSE(leases.held());  // of two that are needed
  clock.advance(milliseconds(400));
  const std::uint64_t second = leases.stamp(true);
  CHECK(second > first);
  CHECK(leases.heard(2, second));
  CHECK_FALSE(leases.held());
  CHECK(leases.heard(3, first));
  CHECK(leases.held());
  CHECK(leases.heard(2, first));  // an old one takes nothing back
  clock.advance(Leases::usable(kLease) - milliseconds(401));
  CHECK(leases.held());
  clock.advance(milliseconds(1));  // of the first stamp
  CHECK_FALSE(leases.held());
  CHECK(leases.heard(4, second));
  CHECK(leases.held());
  CHECK_FALSE(leases.heard(3, second + 1));  // what was never stamped
  leases.end();
  CHECK_FALSE(leases.held());
  CHECK_FALSE(leases.confirmed(0));
  CHECK(leases.stamp(true) == 0);
}

TEST_CASE("where no other can do without this node, no lease is needed") {
  ManualClock clock;
  for (const Quorum& quorum : {Quorum{0, 0}, Quorum{2, 0}, Quorum{2, 2}}) {
    Leases leases(quorum, kLease, kGone, clock);
    CHECK(leases.held());
    leases.end();
    CHECK_FALSE(leases.held());
  }
}

TEST_SUITE_END();
