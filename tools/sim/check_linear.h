/// Whether what clients saw of one key can be put in an order: each call at one moment between its start and
/// its end, each read finding the newest write. Wing and Gong's search (1993) with Lowe's memo of what was
/// tried (2017). Knows nothing of worlds and nodes.
/// Thread:   any
#pragma once

#include <cstdint>
#include <span>

namespace tidelock::sim {

struct LinearCall {
  static constexpr std::uint64_t kUnknown = ~0ULL;
  bool write = false;
  /// Written or found; 0: absent. No two writes of values have the same.
  std::uint64_t value = 0;
  /// All starts and ends of a history are different.
  std::uint64_t start = 0;
  std::uint64_t end =
      kUnknown;  ///< kUnknown (writes only): it takes effect once, at any later time, or never
};

enum class LinearVerdict : std::uint8_t { holds, violated, undecided };

/// `memo_max`: a search that would remember more than that is undecided. The key is absent at first.
[[nodiscard]] LinearVerdict check_linear(std::span<const LinearCall> calls,
                                         std::uint64_t memo_max = 1'000'000);

}  // namespace tidelock::sim
