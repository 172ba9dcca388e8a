/// The control thread of an engine: everything about links that blocks. On a primary it listens and admits
/// replicas, on a replica it connects and reconnects each shard. Links are handed to their owner cores.
/// Thread:   made and stopped by the engine's owner; inside, a thread of its own that is never a reactor
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/engine/options.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/transport.h>

#include "events.h"
#include "link_board.h"
#include "shard.h"

namespace tidelock {

/// What the control thread works on. Lifetime: outlives it; the shards' links call it until they are
/// destroyed.
struct ControlContext {
  const Options& options;
  ReactorGroup& group;
  const std::vector<std::unique_ptr<Shard>>& shards;
  EventLog& events;
  LinkBoard& board;
  Transport& transport;
};

/// One line of history that a node follows.
struct Lineage {
  HistoryId history{};
  std::uint64_t routing_seed = 0;
  Epoch epoch{};
};

class Control {
 public:
  virtual ~Control() = default;
  /// Primary: listens. Replica: connects every shard, all within connect_timeout. Then starts the thread.
  /// Errors:   refused with both values; else the last attempt's error, which names the path
  virtual Status start() = 0;
  /// Ends the thread, at the latest when the connection attempt in hand has timed out. Idempotent. The object
  /// lives on until the shards have no links any more, since these report their loss to it.
  virtual void stop() = 0;
  /// After start(): a replica's is its primary's.
  [[nodiscard]] virtual Lineage lineage() const = 0;
};

/// Primary: admits replicas at Options::listen.
std::unique_ptr<Control> make_admission(const ControlContext& context, const Lineage& lineage);
/// Replica: follows Options::primary.
std::unique_ptr<Control> make_following(const ControlContext& context);

}  // namespace tidelock
