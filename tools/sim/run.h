/// One seed to its verdict.
/// Thread:   one a call
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "history.h"
#include "plan.h"
#include "planted.h"
#include "shape.h"
#include "shared_trace.h"
#include "verdict.h"

namespace tidelock::sim {

struct RunOptions {
  WorldKind world = WorldKind::streams;
  std::uint64_t seed = 1;
  FaultMask faults = all_faults();
  std::optional<std::vector<Fault>> plan;  ///< instead of the one that is drawn
  LessLoad load;                           ///< likewise
  SharedTrace* shared_trace = nullptr;     ///< gets the trace's text, too
  Planted planted;                         ///< nothing: production's code as it is
  std::size_t trace_lines = 0;             ///< how many of the last events are kept as text
  bool keep_hashes = false;                ///< of the trace, before each event
};

struct RunResult {
  std::uint64_t seed = 0;
  std::vector<Failure> failures;  ///< empty: passed
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::uint64_t simulated_ns = 0;
  std::uint64_t undecided = 0;
  std::uint64_t behind_log = 0;
  std::uint64_t restarted = 0;
  FaultCounts counts;
  CallCounts calls;
  SyncCounts syncs;
  std::vector<std::string> trace;
  std::vector<std::uint64_t> hashes;
};

/// What is drawn for them.
[[nodiscard]] std::vector<Fault> plan_of(const RunOptions& options);

[[nodiscard]] RunResult run_seed(const RunOptions& options);

/// The same twice, the second time with other contents in fresh memory: a course that depends on anything but
/// the seed is a failure `deterministic`. Not while another thread allocates.
[[nodiscard]] RunResult run_seed_twice(RunOptions options);
/// Nothing, or the first event before which the two differ.
[[nodiscard]] std::optional<Failure> compare_runs(const RunResult& first, const RunResult& again);

}  // namespace tidelock::sim
