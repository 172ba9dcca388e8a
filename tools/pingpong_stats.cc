#include "pingpong_stats.h"

#include <algorithm>
#include <cmath>

namespace tidelock::tools {
namespace {

double half_usec(double round_trip_ns) { return round_trip_ns / 2 / 1e3; }

/// Nearest rank of `sorted`, which is not empty.
double percentile_usec(const std::vector<std::uint64_t>& sorted, double percent) {
  const auto rank =
      static_cast<std::size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size()) - 1e-9));
  return half_usec(static_cast<double>(sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1]));
}

}  // namespace

PingSamples::PingSamples(std::uint64_t expected, std::size_t kept_max) : kept_max_(kept_max) {
  kept_.reserve(std::min<std::uint64_t>(expected, kept_max_));
}

void PingSamples::add(std::uint64_t round_trip_ns) {
  min_ = count_ == 0 ? round_trip_ns : std::min(min_, round_trip_ns);
  max_ = std::max(max_, round_trip_ns);
  ++count_;
  const double difference = static_cast<double>(round_trip_ns) - mean_;
  mean_ += difference / static_cast<double>(count_);
  squares_ += difference * (static_cast<double>(round_trip_ns) - mean_);
  if (kept_.size() < kept_max_) {
    kept_.push_back(round_trip_ns);
  } else if (const std::uint64_t place = random_.below(count_); place < kept_max_) {
    kept_[place] = round_trip_ns;
  }
}

PingRow PingSamples::row(std::uint64_t bytes) const {
  PingRow row;
  row.bytes = bytes;
  row.iterations = count_;
  if (count_ == 0) return row;
  std::vector<std::uint64_t> sorted = kept_;
  std::sort(sorted.begin(), sorted.end());
  row.min_usec = half_usec(static_cast<double>(min_));
  row.max_usec = half_usec(static_cast<double>(max_));
  row.typical_usec = percentile_usec(sorted, 50);
  row.average_usec = half_usec(mean_);
  row.deviation_usec = half_usec(std::sqrt(squares_ / static_cast<double>(count_)));
  row.p99_usec = percentile_usec(sorted, 99);
  row.p999_usec = percentile_usec(sorted, 99.9);
  return row;
}

}  // namespace tidelock::tools
