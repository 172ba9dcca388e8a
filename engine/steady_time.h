/// Deadlines of threads that run no reactor, for condition variables.
/// Thread:   any
#pragma once

#include <chrono>

#include <tidelock/base/time.h>

namespace tidelock {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime after(Duration duration) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(duration.ns);
}

}  // namespace tidelock
