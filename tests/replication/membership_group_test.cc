// Whole groups at random: what a node may say of epochs, together with what a candidate counts. A rule that
// is not heeded must be found out.
#include <array>

#include <doctest/doctest.h>

#include "random_group.h"
#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

struct GroupShape {
  std::uint32_t nodes, c;
};
constexpr std::array kShapes{GroupShape{2, 1}, GroupShape{3, 1}, GroupShape{3, 2}, GroupShape{4, 1},
                             GroupShape{4, 2}, GroupShape{5, 1}, GroupShape{5, 2}};

}  // namespace

TEST_SUITE_BEGIN("replication/membership");

TEST_CASE("groups at random lose nothing that was committed, and read nothing stale") {
  const std::uint64_t seeds = test::kSanitized ? 6 : 60;
  for (const GroupShape& shape : kShapes) {
    CAPTURE(shape.nodes);
    CAPTURE(shape.c);
    std::uint64_t leads = 0, commits = 0, reads = 0, regained = 0, fetched = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(seed);
      RandomGroup group(shape.nodes, shape.c, Unheeded::nothing, seed);
      CHECK(group.run(20'000).empty());
      leads += group.leads;
      commits += group.commits;
      reads += group.reads;
      regained += group.regained;
      fetched += group.fetched;
    }
    CHECK(leads >= seeds);
    CHECK(commits >= seeds);
    CHECK(reads >= seeds / 3);
    if (shape.nodes > 2) CHECK(regained >= seeds / 6);
    MESSAGE(shape.nodes << " nodes, c = " << shape.c << ": " << leads << " led, " << commits << " committed, "
                        << reads << " read, " << regained << " regained memory, " << fetched << " fetched");
  }
}

TEST_CASE("in groups at random what is not heeded is found out" * doctest::skip(test::kSanitized)) {
  for (const Unheeded unheeded : {Unheeded::no_memory, Unheeded::old_primary, Unheeded::one_promise,
                                  Unheeded::donor, Unheeded::all_found}) {
    CAPTURE(static_cast<int>(unheeded));
    bool found = false;
    for (std::uint64_t seed = 1; seed <= 400 && !found; ++seed) {
      for (const GroupShape& shape : kShapes) {
        found = found || !RandomGroup(shape.nodes, shape.c, unheeded, seed).run(10'000).empty();
      }
    }
    CHECK(found);
  }
}

namespace {

constexpr std::uint64_t kFounded = 1;    ///< a seed with which node 1 is the primary of all
constexpr std::uint64_t kUnfounded = 4;  ///< one with which nobody holds anything

/// The first primary and one that follows it have a lease; the others lead without them.
RandomGroup lease_ignored(std::uint32_t nodes, std::uint32_t c, Unheeded unheeded) {
  RandomGroup group(nodes, c, unheeded, kFounded);
  for (std::uint32_t i = 2; i <= nodes; ++i) group.follow(i, 1);
  group.append(1);
  for (std::uint32_t i = 2; i <= nodes; ++i) group.follow(i, 1);
  group.wait(kLease);
  group.follow(2, 1);  // a stamp that only this one gets
  group.stand(3);
  return group;
}

}  // namespace

TEST_CASE("a founder that one node has not promised may find another history beside its own") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::all_found}) {
    RandomGroup group(4, 1, unheeded, kUnfounded);
    for (int life = 1; life <= 2; ++life) {
      group.stand(1);
      group.ask(1, life == 1 ? 2 : 4);
      group.ask(1, 3);
      group.confirm_and_lead(1);
      group.follow(life == 1 ? 2 : 4, 1);
      if (life == 1) group.crash_now(1);
    }
    CHECK(group.leads == (unheeded == Unheeded::nothing ? 0 : 2));
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "two commit in conflict"));
  }
}

TEST_CASE("who echoes a founder although it has memory by now lets two histories begin") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::founder_echo}) {
    RandomGroup group(3, 1, unheeded, kUnfounded);
    group.stand(1);
    for (const std::uint32_t other : {2U, 3U}) group.ask(1, other);
    group.confirm_and_lead(1);
    CHECK(group.leads == 1);
    group.stand(2);
    group.ask(2, 3);
    group.answer(3, 1);  // all that the first founder told anybody
    group.crash_now(1);
    group.ask(2, 1);
    group.confirm_and_lead(2);
    CHECK(group.run(0) == (unheeded == Unheeded::nothing ? "" : "two histories are held at once"));
    CHECK(group.leads == (unheeded == Unheeded::nothing ? 1 : 2));
    // Expect: who promised the second learns of the first, too, from who has memory in it.
    if (unheeded != Unheeded::nothing) continue;
    group.answer(2, 3);
    group.stand(3);
    group.ask(3, 2);
    group.confirm_and_lead(3);
    group.follow(2, 3);
    CHECK(group.commits == 1);
  }
}

