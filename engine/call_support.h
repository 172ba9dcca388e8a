/// What every call of the API does alike.
/// Thread:   any
#pragma once

#include <algorithm>
#include <new>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/engine/errc.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/errc.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/errc.h>

namespace tidelock {

/// On the clock that all reactors of a group share. `caller` is null for a host thread.
inline Instant deadline_of(Reactor* caller, Duration timeout) {
  const Instant now = caller != nullptr ? caller->now() : SystemClock().now();
  return now + std::max(timeout, Duration{0});
}

/// A write that left and did not come back in time may or may not have taken effect.
inline Error write_error(const Error& error) {
  if (error == ReactorErrc::cancelled) {
    return Error(ReplicationErrc::outcome_unknown,
                 "the fiber was cancelled before the shard's core answered");
  }
  if (!(error == ReactorErrc::deadline_exceeded)) return error;
  return Error(ReplicationErrc::outcome_unknown, "the shard's core did not answer by the deadline");
}

/// A write that did not leave.
inline Error launch_error(const Error& error) {
  if (error == ReactorErrc::cancelled) {
    return Error(EngineErrc::not_written,
                 "the fiber was cancelled before its call left for the shard's core");
  }
  if (!(error == ReactorErrc::deadline_exceeded || error == ReactorErrc::lane_full)) return error;
  return Error(EngineErrc::not_written, "the shard's core took no more calls within the timeout");
}

/// The engine's own copies may find no memory; that is an error like any other.
template <class F>
auto without_exceptions(F&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return EngineErrc::out_of_memory;  // without a text of its own, for which there may be no memory either
  }
}

}  // namespace tidelock
