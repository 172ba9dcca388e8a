/// Which CPUs the reactors would get, whether they would spin, and the clock they would read.
/// Thread:   any
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "doctor_check.h"
#include "doctor_files.h"

namespace tidelock::tools {

/// CPUs' worth of time that the control groups of this process give it; none if they do not limit it, or do
/// not say.
std::optional<double> cgroup_cpus(const SystemFiles& files);

/// `usable`: usable_cpus(). `needs.shards` is known by now.
Checks check_cpus(const SystemFiles& files, const std::vector<std::uint32_t>& usable,
                  const DoctorNeeds& needs);

Checks check_clock(const SystemFiles& files);

}  // namespace tidelock::tools
