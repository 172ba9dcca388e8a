/// Whatever a reactor polls once a turn: lanes, links, side channels.
/// Thread:   owner core
/// Suspends: never; a source that needs a fiber wakes one
#pragma once

#include <cstdint>

namespace tidelock {

class PollSource {
 public:
  virtual ~PollSource() = default;
  /// Handles at most `budget` items; returns how many. Anything above zero counts as work and keeps the
  /// reactor from parking.
  virtual std::uint32_t poll(std::uint32_t budget) = 0;
  /// Sends what was staged. Called at the end of a turn, and in the middle of a long one.
  virtual void flush() {}
  /// Before the reactor parks: make producers outside of this process see that it sleeps. Reactor::
  /// arm_sources() issues a full fence after all of them, and the driver asks has_work() again after it.
  virtual void arm() {}
  /// After every park, however it ended.
  virtual void disarm() {}
  /// Cheap and without side effects. True if poll() would find something.
  [[nodiscard]] virtual bool has_work() const = 0;
};

}  // namespace tidelock
