/// The shared memory of an shm link: its layout to the byte (README.md has the table) and how it is made,
/// sealed, checked and mapped.
/// Thread:   creation and mapping on a control thread; afterwards the owner core of each end
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/transport.h>

#include "shm_socket.h"

namespace tidelock {

inline constexpr std::uint64_t kShmMagic = 0x3130'4d48'534b'4454ULL;  ///< "TDKSHM01" in memory
inline constexpr std::uint32_t kShmLayoutVersion = 1;
inline constexpr std::uint64_t kShmPageBytes = 4096;
inline constexpr std::uint64_t kShmRingBytesMin = 256ULL << 10;
inline constexpr std::uint64_t kShmRingBytesMax = 1ULL << 30;
inline constexpr std::uint32_t kShmControlSlotsMin = 4;
inline constexpr std::uint32_t kShmControlSlotsMax = 256;
/// Batches start at multiples of it. What follows a header is then aligned for every entry.
inline constexpr std::uint64_t kShmBatchAlignment = 64;
/// Stands where a batch would straddle the end: the rest of this lap is skipped. No frame starts like it.
inline constexpr std::uint64_t kShmTailMarker = 0x5049'4b53'4c49'4154ULL;  ///< "TAILSKIP" in memory

/// Offset 0. Written by the primary before it hands the memory over; the replica copies it once.
struct ShmHeader {
  std::uint64_t magic = 0;
  std::uint32_t layout_version = 0;
  std::uint32_t control_slots = 0;
  std::uint64_t ring_bytes = 0;
  std::uint64_t total_bytes = 0;
};
static_assert(sizeof(ShmHeader) == 32);

/// What a parked side waits for.
enum ShmParked : std::uint32_t {
  kShmAwake = 0,
  kShmParked = 1,         ///< wake me for frames
  kShmParkedForRoom = 2,  ///< wake me for credit, too
};

/// One side's words: the first line is written by that side only and polled by the other, so that one cache
/// line tells a poller everything. Positions count bytes (or frames) since the link began and never wrap.
struct ShmSide {
  alignas(64) std::atomic<std::uint64_t> produced;  ///< primary: end of the last published batch
  std::atomic<std::uint64_t> consumed;              ///< replica: everything below is free again
  std::atomic<std::uint64_t> control_produced;
  std::atomic<std::uint64_t> control_consumed;
  std::atomic<std::uint32_t> closed;               ///< 1: this side has closed the link
  alignas(128) std::atomic<std::uint32_t> parked;  ///< ShmParked; the peer clears it when it wakes us
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(offsetof(ShmSide, consumed) == 8 && offsetof(ShmSide, closed) == 32);
static_assert(offsetof(ShmSide, parked) == 128 && sizeof(ShmSide) <= kShmPageBytes);

inline constexpr std::uint64_t kShmPrimaryOffset = kShmPageBytes;
inline constexpr std::uint64_t kShmReplicaOffset = 2 * kShmPageBytes;
inline constexpr std::uint64_t kShmLaneOffset = 3 * kShmPageBytes;  ///< primary's lane, then the replica's

[[nodiscard]] constexpr std::uint64_t shm_ring_offset(std::uint32_t control_slots) {
  return align_up(kShmLaneOffset + 2ULL * control_slots * kControlFrameBytes, kShmPageBytes);
}
[[nodiscard]] constexpr std::uint64_t shm_total_bytes(std::uint64_t ring_bytes, std::uint32_t control_slots) {
  return shm_ring_offset(control_slots) + ring_bytes;
}

/// Errors:   EINVAL names the limits
Status check_shm_options(const LinkOptions& options);

/// A mapping of the whole memory. Sizes are this process's own copies, never read again from shared memory.
class ShmMemory {
 public:
  ShmMemory() = default;
  ShmMemory(ShmMemory&& other) noexcept;
  ShmMemory& operator=(ShmMemory&& other) noexcept;
  ~ShmMemory();

  /// Makes a memfd of exactly that size, all pages allocated, sealed against any change of size.
  static Result<UniqueFd> create(const LinkOptions& options);
  /// Maps what create() made in this process.
  static Result<ShmMemory> map_own(int fd, const LinkOptions& options);
  /// Maps what a peer made, after it has checked the seals, so that the peer cannot take pages away under us
  /// (SIGBUS), and size, header and hello against each other.
  /// Errors:   malformed names what is wrong
  static Result<ShmMemory> map_peers(int fd, std::uint64_t ring_bytes);

  [[nodiscard]] std::uint64_t ring_bytes() const { return options_.ring_bytes; }
  [[nodiscard]] std::uint32_t control_slots() const { return options_.control_slots; }
  [[nodiscard]] ShmSide& primary() const { return *reinterpret_cast<ShmSide*>(base_ + kShmPrimaryOffset); }
  [[nodiscard]] ShmSide& replica() const { return *reinterpret_cast<ShmSide*>(base_ + kShmReplicaOffset); }
  /// Control frames that the primary writes, and those that the replica writes.
  [[nodiscard]] std::byte* primary_lane() const { return base_ + kShmLaneOffset; }
  [[nodiscard]] std::byte* replica_lane() const {
    return base_ + kShmLaneOffset + std::uint64_t{options_.control_slots} * kControlFrameBytes;
  }
  [[nodiscard]] std::byte* ring() const { return base_ + shm_ring_offset(options_.control_slots); }

 private:
  static Result<ShmMemory> map(int fd, std::uint64_t total_bytes);

  std::byte* base_ = nullptr;
  std::uint64_t total_bytes_ = 0;
  LinkOptions options_;
};

}  // namespace tidelock
