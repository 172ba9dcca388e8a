/// `tidelock run`: replicate a key-value file core to core and prove that no reader sees an older state than
/// it was notified of.
#pragma once

#include <memory>

#include <CLI/App.hpp>

#include "run_limits.h"
#include "run_options.h"

namespace tidelock::tools {

/// Adds the subcommand; `options` outlives the parsing.
CLI::App* add_run_command(CLI::App& app, RunOptions& options);
/// `limits`: of a run on two machines. Returns the exit status.
int run_command(RunOptions options, const RunLimits& limits);

}  // namespace tidelock::tools
