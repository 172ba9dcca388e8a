#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/quorum.h>

using namespace tidelock;

namespace {

constexpr std::uint32_t kOthersMax = 8;

using NodeSet = std::uint32_t;  // one bit a node

std::uint32_t size_of(NodeSet set) { return static_cast<std::uint32_t>(std::popcount(set)); }

/// All sets of at least `size` of the group's nodes that are within `among`.
std::vector<NodeSet> sets_of(std::uint32_t n, std::uint32_t size, NodeSet among) {
  std::vector<NodeSet> sets;
  for (NodeSet set = 0; set < (1U << (n + 1)); ++set) {
    if (size_of(set) >= size && (set & ~among) == 0) sets.push_back(set);
  }
  return sets;
}

NodeSet everybody(std::uint32_t n) { return (1U << (n + 1)) - 1; }

template <class Check>
void for_each_group(Check&& check) {
  for (std::uint32_t n = 0; n <= kOthersMax; ++n) {
    for (std::uint32_t c = 0; c <= n; ++c) check(Quorum{n, c});
  }
}

/// True if every set of the one kind has a node in common with every set of the other.
bool always_meet(std::uint32_t n, std::uint32_t size, std::uint32_t other_size) {
  const auto others = sets_of(n, other_size, everybody(n));
  for (const NodeSet set : sets_of(n, size, everybody(n))) {
    for (const NodeSet other : others) {
      if ((set & other) == 0) return false;
    }
  }
  return true;
}

/// True if a primary that reads with so many leases of others is met by whoever serves after it: by its
/// promises, or by the holders of its no-op.
bool leases_suffice(const Quorum& group, std::uint32_t leases) {
  const NodeSet all = everybody(group.n);
  for (const NodeSet set : sets_of(group.n, leases + 1, all)) {
    const std::uint32_t outside = size_of(all & ~set);
    if (outside >= group.promises_needed() && outside >= group.c + 1) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("replication/quorum: every commit set meets every promise set, and one promise less would not do") {
  for_each_group([](const Quorum& group) {
    CAPTURE(group.n);
    CAPTURE(group.c);
    REQUIRE(group.promises_needed() >= 1);
    REQUIRE(group.promises_needed() <= group.n + 1);
    CHECK(always_meet(group.n, group.c + 1, group.promises_needed()));
    if (group.promises_needed() > 1) {
      CHECK_FALSE(always_meet(group.n, group.c + 1, group.promises_needed() - 1));
    }
  });
}

TEST_CASE(
    "replication/quorum: every lease set meets the promises or the holders of the no-op, and no fewer do") {
  for_each_group([](const Quorum& group) {
    CAPTURE(group.n);
    CAPTURE(group.c);
    CHECK(leases_suffice(group, group.leases_needed()));
    if (group.leases_needed() > 0) CHECK_FALSE(leases_suffice(group, group.leases_needed() - 1));
  });
}

TEST_CASE("replication/quorum: who lost its memory hears of each promise that it may have given") {
  for_each_group([](const Quorum& group) {
    if (group.n == 0) return;
    CAPTURE(group.n);
    CAPTURE(group.c);
    REQUIRE(group.answers_needed() >= 1);
    REQUIRE(group.answers_needed() <= group.n);       // or nobody could ever come back
    const NodeSet others = everybody(group.n) & ~1U;  // node 0 lost its memory
    bool heard = true;
    for (const NodeSet answers : sets_of(group.n, group.answers_needed(), others)) {
      for (const NodeSet promises : sets_of(group.n, group.promises_needed(), everybody(group.n))) {
        // Who has lost its memory leads no more, so that another node is the candidate of an epoch in which
        // something may still be committed. That one holds the promise in any case; if there are no more,
        // all nodes hold what is committed, and all of the others are asked.
        const NodeSet rest = promises & ~1U;
        heard = heard && (rest != 0 ? (rest & answers) != 0 : answers == others);
      }
    }
    CHECK(heard);
  });
}

TEST_CASE("replication/quorum: the k-th applied LSN agrees with a sorted list, one LSN a node") {
  CHECK(kth_applied({}, 1) == Lsn{0});
  const std::vector<AppliedLsn> twice{{7, {30}}, {7, {20}}, {9, {10}}};
  CHECK(kth_applied(twice, 1) == Lsn{30});
  CHECK(kth_applied(twice, 2) == Lsn{10});  // node 7 counts once
  CHECK(kth_applied(twice, 3) == Lsn{0});
  Random random(11);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<AppliedLsn> applied(random.below(9));
    std::map<std::uint32_t, std::uint64_t> best;
    for (AppliedLsn& entry : applied) {
      entry = {static_cast<std::uint32_t>(random.below(6)), {random.below(7)}};
      best[entry.node] = std::max(best[entry.node], entry.lsn.value);
    }
    std::vector<std::uint64_t> sorted;
    for (const auto& [node, lsn] : best) sorted.push_back(lsn);
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::uint32_t k = 1; k <= 8; ++k) {
      const std::uint64_t expected = k <= sorted.size() ? sorted[k - 1] : 0;
      REQUIRE(kth_applied(applied, k) == Lsn{expected});
    }
  }
}
