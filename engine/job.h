/// Runs a closure on a reactor's loop for a thread that waits for it with a deadline. The control path's way
/// onto the cores: it allocates, and what was sent stays alive until it has run, however long the sender
/// waited.
/// Thread:   any that runs no reactor
#pragma once

#include <functional>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/reactor_group.h>

namespace tidelock {

/// For jobs that a loop does in a turn: cores that take longer are swamped or have hung.
inline constexpr Duration kJobTimeout = seconds(5);

/// `body` runs on the loop and must not suspend. It owns what it refers to, or refers to what outlives the
/// group, since after a deadline it may still run.
/// Errors:   deadline_exceeded; closed; whatever `body` returns
Status run_job(ReactorGroup& group, CoreId core, std::function<Status(Reactor&)> body, Duration timeout);

}  // namespace tidelock
