/// What carries an engine's links, as its options say.
/// Thread:   the engine's owner, which makes it after the shards and ends it after their links, before the
///           reactors stop
#pragma once

#include <memory>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/engine/options.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/transport.h>

#include "events.h"
#include "shard.h"

namespace tidelock {

/// The arguments outlive the transport; so do the shards' logs, which it may register. What it has to say
/// that no link's end says goes to `events`.
/// Errors:   bad_option for a link that this build does not have; what keeps a device from being used
Result<std::unique_ptr<Transport>> make_transport(const Options& options, ReactorGroup& group,
                                                  const std::vector<std::unique_ptr<Shard>>& shards,
                                                  EventLog& events);

}  // namespace tidelock
