/// The errors of reactor/.
#pragma once

#include <system_error>

namespace tidelock {

enum class ReactorErrc {
  deadline_exceeded = 1,  ///< the deadline passed first; what was asked for may still happen later
  cancelled,              ///< the fiber was cancelled
  closed,                 ///< the channel, gate or reactor is closed
  out_of_fibers,          ///< all pooled stacks are in use; raise max_fibers or wait for one to end
  out_of_operations,      ///< all operation slots are in flight; wait for a completion
  lane_full,              ///< the target has not taken earlier messages; wait, or send from a fiber
  not_on_reactor,         ///< called from a thread that runs no reactor
  io_uring_unavailable,   ///< the kernel refuses io_uring; the detail names sysctl or seccomp
  bad_cpu_set,            ///< fewer usable CPUs than asked for, or an unknown CPU
};

std::error_code make_error_code(ReactorErrc code);

}  // namespace tidelock

template <>
struct std::is_error_code_enum<tidelock::ReactorErrc> : std::true_type {};
