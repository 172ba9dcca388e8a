/// What `tidelock doctor` says about one thing of the machine, and what it was asked to look for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidelock::tools {

enum class CheckStatus : std::uint8_t {
  ok,
  warning,  ///< the engine runs, but slower, or not everything of it
  error,    ///< the engine will not start as asked
  unknown,  ///< the system does not say
};
inline constexpr CheckStatus kAllStatuses[] = {CheckStatus::ok, CheckStatus::warning, CheckStatus::error,
                                               CheckStatus::unknown};

struct Check {
  std::string name;
  CheckStatus status = CheckStatus::unknown;
  std::string value;
  std::string why;  ///< it matters
  std::string fix;  ///< a command; empty if there is nothing to mend
};
using Checks = std::vector<Check>;

/// "1 shard", "2 shards".
inline std::string counted(std::uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

inline Check good(std::string name, std::string value, std::string why) {
  return {std::move(name), CheckStatus::ok, std::move(value), std::move(why), ""};
}
inline Check unknown(std::string name, std::string value, std::string why) {
  return {std::move(name), CheckStatus::unknown, std::move(value), std::move(why), ""};
}

enum class DoctorLink : std::uint8_t { shm, verbs };

/// The engine that the machine is to run; the defaults are the engine's own.
struct DoctorNeeds {
  std::uint32_t shards = 0;        ///< 0: half of the usable CPUs, as `tidelock run`
  std::optional<DoctorLink> link;  ///< none: shm, and what there is of the other
  std::uint64_t log_bytes = 16ULL << 20;
  std::uint64_t ring_bytes = 4ULL << 20;
  std::uint32_t ring_entries = 256;
  std::uint32_t max_fibers = 1024;

  [[nodiscard]] bool verbs() const { return link == DoctorLink::verbs; }
  /// Of a thing that only the verbs link lacks.
  [[nodiscard]] CheckStatus if_verbs() const { return verbs() ? CheckStatus::error : CheckStatus::warning; }
};

}  // namespace tidelock::tools
