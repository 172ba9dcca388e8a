#include "faults.h"

namespace tidelock::sim {
namespace {

constexpr std::array<std::string_view, kFaultKinds> kKindNames{"delay",
                                                               "cut",
                                                               "half_open",
                                                               "partition",
                                                               "corrupt",
                                                               "notify_before_data",
                                                               "completion_late",
                                                               "completion_missing",
                                                               "receiver_not_ready",
                                                               "slow_peer",
                                                               "scribble",
                                                               "duplicate_connect",
                                                               "pause",
                                                               "kill",
                                                               "slow_core",
                                                               "clock_jump"};
static_assert(static_cast<std::size_t>(FaultKind::clock_jump) + 1 == kFaultKinds);

}  // namespace

std::string_view name_of(FaultKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

bool kind_of(std::string_view name, FaultKind& kind) {
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (kKindNames[i] != name) continue;
    kind = static_cast<FaultKind>(i);
    return true;
  }
  return false;
}

}  // namespace tidelock::sim
