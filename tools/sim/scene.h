/// What all parts of a run share.
/// Thread:   one
#pragma once

#include <string>

#include "checks.h"
#include "faults.h"
#include "history.h"
#include "oracle.h"
#include "planted.h"
#include "shape.h"
#include "world.h"

namespace tidelock::sim {

struct Scene {
  World& world;
  const Shape& shape;
  Oracle& oracle;
  FaultCounts& counts;
  SyncCounts& syncs;
  Planted planted;

  void check(const char* checker, const std::string& who, const Violation& violation) const {
    if (violation) world.fail(checker, who + ": " + *violation);
  }
};

}  // namespace tidelock::sim
