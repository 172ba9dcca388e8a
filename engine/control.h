/// The control threads of an engine: everything about links that blocks. A primary's listens and takes what
/// comes to the shards' doors, a replica's dial for its shards. What is decided is decided on the cores.
/// Thread:   made and stopped by the engine's owner; inside, threads of its own that are never reactors
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/engine/options.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/dialer.h>
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

class Control {
 public:
  virtual ~Control() = default;
  /// Primary: listens. Replica: returns once every shard follows, all within connect_timeout.
  /// Errors:   refused with both values; else the last attempt's error, which names the path
  virtual Status start() = 0;
  /// After the shards were shut. Ends the threads and, as far as the transport can, the connection attempts
  /// in hand. Idempotent. The object lives on until the shards have no links any more, since these report
  /// their loss to it.
  virtual void stop() = 0;
  /// After start(): a replica's is its primary's.
  [[nodiscard]] virtual Lineage lineage() const = 0;
};

/// Primary: admits replicas at Options::listen.
std::unique_ptr<Control> make_admission(const ControlContext& context, const Lineage& lineage);
/// Replica: follows Options::primary.
std::unique_ptr<Control> make_following(const ControlContext& context);
/// Node of a group: listens, and dials the others. start() ends after connect_timeout at the latest; what is
/// missing then is an event.
std::unique_ptr<Control> make_group(const ControlContext& context);

}  // namespace tidelock
