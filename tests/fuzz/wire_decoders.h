/// Runs arbitrary bytes through every decoder of the wire format and checks what a successful decode
/// promises. Used by the fuzzer and by a seeded unit test, which need no common framework: a broken promise
/// traps.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include <tidelock/base/check.h>
#include <tidelock/replication/wire.h>

namespace tidelock::test {

inline constexpr FrameContext kFuzzContext{HistoryId{77}, Generation{5}, ShardId{2}};

/// How many messages were accepted.
struct DecodeCounts {
  std::uint64_t frames = 0, controls = 0, hellos = 0, refusals = 0, entries = 0, sum = 0;
};

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

inline void decode_everything(Bytes bytes, DecodeCounts& counts) {
  std::array<std::byte, kFrameHeaderBytes> frame{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), frame.size()), frame.begin());
  if (const auto header = decode_frame_header(frame, kFuzzContext)) {
    ++counts.frames;
    TL_ASSERT(header->entries > 0 && header->payload_bytes % kEntryAlignment == 0, "a frame's lengths");
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
  }
  if (const auto hello = decode_hello(bytes)) {
    ++counts.hellos;
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
}

}  // namespace tidelock::test
