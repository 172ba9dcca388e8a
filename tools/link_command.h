/// `tidelock link`: the links of running nodes.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace tidelock::tools {

struct LinkCommandOptions {
  std::string at;    ///< an inspection socket; empty: see pid
  long pid = 0;      ///< 0: all nodes of this user
  double watch = 0;  ///< seconds between two tables; 0: one table
  bool json = false;
};

CLI::App* add_link_command(CLI::App& app, LinkCommandOptions& options);
/// Returns the exit status.
int link_command(const LinkCommandOptions& options);

}  // namespace tidelock::tools
