/// How many nodes a group asks for what: a group has n + 1 nodes, and c of the n that are not the primary
/// must have applied an entry before it is committed. Pure arithmetic; README.md says what each number is
/// for.
/// Thread:   any
/// Suspends: never
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tidelock/base/ids.h>

namespace tidelock {

/// 0 <= c <= n. With n = 0 a node is alone: it promises itself, and all that it appends is committed.
struct Quorum {
  std::uint32_t n = 0;  ///< the others
  std::uint32_t c = 0;  ///< how many of them must have applied

  /// To lead an epoch, the candidate's own included. Every n + 1 - c nodes meet every c + 1, which is how
  /// many hold what is committed, its primary included.
  [[nodiscard]] constexpr std::uint32_t promises_needed() const { return n + 1 - c; }

  /// To begin a history, the founder's own included: all nodes, that hold nothing. So none begins beside one
  /// that anybody holds.
  [[nodiscard]] constexpr std::uint32_t founders_needed() const { return n + 1; }

  /// Of the others, with memory: before a node that lost its memory knows what it may have promised. They
  /// meet every promise set less that node. If c = n the candidate's promise is enough for it, so that set
  /// may be empty; but then all nodes hold what is committed, and whoever answers knows of the epoch.
  [[nodiscard]] constexpr std::uint32_t answers_needed() const { return std::min(c + 1, n); }

  /// Of the others: whose leases a primary needs to read alone. Whoever serves after it has
  /// promises_needed() and c + 1 holders of its no-op, and the primary with these others meets one of the
  /// two.
  [[nodiscard]] constexpr std::uint32_t leases_needed() const { return std::min(c, n - c); }
};

/// What a node is known to have applied.
struct AppliedLsn {
  std::uint32_t node = 0;
  Lsn lsn{};
};

/// The k-th greatest LSN by node: k nodes have applied all up to it. A node that is named several times
/// counts once, with its greatest. LSN 0 if there are fewer than k nodes. `k` > 0.
[[nodiscard]] inline Lsn kth_applied(std::span<const AppliedLsn> applied, std::uint32_t k) {
  Lsn found{};
  for (const AppliedLsn& limit : applied) {
    if (limit.lsn <= found) continue;
    std::uint32_t nodes = 0;
    for (std::size_t i = 0; i < applied.size(); ++i) {
      if (applied[i].lsn < limit.lsn) continue;
      const auto earlier = applied.first(i);
      nodes += std::none_of(earlier.begin(), earlier.end(), [&](const AppliedLsn& other) {
        return other.node == applied[i].node && other.lsn >= limit.lsn;
      });
    }
    if (nodes >= k) found = limit.lsn;
  }
  return found;
}

}  // namespace tidelock
