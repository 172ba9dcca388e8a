/// Which CPUs the two nodes get: whoever starts several processes on one machine assigns disjoint cores, or
/// says that they share and nothing spins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/base/result.h>

namespace tidelock::tools {

struct CorePlan {
  std::uint32_t shards = 1;
  std::vector<std::uint32_t> primary;  ///< empty: shared
  std::vector<std::uint32_t> replica;
  bool overprovisioned = false;
  std::string notice;  ///< why nothing spins; empty if the cores suffice
};

/// `shards` 0: half of `usable`, at least 1. `pin` insists on a core each; `overprovisioned` wants none.
/// Errors:   one line that names both numbers and the remedy
Result<CorePlan> plan_cores(const std::vector<std::uint32_t>& usable, std::uint32_t shards, bool pin,
                            bool overprovisioned);

/// For the one node of a run that this machine has: in CorePlan::primary and CorePlan::replica alike.
Result<CorePlan> plan_node_cores(const std::vector<std::uint32_t>& usable, std::uint32_t shards, bool pin,
                                 bool overprovisioned);

}  // namespace tidelock::tools
