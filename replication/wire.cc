// Frame headers and control frames. Entries: wire_entry.cc; handshake: wire_hello.cc.
#include <algorithm>
#include <cstring>

#include <isa-l/crc.h>

#include <tidelock/replication/wire.h>

#include "wire_layout.h"

namespace tidelock {

std::uint32_t crc32c(std::uint32_t seed, Bytes bytes) {
  // isa-l leaves the inversions to its caller, takes an int and, although it only reads, a mutable pointer.
  constexpr std::size_t kPiece = 1U << 30;
  std::uint32_t crc = ~seed;
  while (!bytes.empty()) {
    const std::size_t piece = std::min(bytes.size(), kPiece);
    auto* from = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    crc = crc32_iscsi(from, static_cast<int>(piece), crc);
    bytes = bytes.subspan(piece);
  }
  return ~crc;
}

void encode_frame_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> into) {
  using namespace layout::frame;
  std::byte* const to = into.data();
  store(to + kMagic, layout::kFrameMagic);
  store(to + kVersion, kWireVersionMax);
  store(to + kShard, header.shard.value);
  store(to + kPayloadBytes, header.payload_bytes);
  store(to + kEntries, header.entries);
  store(to + kHistory, header.history.value);
  layout::store_epoch(to + kEpoch, header.epoch);
  store(to + kGeneration, header.generation.value);
  store(to + kReserved1, std::uint32_t{0});
  store(to + kSequence, header.sequence);
  store(to + kFirstLsn, header.first_lsn.value);
  store(to + kLastLsn, header.last_lsn.value);
  store(to + kCommitLsn, header.commit_lsn.value);
  store(to + kReserved2, std::uint32_t{0});
  store(to + kCrc, crc32c(0, into.first<kCrc>()));
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> from,
                                        const FrameContext& context) {
  using namespace layout::frame;
  const std::byte* const at = from.data();
  if (load<std::uint32_t>(at + kMagic) != layout::kFrameMagic) return ReplicationErrc::bad_magic;
  const auto version = load<std::uint16_t>(at + kVersion);
  if (version < kWireVersionMin || version > kWireVersionMax) return ReplicationErrc::bad_version;
  if (load<std::uint32_t>(at + kCrc) != crc32c(0, from.first<kCrc>())) return ReplicationErrc::bad_crc;

  FrameHeader header;
  header.shard.value = load<std::uint16_t>(at + kShard);
  header.payload_bytes = load<std::uint32_t>(at + kPayloadBytes);
  header.entries = load<std::uint32_t>(at + kEntries);
  header.history.value = load<std::uint64_t>(at + kHistory);
  header.epoch = layout::load_epoch(at + kEpoch);
  header.generation.value = load<std::uint32_t>(at + kGeneration);
  header.sequence = load<std::uint64_t>(at + kSequence);
  header.first_lsn.value = load<std::uint64_t>(at + kFirstLsn);
  header.last_lsn.value = load<std::uint64_t>(at + kLastLsn);
  header.commit_lsn.value = load<std::uint64_t>(at + kCommitLsn);
  if (header.history != context.history || header.generation != context.generation ||
      header.shard != context.shard) {
    return ReplicationErrc::wrong_context;
  }
  if (load<std::uint32_t>(at + kReserved1) != 0 || load<std::uint32_t>(at + kReserved2) != 0) {
    return ReplicationErrc::malformed;
  }
  // The LSNs of a batch ascend by at most one an entry (fragments share theirs).
  const bool lengths_agree = header.payload_bytes % kEntryAlignment == 0 && header.entries > 0 &&
                             header.payload_bytes / kEntryHeaderBytes >= header.entries &&
                             header.first_lsn.value > 0 && header.first_lsn <= header.last_lsn &&
                             header.last_lsn.value - header.first_lsn.value < header.entries;
  if (!lengths_agree) return ReplicationErrc::bad_length;
  return header;
}

void encode_control(const ControlFrame& frame, std::span<std::byte, kControlFrameBytes> into) {
  using namespace layout::control;
  std::byte* const to = into.data();
  static_assert(kWireVersionMax <= 255, "a control frame has one byte for the version");
  store(to + kMagic, layout::kControlMagic);
  store(to + kVersion, static_cast<std::uint8_t>(kWireVersionMax));
  store(to + kFlags, frame.closing ? kClosingFlag : std::uint8_t{0});
  store(to + kShard, frame.shard.value);
  store(to + kHistory, frame.history.value);
  layout::store_epoch(to + kEpoch, frame.epoch);
  store(to + kSequence, frame.sequence);
  store(to + kReceivedLsn, frame.received_lsn.value);
  store(to + kAppliedLsn, frame.applied_lsn.value);
  store(to + kCommitLsn, frame.commit_lsn.value);
  store(to + kGeneration, frame.generation.value);
  store(to + kCrc, crc32c(0, into.first<kCrc>()));
}

Result<ControlFrame> decode_control(std::span<const std::byte, kControlFrameBytes> from,
                                    const FrameContext& context) {
  using namespace layout::control;
  const std::byte* const at = from.data();
  if (load<std::uint32_t>(at + kMagic) != layout::kControlMagic) return ReplicationErrc::bad_magic;
  const auto version = load<std::uint8_t>(at + kVersion);
  if (version < kWireVersionMin || version > kWireVersionMax) return ReplicationErrc::bad_version;
  if (load<std::uint32_t>(at + kCrc) != crc32c(0, from.first<kCrc>())) return ReplicationErrc::bad_crc;

  const auto flags = load<std::uint8_t>(at + kFlags);
  ControlFrame frame;
  frame.shard.value = load<std::uint16_t>(at + kShard);
  frame.history.value = load<std::uint64_t>(at + kHistory);
  frame.epoch = layout::load_epoch(at + kEpoch);
  frame.generation.value = load<std::uint32_t>(at + kGeneration);
  frame.closing = (flags & kClosingFlag) != 0;
  frame.sequence = load<std::uint64_t>(at + kSequence);
  frame.received_lsn.value = load<std::uint64_t>(at + kReceivedLsn);
  frame.applied_lsn.value = load<std::uint64_t>(at + kAppliedLsn);
  frame.commit_lsn.value = load<std::uint64_t>(at + kCommitLsn);
  if (frame.history != context.history || frame.generation != context.generation ||
      frame.shard != context.shard) {
    return ReplicationErrc::wrong_context;
  }
  if ((flags & ~unsigned{kClosingFlag}) != 0) return ReplicationErrc::malformed;
  return frame;
}

}  // namespace tidelock
