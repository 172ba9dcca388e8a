/// `tidelock pingpong`: the latency of a link between two processes, in perftest's manner.
#pragma once

#include "pingpong_options.h"

namespace CLI {
class App;
}

namespace tidelock::tools {

CLI::App* add_pingpong_command(CLI::App& app, PingpongOptions& options);
/// Returns the exit status.
int pingpong_command(const PingpongOptions& options);

}  // namespace tidelock::tools
