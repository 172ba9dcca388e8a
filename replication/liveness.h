/// When a peer that is silent counts as gone: what both ends of a stream ask of their options, and say.
#pragma once

#include <cerrno>
#include <string>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

namespace tidelock {

inline std::string milliseconds_text(Duration duration) {
  return std::to_string(duration.ns / 1'000'000) + " ms";
}

/// Errors:   EINVAL, with both values
inline Status check_liveness(Duration heartbeat, Duration link_timeout) {
  if (heartbeat >= microseconds(1) && link_timeout > heartbeat) return {};
  return Error::from_errno(EINVAL, "heartbeat " + milliseconds_text(heartbeat) + ", link_timeout " +
                                       milliseconds_text(link_timeout) +
                                       ": give a heartbeat above 0 and a timeout of several heartbeats");
}

}  // namespace tidelock
