/// The result of a run as people and programs read it.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "run_session.h"

namespace tidelock::tools {

/// One object with at least: checked, stale, digests_equal, ops, ops_per_second, ack_ns {p50, p99, p99_9,
/// max}, shards (a list of the same), link, host, kernel, command.
nlohmann::json make_report(const RunOptions& options, const Dataset& dataset, const CorePlan& plan,
                           const RunOutcome& outcome);
/// True if every acknowledged write was checked, nothing was stale or lost, and the digests are equal.
bool passed(const nlohmann::json& report);
/// A table a shard, a total line, and where it was measured.
std::string format_report(const nlohmann::json& report);

}  // namespace tidelock::tools
