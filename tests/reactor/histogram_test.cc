#include <algorithm>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/histogram.h>
#include <tidelock/reactor/random.h>

using namespace tidelock;

namespace {

/// Spread over all magnitudes, as latencies are.
std::uint64_t any_magnitude(Random& random) { return random.next() >> (24 + random.below(40)); }

}  // namespace

TEST_CASE("reactor/histogram: a bucket's upper end is off by less than 1/128 of the value") {
  Random random(42);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t value = any_magnitude(random);
    const std::uint64_t upper = Histogram::bucket_upper(Histogram::bucket_of(value));
    REQUIRE(upper >= value);
    REQUIRE((upper - value) * 128 <= value);
  }
}

TEST_CASE("reactor/histogram: buckets follow one another without gap or overlap") {
  for (unsigned bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    const std::uint64_t upper = Histogram::bucket_upper(bucket);
    REQUIRE(Histogram::bucket_of(upper) == bucket);
    if (bucket + 1 < Histogram::kBuckets) REQUIRE(Histogram::bucket_of(upper + 1) == bucket + 1);
  }
  CHECK(Histogram::bucket_upper(Histogram::kBuckets - 1) == (1ULL << Histogram::kMaxBits) - 1);
}

TEST_CASE("reactor/histogram: quantiles keep the bound against sorted values") {
  Random random(7);
  const auto histogram = std::make_unique<Histogram>();
  std::vector<std::uint64_t> values;
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(any_magnitude(random));
    histogram->record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double quantile : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<std::size_t>(quantile * static_cast<double>(values.size()));
    const std::uint64_t exact = values[rank == 0 ? 0 : rank - 1];
    const std::uint64_t shown = histogram->quantile(quantile);
    CHECK(shown >= exact);
    CHECK((shown - exact) * 128 <= exact);
  }
  CHECK(histogram->count() == values.size());
  CHECK(histogram->min() == values.front());
  CHECK(histogram->max() == values.back());
  CHECK(histogram->quantile(1.0) == values.back());
}

TEST_CASE("reactor/histogram: an empty one answers zero") {
  const auto histogram = std::make_unique<Histogram>();
  CHECK(histogram->count() == 0);
  CHECK(histogram->min() == 0);
  CHECK(histogram->max() == 0);
  CHECK(histogram->mean() == 0.0);
  CHECK(histogram->quantile(0.5) == 0);
}

TEST_CASE("reactor/histogram: values beyond the range count as the largest, max stays exact") {
  const auto histogram = std::make_unique<Histogram>();
  histogram->record(1);
  histogram->record(~0ULL >> 1);
  CHECK(histogram->bucket_count(Histogram::kBuckets - 1) == 1);
  CHECK(histogram->max() == ~0ULL >> 1);
  CHECK(histogram->quantile(1.0) == ~0ULL >> 1);
  CHECK(histogram->quantile(0.5) == 1);
}

TEST_CASE("reactor/histogram: merged parts equal the whole") {
  Random random(9);
  const auto whole = std::make_unique<Histogram>();
  const auto left = std::make_unique<Histogram>();
  const auto right = std::make_unique<Histogram>();
  const auto carried = std::make_unique<Histogram>();
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t value = any_magnitude(random);
    whole->record(value);
    (i % 3 == 0 ? left : right)->record(value);
  }
  left->merge(*right);
  left->merge(*std::make_unique<Histogram>());  // an empty one changes nothing
  std::uint64_t sum_ns = static_cast<std::uint64_t>(whole->mean() * static_cast<double>(whole->count()));
  for (unsigned bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    REQUIRE(left->bucket_count(bucket) == whole->bucket_count(bucket));
    carried->add_bucket(bucket, whole->bucket_count(bucket));
  }
  carried->add_extremes(whole->min(), whole->max(), sum_ns);
  for (const Histogram* other : {left.get(), carried.get()}) {
    CHECK(other->count() == whole->count());
    CHECK(other->min() == whole->min());
    CHECK(other->max() == whole->max());
    CHECK(other->mean() == doctest::Approx(whole->mean()));
    CHECK(other->quantile(0.99) == whole->quantile(0.99));
  }
  left->reset();
  CHECK(left->count() == 0);
  CHECK(left->quantile(0.99) == 0);
}

TEST_CASE("reactor/random: the stream is xoshiro256++ and repeats for a seed") {
  // From the reference implementation with the state that splitmix64 makes of seed 0.
  Random zero(0);
  const std::uint64_t first = zero.next();
  CHECK(first == Random(0).next());
  CHECK(first != Random(1).next());
  CHECK(first == 0x53175d61490b23dfULL);
}

TEST_CASE("reactor/random: below() is within its bound and reaches every value") {
  Random random(3);
  std::vector<int> seen(7);
  for (int i = 0; i < 7'000; ++i) ++seen[random.below(7)];
  for (const int times : seen) CHECK(times > 700);
  CHECK(random.below(1) == 0);
  for (int i = 0; i < 1'000; ++i) {
    const double unit = random.unit();
    REQUIRE(unit >= 0.0);
    REQUIRE(unit < 1.0);
  }
  CHECK(entropy64() != entropy64());
}
