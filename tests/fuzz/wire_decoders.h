/// Runs arbitrary bytes through every decoder of the wire format and checks what a successful decode
/// promises. Used by the fuzzer and by a seeded unit test, which need no common framework: a broken promise
/// traps.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <tidelock/base/check.h>
#include <tidelock/replication/wire.h>
#include <tidelock/replication/wire_range.h>

namespace tidelock::test {

inline constexpr FrameContext kFuzzContext{HistoryId{77}, Generation{5}, ShardId{2}};

/// How many messages were accepted.
struct DecodeCounts {
  std::uint64_t frames = 0, controls = 0, hellos = 0, refusals = 0, entries = 0, ranges = 0, sum = 0;
};

inline constexpr Epoch kFuzzEpoch{4, 9};

inline void decode_entries(Bytes bytes, DecodeCounts& counts) {
  for (EntryReader reader(bytes); !reader.at_end();) {
    const auto entry = reader.next();
    if (!entry) break;
    ++counts.entries;
    const std::byte* const begin = bytes.data();
    const std::byte* const end = begin + bytes.size();
    for (const Bytes part : {entry->key, entry->value}) {
      TL_ASSERT(part.empty() || (part.data() >= begin && part.data() + part.size() <= end),
                "a view out of bounds");
      for (const std::byte b : part) counts.sum += static_cast<std::uint64_t>(b);  // reads every byte
    }
    TL_ASSERT(entry->key_bytes <= kKeyBytesMax && entry->value_bytes <= kValueBytesMax, "beyond the limits");
    TL_ASSERT(!entry->group_continues || entry->kind == EntryKind::put || entry->kind == EntryKind::erase,
              "only puts and erases are grouped");
    if (entry->kind == EntryKind::fragment) {
      TL_ASSERT(entry->offset + entry->value.size() <= std::uint64_t{entry->key_bytes} + entry->value_bytes,
                "a piece beyond the whole");
    } else {
      TL_ASSERT(entry->key.size() == entry->key_bytes && entry->value.size() == entry->value_bytes,
                "sizes differ");
    }
  }
}

/// `bytes` are a range's payload, in a frame that agrees with it as far as the two can.
inline void decode_ranges(Bytes bytes, DecodeCounts& counts) {
  FrameHeader frame;
  frame.kind = FrameKind::range;
  frame.epoch = kFuzzEpoch;
  frame.payload_bytes = static_cast<std::uint32_t>(bytes.size());
  frame.entries = 1;
  if (bytes.size() >= kRangeHeaderBytes) {
    frame.first_lsn = frame.last_lsn = {load<std::uint64_t>(bytes.data() + 16)};
    frame.entries = load<std::uint32_t>(bytes.data() + 48) + 1;
  }
  std::vector<EntryView> records(1);
  const auto range = decode_range(frame, bytes, records);
  TL_ASSERT(range || records.empty(), "nothing of a range that was refused is given");
  if (!range) return;
  ++counts.ranges;
  TL_ASSERT(records.size() + 1 == frame.entries, "a range has the records that it says");
  TL_ASSERT(range->last ? range->to == 0 : range->to >= range->from, "a range's borders");
  TL_ASSERT(EpochLine::legal(range->line.starts()), "a range's line");
  TL_ASSERT(!range->last || !range->line.starts().empty(), "the last range has a line");
  // Built again it is as long; only what pads a record may differ, which no decoder looks at.
  std::vector<std::byte> buffer(kRangeHeaderBytesMax + bytes.size() + kEntryAlignment);
  RangeWriter writer(buffer);
  for (const EntryView& record : records) {
    TL_ASSERT(record.kind == EntryKind::put || record.kind == EntryKind::fragment, "a range's records");
    TL_ASSERT(record.lsn > Lsn{} && record.lsn <= range->lsn, "none is newer than its range");
    for (const std::byte b : record.value) counts.sum += static_cast<std::uint64_t>(b);
    writer.add(record);
  }
  FrameHeader built;
  const Bytes payload = writer.finish(*range, built);
  TL_ASSERT(built.entries == frame.entries && built.first_lsn == range->lsn, "a range's frame");
  TL_ASSERT(payload.size() == bytes.size(), "an accepted range has one size");
}

/// A control frame means one thing or another by who sent it.
inline void check_both_directions(const ControlFrame& frame) {
  const bool primary = static_cast<bool>(check_sender(frame, NodeRole::primary));
  const bool candidate = static_cast<bool>(check_sender(frame, NodeRole::candidate));
  const bool replica = static_cast<bool>(check_sender(frame, NodeRole::replica));
  TL_ASSERT(!primary || frame.applied_lsn == Lsn{}, "no primary acknowledges");
  TL_ASSERT(!candidate || (primary && !frame.lead), "a candidate says no more than a primary");
  TL_ASSERT(replica != frame.lead, "a replica says all but `lead`");
}

inline void decode_everything(Bytes bytes, DecodeCounts& counts) {
  std::array<std::byte, kFrameHeaderBytes> frame{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), frame.size()), frame.begin());
  if (const auto header = decode_frame_header(frame, kFuzzContext)) {
    ++counts.frames;
    TL_ASSERT(header->entries > 0 && header->payload_bytes % kEntryAlignment == 0, "a frame's lengths");
    TL_ASSERT(header->kind == FrameKind::entries || header->first_lsn == header->last_lsn, "a range's LSN");
    std::array<std::byte, kFrameHeaderBytes> again{};
    encode_frame_header(*header, again);
    TL_ASSERT(again == frame, "an accepted frame has one encoding");
  }
  std::array<std::byte, kControlFrameBytes> control{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), control.size()), control.begin());
  if (const auto decoded = decode_control(control, kFuzzContext)) {
    ++counts.controls;
    std::array<std::byte, kControlFrameBytes> again{};
    encode_control(*decoded, again);
    TL_ASSERT(again == control, "an accepted control frame has one encoding");
    check_both_directions(*decoded);
  }
  if (const auto hello = decode_hello(bytes)) {
    ++counts.hellos;
    TL_ASSERT(hello->commit_lsn <= hello->last_lsn && hello->commit_epoch <= hello->last_epoch,
              "nobody has committed beyond the end");
    std::array<std::byte, kHelloBytes> again{};
    encode_hello(*hello, again);
    TL_ASSERT(std::memcmp(again.data(), bytes.data(), again.size()) == 0,
              "an accepted hello has one encoding");
  }
  if (const auto refusal = decode_refusal(bytes)) {
    ++counts.refusals;
    TL_ASSERT(!describe(*refusal).empty(), "a refusal says why");
  }
  decode_entries(bytes, counts);
  decode_ranges(bytes, counts);
}

}  // namespace tidelock::test
