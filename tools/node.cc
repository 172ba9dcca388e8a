#include "node.h"

#include <csignal>

#include "exit_code.h"

namespace tidelock::tools {

int give_up(NodeChannel& parent, const Error& error) {
  // If the parent is gone as well there is nobody to tell.
  (void)parent.send({{"event", "error"}, {"message", error.message()}});
  return kExitUsage;
}

int node_main(const ApplyPolicy* planted) {
  // A terminal sends Ctrl-C to the whole group; only the parent decides what it means.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  NodeChannel parent{FileHandle(kNodeChannelFd)};
  auto first = parent.receive(seconds(30));
  if (!first || !first->has_value()) return kExitUsage;
  const NodeConfig config = node_config_from(**first);
  return config.role == NodeRole::primary ? run_primary(config, parent)
                                          : run_replica(config, parent, planted);
}

}  // namespace tidelock::tools
