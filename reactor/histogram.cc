#include <algorithm>
#include <bit>
#include <cmath>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/histogram.h>

namespace tidelock {
namespace {

constexpr unsigned kSubBuckets = 1U << Histogram::kSubBucketBits;
constexpr std::uint64_t kLargest = (1ULL << Histogram::kMaxBits) - 1;

std::uint64_t read(const std::atomic<std::uint64_t>& cell) { return cell.load(std::memory_order_relaxed); }
void write(std::atomic<std::uint64_t>& cell, std::uint64_t value) {
  cell.store(value, std::memory_order_relaxed);
}

}  // namespace

// Below 128 each value has its own bucket. Above, each power of two is cut into 128 buckets: a value with its
// highest bit at b shares a bucket with 2^(b-7) - 1 neighbours, which is less than 1/128 of it.
unsigned Histogram::bucket_of(std::uint64_t value_ns) {
  const std::uint64_t value = std::min(value_ns, kLargest);
  if (value < kSubBuckets) return static_cast<unsigned>(value);
  const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 1 - kSubBucketBits;
  return (shift << kSubBucketBits) + static_cast<unsigned>(value >> shift);
}

std::uint64_t Histogram::bucket_upper(unsigned bucket) {
  TL_ASSERT(bucket < kBuckets, "no such bucket");
  if (bucket < kSubBuckets) return bucket;
  const unsigned shift = (bucket >> kSubBucketBits) - 1;
  const std::uint64_t first = std::uint64_t{kSubBuckets + bucket % kSubBuckets} << shift;
  return first + (1ULL << shift) - 1;
}

void Histogram::record(std::uint64_t value_ns) {
  bump(buckets_[bucket_of(value_ns)]);
  bump(count_);
  bump(sum_, value_ns);
  if (value_ns < read(min_)) write(min_, value_ns);
  if (value_ns > read(max_)) write(max_, value_ns);
}

void Histogram::merge(const Histogram& other) {
  for (unsigned bucket = 0; bucket < kBuckets; ++bucket) {
    if (const std::uint64_t records = other.bucket_count(bucket); records > 0) add_bucket(bucket, records);
  }
  add_extremes(read(other.min_), read(other.max_), read(other.sum_));
}

void Histogram::reset() {
  for (auto& bucket : buckets_) write(bucket, 0);
  write(count_, 0);
  write(sum_, 0);
  write(min_, ~0ULL);
  write(max_, 0);
}

std::uint64_t Histogram::count() const { return read(count_); }
std::uint64_t Histogram::max() const { return read(max_); }
std::uint64_t Histogram::min() const { return count() == 0 ? 0 : read(min_); }

double Histogram::mean() const {
  const std::uint64_t records = count();
  return records == 0 ? 0.0 : static_cast<double>(read(sum_)) / static_cast<double>(records);
}

std::uint64_t Histogram::quantile(double quantile) const {
  const std::uint64_t records = count();
  if (records == 0) return 0;
  const double wanted = std::ceil(std::clamp(quantile, 0.0, 1.0) * static_cast<double>(records));
  const std::uint64_t rank = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, records);
  std::uint64_t seen = 0;
  for (unsigned bucket = 0; bucket < kBuckets; ++bucket) {
    seen += bucket_count(bucket);
    // The last bucket also holds what was too large for it; only max() knows how large.
    if (seen >= rank) return bucket == kBuckets - 1 ? max() : std::min(bucket_upper(bucket), max());
  }
  return max();
}

std::uint64_t Histogram::bucket_count(unsigned bucket) const { return read(buckets_.at(bucket)); }

void Histogram::add_bucket(unsigned bucket, std::uint64_t count) {
  bump(buckets_.at(bucket), count);
  bump(count_, count);
}

void Histogram::add_extremes(std::uint64_t min_ns, std::uint64_t max_ns, std::uint64_t sum_ns) {
  if (min_ns < read(min_)) write(min_, min_ns);
  if (max_ns > read(max_)) write(max_, max_ns);
  bump(sum_, sum_ns);
}

}  // namespace tidelock
