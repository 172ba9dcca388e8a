/// The kinds of faults, and how often each was injected and took effect.
/// Thread:   one
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidelock::sim {

enum class FaultKind : std::uint8_t {
  delay,               ///< frames come later
  cut,                 ///< what is in flight is lost; the ends learn of it, each in its time
  half_open,           ///< one way or both swallow what they are given
  partition,           ///< the same on all links between two parts of the nodes, dialing included
  corrupt,             ///< bits, a length or a stale piece in a batch, a control frame or a hello
  notify_before_data,  ///< the arrival is told of before the bytes are there
  completion_late,     ///< the sender's completion
  completion_missing,  ///< until the link is destroyed
  receiver_not_ready,  ///< retries, or the link fails
  slow_peer,           ///< a thousandth of the bandwidth
  scribble,            ///< the peer writes over a batch that was received
  duplicate_connect,   ///< a hello or its answer comes twice
  pause,               ///< of a node, amid a turn or between two
  kill,                ///< a node; it comes back empty
  slow_core,
  clock_jump,  ///< forward
  // Of the world `groups` only:
  promotion_race,  ///< an operator has a node stand for an epoch, and at once another one
};
inline constexpr std::size_t kFaultKinds = 17;
inline constexpr std::size_t kStreamFaultKinds = 16;  ///< the first of them befall every world

/// What is simulated.
enum class WorldKind : std::uint8_t { streams, groups };
[[nodiscard]] std::string_view name_of(WorldKind kind);
/// False: there is no such world.
[[nodiscard]] bool world_of(std::string_view name, WorldKind& kind);
/// The first so many kinds are the world's.
[[nodiscard]] inline std::size_t kinds_of(WorldKind world) {
  return world == WorldKind::groups ? kFaultKinds : kStreamFaultKinds;
}
[[nodiscard]] inline bool befalls(WorldKind world, FaultKind kind) {
  return static_cast<std::size_t>(kind) < kinds_of(world);
}

[[nodiscard]] std::string_view name_of(FaultKind kind);
/// False: there is no such kind.
[[nodiscard]] bool kind_of(std::string_view name, FaultKind& kind);

struct FaultCounts {
  struct Count {
    std::uint64_t injected = 0;
    std::uint64_t hit = 0;  ///< it took effect
  };
  std::array<Count, kFaultKinds> of{};

  void injected(FaultKind kind) { ++of[static_cast<std::size_t>(kind)].injected; }
  void hit(FaultKind kind) { ++of[static_cast<std::size_t>(kind)].hit; }
  [[nodiscard]] const Count& operator[](FaultKind kind) const { return of[static_cast<std::size_t>(kind)]; }
};

}  // namespace tidelock::sim
