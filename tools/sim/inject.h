/// What a fault of a plan does to a wire.
/// Thread:   one
#pragma once

#include "plan.h"
#include "wire.h"
#include "world.h"

namespace tidelock::sim {

/// `fault`: of a kind that befalls wires.
void inject_on_wire(World& world, const Fault& fault, Wire& wire);
/// Nothing gets through until then. `learns`: whoever sends hears of it after a while.
void part_wire(Wire& wire, Random& random, Instant until, bool learns);

}  // namespace tidelock::sim
