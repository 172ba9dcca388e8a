/// The seed by which a node spreads keys over its shards. Each shard's group begins a history of its own, but
/// a key is hashed before it is known whose it is: so all histories of a node have one seed.
/// Thread:   any
/// Suspends: never
#pragma once

#include <cstdint>

#include <tidelock/base/ids.h>
#include <tidelock/base/time.h>

namespace tidelock {

class RoutingSeed {
 public:
  virtual ~RoutingSeed() = default;
  /// Of a history that this shard would begin, by the clock that leases go by; 0: it is not to begin one yet.
  [[nodiscard]] virtual std::uint64_t to_found(ShardId shard, Instant now) const = 0;
  /// Whether a history with that seed can be this node's.
  [[nodiscard]] virtual bool takes(std::uint64_t seed) const = 0;
};

}  // namespace tidelock
