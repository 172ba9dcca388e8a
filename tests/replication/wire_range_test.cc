#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/wire_range.h>

using namespace tidelock;

namespace {

constexpr std::uint64_t kMiddle = 1ULL << 63;

/// A range in a buffer, whose fields a test may change; seal() puts the header's CRC right again.
struct BuiltRange {
  BuiltRange() : buffer(64 * 1024) {
    header.lsn = {50};
    header.epoch = frame.epoch = {3, 1};
    header.from = 1000;
    header.to = kMiddle;
    const std::array<EpochStart, 2> line{EpochStart{{1, 1}, {1}}, EpochStart{{3, 1}, {40}}};
    header.line.assign(line);
  }
  void add(EntryKind kind, std::uint64_t lsn, std::string_view key, std::string_view value,
           const std::function<void(EntryView&)>& change = {}) {
    EntryView entry;
    entry.kind = kind;
    entry.lsn = {lsn};
    entry.epoch = {9, 9};  // the writer leaves it out
    entry.key = as_bytes(key);
    entry.value = as_bytes(value);
    if (change) change(entry);
    writer.add(entry);
  }
  void add_usual() {
    add(EntryKind::put, 50, "a key", "a value");
    add(EntryKind::put, 7, "another", "");
    add(EntryKind::fragment, 12, "", "a piece", [](EntryView& piece) {
      piece.key_bytes = 3;
      piece.value_bytes = 100;
      piece.offset = 20;
    });
  }
  void finish() {
    const Bytes built = writer.finish(header, frame);
    payload.assign(built.begin(), built.end());
    header_bytes = kRangeHeaderBytes + 16 * header.line.starts().size();
  }
  [[nodiscard]] std::byte* at(std::size_t offset) { return payload.data() + offset; }
  void seal() { store(at(0), crc32c(0, Bytes(payload).subspan(4, header_bytes - 4))); }
  Result<RangeHeader> decode() { return decode_range(frame, payload, records); }
  /// Changed and sealed, it is refused, and nothing of it is given.
  void refused(const std::function<void(BuiltRange&)>& change, ReplicationErrc expected) {
    const std::vector<std::byte> intact = payload;
    const FrameHeader intact_frame = frame;
    change(*this);
    seal();
    records.emplace_back();
    const auto decoded = decode();
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error() == expected);
    CHECK(records.empty());
    payload = intact;
    frame = intact_frame;
    CHECK(decode());
  }

  std::vector<std::byte> buffer;
  RangeWriter writer{buffer};
  RangeHeader header;
  FrameHeader frame;
  std::vector<std::byte> payload;
  std::size_t header_bytes = 0;
  std::vector<EntryView> records;
};

}  // namespace

TEST_CASE("replication/wire: a range stands where README.md says and survives the round trip") {
  BuiltRange range;
  range.add_usual();
  range.header.voids = true;
  range.finish();
  CHECK(range.frame.kind == FrameKind::range);
  CHECK(range.frame.entries == 4);
  CHECK(range.frame.first_lsn == Lsn{50});
  CHECK(range.frame.last_lsn == Lsn{50});
  CHECK(range.frame.payload_bytes == range.payload.size());
  CHECK(load<std::uint8_t>(range.at(4)) == 5);
  CHECK(load<std::uint8_t>(range.at(5)) == 2);
  CHECK(load<std::uint32_t>(range.at(8)) == 0);
  CHECK(load<std::uint32_t>(range.at(12)) == 32);
  CHECK(load<std::uint64_t>(range.at(16)) == 50);
  CHECK(load<std::uint32_t>(range.at(24)) == 3);
  CHECK(load<std::uint64_t>(range.at(32)) == 1000);
  CHECK(load<std::uint64_t>(range.at(40)) == kMiddle);
  CHECK(load<std::uint32_t>(range.at(48)) == 3);
  CHECK(load<std::uint32_t>(range.at(72)) == 3);  // the line's second epoch, and where it begins
  CHECK(load<std::uint64_t>(range.at(80)) == 40);

  const auto decoded = range.decode();
  REQUIRE(decoded);
  CHECK_FALSE(decoded->last);
  CHECK(decoded->voids);
  CHECK(decoded->lsn == Lsn{50});
  CHECK(decoded->epoch == Epoch{3, 1});
  CHECK(decoded->from == 1000);
  CHECK(decoded->to == kMiddle);
  REQUIRE(decoded->line.starts().size() == 2);
  CHECK(decoded->line.starts()[0] == EpochStart{{1, 1}, {1}});
  CHECK(decoded->line.starts()[1] == EpochStart{{3, 1}, {40}});
  REQUIRE(range.records.size() == 3);
  CHECK(as_text(range.records[0].key) == "a key");
  CHECK(as_text(range.records[0].value) == "a value");
  CHECK(range.records[0].lsn == Lsn{50});
  CHECK(range.records[0].epoch == Epoch{});
  CHECK(range.records[2].kind == EntryKind::fragment);
  CHECK(range.records[2].offset == 20);
}

