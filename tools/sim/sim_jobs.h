/// Many seeds, in worker processes: one that aborts, is killed or falls silent fails its seed and nothing
/// else.
/// Thread:   one, of a process that has no others
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/base/result.h>

#include "run.h"

namespace tidelock::sim {

struct JobOptions {
  std::uint64_t first = 1;
  std::uint64_t seeds = 1;
  std::uint32_t jobs = 1;
  bool keep_going = false;  ///< else the first seed that fails ends it
  /// Of a worker, after which it is killed. Time in which this process itself stood still is not counted.
  std::chrono::milliseconds silence{60'000};
  /// Of one seed: what a worker that crashes leaves of its last events. Null: nothing.
  const SharedTrace* shared_trace = nullptr;
  /// Runs one seed, in a worker.
  std::function<RunResult(std::uint64_t seed)> run;
  /// Asked often: true ends it, with what is known then.
  std::function<bool()> stopped = [] { return false; };
  /// Called often, with what is known so far.
  std::function<void(const struct JobTotals&)> progress = [](const JobTotals&) {};
};

struct JobTotals {
  std::uint64_t passed = 0;
  std::uint64_t undecided = 0;  ///< seeds
  std::uint64_t excused = 0;    ///< seeds with a replica that the log had left behind at the end
  std::uint64_t restarted = 0;  ///< replicas that were refused for good and began again, empty
  std::uint64_t events = 0;
  std::uint64_t simulated_ns = 0;
  FaultCounts counts;
  CallCounts calls;
  SyncCounts syncs;
  std::array<std::uint64_t, kFaultKinds> seeds_with{};   ///< in which a kind was injected
  std::map<std::uint64_t, std::vector<Failure>> failed;  ///< by seed
  std::uint64_t trace_hash = 0;                          ///< of the newest seed
  std::vector<std::string> trace;                        ///< of the newest seed
  bool interrupted = false;
  std::optional<Error> broke_off;  ///< no pipe or process for a worker: those at work were ended there
  [[nodiscard]] std::uint64_t seeds() const { return passed + failed.size(); }
  /// Nothing, or why seeds that all passed prove too little: what was left unjudged is more than a few.
  [[nodiscard]] std::optional<std::string> too_little() const;
};

JobTotals run_jobs(const JobOptions& options);

}  // namespace tidelock::sim
