/// The faults of one run: what, when, where. Drawn from the seed before the run begins.
/// Thread:   any
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <tidelock/base/time.h>

#include "faults.h"
#include "streams.h"

namespace tidelock::sim {

struct Fault {
  std::uint64_t number = 0;  ///< in the plan that was drawn: what else it draws depends on this alone
  Instant at{};
  FaultKind kind = FaultKind::delay;
  std::uint32_t replica = 0;  ///< which one, or whose link; for nodes: 0 is the primary
  Duration length{};
  std::uint64_t detail = 0;  ///< what else there is to draw
};

using FaultMask = std::array<bool, kFaultKinds>;
[[nodiscard]] inline FaultMask all_faults() {
  FaultMask mask;
  mask.fill(true);
  return mask;
}

/// Each kind of the mask takes part with one in three, at a mean gap of its own, so that some runs see one
/// fault often and others many kinds. `kinds`: how many of them there are in this world.
[[nodiscard]] std::vector<Fault> draw_plan(const Streams& streams, const FaultMask& mask,
                                           std::uint32_t replicas, Instant until,
                                           std::size_t kinds = kStreamFaultKinds);

}  // namespace tidelock::sim
