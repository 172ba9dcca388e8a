/// The size and the habits of one run, drawn from its seed.
/// Thread:   any
#pragma once

#include <cstdint>

#include <tidelock/base/time.h>
#include <tidelock/replication/primary.h>

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
  Duration heartbeat{};
  Duration link_timeout{};
  NodeOptions node;
  WireOptions wire;
};
/// Of values that travel in fragments.
inline constexpr std::size_t kLargeValueBytesLeast = 33'000;
inline constexpr std::size_t kLargeValueBytesMost = 93'000;
/// What one of them takes up in a log at most, with its key.
inline constexpr std::uint64_t kLargePutBytesMost = kLargeValueBytesMost + 1'000;

[[nodiscard]] Shape draw_shape(const Streams& streams);

}  // namespace tidelock::sim
