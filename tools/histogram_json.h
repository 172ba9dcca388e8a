/// A latency histogram as JSON, for the way from a node to its parent, and as a report's percentiles.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <tidelock/reactor/histogram.h>

namespace tidelock::tools {

nlohmann::json to_json(const Histogram& histogram);
void merge_json(const nlohmann::json& json, Histogram& into);
/// {"p50", "p99", "p99_9", "max"} in nanoseconds.
nlohmann::json percentiles(const Histogram& histogram);

}  // namespace tidelock::tools
