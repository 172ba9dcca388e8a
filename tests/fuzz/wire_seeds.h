/// Valid messages of every kind: where the fuzzer and the seeded unit test start from, and what the kept
/// corpus began with (wire_seeds_main.cc). Also puts the checksums of a damaged range right, so that the
/// checks behind them are reached.
/// Thread:   any
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/replication/wire.h>
#include <tidelock/replication/wire_range.h>

#include "wire_decoders.h"

namespace tidelock::test {

struct WireSeed {
  std::string name;
  std::vector<std::byte> bytes;
};

inline FrameHeader seed_header() {
  FrameHeader header;
  header.history = kFuzzContext.history;
  header.generation = kFuzzContext.generation;
  header.shard = kFuzzContext.shard;
  header.epoch = kFuzzEpoch;
  header.sequence = 12;
  header.payload_bytes = 96;
  header.entries = 3;
  header.first_lsn = {100};
  header.last_lsn = {102};
  header.commit_lsn = {99};
  return header;
}

inline EntryView seed_entry(EntryKind kind, std::uint64_t lsn, std::string_view key, std::string_view value) {
  EntryView entry;
  entry.kind = kind;
  entry.lsn = {lsn};
  entry.epoch = kFuzzEpoch;
  entry.key = as_bytes(key);
  entry.value = as_bytes(value);
  return entry;
}

inline EntryView seed_fragment(std::uint64_t lsn, std::string_view piece, std::uint32_t offset) {
  EntryView entry = seed_entry(EntryKind::fragment, lsn, "", piece);
  entry.key_bytes = 3;
  entry.value_bytes = 100;
  entry.offset = offset;
  return entry;
}

class WireSeeds {
 public:
  WireSeeds() {
    frames();
    controls();
    hellos();
    refusals();
    entries();
    ranges();
  }
  [[nodiscard]] std::vector<WireSeed> take() { return std::move(seeds_); }

