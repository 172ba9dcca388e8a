/// A primary with a table in a map, and the far end of a snapshot played by a decoder that checks every rule:
/// what ranges and live entries make must be the primary's table, record by record and LSN by LSN.
/// Thread:   one
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/primary.h>
#include <tidelock/replication/snapshot_source.h>
#include <tidelock/replication/wire_range.h>

#include "loopback_link.h"
#include "reactor/null_io.h"
#include "stream_rig.h"

namespace tidelock::test {

using Records = std::map<std::string, std::pair<std::string, std::uint64_t>>;  ///< key: value, LSN

/// Keys "h..." have the hash that their number says, in 256 equal steps, so that a test can put them where it
/// likes; "c..." share one hash.
inline std::uint64_t map_hash(const std::string& key) {
  if (key[0] == 'h') return static_cast<std::uint64_t>(std::stoi(key.substr(1))) << 56;
  if (key[0] == 'c') return 0x7777'0000'0000'0000ULL;
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash * 0x9e3779b97f4a7c15;
}

class MapSource final : public SnapshotSource {
 public:
  std::uint64_t walk(std::uint64_t position, std::size_t bytes_max, Visit visit,
                     void* context) const override {
    ++walks;
    const std::uint64_t segment_end = (position >> 60) + 1 == 16 ? 0 : ((position >> 60) + 1) << 60;
    std::size_t bytes = 0;
    for (auto at = by_hash_.lower_bound(position); at != by_hash_.end();) {
      if (segment_end != 0 && at->first >= segment_end) break;
      const auto next = by_hash_.upper_bound(at->first);
      std::size_t of_hash = 0;
      for (auto same = at; same != next; ++same) {
        const std::string& value = records_.at(same->second).first;
        of_hash += entry_bytes(EntryKind::put, same->second.size(), value.size());
      }
      if (bytes > 0 && bytes + of_hash > bytes_max) return at->first;
      bytes += of_hash;
      for (auto same = at; same != next; ++same) {
        const auto& [value, lsn] = records_.at(same->second);
        visit(context, {as_bytes(same->second), as_bytes(value), {lsn}});
      }
      if (bytes > bytes_max) return next == by_hash_.end() ? segment_end : next->first;
      at = next;
    }
    return segment_end;
  }
  bool find(Bytes key, Record& found) const override {
    const auto at = records_.find(text(key));
    if (at == records_.end()) return false;
    found = {as_bytes(at->first), as_bytes(at->second.first), {at->second.second}};
    return true;
  }

  void put(const std::string& key, const std::string& value, Lsn lsn) {
    if (records_.count(key) == 0) by_hash_.emplace(map_hash(key), key);
    records_[key] = {value, lsn.value};
  }
  void erase(const std::string& key) {
    if (records_.erase(key) == 0) return;
    const auto [first, last] = by_hash_.equal_range(map_hash(key));
    for (auto at = first; at != last; ++at) {
      if (at->second == key) return static_cast<void>(by_hash_.erase(at));
    }
  }
  [[nodiscard]] const Records& records() const { return records_; }
  mutable std::uint64_t walks = 0;

 private:
  Records records_;
  std::multimap<std::uint64_t, std::string> by_hash_;
};

/// The far end: a shadow that both sources fill by LSN.
class Shadow {
 public:
  /// Of a frame; false and a reason if it breaks a rule.
  bool take(const FrameHeader& header, Bytes payload) {
    return header.kind == FrameKind::range ? take_range(header, payload) : take_entries(header, payload);
  }
  [[nodiscard]] bool whole() const { return last_seen && received.value >= range_lsn; }

  Records records;
  Lsn received{};
  std::uint64_t range_lsn = 0;
  std::uint64_t position = 0;
  std::uint64_t ranges = 0, pieces = 0, voids = 0, overtakes = 0;
  std::uint32_t largest_range = 0;
  bool last_seen = false;
  bool ignore_voids = false;  ///< a receiver's fault, to show what it would do
  EpochLine line;
  std::string broken;

