#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/wire_range.h>

#include "stream_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// The primary is played by hand: batches of any content, one delivery at a time.
struct Played {
  explicit Played(const ReplicaOptions& options = {}) {
    auto made = Replica::create(*side.reactor, applier, options);
    REQUIRE(made);
    replica = *std::move(made);
    replica->on_link_lost([this](const std::string& reason) { lost.push_back(reason); });
  }
  ~Played() { side.end(); }

  Status connect(HistoryId history = kHistory, Epoch epoch = kEpoch) {
    wire = std::make_shared<LoopbackWire>(FrameContext{history, Generation{1}, ShardId{}}, LoopbackOptions{});
    near = std::make_unique<LoopbackLink>(wire, NodeRole::primary, side.clock);
    payload.clear();
    sent_epoch = epoch;
    return replica->attach(std::make_unique<LoopbackLink>(wire, NodeRole::replica, side.clock), history,
                           epoch);
  }
  void add(const EntryView& entry) {
    const std::size_t at = payload.size();
    payload.resize(at + entry_bytes(entry.kind, entry.key.size(), entry.value.size()));
    encode_entry(entry, MutableBytes(payload).subspan(at));
    if (entries++ == 0) first = entry.lsn;
    last = entry.lsn;
  }
  void add_put(std::uint64_t lsn, std::string_view key, std::string_view value, Epoch epoch = kEpoch) {
    EntryView entry;
    entry.kind = EntryKind::put;
    entry.lsn = {lsn};
    entry.epoch = epoch;
    entry.key = as_bytes(key);
    entry.value = as_bytes(value);
    add(entry);
  }
  void add_grouped(std::uint64_t lsn, std::string_view key, std::string_view value) {
    EntryView entry;
    entry.kind = EntryKind::put;
    entry.lsn = {lsn};
    entry.epoch = kEpoch;
    entry.key = as_bytes(key);
    entry.value = as_bytes(value);
    entry.group_continues = true;
    add(entry);
  }
  void add_fragment(std::uint64_t lsn, std::string_view whole, std::uint32_t key_bytes, std::uint32_t offset,
                    std::uint32_t piece) {
    EntryView entry;
    entry.kind = EntryKind::fragment;
    entry.lsn = {lsn};
    entry.epoch = kEpoch;
    entry.key_bytes = key_bytes;
    entry.value_bytes = static_cast<std::uint32_t>(whole.size()) - key_bytes;
    entry.offset = offset;
    entry.value = as_bytes(whole.substr(offset, piece));
    add(entry);
  }
  /// Sends what was added and lets the replica turn. `change` may spoil the header.
  void deliver(const std::function<void(FrameHeader&)>& change = {}) {
    send(change);
    side.reactor->turn();
  }
  void send(const std::function<void(FrameHeader&)>& change = {}) {
    FrameHeader header;
    header.history = wire->context.history;
    header.epoch = sent_epoch;
    header.first_lsn = first;
    header.last_lsn = last;
    header.entries = entries;
    header.commit_lsn = commit;
    if (change) change(header);
    sent_payloads.push_back(std::move(payload));
    REQUIRE(near->attach(sent_payloads.back()));
    const std::array<Bytes, 1> ranges{Bytes(sent_payloads.back())};
    REQUIRE(near->publish(header, ranges));
    near->flush();
    payload = {};
    entries = 0;
  }
  ControlFrame acknowledged() {
    const auto frame = near->receive_control();
    REQUIRE(frame);
    return *frame;
  }

  Rig side;
  MapApplier applier;
  std::unique_ptr<Replica> replica;
  std::shared_ptr<LoopbackWire> wire;
  std::unique_ptr<LoopbackLink> near;
  std::vector<std::string> lost;
  std::vector<std::byte> payload;
  std::vector<std::vector<std::byte>> sent_payloads;
  Epoch sent_epoch{};
  Lsn first{}, last{}, commit{};
  std::uint32_t entries = 0;
};

}  // namespace

