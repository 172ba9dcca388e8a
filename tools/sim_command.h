/// `tidelock sim`: flags and course of events.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}
namespace tidelock {
class ApplyPolicy;
}

namespace tidelock::tools {

struct SimCommandOptions {
  std::string world = "streams";
  std::uint64_t seed = 1;
  std::uint64_t seeds = 1;
  std::uint32_t jobs = 0;  ///< 0: one a usable CPU
  std::string faults = "all";
  std::string plan;    ///< a file; empty: the plan is drawn from the seed
  std::string shrink;  ///< the file that a failing seed's least plan goes to; empty: nothing is cut
  bool trace = false;
  bool keep_going = false;
  bool twice = false;
  bool json = false;
};

/// Adds the subcommand; `options` outlives the parsing.
CLI::App* add_sim_command(CLI::App& app, SimCommandOptions& options);
/// Returns the exit status. `planted` is null in production.
int sim_command(const SimCommandOptions& options, const ApplyPolicy* planted);

}  // namespace tidelock::tools
