/// The two processes that `tidelock run` starts: a primary with the load, a replica with the verifier.
#pragma once

#include "node_channel.h"
#include "run_options.h"

namespace tidelock {
class ApplyPolicy;
}

namespace tidelock::tools {

/// Descriptors that a node inherits, at fixed numbers.
inline constexpr int kNodeChannelFd = 3;
inline constexpr int kNodeDatasetFd = 4;
inline constexpr int kNodeReceiptsFd = 5;

/// `tidelock node`: serves the parent at kNodeChannelFd until it says stop or dies. Returns the exit status.
int node_main(const ApplyPolicy* planted);

/// One node's work once its configuration is known.
int run_primary(const NodeConfig& config, NodeChannel& parent);
int run_replica(const NodeConfig& config, NodeChannel& parent, const ApplyPolicy* planted);

/// Tells the parent why this node gives up; returns the exit status to end with.
int give_up(NodeChannel& parent, const Error& error);

}  // namespace tidelock::tools