 private:
  struct Assembly {
    std::string body;
    std::uint64_t lsn = 0;
    std::uint32_t key_bytes = 0, value_bytes = 0;
    bool active = false;
  };
  bool fail(const std::string& reason) {
    broken = reason;
    return false;
  }
  void put_newer(const std::string& key, const std::string& value, std::uint64_t lsn) {
    auto& record = records[key];
    if (lsn > record.second) record = {value, lsn};
  }
  /// True once it is whole.
  bool assemble(Assembly& into, const EntryView& entry) {
    if (!into.active) into = {{}, entry.lsn.value, entry.key_bytes, entry.value_bytes, true};
    if (entry.lsn.value != into.lsn || entry.key_bytes != into.key_bytes ||
        entry.value_bytes != into.value_bytes || entry.offset != into.body.size()) {
      return fail("a fragment that does not continue the one before");
    }
    into.body += as_text(entry.value);
    if (!entry.last_fragment()) return true;
    into.active = false;
    put_newer(into.body.substr(0, into.key_bytes), into.body.substr(into.key_bytes), into.lsn);
    return true;
  }
  bool take_range(const FrameHeader& header, Bytes payload) {
    const auto range = decode_range(header, payload, decoded_);
    if (!range) return fail(range.error().message());
    if (last_seen) return fail("a range after the last one");
    if (range->from != position) return fail("a range that does not join");
    if (ranges++ == 0) received = range->lsn;  // the stream goes on from here
    if (range->lsn.value < range_lsn || range->lsn < received) return fail("a range of an older moment");
    if (range->lsn > received) ++overtakes;
    if (range->voids) {
      if (!of_ranges_.active) return fail("nothing is under way that could be void");
      ++voids;
      if (!ignore_voids) of_ranges_ = {};
    }
    for (const EntryView& record : decoded_) {
      if (record.kind == EntryKind::put) {
        put_newer(text(record.key), text(record.value), record.lsn.value);
      } else {
        ++pieces;
        if (!assemble(of_ranges_, record)) return false;
      }
    }
    if (range->to != range->from && of_ranges_.active) return fail("the walk went on amid a record");
    position = range->to;
    range_lsn = range->lsn.value;
    largest_range = std::max(largest_range, header.payload_bytes);
    last_seen = range->last;
    if (range->last) line = range->line;
    return true;
  }
  bool take_entries(const FrameHeader& header, Bytes payload) {
    if (ranges == 0) return fail("entries before the first range");
    if (header.first_lsn != received.next()) return fail("a gap in the stream");
    for (EntryReader reader(payload); !reader.at_end();) {
      const auto entry = reader.next();
      if (!entry) return fail(entry.error().message());
      if (entry->lsn != received.next()) return fail("a gap in the batch");
      if (entry->kind == EntryKind::fragment) {
        if (!assemble(of_stream_, *entry)) return false;
        if (of_stream_.active) continue;
      } else if (entry->kind == EntryKind::put) {
        put_newer(text(entry->key), text(entry->value), entry->lsn.value);
      } else if (entry->kind == EntryKind::erase) {
        const auto at = records.find(text(entry->key));
        if (at != records.end() && at->second.second < entry->lsn.value) records.erase(at);
      }
      received = entry->lsn;
    }
    return true;
  }

  Assembly of_ranges_, of_stream_;
  std::vector<EntryView> decoded_;
};

struct SnapshotRig {
  static PrimaryOptions small() {
    PrimaryOptions options;
    options.log_bytes = 256 << 10;
    return options;
  }
  explicit SnapshotRig(PrimaryOptions options = small()) {
    options.history = kHistory;
    options.epoch = kEpoch;
    options.snapshots = &table;
    auto made = Primary::create(*side.reactor, options);
    REQUIRE(made);
    primary = *std::move(made);
    primary->on_link_lost([this](std::uint32_t, const std::string& reason) { lost.push_back(reason); });
  }
  ~SnapshotRig() {
    far.reset();
    primary->close("the test is over");
    side.end();
    primary.reset();
  }

