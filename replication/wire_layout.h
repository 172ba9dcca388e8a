/// Where each field stands, shared by the encoders, the decoders and the log. README.md has the tables.
/// Thread:   any
#pragma once

#include <cstddef>
#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/replication/wire.h>
#include <tidelock/replication/wire_range.h>

namespace tidelock::layout {

// Read as text in a dump: "TLFR", "TLCT", "TLHI", "TLNO".
inline constexpr std::uint32_t kFrameMagic = 0x52464c54;
inline constexpr std::uint32_t kControlMagic = 0x54434c54;
inline constexpr std::uint32_t kHelloMagic = 0x49484c54;
inline constexpr std::uint32_t kRefusalMagic = 0x4f4e4c54;

namespace frame {
inline constexpr std::size_t kMagic = 0, kVersion = 4, kShard = 6, kPayloadBytes = 8, kEntries = 12,
                             kHistory = 16, kEpoch = 24, kGeneration = 32, kKind = 36, kSequence = 40,
                             kFirstLsn = 48, kLastLsn = 56, kCommitLsn = 64, kReserved2 = 72, kSum = 76;
static_assert(kSum + 4 == kFrameHeaderBytes);
}  // namespace frame

namespace control {
inline constexpr std::size_t kMagic = 0, kVersion = 4, kFlags = 5, kShard = 6, kHistory = 8, kEpoch = 16,
                             kSequence = 24, kReceivedLsn = 32, kAppliedLsn = 40, kCommitLsn = 48,
                             kGeneration = 56, kSum = 60;
inline constexpr std::uint8_t kClosingFlag = 1, kLeadFlag = 2, kWholeFlag = 4;
static_assert(kSum + 4 == kControlFrameBytes);
}  // namespace control

namespace entry {
inline constexpr std::size_t kCrc = 0, kKind = 4, kFlags = 5, kReserved = 6, kKeyBytes = 8, kValueBytes = 12,
                             kLsn = 16, kEpoch = 24;
static_assert(kEpoch + 8 == kEntryHeaderBytes);
inline constexpr std::uint8_t kGroupContinuesFlag = 1;
inline constexpr std::size_t kOffset = 32, kPieceBytes = 36;  // of fragments
static_assert(kPieceBytes + 4 == kFragmentHeaderBytes);
/// The log's own mark for "the rest of this lap is unused"; never sent. Eight bytes are enough for it, and
/// because entries are padded to eight there is always room.
inline constexpr std::uint8_t kSkipKind = 0;
}  // namespace entry

/// A range's header: stands where entries do and begins as they do, but is none that a log or a table ever
/// sees, so EntryKind does not have its kind.
namespace range {
inline constexpr std::uint8_t kRangeKind = 5;
inline constexpr std::uint8_t kLastFlag = 1, kVoidFlag = 2;
inline constexpr std::size_t kCrc = 0, kKind = 4, kFlags = 5, kReserved1 = 6, kReserved2 = 8, kLineBytes = 12,
                             kLsn = 16, kEpoch = 24, kFrom = 32, kTo = 40, kRecords = 48, kSum = 52;
static_assert(kSum + 4 == kRangeHeaderBytes);
/// An epoch of the line: counter, node, first LSN.
inline constexpr std::size_t kStartEpoch = 0, kStartLsn = 8, kStartBytes = 16;
static_assert(kStartLsn + 8 == kStartBytes);
}  // namespace range

namespace hello {
inline constexpr std::size_t kMagic = 0, kVersionMin = 4, kVersionMax = 6, kLength = 8, kRole = 12,
                             kFlags = 13, kC = 14, kNode = 16, kShard = 20, kShardCount = 22, kHistory = 24,
                             kRoutingSeed = 32, kEpoch = 40, kGeneration = 48, kGroupSum = 52, kLastLsn = 56,
                             kFirstLsn = 64, kRingBytes = 72, kKeyLimit = 80, kValueLimit = 84,
                             kLastEpoch = 88, kCommitEpoch = 96, kCommitLsn = 104, kReserved = 112,
                             kCrc = 124;
inline constexpr std::uint8_t kMemoryFlag = 1, kPromiseFlag = 2, kFetchFlag = 4, kSnapshotFlag = 8,
                              kReleasedFlag = 16, kFoundingFlag = 32, kForcedFlag = 64;
static_assert(kCrc + 4 == kHelloBytes);
}  // namespace hello

namespace refusal {
inline constexpr std::size_t kMagic = 0, kReason = 4, kLength = 6, kOurs = 8, kTheirs = 16, kReserved = 24,
                             kCrc = 28;
static_assert(kCrc + 4 == kRefusalBytes);
}  // namespace refusal

inline void store_epoch(std::byte* to, Epoch epoch) {
  store(to, epoch.counter);
  store(to + 4, epoch.node);
}
[[nodiscard]] inline Epoch load_epoch(const std::byte* from) {
  return {load<std::uint32_t>(from), load<std::uint32_t>(from + 4)};
}

}  // namespace tidelock::layout