TEST_CASE("replication/wire: a range may be empty, have the longest line, or end where it began") {
  BuiltRange range;
  range.header.from = range.header.to = 0;
  range.header.last = true;
  range.header.lsn = {1000};
  range.header.epoch = range.frame.epoch = {100, 1};
  std::array<EpochStart, EpochLine::kStartsMax> starts{};
  for (std::uint32_t i = 0; i < starts.size(); ++i) starts[i] = {{i + 1, 1}, {i + 1}};
  range.header.line.assign(starts);
  range.finish();
  CHECK(range.payload.size() == kRangeHeaderBytesMax);
  auto decoded = range.decode();
  REQUIRE(decoded);
  CHECK(decoded->last);
  CHECK(decoded->line.starts().size() == EpochLine::kStartsMax);
  CHECK(range.records.empty());

  BuiltRange amid;
  amid.header.to = amid.header.from;
  amid.add_usual();
  amid.finish();
  decoded = amid.decode();
  REQUIRE(decoded);
  CHECK(decoded->to == decoded->from);
}

TEST_CASE("replication/wire: a range's writer takes back what was added since a mark") {
  BuiltRange once;
  once.add(EntryKind::put, 50, "a key", "a value");
  once.finish();
  BuiltRange back;
  back.add(EntryKind::put, 50, "a key", "a value");
  const RangeWriter::Mark mark = back.writer.mark();
  const std::uint32_t room = back.writer.room();
  back.add(EntryKind::put, 51, "another", "value");
  CHECK(back.writer.room() < room);
  back.writer.rewind(mark);
  CHECK(back.writer.room() == room);
  back.finish();
  CHECK(back.payload == once.payload);
}

TEST_CASE("replication/wire: one flipped bit anywhere in a range is noticed") {
  BuiltRange range;
  range.add_usual();
  range.finish();
  for (std::size_t bit = 0; bit < range.payload.size() * 8; ++bit) {
    range.payload[bit / 8] ^= std::byte(1U << (bit % 8));
    CHECK_FALSE(range.decode());
    range.payload[bit / 8] ^= std::byte(1U << (bit % 8));
  }
  CHECK(range.decode());
}

TEST_CASE("replication/wire: a range that breaks a rule is refused with a right CRC, as a whole") {
  using enum ReplicationErrc;
  BuiltRange range;
  range.add_usual();
  range.finish();
  REQUIRE(range.decode());
  const auto breaks = [&](ReplicationErrc expected, const std::function<void(BuiltRange&)>& change) {
    range.refused(change, expected);
  };
  breaks(bad_kind, [](BuiltRange& r) { *r.at(4) = std::byte{1}; });
  breaks(malformed, [](BuiltRange& r) { *r.at(5) = std::byte{4}; });
  breaks(malformed, [](BuiltRange& r) { *r.at(6) = std::byte{1}; });
  breaks(malformed, [](BuiltRange& r) { *r.at(8) = std::byte{1}; });
  breaks(malformed, [](BuiltRange& r) { store(r.at(16), std::uint64_t{51}); });  // not the frame's
  breaks(malformed, [](BuiltRange& r) {
    store(r.at(16), kLsnMax + 1);
    r.frame.first_lsn = r.frame.last_lsn = Lsn{kLsnMax + 1};
  });
  breaks(malformed, [](BuiltRange& r) { store(r.at(24), std::uint32_t{4}); });
  // Borders that cannot join: it ends before it begins, or is the last one and does not reach the end.
  breaks(malformed, [](BuiltRange& r) { store(r.at(40), std::uint64_t{999}); });
  breaks(malformed, [](BuiltRange& r) { store(r.at(40), std::uint64_t{0}); });
  breaks(malformed, [](BuiltRange& r) { *r.at(5) = std::byte{1}; });
  // Counts.
  breaks(bad_length, [](BuiltRange& r) { store(r.at(48), 2U); });
  breaks(bad_length, [](BuiltRange& r) { ++r.frame.entries; });
  breaks(bad_length, [](BuiltRange& r) {
    --r.frame.entries;
    store(r.at(48), 2U);
  });
  breaks(bad_length, [](BuiltRange& r) {
    r.frame.entries += 1;
    store(r.at(48), 4U);
  });
  // What binds the records to the header: here two of them changed places.
  breaks(bad_crc, [](BuiltRange& r) {
    const std::size_t first = entry_bytes(EntryKind::put, 5, 7);
    const std::size_t second = entry_bytes(EntryKind::put, 7, 0);
    auto* const records = r.at(r.header_bytes);
    std::rotate(records, records + first, records + first + second);
  });
  breaks(bad_crc, [](BuiltRange& r) { store(r.at(52), 0U); });
}

