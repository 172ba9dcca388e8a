/// A node's clock: world time with an offset and a drift of its own. Within a turn each look costs time, else
/// no quota would ever be used up and nothing would ever be late amid a turn.
/// Thread:   one
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <tidelock/reactor/clock.h>

#include "world.h"

namespace tidelock::sim {

class SimClock final : public Clock {
 public:
  /// At most this far from world time, so that two nodes differ by less than a hundredth.
  static constexpr std::int64_t kPpmMax = 4'900;

  SimClock(World& world, Random random, Duration offset, std::int64_t ppm)
      : world_(world), random_(random), offset_(offset), ppm_(ppm) {}

  Instant now() override {
    if (world_.in_turn()) {
      world_.spend(draw(random_, nanoseconds(20), nanoseconds(200)) * slowness_);
      if (++looks_ > 1 && stall_.ns > 0) {
        world_.spend(std::exchange(stall_, Duration{}));
        stalled_ = true;
      }
    }
    last_ = std::max(last_, local(world_.now()));
    return last_;
  }

  /// What it shows at world time `at`.
  [[nodiscard]] Instant local(Instant at) const {
    return {offset_.ns + at.ns + static_cast<std::int64_t>(Wide{at.ns} * ppm_ / 1'000'000)};
  }
  /// The first world time at which it shows `when` or more.
  [[nodiscard]] Instant world_time(Instant when) const {
    if (when == Instant::never()) return when;
    const std::int64_t shown = when.ns - offset_.ns;
    Instant at{static_cast<std::int64_t>(Wide{shown} * 1'000'000 / (1'000'000 + ppm_))};
    while (at.ns > 0 && local(at) >= when) at.ns -= 1;
    while (local(at) < when) at.ns += 1;
    return at;
  }

  void set_slowness(std::int64_t factor) { slowness_ = factor; }
  /// Forward only.
  void jump(Duration by) { offset_ = offset_ + by; }
  void begin_turn() { looks_ = 0; }
  /// True: it stalled.
  bool end_turn() { return std::exchange(stalled_, false); }
  /// The thread is taken off its CPU for so long, at the second look at the clock in a turn. Not at the
  /// first: inputs are polled after that one, and a turn sees only what had arrived when it began.
  void stall(Duration length) { stall_ = length; }

 private:
  __extension__ using Wide = __int128;
  World& world_;
  Random random_;
  Duration offset_;
  std::int64_t ppm_;
  std::int64_t slowness_ = 1;
  Duration stall_{};
  bool stalled_ = false;
  std::uint32_t looks_ = 0;  ///< in this turn
  Instant last_{};
};

}  // namespace tidelock::sim