TEST_CASE("replication/replica: it applies, then acknowledges, in the same turn") {
  Played played;
  REQUIRE(played.connect());
  // 1. Two puts and an erase. Expect: visible, and acknowledged as received and applied.
  played.add_put(1, "a", "1");
  played.add_put(2, "b", "2");
  EntryView erase;
  erase.kind = EntryKind::erase;
  erase.lsn = {3};
  erase.epoch = kEpoch;
  erase.key = as_bytes("a");
  played.add(erase);
  played.commit = {2};
  played.deliver();
  CHECK(played.applier.map == std::map<std::string, std::string>{{"b", "2"}});
  const ControlFrame first = played.acknowledged();
  CHECK(first.received_lsn == Lsn{3});
  CHECK(first.applied_lsn == Lsn{3});
  CHECK(first.epoch == kEpoch);
  CHECK(played.wire->released == 1);
  CHECK(played.replica->stats().commit_lsn == 2);
  // 2. A turn without news. Expect: silence, until the heartbeat.
  played.side.reactor->turn();
  CHECK(played.near->receive_control().error() == ReplicationErrc::link_empty);
  played.side.clock.advance(milliseconds(60));
  played.side.reactor->turn();
  CHECK(played.acknowledged().applied_lsn == Lsn{3});
}

TEST_CASE(
    "replication/replica: a violation closes the link, what came before it stays, what follows is not "
    "served") {
  Played played;
  REQUIRE(played.connect());
  played.add_put(1, "a", "1");
  played.deliver();
  std::string expected;
  std::uint64_t good = 1;
  SUBCASE("a gap between batches") {
    played.add_put(3, "x", "y");
    expected = "LSN 3 after 1";
    played.deliver();
  }
  SUBCASE("a gap within a batch") {
    played.add_put(2, "b", "2");
    played.add_put(4, "x", "y");
    expected = "LSN 4 after 2";
    good = 2;
    played.deliver([](FrameHeader& header) { header.last_lsn = {3}; });
  }
  SUBCASE("another first LSN than the header says") {
    played.add_put(2, "b", "2");
    played.add_put(3, "x", "y");
    expected = "LSN 3 after 1";
    played.deliver([](FrameHeader& header) { header.first_lsn = {3}; });
  }
  SUBCASE("an LSN for a second time") {
    played.add_put(1, "x", "y");
    expected = "LSN 1 after 1";
    played.deliver();
  }
  SUBCASE("an entry whose CRC is wrong") {
    played.add_put(2, "b", "2");
    played.add_put(3, "x", "y");
    played.wire->tamper = [](std::vector<std::byte>& batch) { batch.back() ^= std::byte{1}; };
    expected = "CRC";
    good = 2;
    played.deliver();
  }
  SUBCASE("a frame of an older epoch") {
    played.add_put(2, "x", "y");
    played.sent_epoch = {2, 9};
    expected = "below the one in force";
    played.deliver();
  }
  SUBCASE("a frame of an epoch that no hello announced") {
    played.add_put(2, "x", "y");
    played.sent_epoch = {4, 1};
    expected = "no hello announced";
    played.deliver();
  }
  SUBCASE("an entry of an epoch below the last one's") {
    played.add_put(2, "x", "y", {2, 1});
    expected = "epoch";
    played.deliver();
  }
  SUBCASE("an entry of a later epoch than its frame") {
    played.add_put(2, "x", "y", {4, 1});
    expected = "later epoch";
    played.deliver();
  }
  SUBCASE("fewer entries than the header says") {
    played.add_put(2, "b", std::string(40, 'v'));
    played.add_put(3, "c", "3");
    expected = "length";
    good = 3;
    played.deliver([](FrameHeader& header) { header.entries = 3; });
  }
  SUBCASE("another last LSN than the header says") {
    played.add_put(2, "b", "2");
    played.add_put(3, "c", "3");
    expected = "length";
    good = 3;
    played.deliver([](FrameHeader& header) { header.last_lsn = {2}; });
  }
  SUBCASE("another put amid fragments") {
    played.add_fragment(2, "kvvvv", 1, 0, 3);
    played.add_put(2, "x", "y");
    expected = "amid fragments";
    played.deliver();
  }
  SUBCASE("a piece left out") {
    played.add_fragment(2, "kvvvvvvv", 1, 0, 3);
    played.add_fragment(2, "kvvvvvvv", 1, 4, 3);
    expected = "does not continue";
    played.deliver();
  }
  SUBCASE("a piece for a second time") {
    played.add_fragment(2, "kvvvvvvv", 1, 0, 3);
    played.add_fragment(2, "kvvvvvvv", 1, 0, 3);
    expected = "does not continue";
    played.deliver();
  }
  SUBCASE("a first piece that is not the first") {
    played.add_fragment(2, "kvvvvvvv", 1, 3, 3);
    expected = "does not continue";
    played.deliver();
  }
  SUBCASE("a frame that ends within a group") {
    played.add_put(2, "b", "2");
    played.add_grouped(3, "x", "y");
    played.add_grouped(4, "x", "y");
    expected = "ends within a group";
    good = 2;
    played.deliver();
  }
  SUBCASE("a group of which the last entry's CRC is wrong, longer than a slice") {
    for (std::uint64_t lsn = 2; lsn < 200; ++lsn) played.add_grouped(lsn, "x", "y");
    played.add_put(200, "x", "y");
    played.wire->tamper = [](std::vector<std::byte>& batch) { batch.back() ^= std::byte{1}; };
    expected = "CRC";
    played.deliver();
  }
  SUBCASE("a fragment within a group") {
    played.add_grouped(2, "x", "y");
    played.add_fragment(3, "kvvvvvvv", 1, 0, 3);
    expected = "fragment within a group";
    played.deliver();
  }
  SUBCASE("a range, of which nothing is applied") {
    const std::string key = "x";
    std::vector<std::byte> buffer(4096);
    RangeWriter writer(buffer);
    EntryView record;
    record.kind = EntryKind::put;
    record.lsn = {2};
    record.key = as_bytes(key);
    writer.add(record);
    RangeHeader range;
    range.last = true;
    range.lsn = {2};
    range.epoch = kEpoch;
    range.line.begin(kEpoch, Lsn{1});
    FrameHeader frame;
    const Bytes built = writer.finish(range, frame);
    played.payload.assign(built.begin(), built.end());
    expected = "a range amid a stream";
    played.deliver([&](FrameHeader& header) {
      header.kind = frame.kind;
      header.first_lsn = frame.first_lsn;
      header.last_lsn = frame.last_lsn;
      header.entries = frame.entries;
    });
  }
  SUBCASE("a piece of another whole") {
    played.add_fragment(2, "kvvvvvvv", 1, 0, 3);
    played.add_fragment(2, "kvvvvvvvv", 1, 3, 3);
    expected = "does not continue";
    played.deliver();
  }
  CHECK_FALSE(played.replica->connected());
  CHECK(played.replica->applied_lsn() == Lsn{good});
  CHECK(played.applier.lsns.size() == good);
  CHECK(played.applier.map.count("x") == 0);
  CHECK(played.applier.map.count("a") == 1);
  CHECK(played.applier.abandoned == 1);
  REQUIRE(played.lost.size() == 1);
  CHECK_MESSAGE(played.lost[0].find(expected) != std::string::npos, played.lost[0]);
  CHECK(played.wire->closed_by_replica == played.lost[0]);
}

