// A sender apart from who leads: on a log that is somebody else's, for links whose acknowledgements count for
// nothing.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/epoch_line.h>
#include <tidelock/replication/log.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/sender.h>
#include <tidelock/replication/wire_range.h>

#include "loopback_link.h"
#include "reactor/null_io.h"
#include "snapshot_rig.h"
#include "stream_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr Epoch kEpochBefore{2, 9};

/// What outlives every role: a log that another primary has begun, and its line.
struct KeptLog {
  explicit KeptLog(std::uint32_t buffer_bytes = Sender::kSnapshotBufferBytes)
      : log(*Log::create(64 * 1024, buffer_bytes)) {
    line.begin(kEpochBefore, Lsn{1});
    append("old-1", "a", kEpochBefore);
    append("old-2", "b", kEpochBefore);
  }
  void append(const std::string& key, const std::string& value, Epoch epoch) {
    EntryView entry;
    entry.kind = EntryKind::put;
    entry.key = as_bytes(key);
    entry.value = as_bytes(value);
    entry.lsn = log->last_lsn().next();
    entry.epoch = epoch;
    log->append(entry);
  }
  std::unique_ptr<Log> log;
  EpochLine line;
};

/// No primary: it commits what it was told, and keeps what it hears.
struct DonorOwner final : Sender::Owner {
  [[nodiscard]] Lsn commit_lsn() const override { return commit; }
  [[nodiscard]] bool hurried() const override { return false; }
  [[nodiscard]] bool short_of_replicas() const override { return false; }
  void log_released() override { ++released; }
  void peers_changed() override { ++changed; }
  void link_lost(std::uint32_t node, const std::string& reason) override {
    lost.push_back(reason);
    lost_nodes.push_back(node);
  }
  void ticked() override { ++ticks; }
  Lsn commit{1};
  int released = 0;
  int changed = 0;
  int ticks = 0;
  std::vector<std::string> lost;
  std::vector<std::uint32_t> lost_nodes;
};

std::shared_ptr<LoopbackWire> wire_of(std::uint32_t generation) {
  return std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{generation}, ShardId{}},
                                        LoopbackOptions{});
}

Follower fetching(std::uint32_t node, Lsn last) { return {node, last, kHistory, kEpoch, false}; }

}  // namespace

TEST_CASE("replication/sender: a node that leads nothing sends its log, and hears who has what") {
  Rig side;
  KeptLog kept;
  DonorOwner owner;
  SenderStats stats;
  Sender sender(*side.reactor, *kept.log, kept.line, {}, owner, stats);
  const auto wire = wire_of(1);
  REQUIRE(
      sender.attach(std::make_unique<LoopbackLink>(wire, NodeRole::primary, side.clock), fetching(4, {1})));
  LoopbackLink far(wire, NodeRole::replica, side.clock);
  CHECK(owner.changed == 1);

  // Expect: what follows its last, in a frame of the epoch that the hello announced; the entry has its own.
  sender.flush();
  const auto batch = far.receive();
  REQUIRE(batch);
  CHECK(batch->header.epoch == kEpoch);
  CHECK(batch->header.first_lsn == Lsn{2});
  CHECK(batch->header.commit_lsn == Lsn{1});
  EntryReader reader(batch->payload);
  const auto entry = reader.next();
  REQUIRE(entry);
  CHECK(entry->epoch == kEpochBefore);
  CHECK(text(entry->key) == "old-2");
  far.release();

  // Expect: told once that something was acknowledged; it is in the peer, and counts for nothing.
  REQUIRE(far.send_control(acknowledgement(2, 2)));
  CHECK(sender.poll(64) > 0);
  CHECK(sender.take_acknowledged());
  CHECK_FALSE(sender.take_acknowledged());
  REQUIRE(sender.peers().size() == 1);
  CHECK(sender.peers()[0].applied == Lsn{2});
  CHECK_FALSE(sender.peers()[0].counts());

  // Expect: gone with its reason, and with it all that read the log.
  far.close("it has what it needs");
  static_cast<void>(sender.poll(64));
  CHECK(sender.peers().size() == 1);
  CHECK(sender.sweep_closed());
  CHECK(owner.lost.size() == 1);
  CHECK(owner.lost_nodes == std::vector<std::uint32_t>{4});
  static_cast<void>(sender.poll(64));
  CHECK(sender.departed());
}

