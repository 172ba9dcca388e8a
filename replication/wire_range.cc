// Ranges, of which a snapshot is made.
#include <array>
#include <cstring>

#include <tidelock/base/check.h>
#include <tidelock/replication/wire_range.h>

#include "wire_layout.h"

namespace tidelock {
namespace {

Error broken_range(const char* rule) { return Error(ReplicationErrc::malformed, rule); }

/// Binds a range's records to its header: one that was left out or put elsewhere changes it.
std::uint32_t chain_crc(std::uint32_t sum, const std::byte* entry) {
  return crc32c(sum, Bytes(entry + layout::entry::kCrc, sizeof(std::uint32_t)));
}

/// Header and line; `bytes` of both are there and sealed.
Result<RangeHeader> read_header(const std::byte* at, std::uint32_t line_bytes, const FrameHeader& frame) {
  using namespace layout::range;
  RangeHeader range;
  const auto flags = load<std::uint8_t>(at + kFlags);
  range.last = (flags & kLastFlag) != 0;
  range.voids = (flags & kVoidFlag) != 0;
  range.lsn.value = load<std::uint64_t>(at + kLsn);
  range.epoch = layout::load_epoch(at + kEpoch);
  range.from = load<std::uint64_t>(at + kFrom);
  range.to = load<std::uint64_t>(at + kTo);
  if ((flags & ~(kLastFlag | kVoidFlag)) != 0 || load<std::uint16_t>(at + kReserved1) != 0 ||
      load<std::uint32_t>(at + kReserved2) != 0) {
    return broken_range("a range's reserved fields are not zero");
  }
  if (range.lsn != frame.last_lsn || range.epoch != frame.epoch) {
    return broken_range("a range of another LSN or epoch than its frame");
  }
  if (range.lsn.value > kLsnMax) return broken_range("a range of an LSN that no log comes to");
  if (range.last ? range.to != 0 : range.to < range.from) {
    return broken_range("a range that ends before it begins, or a last one that does not reach the end");
  }
  std::array<EpochStart, EpochLine::kStartsMax> starts{};
  const std::size_t count = line_bytes / kStartBytes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const start = at + kRangeHeaderBytes + i * kStartBytes;
    starts[i] = {layout::load_epoch(start + kStartEpoch), {load<std::uint64_t>(start + kStartLsn)}};
  }
  const auto line = std::span(starts).first(count);
  if (!EpochLine::legal(line)) return broken_range("an epoch line that does not ascend");
  if (count == 0 && range.last) return broken_range("a last range without an epoch line");
  if (count > 0 && (line.back().epoch > range.epoch || line.back().first_lsn > range.lsn)) {
    return broken_range("an epoch line that goes beyond its range");
  }
  range.line.assign(line);
  return range;
}

Status check_record(const EntryView& record, const RangeHeader& range) {
  if (record.kind != EntryKind::put && record.kind != EntryKind::fragment) {
    return broken_range("a range has only puts and fragments");
  }
  if (record.group_continues) return broken_range("a range has no groups");
  if (record.epoch != Epoch{}) return broken_range("a record of a range has no epoch");
  if (record.lsn == Lsn{} || record.lsn > range.lsn) {
    return broken_range("a record that is newer than its range");
  }
  return {};
}

Result<RangeHeader> decode_whole(const FrameHeader& frame, Bytes payload, std::vector<EntryView>& records) {
  using namespace layout::range;
  if (payload.size() < kRangeHeaderBytes || frame.entries == 0) return ReplicationErrc::bad_length;
  // Everything that decides about bounds comes from this copy, as in EntryReader::next().
  std::array<std::byte, kRangeHeaderBytesMax> copy;
  std::memcpy(copy.data(), payload.data(), kRangeHeaderBytes);
  const std::byte* const at = copy.data();
  if (load<std::uint8_t>(at + kKind) != kRangeKind) return ReplicationErrc::bad_kind;
  const auto line_bytes = load<std::uint32_t>(at + kLineBytes);
  if (line_bytes % kStartBytes != 0) return ReplicationErrc::bad_length;
  if (line_bytes > EpochLine::kStartsMax * kStartBytes) return ReplicationErrc::too_large;
  if (line_bytes > payload.size() - kRangeHeaderBytes) return ReplicationErrc::bad_length;
  std::memcpy(copy.data() + kRangeHeaderBytes, payload.data() + kRangeHeaderBytes, line_bytes);
  const std::size_t header_bytes = kRangeHeaderBytes + line_bytes;
  if (crc32c(0, Bytes(copy).subspan(kKind, header_bytes - kKind)) != load<std::uint32_t>(at + kCrc)) {
    return ReplicationErrc::bad_crc;
  }
  TL_TRY(RangeHeader range, read_header(at, line_bytes, frame));
  const auto announced = load<std::uint32_t>(at + kRecords);
  if (announced != frame.entries - 1) return ReplicationErrc::bad_length;

  const Bytes body = payload.subspan(header_bytes);
  std::uint32_t sum = 0;
  const std::byte* next = body.data();
  for (EntryReader reader(body); !reader.at_end();) {
    if (records.size() == announced) return ReplicationErrc::bad_length;
    TL_TRY(const EntryView record, reader.next());
    TL_TRY(check_record(record, range));
    records.push_back(record);
    sum = chain_crc(sum, next);
    next += entry_bytes(record.kind, record.key.size(), record.value.size());
  }
  if (records.size() != announced) return ReplicationErrc::bad_length;
  if (sum != load<std::uint32_t>(at + kSum)) return ReplicationErrc::bad_crc;
  return range;
}

}  // namespace