  Lsn put(const std::string& key, const std::string& value) {
    const auto lsn = primary->try_append(EntryKind::put, as_bytes(key), as_bytes(value));
    REQUIRE(lsn);
    table.put(key, value, *lsn);
    return *lsn;
  }
  bool try_put(const std::string& key, const std::string& value) {
    const auto lsn = primary->try_append(EntryKind::put, as_bytes(key), as_bytes(value));
    if (lsn) table.put(key, value, *lsn);
    return static_cast<bool>(lsn);
  }
  bool try_erase(const std::string& key) {
    const auto lsn = primary->try_append(EntryKind::erase, as_bytes(key), {});
    if (lsn) table.erase(key);
    return static_cast<bool>(lsn);
  }
  void erase(const std::string& key) { REQUIRE(try_erase(key)); }
  /// By a fiber, over several turns.
  void put_large(const std::string& key, const std::string& value) {
    ++large_puts;
    REQUIRE(side.reactor->spawn_detached("large", [this, key, value] {
      const auto lsn = primary->append_fragments(as_bytes(key), as_bytes(value), Instant::never());
      REQUIRE(lsn);
      table.put(key, value, *lsn);
      --large_puts;
    }));
  }
  /// With nobody there, so that nothing of it is on any link.
  void fill(int count, std::size_t value_bytes) {
    for (int i = 0; i < count; ++i) put("k" + std::to_string(i), std::string(value_bytes, 'v'));
  }

  Status connect(const LoopbackOptions& options = {}, std::uint32_t node = 2, Lsn had = {}) {
    wire =
        std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{++generation}, ShardId{}}, options);
    shadow = {};
    far = std::make_unique<LoopbackLink>(wire, NodeRole::replica, side.clock);
    return primary->attach_snapshot(std::make_unique<LoopbackLink>(wire, NodeRole::primary, side.clock), node,
                                    had);
  }
  void turn() { side.reactor->turn(); }
  /// The far end takes up to so many frames and gives them back.
  int take(int frames = 1'000'000) {
    int taken = 0;
    for (; taken < frames; ++taken) {
      const auto batch = far->receive();
      if (!batch) break;
      kinds += batch->header.kind == FrameKind::range ? 'r' : 'e';
      const bool good = shadow.take(batch->header, batch->payload);
      CHECK_MESSAGE(good, shadow.broken);
      far->release();
      CHECK(wire->overwritten == 0);
    }
    return taken;
  }
  void acknowledge(Lsn lsn) {
    ControlFrame frame;
    frame.history = kHistory;
    frame.epoch = kEpoch;
    frame.received_lsn = frame.applied_lsn = lsn;
    REQUIRE(far->send_control(frame));
  }
  void advance(Duration by) { side.clock.advance(by); }
  /// Until the far end is whole.
  void finish() {
    for (int i = 0; i < 10'000 && !(shadow.whole() && large_puts == 0); ++i) {
      turn();
      take();
    }
    REQUIRE(shadow.whole());
    check_same();
  }
  /// Whatever still travels arrives, then both have the same.
  void check_same() {
    for (int i = 0; i < 100; ++i) {
      turn();
      take();
    }
    CHECK(shadow.received == primary->last_lsn());
    CHECK(shadow.records == table.records());
  }

  Rig side;
  MapSource table;
  std::unique_ptr<Primary> primary;
  std::shared_ptr<LoopbackWire> wire;
  std::unique_ptr<LoopbackLink> far;
  Shadow shadow;
  std::string kinds;  ///< of the frames that were taken: r and e
  std::uint32_t generation = 0;
  int large_puts = 0;
  std::vector<std::string> lost;
};

}  // namespace tidelock::test