TEST_CASE("replication/sender: a snapshot of a node that leads nothing brings its log's line") {
  Rig side;
  KeptLog kept;
  MapSource table;
  table.put("old-1", "a", Lsn{1});
  table.put("old-2", "b", Lsn{2});
  DonorOwner owner;
  SenderStats stats;
  SenderOptions options;
  options.snapshots = &table;
  Sender sender(*side.reactor, *kept.log, kept.line, options, owner, stats);
  const auto wire = wire_of(1);
  REQUIRE(sender.attach_snapshot(std::make_unique<LoopbackLink>(wire, NodeRole::primary, side.clock),
                                 fetching(4, {})));
  LoopbackLink far(wire, NodeRole::replica, side.clock);
  sender.flush();
  const auto batch = far.receive();
  REQUIRE(batch);
  CHECK(batch->header.kind == FrameKind::range);
  std::vector<EntryView> records;
  const auto range = decode_range(batch->header, batch->payload, records);
  REQUIRE(range);
  CHECK(range->last);
  CHECK(range->epoch == kEpoch);  // the frame's
  CHECK(range->line.last_epoch() == kEpochBefore);
  CHECK(records.size() == 2);
  far.release();
  sender.dismiss_all("the test is over");
  static_cast<void>(sender.poll(64));
  CHECK(sender.departed());
  CHECK(owner.lost.empty());
}

TEST_CASE("replication/sender: a primary leads on a log that it does not own, and leaves it as it is") {
  StreamRig rig;  // for its replica; its primary stands by
  KeptLog kept;
  PrimaryOptions options;
  options.history = kHistory;
  options.epoch = kEpoch;
  auto made = Primary::create(*rig.primary_side.reactor, options, *kept.log, kept.line);
  REQUIRE(made);
  std::unique_ptr<Primary> primary = *std::move(made);
  CHECK(primary->last_lsn() == Lsn{2});
  kept.line.begin(kEpoch, kept.log->last_lsn().next());

  // An LSN alone names no entry here.
  for (const Epoch epoch : {Epoch{}, Epoch{kEpochBefore.counter, kEpochBefore.node + 1}}) {
    CHECK(primary
              ->attach(std::make_unique<LoopbackLink>(wire_of(6), NodeRole::primary, rig.primary_side.clock),
                       3, {2}, epoch)
              .error() == ReplicationErrc::gap);
  }
  REQUIRE(
      primary->attach(std::make_unique<LoopbackLink>(wire_of(6), NodeRole::primary, rig.primary_side.clock),
                      3, {2}, kEpochBefore));
  primary->sender().drop_all("the test has seen it");

  const auto wire = wire_of(7);
  REQUIRE(rig.replica->attach(std::make_unique<LoopbackLink>(wire, NodeRole::replica, rig.replica_side.clock),
                              kHistory, kEpoch));
  REQUIRE(primary->attach(std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.primary_side.clock), 2,
                          {}));
  const auto lsn = primary->try_append(EntryKind::put, as_bytes("new"), as_bytes("c"));
  REQUIRE(lsn);
  CHECK(*lsn == Lsn{3});
  rig.settle();
  CHECK(rig.applier.map == std::map<std::string, std::string>{{"new", "c"}, {"old-1", "a"}, {"old-2", "b"}});
  CHECK(primary->commit_lsn() == Lsn{3});

  primary->close("it steps down");
  rig.settle();
  CHECK(primary->departed());
  primary.reset();
  CHECK(kept.log->last_lsn() == Lsn{3});
  CHECK(kept.line.epoch_of(Lsn{2}) == kEpochBefore);
  CHECK(kept.line.epoch_of(Lsn{3}) == kEpoch);
}

TEST_CASE(
    "replication/sender: a link that only fetches is no replica: it commits nothing, and c is not met") {
  StreamRig rig(small_log(1));
  const auto wire = wire_of(3);
  REQUIRE(rig.primary->sender().attach(
      std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.primary_side.clock), fetching(4, {})));
  LoopbackLink far(wire, NodeRole::replica, rig.replica_side.clock);
  REQUIRE(far.send_control(acknowledgement(0, 0)));
  rig.turn_primary();
  CHECK(rig.primary->nodes() == 0);
  CHECK(rig.primary->replicas() == 0);
  const auto refused = rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes("v"));
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == ReplicationErrc::no_replica);

  // Expect: with a replica beside it the write is appended and reaches both, and only the replica commits it.
  REQUIRE(rig.connect());
  const Lsn lsn = rig.put("k", "v");
  rig.turn_primary();
  REQUIRE(far.receive());
  far.release();
  REQUIRE(far.send_control(acknowledgement(lsn.value, lsn.value)));
  rig.turn_primary();
  CHECK(rig.primary->commit_lsn() == Lsn{});
  rig.settle();
  CHECK(rig.primary->commit_lsn() == lsn);
  CHECK(rig.primary->nodes() == 1);
}

TEST_CASE("replication/sender: who is to send snapshots from a log needs its buffers") {
  Rig side;
  KeptLog kept(0);
  MapSource table;
  PrimaryOptions options;
  options.snapshots = &table;
  const auto made = Primary::create(*side.reactor, options, *kept.log, kept.line);
  REQUIRE_FALSE(made);
  CHECK(made.error().message().find("buffers") != std::string::npos);
}