TEST_CASE("replication/replica: entries of earlier epochs are taken from a backlog, in ascending order") {
  ReplicaOptions options;
  options.epoch = {1, 1};
  Played played(options);
  REQUIRE(played.connect());
  played.add_put(1, "a", "1", {1, 1});
  played.add_put(2, "b", "2", {2, 1});
  played.add_put(3, "c", "3", kEpoch);
  played.deliver();
  CHECK(played.replica->applied_lsn() == Lsn{3});
  CHECK(played.replica->connected());
}

TEST_CASE("replication/replica: another history or an older epoch is refused with both values") {
  ReplicaOptions options;
  options.history = kHistory;
  options.epoch = {2, 1};
  Played played(options);
  const Status other = played.connect(HistoryId{4711});
  REQUIRE_FALSE(other);
  CHECK(other.error() == ReplicationErrc::wrong_context);
  CHECK(other.error().message().find("4711") != std::string::npos);
  CHECK(other.error().message().find(std::to_string(kHistory.value)) != std::string::npos);
  const Status old = played.connect(kHistory, {1, 7});
  REQUIRE_FALSE(old);
  CHECK(old.error() == ReplicationErrc::old_epoch);
  CHECK(old.error().message().find("1.7") != std::string::npos);
  CHECK(old.error().message().find("2.1") != std::string::npos);
  CHECK(played.wire->replica_closed);
  REQUIRE(played.connect());
  CHECK(played.replica->epoch() == kEpoch);
  const auto wire = played.wire;
  const auto near = std::move(played.near);
  // From now on the older one that it would have taken before is refused.
  CHECK(played.connect(kHistory, {2, 1}).error() == ReplicationErrc::old_epoch);
  CHECK(played.replica->connected());
}

