/// Links over RDMA: a core of rdma/ beside each reactor, and the handshake of replication/ on rdma_cm
/// connections.
/// Thread:   see replication/transport.h
#pragma once

#include <memory>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/engine/options.h>
#include <tidelock/rdma/core.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/transport.h>

#include "events.h"
#include "shard.h"

namespace tidelock {

/// Chooses the device by Options::device and by the address of `listen` or `local_address`, and registers the
/// shards' logs. Addresses are "IPv4:port".
/// Errors:   those of rdma/: no device, port down, no GID, memlock too low, each with the remedy
Result<std::unique_ptr<Transport>> make_verbs_transport(const Options& options, ReactorGroup& group,
                                                        const std::vector<std::unique_ptr<Shard>>& shards,
                                                        EventLog& events);

}  // namespace tidelock
