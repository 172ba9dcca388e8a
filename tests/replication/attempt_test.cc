// A candidate's way to lead: each turn of it by itself, then whole groups in virtual time, in which several
// stand at once. Each epoch is won by one, nothing committed is lost, and a group that is left in peace gets
// a primary.
#include <algorithm>
#include <array>
#include <optional>

#include <doctest/doctest.h>

#include "attempt_world.h"
#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

struct AttemptShape {
  std::uint32_t nodes, c;
};
constexpr std::array kAttemptShapes{AttemptShape{2, 1}, AttemptShape{3, 1}, AttemptShape{3, 2},
                                    AttemptShape{4, 1}, AttemptShape{4, 2}, AttemptShape{5, 2}};
constexpr std::uint64_t kAttemptSeeds = test::kSanitized ? 2 : 40;

/// Node 1, which has memory and follows nobody.
struct AttemptRig {
  explicit AttemptRig(std::uint32_t nodes = 3, std::uint32_t c = 1)
      : member(group_of(1, nodes, c), Instant{}) {
    for (std::uint32_t other = 2; other <= nodes; ++other)
      REQUIRE(member.answered(other, kLine, {5, 2}, c, member.say({}), now));
    Hello primary = hello_of(2, NodeRole::primary, {5, 2});
    member.follow(primary);
    member.applied(Lsn{});
    member.unfollow();
    REQUIRE(member.memory());
  }
  Attempt begin(AttemptAim aim = AttemptAim::lead) {
    return Attempt(member, aim, options, random, {{5, 2}, Lsn{7}}, now);
  }
  void promise(Attempt& attempt, std::uint32_t node, LogEnd end = {}) const {
    attempt.promised(node, end, member.options().c, now);
  }
  AttemptOptions options;
  Random random{1};
  Instant now = Instant{} + kLease;
  Membership member;
};

Refusal refusal_of(RefusalReason why, std::uint64_t ours = 0) { return {why, ours, 0}; }

}  // namespace

TEST_SUITE_BEGIN("replication/attempt");

TEST_CASE("a candidate asks who would, then for promises, stamps their links, and leads") {
  AttemptRig rig;
  Attempt attempt = rig.begin();
  CHECK(attempt.phase() == AttemptPhase::sounding);
  CHECK(attempt.wanted(1) == AttemptAsk::nothing);
  CHECK(attempt.wanted(2) == AttemptAsk::would);
  CHECK(attempt.epoch() == Epoch{6, 1});
  CHECK(rig.member.promised() == Epoch{5, 2});  // it is not bound by that yet
  attempt.would(3, rig.now);
  CHECK(attempt.phase() == AttemptPhase::asking);
  CHECK(rig.member.promised() == Epoch{6, 1});
  CHECK(attempt.wanted(2) == AttemptAsk::promise);  // who had not answered is asked, too
  rig.promise(attempt, 3);
  CHECK(attempt.phase() == AttemptPhase::confirming);
  CHECK(attempt.wanted(2) == AttemptAsk::nothing);
  CHECK(attempt.wanted(3) == AttemptAsk::stamp);
  const auto round = attempt.round();
  rig.promise(attempt, 2);  // late: it changes nothing
  rig.promise(attempt, 3);  // twice: likewise
  CHECK(attempt.wanted(2) == AttemptAsk::nothing);
  CHECK(attempt.round() == round);
  attempt.echoed(3, attempt.round() - 1, rig.now);
  CHECK(attempt.phase() == AttemptPhase::confirming);
  attempt.echoed(3, attempt.round(), rig.now);
  CHECK(attempt.phase() == AttemptPhase::ready);
  attempt.led();
  CHECK(attempt.phase() == AttemptPhase::over);
}

TEST_CASE("an echo that comes after it promised another wins nothing") {
  AttemptRig rig;
  Attempt attempt = rig.begin();
  attempt.would(3, rig.now);
  rig.promise(attempt, 3);
  REQUIRE(attempt.phase() == AttemptPhase::confirming);
  CHECK(reason(rig.member.asked(candidate(2, 9), false, rig.now)) == RefusalReason::none);
  attempt.echoed(3, attempt.round(), rig.now);
  CHECK(attempt.phase() == AttemptPhase::pausing);
}

