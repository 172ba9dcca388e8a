/// Where time comes from. Production reads the machine's clock; tests and the simulator turn a hand.
/// Thread:   any for SystemClock; ManualClock is owned by one thread
#pragma once

#include <tidelock/base/time.h>

namespace tidelock {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Never goes back.
  [[nodiscard]] virtual Instant now() = 0;
};

/// CLOCK_MONOTONIC through the vDSO (clock_gettime(2)).
class SystemClock final : public Clock {
 public:
  [[nodiscard]] Instant now() override;
};

class ManualClock final : public Clock {
 public:
  [[nodiscard]] Instant now() override { return now_; }
  void advance_to(Instant when) {
    if (when > now_) now_ = when;
  }
  void advance(Duration by) { now_ = now_ + by; }

 private:
  Instant now_{1};
};

}  // namespace tidelock
