/// The kernel, and what its io_uring gives the engine here: not by version, but by asking for it as the
/// engine does.
/// Thread:   any that runs no reactor
#pragma once

#include <optional>
#include <string>

#include <tidelock/reactor/ring.h>

#include "doctor_check.h"
#include "doctor_files.h"

namespace tidelock::tools {

struct UringProbe {
  std::uint32_t rings = 0;  ///< that could be made, of as many as there are shards
  std::string error;        ///< why no more
  UringFeatures features;   ///< if there is one at all
};

/// Makes a ring for each shard, and drops them again.
UringProbe probe_uring(std::uint32_t rings, std::uint32_t entries);

Checks check_kernel(const SystemFiles& files);
Checks check_uring(const SystemFiles& files, const UringProbe& probe, std::uint32_t shards);

}  // namespace tidelock::tools
