/// The identifiers that cross layers, each a type of its own so that none is passed for another.
/// Thread:   any
#pragma once

#include <compare>
#include <cstdint>

namespace tidelock {

/// A reactor's index within its group, 0 to 255. Not a CPU number.
struct CoreId {
  std::uint16_t value = 0;
  friend constexpr auto operator<=>(CoreId, CoreId) = default;
};

/// A shard's index, 0 to 255. Shard i is owned by one reactor.
struct ShardId {
  std::uint16_t value = 0;
  friend constexpr auto operator<=>(ShardId, ShardId) = default;
};

/// Log sequence number of an entry: 1, 2, 3, ... within one history and shard; 0 is "before the first".
struct Lsn {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(Lsn, Lsn) = default;
  [[nodiscard]] constexpr Lsn next() const { return {value + 1}; }
};

/// Who may write: a counter that each promotion raises, made unique by the promoted node's id.
/// Compared counter first.
struct Epoch {
  std::uint32_t counter = 0;
  std::uint32_t node = 0;
  friend constexpr auto operator<=>(Epoch, Epoch) = default;
};

/// One line of writes. LSNs are comparable within one history only.
struct HistoryId {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(HistoryId, HistoryId) = default;
};

/// One attempt at a connection. Frames of an older generation are never accepted.
struct Generation {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(Generation, Generation) = default;
};

}  // namespace tidelock
