/// What a ping-pong measured: round trips in, the columns of perftest's latency tests out.
/// Thread:   one owner
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tidelock/reactor/random.h>

namespace tidelock::tools {

/// Half round trips, as perftest prints them, in microseconds.
struct PingRow {
  std::uint64_t bytes = 0;
  std::uint64_t iterations = 0;
  double min_usec = 0, max_usec = 0, typical_usec = 0, average_usec = 0, deviation_usec = 0;
  double p99_usec = 0, p999_usec = 0;
};

/// Count, extremes, mean and deviation are of all round trips. The median and the percentiles are of those
/// that are kept: all up to `kept_max`, then a uniform choice of that many (algorithm R; Vitter, 1985).
class PingSamples {
 public:
  static constexpr std::size_t kKeptMax = 1 << 20;

  /// Memory for `expected` of them is taken at once, so that none is while it measures.
  explicit PingSamples(std::uint64_t expected, std::size_t kept_max = kKeptMax);
  void add(std::uint64_t round_trip_ns);
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::size_t kept() const { return kept_.size(); }
  [[nodiscard]] PingRow row(std::uint64_t bytes) const;

 private:
  std::size_t kept_max_;
  std::vector<std::uint64_t> kept_;
  Random random_{1};
  std::uint64_t count_ = 0, min_ = 0, max_ = 0;
  double mean_ = 0, squares_ = 0;  ///< of differences from the mean (Welford, 1962)
};

}  // namespace tidelock::tools
