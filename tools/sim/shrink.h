/// Cuts the faults of a run that fails down to those that it takes: delta debugging (Zeller and Hildebrandt,
/// 2002). Since a fault draws by its own number, those that stay do what they did.
/// Thread:   any
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan.h"

namespace tidelock::sim {

struct ShrinkOptions {
  std::vector<Fault> plan;
  /// Runs these faults. True: it fails as the whole plan did.
  std::function<bool(const std::vector<Fault>&)> fails;
  std::uint32_t runs_max = 400;
};

struct Shrunk {
  std::vector<Fault> plan;  ///< fails, too
  std::uint32_t runs = 0;
  bool least = false;  ///< without any one of its faults it would not fail; else runs_max came first
};

[[nodiscard]] Shrunk shrink(const ShrinkOptions& options);

}  // namespace tidelock::sim