TEST_CASE("replication/replica: fragments over several batches become one put") {
  Played played;
  REQUIRE(played.connect());
  const std::string whole = "keyvalue of several pieces";
  played.add_fragment(1, whole, 3, 0, 2);
  played.add_fragment(1, whole, 3, 2, 5);
  played.deliver();
  CHECK(played.applier.map.empty());
  // Half a put is nothing to acknowledge.
  CHECK(played.acknowledged().received_lsn == Lsn{0});
  played.add_fragment(1, whole, 3, 7, static_cast<std::uint32_t>(whole.size()) - 7);
  played.add_put(2, "next", "2");
  played.deliver();
  CHECK(played.applier.map["key"] == "value of several pieces");
  CHECK(played.acknowledged().applied_lsn == Lsn{2});
}

TEST_CASE(
    "replication/replica: those who wait for an LSN run once it is visible, by their deadline otherwise") {
  Played played;
  REQUIRE(played.connect());
  std::vector<int> order;
  const auto waiter = [&](int id, std::uint64_t lsn, Duration patience) {
    REQUIRE(played.side.reactor->spawn_detached("waiter", [&played, &order, id, lsn, patience] {
      const Status status = played.replica->wait_applied(Lsn{lsn}, played.side.clock.now() + patience);
      CHECK(status.has_value() == (played.replica->applied_lsn() >= Lsn{lsn}));
      if (!status) CHECK(status.error() == ReactorErrc::deadline_exceeded);
      order.push_back(id);
    }));
  };
  waiter(1, 5, milliseconds(50));
  waiter(2, 2, seconds(1));
  waiter(3, 1, seconds(1));
  waiter(4, 2, seconds(1));
  waiter(5, 0, seconds(1));
  played.side.reactor->turn();
  CHECK(order == std::vector<int>{5});
  played.add_put(1, "a", "1");
  played.deliver();
  CHECK(order == std::vector<int>{5, 3});
  played.add_put(2, "a", "2");
  played.deliver();
  CHECK(order == std::vector<int>{5, 3, 2, 4});
  played.side.clock.advance(milliseconds(60));
  played.side.reactor->turn();
  CHECK(order == std::vector<int>{5, 3, 2, 4, 1});
}

TEST_CASE("replication/replica: a batch of many entries reaches the applier in slices") {
  Played played;
  REQUIRE(played.connect());
  for (std::uint64_t lsn = 1; lsn <= 1000; ++lsn) played.add_put(lsn, "k" + std::to_string(lsn), "v");
  played.deliver();
  CHECK(played.replica->applied_lsn() == Lsn{1000});
  CHECK(played.applier.largest_slice <= 64);
  CHECK(played.replica->stats().entries == 1000);
}

TEST_CASE(
    "replication/replica: an applier that refuses ends the link, and the entries come again with the next") {
  Played played;
  REQUIRE(played.connect());
  played.applier.refuse = true;
  played.add_put(1, "a", "1");
  played.deliver();
  CHECK_FALSE(played.replica->connected());
  CHECK(played.replica->applied_lsn() == Lsn{0});
  played.applier.refuse = false;
  REQUIRE(played.connect());
  played.add_put(1, "a", "1");
  played.deliver();
  CHECK(played.replica->applied_lsn() == Lsn{1});
}

