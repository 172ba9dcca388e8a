/// Limits of the process and the kernel's settings for memory, against what the engine takes.
/// Thread:   any
#pragma once

#include "doctor_check.h"
#include "doctor_files.h"

namespace tidelock::tools {

/// getrlimit(2); RLIM_INFINITY is the greatest number.
struct ProcessLimits {
  struct Limit {
    std::uint64_t soft = 0;
    std::uint64_t hard = 0;
  };
  Limit memlock_bytes;
  Limit descriptors;
};
ProcessLimits process_limits();

/// What the kernel charges to RLIMIT_MEMLOCK: the rings always (whether it does depends on its version), and
/// with verbs all memory that is registered with a device. `needs.shards` is known by now.
std::uint64_t locked_bytes(const DoctorNeeds& needs, bool verbs);

struct MemorySituation {
  ProcessLimits limits;
  bool rings_work = true;     ///< as many as shards could be made
  bool rdma_present = false;  ///< so that verbs is a choice
};

Checks check_memory(const SystemFiles& files, const MemorySituation& situation, const DoctorNeeds& needs);

}  // namespace tidelock::tools