Result<RangeHeader> decode_range(const FrameHeader& frame, Bytes payload, std::vector<EntryView>& records) {
  records.clear();
  auto range = decode_whole(frame, payload, records);
  if (!range) records.clear();
  return range;
}

RangeWriter::RangeWriter(MutableBytes buffer) : buffer_(buffer) {
  TL_ASSERT(buffer.size() > kRangeHeaderBytesMax, "a range's buffer has room for its header");
}

std::uint32_t RangeWriter::room() const {
  return static_cast<std::uint32_t>(buffer_.size()) - kRangeHeaderBytesMax - at_.bytes;
}

void RangeWriter::add(EntryView record) {
  record.epoch = {};
  const std::uint32_t bytes = entry_bytes(record.kind, record.key.size(), record.value.size());
  TL_ASSERT(bytes <= room(), "add() after room()");
  const MutableBytes into = buffer_.subspan(kRangeHeaderBytesMax + at_.bytes, bytes);
  encode_entry(record, into);
  at_ = {at_.records + 1, at_.bytes + bytes, chain_crc(at_.sum, into.data())};
}

void RangeWriter::rewind(const Mark& mark) {
  TL_ASSERT(mark.records <= at_.records && mark.bytes <= at_.bytes, "rewind() goes back");
  at_ = mark;
}

Bytes RangeWriter::finish(const RangeHeader& header, FrameHeader& frame) {
  using namespace layout::range;
  const auto starts = header.line.starts();
  const auto line_bytes = static_cast<std::uint32_t>(starts.size() * kStartBytes);
  const std::size_t begin = kRangeHeaderBytesMax - kRangeHeaderBytes - line_bytes;
  std::byte* const to = buffer_.data() + begin;
  store(to + kKind, kRangeKind);
  store(to + kFlags,
        static_cast<std::uint8_t>((header.last ? kLastFlag : 0) | (header.voids ? kVoidFlag : 0)));
  store(to + kReserved1, std::uint16_t{0});
  store(to + kReserved2, std::uint32_t{0});
  store(to + kLineBytes, line_bytes);
  store(to + kLsn, header.lsn.value);
  layout::store_epoch(to + kEpoch, header.epoch);
  store(to + kFrom, header.from);
  store(to + kTo, header.to);
  store(to + kRecords, at_.records);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    std::byte* const start = to + kRangeHeaderBytes + i * kStartBytes;
    layout::store_epoch(start + kStartEpoch, starts[i].epoch);
    store(start + kStartLsn, starts[i].first_lsn.value);
  }
  store(to + kSum, at_.sum);
  const std::size_t header_bytes = kRangeHeaderBytes + line_bytes;
  store(to + kCrc, crc32c(0, Bytes(to, header_bytes).subspan(kKind)));

  frame.kind = FrameKind::range;
  frame.entries = at_.records + 1;
  frame.first_lsn = frame.last_lsn = header.lsn;
  frame.payload_bytes = static_cast<std::uint32_t>(header_bytes + at_.bytes);
  return Bytes(to, header_bytes + at_.bytes);
}

}  // namespace tidelock
