/// The clock that goes on while the machine sleeps: leases go by it. Not one that deadlines can be compared
/// with (Clock in clock.h, and whatever a reactor says).
/// Thread:   any
#pragma once

#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>

namespace tidelock {

/// CLOCK_BOOTTIME through the vDSO (clock_gettime(2)).
class BootClock final : public Clock {
 public:
  [[nodiscard]] Instant now() override;
};

}  // namespace tidelock
