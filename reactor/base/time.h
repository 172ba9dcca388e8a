/// Points in time and lengths of it, in nanoseconds. An Instant belongs to the Clock that gave it.
/// Thread:   any
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace tidelock {

struct Duration {
  std::int64_t ns = 0;
  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) { return {a.ns + b.ns}; }
  friend constexpr Duration operator-(Duration a, Duration b) { return {a.ns - b.ns}; }
  friend constexpr Duration operator*(Duration a, std::int64_t n) { return {a.ns * n}; }
};

constexpr Duration nanoseconds(std::int64_t n) { return {n}; }
constexpr Duration microseconds(std::int64_t n) { return {n * 1'000}; }
constexpr Duration milliseconds(std::int64_t n) { return {n * 1'000'000}; }
constexpr Duration seconds(std::int64_t n) { return {n * 1'000'000'000}; }

struct Instant {
  std::int64_t ns = 0;
  /// Later than every other: "no deadline" inside the reactor. Public waits always take a real one.
  static constexpr Instant never() { return {std::numeric_limits<std::int64_t>::max()}; }
  friend constexpr auto operator<=>(Instant, Instant) = default;
  friend constexpr Duration operator-(Instant a, Instant b) { return {a.ns - b.ns}; }
  /// Saturates at never().
  friend constexpr Instant operator+(Instant a, Duration d) {
    if (d.ns > 0 && a.ns > std::numeric_limits<std::int64_t>::max() - d.ns) return never();
    return {a.ns + d.ns};
  }
};

}  // namespace tidelock