TEST_CASE("a founder's hello that comes when it leads, and gives memory, lets two commit") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::stamp}) {
    RandomGroup group(3, 1, unheeded, kFounded);
    for (const std::uint32_t other : {2U, 3U, 2U, 3U}) group.follow(other, 1);
    group.wait(kLease);
    group.stand(3);
    group.ask(3, 2);
    group.confirm_and_lead(3);
    CHECK(group.leads == 2);
    group.crash_now(2);
    group.wait(kLease);
    group.again(2);
    group.follow(2, 1);
    group.append(1);
    group.follow(2, 1);
    group.wait(kLease);
    group.follow(2, 3);
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "two commit in conflict"));
  }
}

TEST_CASE("what answers a hello and is acted on after others were told lets two write in one epoch") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::late}) {
    RandomGroup group(2, 1, unheeded, kFounded);  // where c = n a candidate needs nobody else's promise
    group.follow(2, 1);
    group.follow(2, 1);
    group.wait(kLease);
    group.stand(2);
    group.confirm_and_lead(2);
    CHECK(group.leads == 2);
    group.dial(1, 2);
    group.send_now(2, 1);  // its no-op
    group.crash_now(2);
    group.wait(kLease);
    const std::uint64_t before = group.regained;
    group.follow(2, 1);  // which is told that node 1 leads, and of nothing above that
    CHECK(group.regained == before + 1);
    group.wait(kLease);
    group.act_now();
    group.deliver_now();
    group.stand(2);
    group.confirm_and_lead(2);
    group.follow(1, 2);
    CHECK(group.leads == 3);
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "two wrote in one epoch"));
  }
}

TEST_CASE("what was heard before a founder's stamp and is acted on after it lets two histories be held") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::late}) {
    RandomGroup group(3, 1, unheeded, kUnfounded);
    group.stand(1);
    for (const std::uint32_t other : {2U, 3U}) group.ask(1, other);
    group.confirm_and_lead(1);
    group.dial(3, 1);
    group.crash_now(1);
    group.stand(2);
    for (const std::uint32_t other : {1U, 3U}) group.ask(2, other);
    group.confirm_and_lead(2);
    CHECK(group.leads == 2);
    group.act_now();
    CHECK(group.run(0) == (unheeded == Unheeded::nothing ? "" : "two histories are held at once"));
  }
}

TEST_CASE("a promise in spite of a lease gives a stale read") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::lease}) {
    RandomGroup group = lease_ignored(5, 1, unheeded);
    for (const std::uint32_t other : {4, 5, 2}) group.ask(3, other);
    group.confirm_and_lead(3);
    group.follow(4, 3);
    group.read(1);
    CHECK(group.reads == 1);
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "a stale read"));
  }
}

TEST_CASE("to follow another epoch in spite of a lease gives a stale read") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::follow_lease}) {
    RandomGroup group = lease_ignored(4, 2, unheeded);
    group.ask(3, 4);
    group.confirm_and_lead(3);
    CHECK(group.leads == 2);
    group.follow(4, 3);
    group.follow(2, 3);
    group.read(1);
    CHECK(group.reads == 1);
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "a stale read"));
  }
}

TEST_CASE("a promise whose giver has forgotten it, counted all the same, loses what was committed") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::confirmation}) {
    RandomGroup group(5, 1, unheeded, kFounded);
    for (std::uint32_t i = 2; i <= 5; ++i) group.follow(i, 1);
    group.wait(kLease);
    const std::uint64_t before = group.regained;
    group.stand(3);
    group.ask(3, 2);
    group.crash_now(2);
    group.wait(kLease);
    group.answer(2, 4);
    group.answer(2, 5);
    group.follow(2, 1);
    CHECK(group.regained == before + 1);
    group.append(1);
    group.follow(2, 1);
    group.ask(3, 4);
    group.ask(3, 5);
    group.confirm_and_lead(3);
    CHECK(group.leads == (unheeded == Unheeded::nothing ? 1 : 2));
    CHECK(group.fault() ==
          (unheeded == Unheeded::nothing ? "" : "a committed entry is not in the log of a later primary"));
  }
}

TEST_SUITE_END();
