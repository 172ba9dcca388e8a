/// Seeded random numbers: xoshiro256++ (Blackman and Vigna, 2019), seeded through splitmix64. Not for
/// secrets.
/// Thread:   one owner
#pragma once

#include <array>
#include <cstdint>

namespace tidelock {

class Random {
 public:
  explicit Random(std::uint64_t seed);
  [[nodiscard]] std::uint64_t next();
  /// Uniform in [0, bound); `bound` > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound);
  /// Uniform in [0, 1).
  [[nodiscard]] double unit();

 private:
  std::array<std::uint64_t, 4> state_;
};

/// From getrandom(2), for seeds and ids that nobody should foresee.
[[nodiscard]] std::uint64_t entropy64();

}  // namespace tidelock
