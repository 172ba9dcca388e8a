#include "run_limits.h"

namespace tidelock::tools {
namespace {

/// What goes around a write: its own deadline, and the wait for the verifier.
constexpr std::int64_t kTimeoutsOfWrite = 2;

std::int64_t ns_of(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

Duration RunLimits::input(std::uint64_t bytes) const {
  return base + mebibyte * static_cast<std::int64_t>(bytes >> 20);
}

Duration RunLimits::load(const RunOptions& run, std::uint64_t records, std::uint64_t bytes) const {
  return input(bytes) + record * static_cast<std::int64_t>(records) +
         Duration{ns_of(run.duration_s) + kTimeoutsOfWrite * ns_of(run.timeout_s)};
}

}  // namespace tidelock::tools