TEST_CASE("replication/replica: a silent primary is dropped after link_timeout, what is applied stays") {
  Played played;
  REQUIRE(played.connect());
  played.add_put(1, "a", "1");
  played.deliver();
  for (int i = 0; i < 29; ++i) {
    played.side.clock.advance(milliseconds(100));
    played.side.reactor->turn();
  }
  CHECK(played.replica->connected());
  for (int i = 0; i < 3; ++i) {
    played.side.clock.advance(milliseconds(100));
    played.side.reactor->turn();
  }
  CHECK_FALSE(played.replica->connected());
  REQUIRE(played.lost.size() == 1);
  CHECK(played.lost[0].find("said nothing for 3000 ms") != std::string::npos);
  CHECK(played.applier.map["a"] == "1");
  CHECK(played.replica->stats().links_lost == 1);
}

TEST_CASE("replication/replica: a control frame with what no primary says closes the link") {
  Played played;
  REQUIRE(played.connect());
  ControlFrame frame;
  frame.history = kHistory;
  frame.epoch = kEpoch;
  std::string expected;
  SUBCASE("an acknowledgement") {
    frame.applied_lsn = {1};
    expected = "acknowledgement";
  }
  SUBCASE("that this one counts is no such thing") { frame.whole = true; }
  SUBCASE("that this one is to lead, which it cannot") {
    frame.lead = true;
    expected = "in no group";
  }
  SUBCASE("a stamp is no such thing") { frame.set_stamp(7); }
  REQUIRE(played.near->send_control(frame));
  played.side.reactor->turn();
  CHECK(played.replica->connected() == expected.empty());
  if (expected.empty()) return;
  REQUIRE(played.lost.size() == 1);
  CHECK_MESSAGE(played.lost[0].find(expected) != std::string::npos, played.lost[0]);
}

TEST_CASE("replication/replica: all that left before a goodbye is applied first") {
  Played played;
  REQUIRE(played.connect());
  const std::string value(30'000, 'v');
  for (std::uint64_t lsn = 1; lsn <= 8; ++lsn) {  // more than one poll takes
    played.add_put(lsn, "k" + std::to_string(lsn), value);
    played.send();
  }
  ControlFrame goodbye;
  goodbye.history = kHistory;
  goodbye.epoch = kEpoch;
  goodbye.closing = true;
  REQUIRE(played.near->send_control(goodbye));
  played.near->close("gone");
  CHECK(played.side.reactor->turn() == Instant{0});  // it wants to go on
  CHECK(played.replica->applied_lsn() < Lsn{8});
  CHECK(played.replica->has_work());
  for (int i = 0; i < 4; ++i) played.side.reactor->turn();
  CHECK(played.replica->applied_lsn() == Lsn{8});
  CHECK_FALSE(played.replica->connected());
  REQUIRE(played.lost.size() == 1);
  CHECK(played.lost[0].find("goodbye") != std::string::npos);
}

TEST_CASE("replication/replica: a new link replaces the old one without calling it lost") {
  Played played;
  REQUIRE(played.connect());
  const auto old_wire = played.wire;
  const auto old_end = std::move(played.near);
  REQUIRE(played.connect());
  CHECK(old_wire->replica_closed);
  CHECK(played.lost.empty());
  played.add_put(1, "a", "1");
  played.deliver();
  CHECK(played.replica->applied_lsn() == Lsn{1});
}

namespace {
struct TwoTurnsEarly final : ApplyPolicy {
  [[nodiscard]] std::uint32_t turns_acknowledged_early() const override { return 2; }
};
}  // namespace

TEST_CASE("replication/replica: the planted policy acknowledges what readers do not see yet") {
  const TwoTurnsEarly policy;
  ReplicaOptions options;
  options.policy = &policy;
  Played played(options);
  REQUIRE(played.connect());
  played.add_put(1, "a", "1");
  played.deliver();
  CHECK(played.acknowledged().applied_lsn == Lsn{1});
  CHECK(played.replica->applied_lsn() == Lsn{1});
  CHECK(played.applier.map.empty());
  CHECK(played.replica->has_work());
  played.side.reactor->turn();
  CHECK(played.applier.map.empty());
  played.side.reactor->turn();
  CHECK(played.applier.map["a"] == "1");
  // And nothing is lost with the link.
  played.add_put(2, "b", "2");
  played.deliver();
  played.replica->close("on purpose");
  CHECK(played.applier.map["b"] == "2");
}
