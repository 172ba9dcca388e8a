/// What `tidelock sim` prints: lines for people, or one JSON object.
/// Thread:   any
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "sim_jobs.h"

namespace tidelock::sim {

struct SimReport {
  std::string version;
  WorldKind world = WorldKind::streams;
  std::uint64_t first_seed = 1;
  std::uint64_t seeds = 1;  ///< asked for
  std::uint32_t jobs = 1;
  std::string faults;  ///< as given: a list, "all" or "none"
  bool twice = false;
  std::string plan;  ///< the file that was given instead of drawing one; empty: none
  std::uint64_t wall_ns = 0;
  JobTotals totals;
};

/// Before the run.
[[nodiscard]] std::string preamble(const SimReport& report);
/// Failures with the command that replays each, the table of faults, totals; with one seed its trace and
/// hash.
[[nodiscard]] std::string results(const SimReport& report);
[[nodiscard]] nlohmann::json to_json(const SimReport& report);

}  // namespace tidelock::sim