TEST_CASE("replication/wire: an epoch line that does not ascend, or whose length is a lie, is refused") {
  using enum ReplicationErrc;
  BuiltRange range;
  range.add_usual();
  range.finish();
  const auto breaks = [&](ReplicationErrc expected, const std::function<void(BuiltRange&)>& change) {
    range.refused(change, expected);
  };
  breaks(malformed, [](BuiltRange& r) { store(r.at(56), 3U); });                 // epoch 3.1 twice
  breaks(malformed, [](BuiltRange& r) { store(r.at(56), 4U); });                 // falls
  breaks(malformed, [](BuiltRange& r) { store(r.at(64), std::uint64_t{40}); });  // the same LSN
  breaks(malformed, [](BuiltRange& r) { store(r.at(64), std::uint64_t{0}); });   // LSNs begin with 1
  breaks(malformed, [](BuiltRange& r) { store(r.at(80), std::uint64_t{51}); });  // beyond the range
  breaks(malformed, [](BuiltRange& r) { store(r.at(72), 4U); });  // an epoch above the sender's
  breaks(bad_length, [](BuiltRange& r) { store(r.at(12), 24U); });
  breaks(too_large, [](BuiltRange& r) { store(r.at(12), 16U * 65); });
  breaks(too_large, [](BuiltRange& r) { store(r.at(12), 0xfffffff0U); });
  breaks(bad_length, [](BuiltRange& r) { store(r.at(12), 16U * 64); });  // more than there is
  // The last range has a line.
  BuiltRange bare;
  bare.header.last = true;
  bare.header.to = 0;
  bare.header.line = {};
  bare.finish();
  CHECK(bare.decode().error() == malformed);
  for (std::size_t bytes = 0; bytes < range.header_bytes; ++bytes) {
    CHECK_FALSE(decode_range(range.frame, Bytes(range.payload).first(bytes), range.records));
  }
}

TEST_CASE("replication/wire: what a range cannot have as a record is refused") {
  const auto refused = [](EntryKind kind, std::uint64_t lsn, const std::function<void(EntryView&)>& change) {
    BuiltRange range;
    range.add_usual();
    const bool bare = kind == EntryKind::noop;
    range.add(kind, lsn, bare ? "" : "key", bare || kind == EntryKind::erase ? "" : "value", change);
    range.finish();
    const auto decoded = range.decode();
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error() == ReplicationErrc::malformed);
    CHECK(range.records.empty());
  };
  refused(EntryKind::erase, 7, {});
  refused(EntryKind::noop, 7, {});
  refused(EntryKind::put, 51, {});  // newer than the range
  refused(EntryKind::put, 0, {});
  refused(EntryKind::put, 7, [](EntryView& entry) { entry.group_continues = true; });
  // An epoch: the writer does not write one, so it is put in by hand.
  BuiltRange range;
  range.add(EntryKind::put, 7, "key", "value");
  range.finish();
  std::byte* const record = range.at(range.header_bytes);
  store(record + 24, 1U);
  const std::size_t bytes = range.payload.size() - range.header_bytes;
  store(record, crc32c(0, Bytes(record, bytes).subspan(4)));
  store(range.at(52), crc32c(0, Bytes(record, 4)));
  range.seal();
  CHECK(range.decode().error() == ReplicationErrc::malformed);
}

TEST_CASE("replication/wire: a frame of kind range has one LSN and room for a range's header") {
  const FrameContext context{HistoryId{77}, Generation{5}, ShardId{2}};
  FrameHeader header;
  header.history = context.history;
  header.generation = context.generation;
  header.shard = context.shard;
  header.kind = FrameKind::range;
  header.entries = 1;
  header.payload_bytes = kRangeHeaderBytes;
  header.first_lsn = header.last_lsn = {9};
  const auto decoded = [&] {
    std::array<std::byte, kFrameHeaderBytes> bytes{};
    encode_frame_header(header, bytes);
    CHECK(load<std::uint8_t>(bytes.data() + 36) == 1);
    return decode_frame_header(bytes, context);
  };
  auto accepted = decoded();
  REQUIRE(accepted);
  CHECK(accepted->kind == FrameKind::range);
  CHECK(accepted->last_lsn == Lsn{9});
  header.payload_bytes = 48;
  CHECK(decoded().error() == ReplicationErrc::bad_length);
  header.payload_bytes = 128;
  header.entries = 2;
  CHECK(decoded());
  header.last_lsn = {10};
  CHECK(decoded().error() == ReplicationErrc::bad_length);
}
