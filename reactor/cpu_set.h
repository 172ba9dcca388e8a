/// Which CPUs this process may use, and pinning threads to them.
/// Thread:   any
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tidelock/base/result.h>

namespace tidelock {

/// From sched_getaffinity(2), ascending; honours cgroup cpusets and taskset.
std::vector<std::uint32_t> usable_cpus();

/// "0-3,8". Errors: EINVAL names the piece that does not parse.
Result<std::vector<std::uint32_t>> parse_cpu_list(std::string_view text);
std::string format_cpu_list(const std::vector<std::uint32_t>& cpus);

/// `usable` reordered so that distinct physical cores come first and hyper-thread siblings after them
/// (/sys/devices/system/cpu/cpuN/topology).
std::vector<std::uint32_t> spread_over_cores(const std::vector<std::uint32_t>& usable);

/// Errors:   bad_cpu_set
Status pin_this_thread(std::uint32_t cpu);

}  // namespace tidelock
