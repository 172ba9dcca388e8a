/// Which key comes next: uniform, or zipfian with theta 0.99 as YCSB has it (Gray et al., "Quickly generating
/// billion-record synthetic databases", SIGMOD 1994). Low numbers are popular; the table's hash scatters
/// them.
/// Thread:   one owner
#pragma once

#include <cstdint>

#include <tidelock/reactor/random.h>

namespace tidelock::tools {

enum class KeyDistribution : std::uint8_t { uniform, zipfian };

class KeyChooser {
 public:
  /// `keys` >= 1.
  KeyChooser(KeyDistribution distribution, std::uint64_t keys, std::uint64_t seed);
  /// In [0, keys).
  [[nodiscard]] std::uint64_t next();

 private:
  KeyDistribution distribution_;
  std::uint64_t keys_;
  Random random_;
  double zeta_ = 0;
  double alpha_ = 0;
  double eta_ = 0;
};

}  // namespace tidelock::tools
