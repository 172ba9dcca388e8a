/// A primary that a test plays frame by frame: ranges of a snapshot, and live entries between them.
/// Thread:   one
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/wire_range.h>

#include "loopback_link.h"

namespace tidelock::test {

inline constexpr HistoryId kPlayedHistory{0x5afe};
inline constexpr Epoch kPlayedEpoch{3, 1};

class PlayedSender {
 public:
  /// Both outlive it; the reactor is the receiver's, and turns with every frame.
  PlayedSender(Reactor& reactor, Clock& clock) : reactor_(reactor), clock_(clock) {
    line.begin(kPlayedEpoch, {1});
  }

  /// A new link; its other end is for the receiver.
  std::unique_ptr<Link> link() {
    wire = std::make_shared<LoopbackWire>(FrameContext{kPlayedHistory, Generation{1}, ShardId{}},
                                          LoopbackOptions{});
    near = std::make_unique<LoopbackLink>(wire, NodeRole::primary, clock_);
    return std::make_unique<LoopbackLink>(wire, NodeRole::replica, clock_);
  }
  void hang_up() {
    near->close("gone");
    reactor_.turn();
  }

  static EntryView entry(EntryKind kind, std::uint64_t lsn, std::string_view key, std::string_view value,
                         Epoch epoch = kPlayedEpoch) {
    EntryView made;
    made.kind = kind;
    made.lsn = {lsn};
    made.epoch = epoch;
    made.key = as_bytes(key);
    made.value = as_bytes(value);
    return made;
  }
  static EntryView record(std::uint64_t lsn, std::string_view key, std::string_view value) {
    return entry(EntryKind::put, lsn, key, value, {});
  }
  /// `bytes` of a key of one byte and the value that follows it in `whole`.
  static EntryView piece(std::uint64_t lsn, std::string_view whole, std::size_t offset, std::size_t bytes,
                         Epoch epoch = {}) {
    EntryView made;
    made.kind = EntryKind::fragment;
    made.lsn = {lsn};
    made.epoch = epoch;
    made.key_bytes = 1;
    made.value_bytes = static_cast<std::uint32_t>(whole.size()) - 1;
    made.offset = offset;
    made.value = as_bytes(whole.substr(offset, bytes));
    return made;
  }

  void live(const std::vector<EntryView>& entries) {
    std::vector<std::byte> payload;
    for (const EntryView& one : entries) {
      const std::size_t at = payload.size();
      payload.resize(at + entry_bytes(one.kind, one.key.size(), one.value.size()));
      encode_entry(one, MutableBytes(payload).subspan(at));
    }
    FrameHeader header;
    header.entries = static_cast<std::uint32_t>(entries.size());
    header.first_lsn = entries.front().lsn;
    header.last_lsn = entries.back().lsn;
    deliver(header, payload);
  }
  void live_put(std::uint64_t lsn, std::string_view key, std::string_view value) {
    live({entry(EntryKind::put, lsn, key, value)});
  }
  /// Up to hash 0: the last one.
  void range(std::uint64_t from, std::uint64_t to, std::uint64_t lsn, const std::vector<EntryView>& records,
             bool voids = false) {
    RangeHeader said;
    said.from = from;
    said.to = to;
    said.last = to == 0;
    said.voids = voids;
    said.lsn = {lsn};
    said.epoch = epoch;
    if (said.last) said.line = line;
    std::vector<std::byte> buffer(60 * 1024);
    RangeWriter writer{MutableBytes(buffer)};
    for (const EntryView& one : records) writer.add(one);
    FrameHeader header;
    const Bytes payload = writer.finish(said, header);
    deliver(header, {payload.begin(), payload.end()});
  }
  /// A record in as many frames as it takes, without progress.
  void pieces(std::uint64_t at, std::uint64_t lsn, std::uint64_t record_lsn, std::string_view whole) {
    constexpr std::size_t kPiece = 30'000;
    for (std::size_t offset = 0; offset < whole.size(); offset += kPiece) {
      range(at, at, lsn, {piece(record_lsn, whole, offset, kPiece)});
    }
  }

  std::shared_ptr<LoopbackWire> wire;
  std::unique_ptr<LoopbackLink> near;
  Epoch epoch = kPlayedEpoch;  ///< of its frames
  EpochLine line;              ///< of its last range
  Lsn commit{};                ///< of its frames

 private:
  void deliver(FrameHeader header, std::vector<std::byte> payload) {
    header.history = kPlayedHistory;
    header.epoch = epoch;
    header.commit_lsn = commit;
    REQUIRE(near->attach(payload));
    const std::array<Bytes, 1> ranges{Bytes(payload)};
    REQUIRE(near->publish(header, ranges));
    near->flush();
    reactor_.turn();
  }

  Reactor& reactor_;
  Clock& clock_;
};

}  // namespace tidelock::test
