/// What a dialer needs of a node.
/// Thread:   one
#pragma once

#include <tidelock/replication/dialer.h>

#include "node.h"

namespace tidelock::sim {

class DialHost {
 public:
  virtual ~DialHost() = default;
  [[nodiscard]] virtual Node& node() = 0;
  /// Of its present life; null: nobody is let in. Asked while the node is up.
  [[nodiscard]] virtual Door* door() = 0;
};

}  // namespace tidelock::sim
