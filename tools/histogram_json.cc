#include "histogram_json.h"

#include <nlohmann/json.hpp>

namespace tidelock::tools {

nlohmann::json to_json(const Histogram& histogram) {
  nlohmann::json buckets = nlohmann::json::array();
  for (unsigned bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
    if (const std::uint64_t count = histogram.bucket_count(bucket)) buckets.push_back({bucket, count});
  }
  const double sum = histogram.mean() * static_cast<double>(histogram.count());
  return {{"buckets", std::move(buckets)},
          {"min", histogram.min()},
          {"max", histogram.max()},
          {"sum", static_cast<std::uint64_t>(sum)}};
}

void merge_json(const nlohmann::json& json, Histogram& into) {
  if (json.at("buckets").empty()) return;
  for (const auto& bucket : json.at("buckets")) into.add_bucket(bucket.at(0), bucket.at(1));
  into.add_extremes(json.at("min"), json.at("max"), json.at("sum"));
}

nlohmann::json percentiles(const Histogram& histogram) {
  return {{"p50", histogram.quantile(0.5)},
          {"p99", histogram.quantile(0.99)},
          {"p99_9", histogram.quantile(0.999)},
          {"max", histogram.max()}};
}

}  // namespace tidelock::tools
