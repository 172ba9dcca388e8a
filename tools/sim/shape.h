/// The size and the habits of one run, drawn from its seed.
/// Thread:   any
#pragma once

#include <cstdint>
#include <optional>

#include <tidelock/base/time.h>
#include <tidelock/replication/primary.h>

#include "faults.h"
#include "node.h"
#include "streams.h"
#include "wire.h"

namespace tidelock::sim {

struct Shape {
  std::uint32_t replicas = 1;
  std::uint32_t clients = 2;
  std::uint32_t keys = 8;
  std::uint32_t calls = 300;
  Instant faults_until{};
  std::uint64_t log_bytes = 1 << 20;
  std::optional<std::uint32_t> c;  ///< see PrimaryOptions
  bool snapshots = true;           ///< the primary sends them
  /// So much is written that a snapshot has many ranges, and many erases, large values, and writes while a
  /// snapshot is under way.
  bool heavy = false;
  Instant last_starts_at{};  ///< the replica with the greatest number
  Duration heartbeat{};
  Duration link_timeout{};
  NodeOptions node;
  WireOptions wire;
  /// Of the world `groups`; there `replicas` are all others, and `c` is always said.
  struct Group {
    Duration lease{};
    bool stands = false;  ///< nodes stand for an epoch by themselves
    /// More memories may be lost at once than the group can bear: nothing is promised then.
    bool beyond = false;
    Duration round{};
    Duration pause{};
    Duration pause_max{};
  } group;
};
/// What of a shape's load is left out: 0 keeps what the seed has drawn.
struct LessLoad {
  std::uint32_t clients = 0;
  std::uint32_t calls = 0;
  [[nodiscard]] Shape of(Shape shape) const {
    if (clients != 0) shape.clients = clients;
    if (calls != 0) shape.calls = calls;
    return shape;
  }
};

/// Of values that travel in fragments.
inline constexpr std::size_t kLargeValueBytesLeast = 33'000;
inline constexpr std::size_t kLargeValueBytesMost = 93'000;
/// What one of them takes up in a log at most, with its key.
inline constexpr std::uint64_t kLargePutBytesMost = kLargeValueBytesMost + 1'000;

/// How many replicas make a write committed, and are waited for by who does not say.
[[nodiscard]] inline std::uint32_t replicas_to_commit(const Shape& shape) { return shape.c.value_or(1); }

/// Whom a fault of a plan may befall: streams have replicas, groups nodes.
[[nodiscard]] inline std::uint32_t targets_of(WorldKind kind, const Shape& shape) {
  return kind == WorldKind::groups ? shape.replicas + 1 : shape.replicas;
}

[[nodiscard]] Shape draw_shape(const Streams& streams);
[[nodiscard]] Shape draw_shape(WorldKind kind, const Streams& streams);
/// Of the world `groups`.
[[nodiscard]] Shape draw_group_shape(const Streams& streams);

}  // namespace tidelock::sim
