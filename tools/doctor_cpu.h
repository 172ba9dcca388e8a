/// Which CPUs the reactors would get, whether they would spin, and the clock they would read.
/// Thread:   any
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "doctor_check.h"
#include "doctor_files.h"

namespace tidelock::tools {

struct CpuQuota {
  std::optional<double> cpus;  ///< the least limit that was found
  bool known = false;          ///< there is no other that was not to be seen or to be understood
};
/// CPUs' worth of time that the control groups of this process give it.
CpuQuota cgroup_quota(const SystemFiles& files);

/// `usable`: usable_cpus(). `needs.shards` is known by now.
Checks check_cpus(const SystemFiles& files, const std::vector<std::uint32_t>& usable,
                  const DoctorNeeds& needs);

Checks check_clock(const SystemFiles& files);

}  // namespace tidelock::tools