 private:
  template <std::size_t kBytes, class Encode>
  void add(const std::string& name, Encode encode) {
    std::array<std::byte, kBytes> bytes{};
    encode(std::span<std::byte, kBytes>(bytes));
    seeds_.push_back({name, {bytes.begin(), bytes.end()}});
  }
  void frame(const std::string& name, const FrameHeader& header) {
    add<kFrameHeaderBytes>("frame_" + name, [&](auto into) { encode_frame_header(header, into); });
  }
  void frames() {
    FrameHeader header = seed_header();
    frame("entries", header);
    header.kind = FrameKind::range;
    header.first_lsn = header.last_lsn;
    frame("range", header);
  }
  void control(const std::string& name, const ControlFrame& control) {
    add<kControlFrameBytes>("control_" + name, [&](auto into) { encode_control(control, into); });
  }
  void controls() {
    ControlFrame frame;
    frame.history = kFuzzContext.history;
    frame.generation = kFuzzContext.generation;
    frame.shard = kFuzzContext.shard;
    frame.epoch = kFuzzEpoch;
    frame.sequence = 8;
    frame.commit_lsn = {53};
    control("primary", frame);
    frame.closing = true;
    control("closing", frame);
    frame.closing = false;
    frame.lead = true;
    frame.set_stamp(1'000'000'007);
    control("lead_stamp", frame);
    frame.lead = false;
    frame.received_lsn = {55};
    frame.applied_lsn = {54};
    frame.commit_lsn = {};
    control("replica", frame);
    frame.whole = true;
    frame.set_echo(1'000'000'007);
    control("whole_echo", frame);
  }
  void hello(const std::string& name, const Hello& hello) {
    add<kHelloBytes>("hello_" + name, [&](auto into) { encode_hello(hello, into); });
  }
  void hellos() {
    Hello said;
    said.role = NodeRole::primary;
    said.node = 3;
    said.shard = {1};
    said.shard_count = 4;
    said.history = {0x0123456789abcdef};
    said.routing_seed = 42;
    said.epoch = {2, 3};
    said.generation = {17};
    said.last_lsn = {1000};
    said.first_lsn = {900};
    said.ring_bytes = 1 << 22;
    hello("primary", said);
    said.c = 1;
    said.group_sum = 0x89abcdef;
    said.last_epoch = {2, 1};
    said.commit_epoch = {1, 7};
    said.commit_lsn = {990};
    said.flags.memory = said.flags.snapshot = true;
    hello("primary_of_group", said);
    said.role = NodeRole::replica;
    said.flags.promise = true;
    hello("replica_of_group", said);
    said.role = NodeRole::candidate;
    said.flags = {true, true, true, false, true, false};
    hello("candidate", said);
    said.flags = {false, true, false, false, false, true};
    said.history = {};
    said.last_lsn = said.commit_lsn = {};
    said.last_epoch = said.commit_epoch = {};
    hello("founder", said);
    said.role = NodeRole::replica;
    said.flags = {};
    hello("replica", said);
  }
  void refusals() {
    for (std::uint16_t reason = 1; reason <= 17; ++reason) {
      const Refusal refusal{static_cast<RefusalReason>(reason), 1, (7ULL << 32) | 2};
      const std::string number = (reason < 10 ? "0" : "") + std::to_string(reason);
      add<kRefusalBytes>("refusal_" + number, [&](auto into) { encode_refusal(refusal, into); });
    }
  }
  void entry_row(const std::string& name, std::span<const EntryView> row) {
    std::vector<std::byte> bytes;
    for (const EntryView& entry : row) {
      const std::size_t at = bytes.size();
      bytes.resize(at + entry_bytes(entry.kind, entry.key.size(), entry.value.size()));
      encode_entry(entry, MutableBytes(bytes).subspan(at));
    }
    seeds_.push_back({"entries_" + name, std::move(bytes)});
  }
  void entries() {
    EntryView grouped = seed_entry(EntryKind::put, 7, "key", "a value of some length");
    grouped.group_continues = true;
    const std::array<EntryView, 2> group{grouped, seed_entry(EntryKind::erase, 8, "another", "")};
    entry_row("group", group);
    const std::array<EntryView, 2> others{seed_entry(EntryKind::noop, 1, "", ""),
                                          seed_fragment(2, "piece", 0)};
    entry_row("noop_fragment", others);
  }
  void range(const std::string& name, const RangeHeader& header, std::span<const EntryView> records) {
    std::vector<std::byte> buffer(4096);
    RangeWriter writer(buffer);
    for (const EntryView& record : records) writer.add(record);
    FrameHeader frame;
    const Bytes payload = writer.finish(header, frame);
    seeds_.push_back({"range_" + name, {payload.begin(), payload.end()}});
  }
  void ranges() {
    RangeHeader header;
    header.lsn = {50};
    header.epoch = kFuzzEpoch;
    header.from = 1000;
    header.to = 1ULL << 63;
    const std::array<EntryView, 2> puts{seed_entry(EntryKind::put, 50, "key", "value"),
                                        seed_entry(EntryKind::put, 3, "another", "")};
    range("puts", header, puts);
    const std::array<EntryView, 1> piece{seed_fragment(12, "piece", 20)};
    RangeHeader amid = header;
    amid.to = amid.from;
    range("fragment", amid, piece);
    amid.voids = true;
    range("void", amid, {});
    header.last = true;
    header.to = 0;
    header.line.begin({1, 1}, Lsn{1});
    header.line.begin(kFuzzEpoch, Lsn{40});
    range("last", header, puts);
    RangeHeader empty = header;
    empty.from = 0;
    empty.lsn = {64};
    empty.line = {};
    for (std::uint32_t i = 1; i <= EpochLine::kStartsMax; ++i) {
      empty.line.begin(i == EpochLine::kStartsMax ? kFuzzEpoch : Epoch{1, i}, Lsn{i});
    }
    range("longest_line", empty, {});
  }

  std::vector<WireSeed> seeds_;
};

[[nodiscard]] inline std::vector<WireSeed> wire_seeds() { return WireSeeds().take(); }

/// Puts the checksums of a range's records, what binds them to its header, and the header's own right, as far
/// as its lengths let it. False: they do not.
inline bool repair_range(std::vector<std::byte>& bytes) {
  if (bytes.size() < kRangeHeaderBytes) return false;
  std::byte* const at = bytes.data();
  const auto line_bytes = load<std::uint32_t>(at + 12);
  if (line_bytes > kRangeHeaderBytesMax - kRangeHeaderBytes ||
      line_bytes > bytes.size() - kRangeHeaderBytes) {
    return false;
  }
  const std::size_t header_bytes = kRangeHeaderBytes + line_bytes;
  std::uint32_t records = 0;
  std::uint32_t sum = 0;
  for (std::size_t next = header_bytes; bytes.size() - next >= kFragmentHeaderBytes;) {
    const auto kind = static_cast<EntryKind>(load<std::uint8_t>(at + next + 4));
    const bool piece = kind == EntryKind::fragment;
    const std::uint64_t body =
        piece ? load<std::uint32_t>(at + next + 36)
              : std::uint64_t{load<std::uint32_t>(at + next + 8)} + load<std::uint32_t>(at + next + 12);
    if (body > bytes.size()) break;
    const std::size_t size = entry_bytes(kind, 0, body);
    if (size > bytes.size() - next) break;
    store(at + next, crc32c(0, Bytes(bytes).subspan(next + 4, size - 4)));
    sum = crc32c(sum, Bytes(bytes).subspan(next, 4));
    ++records;
    next += size;
  }
  store(at + 48, records);
  store(at + 52, sum);
  store(at, crc32c(0, Bytes(bytes).subspan(4, header_bytes - 4)));
  return true;
}

}  // namespace tidelock::test
