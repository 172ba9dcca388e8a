/// Cuts the faults of a run that fails down to those that it takes: delta debugging (Zeller and Hildebrandt,
/// 2002), then the load. Since a fault draws by its own number, those that stay do what they did.
/// Thread:   any
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan.h"
#include "shape.h"

namespace tidelock::sim {

struct ShrinkOptions {
  std::vector<Fault> plan;
  std::uint32_t clients = 0;  ///< that the seed draws; 0: of the load nothing is left out
  std::uint32_t calls = 0;
  /// Runs these faults, with less load. True: it fails as the whole plan did.
  std::function<bool(const std::vector<Fault>&, const LessLoad&)> fails;
  std::uint32_t runs_max = 400;
};

struct Shrunk {
  std::vector<Fault> plan;  ///< fails, too
  LessLoad load;            ///< with this
  std::uint32_t runs = 0;
  bool least = false;  ///< with the whole load, without any one of its faults it would not fail; else
                       ///< runs_max came first
};

[[nodiscard]] Shrunk shrink(const ShrinkOptions& options);

}  // namespace tidelock::sim
