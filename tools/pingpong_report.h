/// What `tidelock pingpong` prints: before, perftest's columns, and JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pingpong_lane.h"
#include "pingpong_stats.h"

namespace tidelock::tools {

struct PingReport {
  PingpongOptions options;
  PingFacts facts;
  PingVerb verb = PingVerb::link;
  std::string host;    ///< "x86_64, 2 usable CPUs"
  std::string kernel;  ///< "Linux 6.1.0"
  std::vector<PingRow> rows;
  std::uint64_t answers = 0;  ///< warm-up included
  bool interrupted = false;
  std::string error;
};

std::string preamble(const PingReport& report);
/// perftest's header and a line a size; the server has none, and says what it has served.
std::string results(const PingReport& report);
nlohmann::json to_json(const PingReport& report);

}  // namespace tidelock::tools
