// Frame headers and control frames. Entries: wire_entry.cc; handshake: wire_hello.cc.
#include <algorithm>
#include <cstring>

#include <isa-l/crc.h>

#include <tidelock/reactor/header_sum.h>
#include <tidelock/replication/wire.h>
#include <tidelock/replication/wire_range.h>

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
  store(to + kKind, static_cast<std::uint32_t>(header.kind));
  store(to + kSequence, header.sequence);
  store(to + kFirstLsn, header.first_lsn.value);
  store(to + kLastLsn, header.last_lsn.value);
  store(to + kCommitLsn, header.commit_lsn.value);
  store(to + kReserved2, std::uint32_t{0});
  store(to + kSum, header_sum(into.first<kSum>()));
}

Result<FrameHeader> decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> from,
                                        const FrameContext& context) {
  using namespace layout::frame;
  const std::byte* const at = from.data();
  if (load<std::uint32_t>(at + kMagic) != layout::kFrameMagic) return ReplicationErrc::bad_magic;
  const auto version = load<std::uint16_t>(at + kVersion);
  if (version < kWireVersionMin || version > kWireVersionMax) return ReplicationErrc::bad_version;
  if (load<std::uint32_t>(at + kSum) != header_sum(from.first<kSum>())) return ReplicationErrc::bad_crc;

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
  // The kind and the three zeroes after it at once: of the usual kind all of it is zero.
  const auto kind = load<std::uint32_t>(at + kKind);
  if (kind != 0) {
    if (kind != static_cast<std::uint32_t>(FrameKind::range)) return ReplicationErrc::malformed;
    header.kind = FrameKind::range;
    if (header.first_lsn != header.last_lsn || header.payload_bytes < kRangeHeaderBytes) {
      return ReplicationErrc::bad_length;
    }
  }
  if (load<std::uint32_t>(at + kReserved2) != 0) return ReplicationErrc::malformed;
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
  store(to + kFlags,
        static_cast<std::uint8_t>((frame.closing ? kClosingFlag : 0) | (frame.lead ? kLeadFlag : 0) |
                                  (frame.whole ? kWholeFlag : 0)));
  store(to + kShard, frame.shard.value);
  store(to + kHistory, frame.history.value);
  layout::store_epoch(to + kEpoch, frame.epoch);
  store(to + kSequence, frame.sequence);
  store(to + kReceivedLsn, frame.received_lsn.value);
  store(to + kAppliedLsn, frame.applied_lsn.value);
  store(to + kCommitLsn, frame.commit_lsn.value);
  store(to + kGeneration, frame.generation.value);
  store(to + kSum, header_sum(into.first<kSum>()));
}

Result<ControlFrame> decode_control(std::span<const std::byte, kControlFrameBytes> from,
                                    const FrameContext& context) {
  using namespace layout::control;
  const std::byte* const at = from.data();
  if (load<std::uint32_t>(at + kMagic) != layout::kControlMagic) return ReplicationErrc::bad_magic;
  const auto version = load<std::uint8_t>(at + kVersion);
  if (version < kWireVersionMin || version > kWireVersionMax) return ReplicationErrc::bad_version;
  if (load<std::uint32_t>(at + kSum) != header_sum(from.first<kSum>())) return ReplicationErrc::bad_crc;

  const auto flags = load<std::uint8_t>(at + kFlags);
  ControlFrame frame;
  frame.shard.value = load<std::uint16_t>(at + kShard);
  frame.history.value = load<std::uint64_t>(at + kHistory);
  frame.epoch = layout::load_epoch(at + kEpoch);
  frame.generation.value = load<std::uint32_t>(at + kGeneration);
  frame.closing = (flags & kClosingFlag) != 0;
  frame.lead = (flags & kLeadFlag) != 0;
  frame.whole = (flags & kWholeFlag) != 0;
  frame.sequence = load<std::uint64_t>(at + kSequence);
  frame.received_lsn.value = load<std::uint64_t>(at + kReceivedLsn);
  frame.applied_lsn.value = load<std::uint64_t>(at + kAppliedLsn);
  frame.commit_lsn.value = load<std::uint64_t>(at + kCommitLsn);
  if (frame.history != context.history || frame.generation != context.generation ||
      frame.shard != context.shard) {
    return ReplicationErrc::wrong_context;
  }
  if ((flags & ~(kClosingFlag | kLeadFlag | kWholeFlag)) != 0) return ReplicationErrc::malformed;
  return frame;
}

Status check_sender(const ControlFrame& frame, NodeRole sender) {
  if (sender == NodeRole::replica) {
    if (frame.lead) return Error(ReplicationErrc::malformed, "a replica that asks its primary to lead");
  } else if (frame.applied_lsn != Lsn{} || (frame.whole && sender == NodeRole::candidate)) {
    return Error(ReplicationErrc::malformed, "an acknowledgement by a primary or candidate");
  } else if (frame.lead && sender == NodeRole::candidate) {
    return Error(ReplicationErrc::malformed, "a candidate that asks others to lead");
  }
  return {};
}

}  // namespace tidelock