TEST_CASE("a candidate in vain pauses longer each time, at random, and not before a lease ends") {
  AttemptRig rig;
  Attempt attempt = rig.begin();
  std::array<Duration, 8> pauses{};
  for (Duration& pause : pauses) {
    attempt.refused(2, refusal_of(RefusalReason::no_memory), rig.now);
    CHECK(attempt.phase() == AttemptPhase::sounding);
    CHECK(attempt.wanted(2) == AttemptAsk::nothing);
    attempt.gone(3, rig.now);  // nobody is left to ask
    CHECK(attempt.phase() == AttemptPhase::pausing);
    CHECK(attempt.wanted(3) == AttemptAsk::nothing);
    pause = attempt.deadline() - rig.now;
    attempt.turn(attempt.deadline() + nanoseconds(-1));
    CHECK(attempt.phase() == AttemptPhase::pausing);
    rig.now = attempt.deadline();
    attempt.turn(rig.now);
    CHECK(attempt.phase() == AttemptPhase::sounding);
  }
  CHECK(rig.member.promised() == Epoch{5, 2});
  Duration least = rig.options.pause;
  for (const Duration pause : pauses) {
    CHECK(pause >= least);
    CHECK(pause <= least + least);
    least = std::min(least + least, rig.options.pause_max);
  }
  CHECK(pauses[7] != pauses[6]);
  attempt.refused(2, refusal_of(RefusalReason::lease, 1'500), rig.now);
  attempt.turn(rig.now + rig.options.round);
  CHECK(attempt.phase() == AttemptPhase::pausing);
  CHECK(attempt.deadline() - rig.now >= milliseconds(1'500) + rig.options.pause_max);
  // Nobody has granted one for longer than the group's.
  rig.now = attempt.deadline();
  attempt.turn(rig.now);
  attempt.refused(2, refusal_of(RefusalReason::lease, 3'600'000), rig.now);
  attempt.gone(3, rig.now);
  CHECK(attempt.deadline() - rig.now <= kLease + rig.options.pause_max * 2 + milliseconds(1));
}

TEST_CASE("who has promised a higher epoch is asked again above that") {
  AttemptRig rig(5, 2);
  Attempt attempt = rig.begin();
  attempt.refused(2, refusal_of(RefusalReason::promised, epoch_value({9, 4})), rig.now);
  CHECK(attempt.epoch() == Epoch{10, 1});
  CHECK(attempt.wanted(2) == AttemptAsk::would);
  attempt.refused(2, refusal_of(RefusalReason::promised, epoch_value({9, 4})), rig.now);  // it says so again
  CHECK(attempt.wanted(2) == AttemptAsk::nothing);
  // One that names a higher one each time is not asked without end, and what cannot be true is not believed.
  attempt.refused(5, refusal_of(RefusalReason::promised, epoch_value({0xffff'ffff, 5})), rig.now);
  CHECK(attempt.epoch() == Epoch{10, 1});
  CHECK(attempt.wanted(5) == AttemptAsk::nothing);
  attempt.would(3, rig.now);
  attempt.would(4, rig.now);
  CHECK(rig.member.promised() == Epoch{10, 1});
  SUBCASE("in the second round only in the next attempt, which the round's end begins") {
    attempt.refused(5, refusal_of(RefusalReason::promised, epoch_value({20, 5})), rig.now);
    CHECK(attempt.phase() == AttemptPhase::asking);
    attempt.turn(attempt.deadline());
    CHECK(attempt.phase() == AttemptPhase::pausing);
    attempt.turn(attempt.deadline());
    CHECK(attempt.epoch() == Epoch{21, 1});
  }
  SUBCASE("and who promises another itself begins anew") {
    CHECK_FALSE(rig.member.asked(
        [&] {
          Hello other = candidate(3, 11);
          other.group_sum = rig.member.options().sum();
          return other;
        }(),
        false, rig.now));
    attempt.turn(rig.now);
    CHECK(attempt.phase() == AttemptPhase::pausing);
  }
}

TEST_CASE(
    "a promise whose link is gone is asked of another, and an attempt that cannot succeed ends at once") {
  AttemptRig rig(5, 2);
  Attempt attempt = rig.begin();
  for (const std::uint32_t node : {2U, 3U}) attempt.would(node, rig.now);
  for (const std::uint32_t node : {2U, 3U}) rig.promise(attempt, node);
  attempt.echoed(2, attempt.round(), rig.now);
  attempt.gone(3, rig.now);
  CHECK(attempt.phase() == AttemptPhase::asking);
  CHECK(attempt.wanted(3) == AttemptAsk::nothing);
  CHECK(attempt.wanted(4) == AttemptAsk::promise);
  const auto round = attempt.round();
  rig.promise(attempt, 4);
  attempt.echoed(4, attempt.round(), rig.now);
  attempt.echoed(2, round, rig.now);  // of a stamp from before the new promise
  CHECK(attempt.phase() == AttemptPhase::confirming);
  SUBCASE("it is stamped anew") {
    attempt.echoed(2, attempt.round(), rig.now);
    CHECK(attempt.phase() == AttemptPhase::ready);
  }
  SUBCASE("too few are left") {
    attempt.gone(2, rig.now);
    CHECK(attempt.phase() == AttemptPhase::asking);
    attempt.gone(5, rig.now);
    CHECK(attempt.phase() == AttemptPhase::pausing);
  }
}

TEST_CASE("a candidate fetches the greatest log that it lacks, and begins anew if that donor goes") {
  AttemptRig rig(5, 2);
  Attempt attempt = rig.begin();
  for (const std::uint32_t node : {2U, 3U}) attempt.would(node, rig.now);
  rig.promise(attempt, 2, {{5, 2}, Lsn{9}});
  rig.promise(attempt, 3, {{4, 3}, Lsn{30}});
  for (const std::uint32_t node : {2U, 3U}) attempt.echoed(node, attempt.round(), rig.now);
  CHECK(attempt.phase() == AttemptPhase::fetching);
  CHECK(attempt.wanted(2) == AttemptAsk::fetch);
  CHECK(attempt.wanted(3) == AttemptAsk::nothing);
  SUBCASE("it has it") {
    attempt.fetched({{5, 2}, Lsn{9}}, rig.now);
    CHECK(attempt.phase() == AttemptPhase::ready);
  }
  SUBCASE("the donor goes") {
    attempt.gone(2, rig.now);
    CHECK(attempt.phase() == AttemptPhase::pausing);
  }
  SUBCASE("it takes too long") {
    const auto round = attempt.round();
    attempt.turn(attempt.deadline());
    CHECK(attempt.phase() == AttemptPhase::pausing);
    attempt.turn(attempt.deadline());
    for (const std::uint32_t node : {2U, 3U}) attempt.would(node, rig.now);
    attempt.gone(2, rig.now);
    for (const std::uint32_t node : {3U, 4U}) rig.promise(attempt, node);
    for (const std::uint32_t node : {3U, 4U}) attempt.echoed(node, round, rig.now);  // of the attempt before
    CHECK(attempt.phase() == AttemptPhase::confirming);
  }
}

TEST_CASE("who would promise may close its link") {
  AttemptRig rig(5, 2);
  Attempt attempt = rig.begin();
  attempt.would(2, rig.now);
  attempt.gone(2, rig.now);
  CHECK(attempt.phase() == AttemptPhase::sounding);
  attempt.would(3, rig.now);
  CHECK(attempt.phase() == AttemptPhase::asking);
  CHECK(attempt.wanted(2) == AttemptAsk::promise);
}

TEST_CASE("who takes over asks at once, as released, and if that fails like anybody") {
  AttemptRig rig;
  rig.member.follow([&] {
    Hello primary = hello_of(2, NodeRole::primary, {5, 2});
    return primary;
  }());
  rig.member.stamped(rig.now);
  rig.member.unfollow();
  Attempt attempt = rig.begin(AttemptAim::take_over);
  CHECK(attempt.phase() == AttemptPhase::asking);  // the lease that it granted is released
  CHECK(attempt.released());
  for (const std::uint32_t node : {2U, 3U}) attempt.gone(node, rig.now);
  CHECK(attempt.phase() == AttemptPhase::pausing);
  CHECK_FALSE(attempt.released());
  attempt.turn(attempt.deadline());
  CHECK(attempt.phase() == AttemptPhase::sounding);
}

TEST_CASE("who follows a primary sounds beside that, and leaves it with the epoch that it takes") {
  AttemptRig rig;
  Hello primary = hello_of(2, NodeRole::primary, {6, 2});
  rig.member.follow(primary);
  Attempt attempt = rig.begin();
  CHECK(attempt.phase() == AttemptPhase::sounding);
  attempt.turn(rig.now);
  CHECK(attempt.phase() == AttemptPhase::sounding);
  SUBCASE("enough would") {
    attempt.would(3, rig.now);
    CHECK(attempt.phase() == AttemptPhase::asking);
    CHECK_FALSE(rig.member.following());
  }
  SUBCASE("the primary serves") {
    attempt.refused(2, refusal_of(RefusalReason::lease, 10), rig.now);
    attempt.refused(3, refusal_of(RefusalReason::lease, 10), rig.now);
    CHECK(attempt.phase() == AttemptPhase::pausing);
    CHECK(rig.member.following());
    rig.now = attempt.deadline();
    attempt.turn(rig.now);
    CHECK(attempt.phase() == AttemptPhase::sounding);
  }
  SUBCASE("it follows another one by then") {
    rig.member.follow(hello_of(3, NodeRole::primary, {7, 3}));
    attempt.turn(rig.now);
    CHECK(attempt.phase() == AttemptPhase::over);
  }
}

TEST_CASE("a forced attempt leads with the promises that there are, and takes the greatest log among them") {
  AttemptRig rig(5, 2);  // three promises would be needed
  Attempt attempt = rig.begin(AttemptAim::force);
  REQUIRE(attempt.phase() == AttemptPhase::asking);
  CHECK(rig.member.promised() == Epoch{6, 1});
  SUBCASE("nobody answers") {
    rig.now = attempt.deadline();
    attempt.turn(rig.now);
    CHECK(attempt.phase() == AttemptPhase::ready);
  }
  SUBCASE("everybody is known to be gone") {
    for (const std::uint32_t other : {2U, 3U, 4U, 5U}) attempt.gone(other, rig.now);
    CHECK(attempt.phase() == AttemptPhase::ready);
  }
  SUBCASE("one answers, and has more") {
    rig.promise(attempt, 3, {{5, 2}, Lsn{9}});
    CHECK(attempt.phase() == AttemptPhase::asking);  // others may have even more
    rig.now = attempt.deadline();
    attempt.turn(rig.now);
    CHECK(attempt.phase() == AttemptPhase::confirming);
    attempt.echoed(3, attempt.round(), rig.now);
    CHECK(attempt.phase() == AttemptPhase::fetching);
    CHECK(attempt.wanted(3) == AttemptAsk::fetch);
    attempt.fetched({{5, 2}, Lsn{9}}, rig.now);
    CHECK(attempt.phase() == AttemptPhase::ready);
  }
  SUBCASE("one has granted a lease: the primary lives") {
    rig.promise(attempt, 3);
    attempt.refused(4, refusal_of(RefusalReason::lease, 500), rig.now);
    CHECK(attempt.phase() == AttemptPhase::pausing);
    CHECK(attempt.deadline() - rig.now >= milliseconds(500));
  }
}

TEST_CASE("a candidate is done when it follows somebody, a founder when there is a history") {
  AttemptRig rig;
  Attempt attempt = rig.begin();
  rig.member.follow(hello_of(3, NodeRole::primary, {6, 3}));
  attempt.turn(rig.now);
  CHECK(attempt.phase() == AttemptPhase::over);
  Membership fresh(group_of(1), Instant{});
  Attempt founds(fresh, AttemptAim::found, rig.options, rig.random, {}, fresh.fresh_until());
  CHECK(founds.founding());
  CHECK(founds.history() != HistoryId{});
  for (const std::uint32_t node : {2U, 3U}) founds.would(node, rig.now);
  CHECK(fresh.founding() == founds.history());
  for (const std::uint32_t node : {2U, 3U})
    CHECK(fresh.answered(node, kLine, {5, 2}, 1, fresh.say({}), rig.now));
  founds.turn(rig.now);
  CHECK(founds.phase() == AttemptPhase::over);
}

TEST_CASE("a group that holds nothing founds one history, whoever starts when, whatever is lost or cut") {
  for (const AttemptShape& shape : kAttemptShapes) {
    for (std::uint64_t seed = 1; seed <= kAttemptSeeds; ++seed) {
      CAPTURE(shape.nodes);
      CAPTURE(shape.c);
      CAPTURE(seed);
      AttemptWorld world(shape.nodes, shape.c, seed);
      Random random(seed);
      const auto any = [&] { return 1 + static_cast<std::uint32_t>(random.below(shape.nodes)); };
      for (int i = 0; i < 16; ++i) {
        world.lost_of_64 = random.below(8);
        if (seed % 2 == 0) world.cut(any(), any(), random.below(2) == 0);
        if (seed % 4 < 2) world.restart_unfounded(any());
        world.run_for(milliseconds(20 + static_cast<std::int64_t>(random.below(700))));
      }
      world.heal();
      CHECK(world.run_until(seconds(60), [&] { return world.whole(); }));
      CHECK(world.fault() == "");
      CHECK(world.foundings == 1);
    }
  }
}

TEST_CASE("two that lead and have not enough followers find one another only if they ask round") {
  for (const AttemptUnheeded unheeded : {AttemptUnheeded::nothing, AttemptUnheeded::looking_round}) {
    std::uint64_t stuck = 0;
    for (std::uint64_t seed = 1; seed <= kAttemptSeeds; ++seed) {
      AttemptWorld world(3, 2, seed);
      world.unheeded = unheeded;
      REQUIRE(world.run_until(seconds(60), [&] { return world.whole(); }));
      // Each may lead with its own promise, where all have to apply.
      for (int i = 0; i < 6; ++i) {
        world.cut(1, 2, true);
        world.cut(1, 3, true);
        world.cut(2, 3, true);
        world.run_for(seconds(4));
        world.heal();
        stuck += world.run_until(seconds(30), [&] { return world.whole(); }) ? 0 : 1;
      }
      CHECK(world.fault() == "");
    }
    if (test::kSanitized && unheeded != AttemptUnheeded::nothing) continue;  // too few seeds
    CHECK((stuck > 0) == (unheeded == AttemptUnheeded::looking_round));
  }
}

TEST_CASE("a primary hands over once the successor has all, and ends its epoch before it says so") {
  Handover handover(2, Lsn{9}, Instant{} + seconds(1));
  CHECK(handover.applied(3, Lsn{9}) == Handover::Step::hold);
  CHECK(handover.applied(2, Lsn{8}) == Handover::Step::hold);
  CHECK(handover.gone(3) == Handover::Step::hold);
  SUBCASE("it has all") {
    CHECK(handover.applied(2, Lsn{9}) == Handover::Step::end);
    CHECK(handover.gone(2) == Handover::Step::end);  // what is ended stays so
    CHECK(handover.turn(Instant{} + seconds(2)) == Handover::Step::end);
  }
  SUBCASE("it goes") {
    CHECK(handover.gone(2) == Handover::Step::resume);
    CHECK(handover.applied(2, Lsn{9}) == Handover::Step::resume);
  }
  SUBCASE("it takes too long") {
    CHECK(handover.turn(Instant{}) == Handover::Step::hold);
    CHECK(handover.turn(Instant{} + seconds(1)) == Handover::Step::resume);
  }
}

TEST_CASE("a primary that says `lead` and goes on in its epoch reads what is stale") {
  for (const AttemptUnheeded unheeded : {AttemptUnheeded::nothing, AttemptUnheeded::epochs_end}) {
    std::uint64_t found = 0, taken_over = 0;
    for (std::uint64_t seed = 1; seed <= kAttemptSeeds; ++seed) {
      AttemptWorld world(3, 1, seed);
      world.unheeded = unheeded;
      REQUIRE(world.run_until(seconds(60), [&] { return world.whole(); }));
      for (int i = 0; i < 500 && world.fault().empty(); ++i) {
        if (i % 50 == 0) world.hand_over(1 + static_cast<std::uint32_t>(i / 50) % 3);
        world.run_for(milliseconds(10));
        for (std::uint32_t node = 1; node <= 3; ++node) world.read(node);
      }
      found += world.fault() == "a stale read" ? 1 : 0;
      taken_over += world.taken_over;
    }
    CHECK(taken_over > 0);
    CHECK((found > 0) == (unheeded == AttemptUnheeded::epochs_end));
  }
}

TEST_CASE("a group gets a primary again after links were cut and memories lost, and loses nothing") {
  for (const AttemptShape& shape : kAttemptShapes) {
    std::uint64_t leads = 0, commits = 0, reads = 0, fetches = 0, taken_over = 0;
    for (std::uint64_t seed = 1; seed <= kAttemptSeeds; ++seed) {
      CAPTURE(shape.nodes);
      CAPTURE(shape.c);
      CAPTURE(seed);
      AttemptWorld world(shape.nodes, shape.c, seed);
      REQUIRE(world.run_until(seconds(60), [&] { return world.whole(); }));
      Random random(seed);
      const auto any = [&] { return 1 + static_cast<std::uint32_t>(random.below(shape.nodes)); };
      for (int i = 0; i < 40; ++i) {
        world.lost_of_64 = random.below(4);
        switch (random.below(5)) {
          case 0:
          case 1:
            world.cut(any(), any(), random.below(2) == 0);
            break;
          case 2:
            world.restart(any());
            break;
          case 3:
            world.hand_over(any());
            break;
          default:
            world.heal();
        }
        world.run_for(milliseconds(50 + static_cast<std::int64_t>(random.below(900))));
        for (std::uint32_t node = 1; node <= shape.nodes; ++node) world.read(node);
      }
      world.heal();
      CHECK(world.run_until(seconds(60), [&] { return world.whole(); }));
      CHECK(world.fault() == "");
      leads += world.leads, commits += world.commits, reads += world.reads, fetches += world.fetches;
      taken_over += world.taken_over;
    }
    CHECK(leads > kAttemptSeeds);
    CHECK(commits > leads);
    MESSAGE(shape.nodes << " nodes, c = " << shape.c << ": " << leads << " led, " << taken_over
                        << " of them handed over, " << commits << " committed, " << reads << " read, "
                        << fetches << " fetched");
  }
}

TEST_SUITE_END();
