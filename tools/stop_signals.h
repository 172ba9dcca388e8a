/// Ctrl-C of a subcommand that has a partial result to give: the first SIGINT or SIGTERM asks for it, one
/// that comes two seconds or more later ends the process. Not sooner: timeout(1), for one, sends its signal
/// to the process and at once again to its group.
/// Thread:   stop_on_signals(): the program's first. The others: any
#pragma once

#include <atomic>

namespace tidelock::tools {

/// From here on; SIGPIPE is ignored, too, so that a reader who is gone is an error of the write.
void stop_on_signals();
/// True once a signal has come. Lives as long as the program.
const std::atomic<bool>& stop_asked();
/// The exit status that goes with the signal that came.
int interrupted_status();

}  // namespace tidelock::tools
