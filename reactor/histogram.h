/// Log-linear latency histogram with HdrHistogram's error bound: a recorded value is off by less than 1/128
/// of itself (7 bits of sub-buckets), over 0 to 2^40 ns (18 minutes); larger values count as the largest.
/// Thread:   one writer; anyone may read percentiles (relaxed, approximate while written)
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace tidelock {

class Histogram {
 public:
  static constexpr unsigned kSubBucketBits = 7;
  static constexpr unsigned kMaxBits = 40;

  void record(std::uint64_t value_ns);
  /// Adds all of `other`.
  void merge(const Histogram& other);
  void reset();

  [[nodiscard]] std::uint64_t count() const;
  /// Largest recorded value, exact; 0 if empty.
  [[nodiscard]] std::uint64_t max() const;
  [[nodiscard]] std::uint64_t min() const;
  [[nodiscard]] double mean() const;
  /// The smallest bucket's upper end that covers `quantile` (0 to 1) of the records, never above max().
  [[nodiscard]] std::uint64_t quantile(double quantile) const;

  /// For serialisation: bucket i's count and the largest value that it holds.
  static constexpr unsigned kBuckets = (kMaxBits - kSubBucketBits + 1) << kSubBucketBits;
  [[nodiscard]] std::uint64_t bucket_count(unsigned bucket) const;
  [[nodiscard]] static std::uint64_t bucket_upper(unsigned bucket);
  [[nodiscard]] static unsigned bucket_of(std::uint64_t value_ns);
  /// Adds `count` records of one bucket, as read from another process's histogram.
  void add_bucket(unsigned bucket, std::uint64_t count);
  void add_extremes(std::uint64_t min_ns, std::uint64_t max_ns, std::uint64_t sum_ns);

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<std::uint64_t> min_{~0ULL};
  std::atomic<std::uint64_t> max_{0};
};

}  // namespace tidelock
