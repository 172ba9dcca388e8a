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
                                                               "clock_jump",
                                                               "promotion_race"};
static_assert(static_cast<std::size_t>(FaultKind::promotion_race) + 1 == kFaultKinds);

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

std::string_view name_of(WorldKind kind) { return kind == WorldKind::groups ? "groups" : "streams"; }

bool world_of(std::string_view name, WorldKind& kind) {
  for (const WorldKind each : {WorldKind::streams, WorldKind::groups}) {
    if (name_of(each) != name) continue;
    kind = each;
    return true;
  }
  return false;
}

}  // namespace tidelock::sim
