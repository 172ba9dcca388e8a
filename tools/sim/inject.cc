#include "inject.h"

#include <tidelock/base/check.h>

namespace tidelock::sim {

void inject_on_wire(World& world, const Fault& fault, Wire& wire) {
  const std::uint64_t detail = fault.detail;
  Random random = world.stream("fault", fault.number);
  const Duration learns = draw(random, milliseconds(500), seconds(4));
  const Duration never{Instant::never().ns};
  const auto some = static_cast<std::uint32_t>(1 + detail / 16 % 8);
  switch (fault.kind) {
    case FaultKind::delay:
      return wire.delay(static_cast<std::uint32_t>(1 + detail % 200), fault.length);
    case FaultKind::cut: {
      const Duration primary_learns = draw(random, Duration{0}, seconds(4));
      return wire.cut(detail % 4'096, primary_learns, draw(random, Duration{0}, seconds(4)));
    }
    case FaultKind::half_open: {
      const Instant until = world.now() + fault.length;
      const Duration when = detail % 4 == 0 ? never : learns;
      if (detail / 4 % 3 != 0) wire.swallow(Side::replica, until, when, FaultKind::half_open);
      if (detail / 4 % 3 != 1) wire.swallow(Side::primary, until, when, FaultKind::half_open);
      return;
    }
    case FaultKind::corrupt:
      if (detail % 4 == 0)
        return wire.corrupt_control((detail & 4) != 0 ? Side::primary : Side::replica, some);
      return wire.corrupt_batch(static_cast<Wire::Damage>(detail / 4 % 4), some);
    case FaultKind::notify_before_data:
      return wire.notify_early(some, fault.length);
    case FaultKind::completion_late:
      return wire.complete_late(some, fault.length);
    case FaultKind::completion_missing:
      return wire.lose_completion();
    case FaultKind::receiver_not_ready:
      return wire.receiver_not_ready(fault.length, detail % 4 == 0);
    case FaultKind::slow_peer:
      return wire.slow_down(world.now() + fault.length);
    case FaultKind::scribble:
      return wire.scribble();
    default:
      TL_ASSERT(false, "no fault of a wire");
  }
}

/// Each end of the wire may learn of it, and then breaks the link, or not.
void part_wire(Wire& wire, Random& random, Instant until, bool learns) {
  for (const Side side : {Side::primary, Side::replica}) {
    const Duration when =
        learns ? draw(random, milliseconds(500), seconds(4)) : Duration{Instant::never().ns};
    wire.swallow(side, until, when, FaultKind::partition);
  }
}

}  // namespace tidelock::sim
