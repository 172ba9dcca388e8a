// Entries and fragments.
#include <array>
#include <cstring>

#include <tidelock/base/check.h>
#include <tidelock/replication/wire.h>

#include "wire_layout.h"

namespace tidelock {
namespace {

constexpr std::size_t header_bytes(EntryKind kind) {
  return kind == EntryKind::fragment ? kFragmentHeaderBytes : kEntryHeaderBytes;
}

/// Lengths within their limits, and as the kind has them. `piece_bytes` and `offset` of fragments only.
Status check_lengths(const EntryView& entry, std::uint32_t piece_bytes) {
  switch (entry.kind) {
    case EntryKind::noop:
      if (entry.key_bytes != 0 || entry.value_bytes != 0) return ReplicationErrc::bad_length;
      return {};
    case EntryKind::put:
    case EntryKind::erase:
    case EntryKind::fragment:
      if (entry.key_bytes == 0) return ReplicationErrc::bad_length;
      if (entry.key_bytes > kKeyBytesMax || entry.value_bytes > kValueBytesMax)
        return ReplicationErrc::too_large;
      break;
    default:
      return ReplicationErrc::bad_kind;
  }
  if (entry.kind == EntryKind::erase && entry.value_bytes != 0) return ReplicationErrc::bad_length;
  if (entry.kind == EntryKind::fragment) {
    const std::uint64_t whole = std::uint64_t{entry.key_bytes} + entry.value_bytes;
    if (piece_bytes == 0 || entry.offset + piece_bytes > whole) return ReplicationErrc::bad_length;
  }
  return {};
}

}  // namespace

std::uint32_t entry_bytes(EntryKind kind, std::size_t key_bytes, std::size_t value_bytes) {
  const std::uint64_t bytes = align_up(header_bytes(kind) + key_bytes + value_bytes, kEntryAlignment);
  return static_cast<std::uint32_t>(bytes);
}

void encode_entry(const EntryView& entry, MutableBytes into) {
  using namespace layout::entry;
  std::byte* const to = into.data();
  const std::size_t header = header_bytes(entry.kind);
  const std::size_t body = entry.key.size() + entry.value.size();
  TL_ASSERT(into.size() == entry_bytes(entry.kind, entry.key.size(), entry.value.size()),
            "an entry is encoded into exactly entry_bytes()");
  const bool fragment = entry.kind == EntryKind::fragment;
  store(to + kKind, static_cast<std::uint8_t>(entry.kind));
  store(to + kFlags, entry.group_continues ? kGroupContinuesFlag : std::uint8_t{0});
  store(to + kReserved, std::uint16_t{0});
  store(to + kKeyBytes, fragment ? entry.key_bytes : static_cast<std::uint32_t>(entry.key.size()));
  store(to + kValueBytes, fragment ? entry.value_bytes : static_cast<std::uint32_t>(entry.value.size()));
  store(to + kLsn, entry.lsn.value);
  layout::store_epoch(to + kEpoch, entry.epoch);
  if (fragment) {
    store(to + kOffset, static_cast<std::uint32_t>(entry.offset));
    store(to + kPieceBytes, static_cast<std::uint32_t>(body));
  }
  if (!entry.key.empty()) std::memcpy(to + header, entry.key.data(), entry.key.size());
  if (!entry.value.empty())
    std::memcpy(to + header + entry.key.size(), entry.value.data(), entry.value.size());
  if (into.size() > header + body) std::memset(to + header + body, 0, into.size() - header - body);
  store(to + kCrc, crc32c(0, into.subspan(kKind)));
}

Result<EntryView> EntryReader::next() {
  using namespace layout::entry;
  // Everything that decides about bounds comes from this copy: the memory under `rest_` may belong to a peer
  // that changes it meanwhile.
  std::array<std::byte, kFragmentHeaderBytes> copy;
  if (rest_.size() < kEntryHeaderBytes) return ReplicationErrc::bad_length;
  std::memcpy(copy.data(), rest_.data(), kEntryHeaderBytes);
  const std::byte* const at = copy.data();

  EntryView entry;
  entry.kind = static_cast<EntryKind>(load<std::uint8_t>(at + kKind));
  entry.key_bytes = load<std::uint32_t>(at + kKeyBytes);
  entry.value_bytes = load<std::uint32_t>(at + kValueBytes);
  entry.lsn.value = load<std::uint64_t>(at + kLsn);
  entry.epoch = layout::load_epoch(at + kEpoch);
  std::uint32_t piece_bytes = 0;
  if (entry.kind == EntryKind::fragment) {
    if (rest_.size() < kFragmentHeaderBytes) return ReplicationErrc::bad_length;
    std::memcpy(copy.data() + kEntryHeaderBytes, rest_.data() + kEntryHeaderBytes,
                kFragmentHeaderBytes - kEntryHeaderBytes);
    entry.offset = load<std::uint32_t>(at + kOffset);
    piece_bytes = load<std::uint32_t>(at + kPieceBytes);
  }
  TL_TRY(check_lengths(entry, piece_bytes));
  const bool fragment = entry.kind == EntryKind::fragment;
  const std::size_t key_bytes = fragment ? 0 : entry.key_bytes;
  const std::size_t value_bytes = fragment ? piece_bytes : entry.value_bytes;
  const std::uint32_t bytes = entry_bytes(entry.kind, key_bytes, value_bytes);
  if (bytes > kEntryBytesMax) return ReplicationErrc::too_large;
  if (bytes > rest_.size()) return ReplicationErrc::bad_length;

  const std::size_t header = header_bytes(entry.kind);
  const std::uint32_t header_crc = crc32c(0, Bytes(copy).subspan(kKind, header - kKind));
  if (crc32c(header_crc, rest_.subspan(header, bytes - header)) != load<std::uint32_t>(at + kCrc)) {
    return ReplicationErrc::bad_crc;
  }
  // After the CRC: what is well-formed and still not zero comes from a peer that breaks the rules.
  const auto flags = load<std::uint8_t>(at + kFlags);
  entry.group_continues = (flags & kGroupContinuesFlag) != 0;
  const bool groupable = entry.kind == EntryKind::put || entry.kind == EntryKind::erase;
  if ((flags & ~unsigned{kGroupContinuesFlag}) != 0 || (entry.group_continues && !groupable) ||
      load<std::uint16_t>(at + kReserved) != 0) {
    return ReplicationErrc::malformed;
  }
  entry.key = rest_.subspan(header, key_bytes);
  entry.value = rest_.subspan(header + key_bytes, value_bytes);
  rest_ = rest_.subspan(bytes);
  return entry;
}

}  // namespace tidelock
