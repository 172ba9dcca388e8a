#include <string>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/admission.h>
#include <tidelock/replication/snapshot_sender.h>

#include "sanitized.h"
#include "shadow_applier.h"
#include "snapshot_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

const std::string kLarge(200'000, 'L');

}  // namespace

TEST_CASE("replication/snapshot: ranges and what is written meanwhile make the primary's table") {
  SnapshotRig rig;
  rig.fill(1'000, 100);
  REQUIRE(rig.connect());
  // 1. Keys that were there are put again and erased, others come, while ranges leave.
  for (int i = 0; i < 200; ++i) {
    rig.turn();
    rig.put("k" + std::to_string(i * 3), "again");
    rig.erase("k" + std::to_string(i * 3 + 1));
    rig.put("new" + std::to_string(i), "new");
    rig.take(2);
  }
  rig.finish();
  CHECK(rig.shadow.ranges > 3);
  CHECK(rig.shadow.line.starts().size() == 1);
  CHECK(rig.shadow.line.last_epoch() == kEpoch);
}

TEST_CASE("replication/snapshot: an empty table is one range, the first frame of all") {
  SnapshotRig rig;
  rig.put("a", "1");
  rig.erase("a");
  REQUIRE(rig.connect());
  rig.put("b", "2");  // before anything has left: the range has it
  rig.erase("b");
  rig.turn();
  rig.take();
  CHECK(rig.kinds == "r");
  CHECK(rig.shadow.whole());
  CHECK(rig.shadow.received == Lsn{4});
  rig.check_same();
}

TEST_CASE("replication/snapshot: a key is moved, put or erased on either side of the walk") {
  SnapshotRig rig;
  for (int i = 0; i < 256; ++i) rig.put("h" + std::to_string(i), std::string(1'000, 'v'));
  REQUIRE(rig.connect());
  rig.turn();
  rig.take();
  const std::uint64_t behind = rig.shadow.position;
  REQUIRE(behind > map_hash("h4"));
  REQUIRE(behind < map_hash("h200"));
  SUBCASE("put in a range already sent, and in one not yet sent") {
    rig.put("h2", "2");
    rig.put("h200", "200");
  }
  SUBCASE("erased in either") {
    rig.erase("h2");
    rig.erase("h200");
  }
  SUBCASE("erased, then put") {
    for (const char* key : {"h2", "h200"}) {
      rig.erase(key);
      rig.turn();
      rig.put(key, "back");
    }
  }
  SUBCASE("put, then erased") {
    for (const char* key : {"h2", "h200"}) {
      rig.put(key, "soon gone");
      rig.turn();
      rig.erase(key);
    }
  }
  SUBCASE("a group across the border of two ranges") {
    const std::uint32_t one = entry_bytes(EntryKind::put, 2, 1);
    const std::uint32_t other = entry_bytes(EntryKind::put, 4, 1);
    const auto first = rig.primary->try_append(EntryKind::put, as_bytes("h2"), as_bytes("x"), other);
    const auto second = rig.primary->try_append(EntryKind::put, as_bytes("h200"), as_bytes("y"));
    REQUIRE(first);
    REQUIRE(second);
    REQUIRE(one > 0);
    rig.table.put("h2", "x", *first);
    rig.table.put("h200", "y", *second);
  }
  rig.finish();
}

TEST_CASE("replication/snapshot: a range may overtake live entries and is never overtaken by later ones") {
  SnapshotRig rig;
  rig.fill(400, 1'000);
  LoopbackOptions narrow;
  narrow.slots = 2;
  REQUIRE(rig.connect(narrow));
  rig.turn();
  rig.take();
  // The link is full of live entries, and for a heartbeat no range has left.
  for (int i = 0; i < 20; ++i) {
    REQUIRE(rig.try_put("k" + std::to_string(i), std::string(5'000, 'w')));
    rig.turn();
  }
  rig.advance(milliseconds(150));
  for (int i = 0; i < 40; ++i) {
    rig.take(1);
    rig.try_put("k7", std::string(3'000, 'x'));
    rig.acknowledge(Lsn{});
    rig.turn();
    rig.advance(milliseconds(120));
  }
  rig.finish();
  CHECK(rig.shadow.overtakes > 0);
}

TEST_CASE("replication/snapshot: a large record leaves in pieces over several turns") {
  SnapshotRig rig;
  rig.put_large("large", kLarge);
  for (int i = 0; i < 50; ++i) rig.turn();
  REQUIRE(rig.table.records().count("large") == 1);
  rig.fill(50, 100);
  REQUIRE(rig.connect());
  const auto take_pieces = [&](std::uint64_t pieces) {
    for (int i = 0; i < 1'000 && rig.shadow.pieces < pieces; ++i) {
      rig.turn();
      rig.take();
    }
    REQUIRE(rig.shadow.pieces >= pieces);
  };
  std::uint64_t voids = 0;
  SUBCASE("and nothing happens") {}
  SUBCASE("other records are written meanwhile") {
    take_pieces(2);
    for (int i = 0; i < 20; ++i) rig.put("k" + std::to_string(i), "again");
  }
  SUBCASE("erased meanwhile: it does not come back") {
    take_pieces(2);
    rig.erase("large");
    voids = 1;
  }
  SUBCASE("replaced by a small one meanwhile") {
    take_pieces(2);
    rig.put("large", "small");
    voids = 1;
  }
  SUBCASE("erased and put again meanwhile") {
    take_pieces(2);
    rig.erase("large");
    rig.put("large", "small");
    voids = 1;
  }
  SUBCASE("replaced by another large one meanwhile") {
    take_pieces(2);
    rig.put_large("large", std::string(150'000, 'M'));
    voids = 1;
  }
  SUBCASE("erased in the turn after its last piece") {
    for (int i = 0; i < 1'000 && rig.shadow.records.count("large") == 0; ++i) {
      rig.turn();
      rig.take();
    }
    rig.erase("large");
  }
  SUBCASE("another large one is put meanwhile") {
    take_pieces(1);
    rig.put_large("second", std::string(120'000, 'S'));
  }
  rig.finish();
  CHECK(rig.shadow.voids == voids);
  CHECK(rig.shadow.pieces > 1);
}

TEST_CASE("replication/snapshot: a receiver that ignored void would bring an erased record back") {
  SnapshotRig rig;
  rig.put_large("large", kLarge);
  for (int i = 0; i < 50; ++i) rig.turn();
  REQUIRE(rig.connect());
  for (int i = 0; i < 100 && rig.shadow.pieces == 0; ++i) {
    rig.turn();
    rig.take();
  }
  REQUIRE(rig.shadow.pieces > 0);
  rig.erase("large");
  rig.shadow.ignore_voids = true;
  bool broken = false;
  for (int i = 0; i < 20 && !broken; ++i) {
    rig.turn();
    while (const auto batch = rig.far->receive()) {
      broken = !rig.shadow.take(batch->header, batch->payload) || broken;
      rig.far->release();
    }
  }
  CHECK(broken);  // the walk went on amid a record
}

TEST_CASE("replication/snapshot: one that begins amid a large put keeps its first pieces in the log") {
  PrimaryOptions options;
  options.log_bytes = 2 << 20;
  SnapshotRig rig(options);
  rig.fill(100, 100);
  // Time passes while fibers run, so that a turn ends amid the put.
  bool over = false;
  REQUIRE(rig.side.reactor->spawn_detached("time", [&] {
    while (!over) {
      rig.advance(milliseconds(1));
      static_cast<void>(this_fiber::yield());
    }
  }));
  rig.put_large("large", std::string(5 << 20, 'L'));  // more than the log holds
  rig.turn();
  REQUIRE(rig.primary->fragmenting());
  LoopbackOptions slow;
  slow.completes_on_release = true;
  slow.slots = 3;
  REQUIRE(rig.connect(slow));
  for (int i = 0; i < 1'000 && rig.large_puts > 0; ++i) {
    rig.acknowledge(Lsn{});
    rig.turn();
    if (i > 20) rig.take(1);
  }
  over = true;
  CHECK(rig.shadow.received.value == 100);
  rig.finish();
  CHECK(rig.table.records().count("large") == 1);
}

TEST_CASE("replication/snapshot: records of one hash that no frame holds together all arrive") {
  SnapshotRig rig;
  for (int i = 0; i < 30; ++i)
    rig.put("c" + std::to_string(i), std::string(2'000, static_cast<char>('a' + i % 26)));
  rig.put_large("c_large", std::string(100'000, 'L'));
  for (int i = 0; i < 50; ++i) rig.turn();
  REQUIRE(rig.connect());
  rig.turn();
  rig.take();
  rig.erase("c29");
  rig.put("c28", "other");
  rig.finish();
}

TEST_CASE("replication/snapshot: cut at each frame, the next one begins anew and is whole") {
  for (int cut = 0; cut < 12; ++cut) {
    SnapshotRig rig;
    rig.fill(300, 300);
    rig.put_large("large", std::string(90'000, 'L'));
    for (int i = 0; i < 20; ++i) rig.turn();
    REQUIRE(rig.connect());
    for (int frame = 0; frame < cut; ++frame) {
      rig.turn();
      rig.put("k" + std::to_string(frame), "again");
      rig.take(1);
    }
    rig.far->close("cut");
    rig.turn();
    rig.turn();
    CHECK(rig.lost.size() == 1);
    REQUIRE(rig.primary->departed());
    rig.erase("k1");
    // The same node has to wait, another one not.
    CHECK(rig.connect({}, 2).error() == ReplicationErrc::peer_busy);
    REQUIRE(rig.connect({}, 3));
    rig.finish();
  }
}

TEST_CASE("replication/snapshot: one at a time, and its buffers are kept until a closed link is drained") {
  SnapshotRig rig;
  rig.fill(500, 300);
  LoopbackOptions slow;
  slow.completes_on_release = true;
  REQUIRE(rig.connect(slow));
  rig.turn();
  const auto first = std::move(rig.far);
  const auto first_wire = rig.wire;
  CHECK(rig.primary->snapshot_wait(3) > Duration{});
  CHECK(rig.connect({}, 3).error() == ReplicationErrc::peer_busy);
  first_wire->polls_to_drain = 3;
  first->close("gone");
  rig.turn();
  CHECK_FALSE(rig.primary->departed());
  CHECK(rig.primary->snapshot_wait(3) > Duration{});
  for (int i = 0; i < 5; ++i) rig.turn();
  CHECK(rig.primary->departed());
  CHECK(rig.primary->snapshot_wait(3) == Duration{});
  REQUIRE(rig.connect({}, 3));
  rig.finish();
}

TEST_CASE("replication/snapshot: the next one waits until no link reads the last ranges of the one before") {
  SnapshotRig rig;
  rig.fill(100, 300);
  LoopbackOptions slow;
  slow.completes_on_release = true;
  REQUIRE(rig.connect(slow));
  for (int i = 0; i < 5; ++i) rig.turn();
  const auto first = std::move(rig.far);
  const auto first_wire = rig.wire;
  const std::uint64_t published = first_wire->written;
  REQUIRE(published > 0);
  Shadow shadow;
  const auto receive = [&] {
    const auto batch = first->receive();
    REQUIRE(batch);
    CHECK_MESSAGE(shadow.take(batch->header, batch->payload), shadow.broken);
  };
  const auto refuses_others = [&] {
    CHECK(rig.primary->snapshot_wait(3) > Duration{});
    CHECK_FALSE(rig.connect({}, 3));
    rig.put("k1", "again");  // a range that was built now would be another
    rig.turn();
  };
  SUBCASE("all have left") {
    refuses_others();
    for (std::uint64_t i = 0; i < published; ++i) {
      receive();
      first->release();
    }
    CHECK(shadow.last_seen);
  }
  SUBCASE("its receiver is whole, and the link is closed but not drained") {
    for (std::uint64_t i = 0; i < published; ++i) receive();
    REQUIRE(shadow.whole());
    ControlFrame frame;
    frame.history = kHistory;
    frame.epoch = kEpoch;
    frame.received_lsn = frame.applied_lsn = shadow.received;
    REQUIRE(first->send_control(frame));
    rig.turn();
    CHECK(rig.primary->replicas() == 1);
    first_wire->polls_to_drain = 5;
    first->close("gone");
    rig.turn();
    REQUIRE_FALSE(rig.primary->departed());
    refuses_others();
    REQUIRE_FALSE(rig.primary->departed());
    for (std::uint64_t i = 0; i < published; ++i) first->release();
    for (int i = 0; i < 5; ++i) rig.turn();
    CHECK(rig.primary->departed());
  }
  rig.turn();
  CHECK(first_wire->overwritten == 0);
  CHECK(rig.primary->snapshot_wait(3) == Duration{});
  REQUIRE(rig.connect({}, 3));
  rig.finish();
}

TEST_CASE(
    "replication/snapshot: a link that needs its buffers until they were released gets four ranges at once") {
  SnapshotRig rig;
  rig.fill(700, 300);
  LoopbackOptions slow;
  slow.completes_on_release = true;
  slow.slots = 16;
  REQUIRE(rig.connect(slow));
  for (int i = 0; i < 20; ++i) rig.turn();
  CHECK(rig.wire->written == 4);
  rig.finish();
}

TEST_CASE("replication/snapshot: who gets one counts as a replica once it has acknowledged all of it") {
  SnapshotRig rig;
  rig.fill(200, 300);
  const Lsn old{150};
  REQUIRE(rig.connect({}, 2, old));
  rig.turn();
  rig.take();
  rig.acknowledge(old);  // what it had before
  rig.turn();
  CHECK(rig.primary->replicas() == 0);
  CHECK(rig.primary->nodes() == 0);
  CHECK(rig.primary->stats().replicas == 0);
  CHECK_FALSE(rig.primary->reached(old, AckLevel::applied));
  CHECK(rig.primary->commit_lsn() == Lsn{0});
  CHECK(rig.lost.empty());
  const Lsn written = rig.put("k1", "again");
  CHECK_FALSE(rig.primary->reached(written, AckLevel::received));
  rig.finish();
  rig.acknowledge(old);
  rig.turn();
  CHECK(rig.primary->replicas() == 0);
  CHECK_FALSE(rig.primary->reached(written, AckLevel::applied));
  rig.acknowledge(rig.shadow.received);
  rig.turn();
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.primary->nodes() == 1);
  CHECK(rig.primary->reached(written, AckLevel::applied));
  CHECK(rig.primary->stats().snapshots_applied == 1);
}

TEST_CASE("replication/snapshot: until it is whole it cannot acknowledge more than its hello said") {
  SnapshotRig rig;
  rig.fill(1'000, 200);
  LoopbackOptions narrow;
  narrow.slots = 1;
  const Lsn old{100};
  REQUIRE(rig.connect(narrow, 2, old));
  const Lsn written = rig.put("k1", "again");
  const auto acknowledge_old = [&] {
    rig.acknowledge(old);
    rig.turn();
    REQUIRE(rig.lost.empty());
  };
  Lsn claimed{};
  SUBCASE("before a range has left: what the primary had") { claimed = Lsn{written.value - 1}; }
  SUBCASE("before a range has left: one more than it had") { claimed = old.next(); }
  SUBCASE("after the first range: that one's") {
    acknowledge_old();
    rig.take();
    REQUIRE(rig.shadow.ranges == 1);
    claimed = written;
  }
  SUBCASE("after the last range: less than makes it whole") {
    acknowledge_old();
    for (int i = 0; i < 10'000 && !rig.shadow.last_seen; ++i) {
      rig.take(1);
      rig.turn();
    }
    REQUIRE(rig.shadow.last_seen);
    claimed = Lsn{rig.shadow.range_lsn - 1};
  }
  rig.acknowledge(claimed);
  rig.turn();
  REQUIRE(rig.lost.size() == 1);
  CHECK(rig.lost[0] == "the replica acknowledges what it was not sent");
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::applied));
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::received));
}

TEST_CASE("replication/snapshot: a turn has one range, of 16 KiB while others write and 64 KiB else") {
  SnapshotRig rig;
  rig.fill(1'000, 200);
  LoopbackOptions wide;
  wide.slots = 64;
  REQUIRE(rig.connect(wide));
  rig.turn();
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t before = rig.primary->stats().ranges;
    rig.put("k1", "again");
    rig.turn();
    CHECK(rig.primary->stats().ranges == before + 1);
  }
  rig.take();
  CHECK(rig.shadow.largest_range <= 16 * 1024);
  CHECK(rig.shadow.largest_range > 8 * 1024);
  rig.finish();
  CHECK(rig.shadow.largest_range <= 64 * 1024);
  CHECK(rig.shadow.largest_range > 16 * 1024);
}

TEST_CASE("replication/snapshot: live entries have precedence, but under constant load it completes") {
  SnapshotRig rig;
  rig.fill(600, 200);
  LoopbackOptions narrow;
  narrow.slots = 1;
  REQUIRE(rig.connect(narrow));
  rig.turn();
  rig.take();
  rig.kinds.clear();
  // The link takes one frame a turn, and there is always a live batch that wants it.
  int turns = 0;
  for (; turns < 20'000 && !rig.shadow.last_seen; ++turns) {
    rig.try_put("k" + std::to_string(turns % 600), std::string(300, 'w'));
    rig.turn();
    rig.take(1);
    rig.advance(milliseconds(5));
    if (turns % 10 == 0) rig.acknowledge(Lsn{});
  }
  CHECK(rig.shadow.last_seen);
  const auto ranges = static_cast<std::size_t>(std::count(rig.kinds.begin(), rig.kinds.end(), 'r'));
  CHECK(ranges > 0);
  CHECK(rig.kinds.size() - ranges > ranges);
  rig.finish();
}

TEST_CASE("replication/snapshot: behind by most of the log all the time, it has its share of the bytes") {
  SnapshotRig rig;
  rig.fill(600, 200);
  LoopbackOptions narrow;
  narrow.slots = 1;
  REQUIRE(rig.connect(narrow));
  rig.turn();
  rig.take();
  REQUIRE(rig.shadow.ranges == 1);
  // The log is full before every turn, the link takes one frame in each, and the clock stands still.
  int written = 0;
  for (int turns = 0; turns < 5'000 && !rig.shadow.last_seen; ++turns) {
    while (rig.try_put("k" + std::to_string(written % 600), std::string(500, 'w'))) ++written;
    rig.turn();
    rig.take(1);
  }
  REQUIRE(rig.shadow.last_seen);
  const PrimaryStats& stats = rig.primary->stats();
  CHECK(stats.ranges > 10);
  CHECK(stats.ranges <= 1 + stats.batch_bytes / (64 << 10));
  rig.finish();
}

TEST_CASE("replication/snapshot: with c, too, who takes all that it is given is not dropped for a full log") {
  PrimaryOptions options = SnapshotRig::small();
  options.c = 0;
  SnapshotRig rig(options);
  rig.fill(100, 1'000);
  REQUIRE(rig.connect());
  rig.turn();
  REQUIRE(rig.take() > 0);
  constexpr int kWrites = 600;  // more than twice the log
  int written = 0;
  REQUIRE(rig.side.reactor->spawn_detached("writer", [&] {
    for (; written < kWrites; ++written) {
      const std::string key = "w" + std::to_string(written);
      const std::string value(1'000, 'w');
      const auto bytes = entry_bytes(EntryKind::put, key.size(), value.size());
      if (!rig.primary->wait_for_room(bytes, Instant::never())) break;
      rig.put(key, value);
    }
  }));
  for (int i = 0; i < 10'000 && written < kWrites; ++i) {
    rig.turn();
    rig.take();
  }
  CHECK(written == kWrites);
  CHECK(rig.primary->stats().log_full_waits > 0);
  CHECK(rig.lost.empty());
  rig.finish();
}

TEST_CASE("replication/snapshot: while the link is full nothing is built for it") {
  SnapshotRig rig;
  rig.fill(1'000, 200);
  REQUIRE(rig.connect());
  for (int i = 0; i < 20; ++i) rig.turn();
  const std::uint64_t walks = rig.table.walks;
  for (int i = 0; i < 20; ++i) rig.turn();
  CHECK(rig.table.walks == walks);
  rig.finish();
}

TEST_CASE("replication/snapshot: a node's second in ten minutes waits 30 s, each after it twice as long") {
  SnapshotBackOff back_off;
  Instant now{1'000'000'000};
  CHECK(back_off.left(7, now) == Duration{});
  for (const int wait : {30, 60, 120, 240, 480, 600, 600}) {
    back_off.began(7, now);
    CHECK(back_off.left(7, now) == seconds(wait));
    CHECK(back_off.left(8, now) == Duration{});
    now = now + seconds(wait);
    CHECK(back_off.left(7, now) == Duration{});
  }
  now = now + seconds(600);
  back_off.began(7, now);  // 20 minutes after the last one: forgotten
  CHECK(back_off.left(7, now) == seconds(30));
  // Made-up node numbers do not pile up: the oldest is forgotten first.
  for (std::uint32_t node = 100; node < 100 + 2 * SnapshotBackOff::kNodesMax; ++node) {
    back_off.began(node, now + milliseconds(node));
  }
  CHECK(back_off.left(7, now) == Duration{});
  CHECK(back_off.left(99 + 2 * SnapshotBackOff::kNodesMax, now) > Duration{});
}

TEST_CASE("replication/snapshot: a drop that the primary decided on makes the next wait no longer") {
  SnapshotBackOff back_off;
  Instant now{1'000'000'000};
  back_off.began(7, now);
  back_off.excuse(7);
  back_off.excuse(8);  // is not known: nothing
  CHECK(back_off.left(7, now) == seconds(30));
  now = now + seconds(30);
  back_off.began(7, now);
  CHECK(back_off.left(7, now) == seconds(30));
  // It counts for one only.
  now = now + seconds(30);
  back_off.began(7, now);
  CHECK(back_off.left(7, now) == seconds(60));
}

TEST_CASE("replication/snapshot: while fewer than c are there a node's next one may begin at once") {
  PrimaryOptions options = SnapshotRig::small();
  options.c = 1;
  SnapshotRig rig(options);
  const auto other_wire =
      std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{77}, ShardId{}}, LoopbackOptions{});
  REQUIRE(rig.primary->attach(std::make_unique<LoopbackLink>(other_wire, NodeRole::primary, rig.side.clock),
                              3, {}));
  LoopbackLink other(other_wire, NodeRole::replica, rig.side.clock);
  rig.put("a", "1");
  REQUIRE(rig.connect());
  rig.turn();
  rig.far->close("broken amid it");
  for (int i = 0; i < 3; ++i) rig.turn();
  // One counts. Expect: the other one's second waits.
  REQUIRE(rig.primary->nodes() == 1);
  CHECK(rig.primary->snapshot_wait(2) == seconds(30));
  CHECK(rig.connect().error() == ReplicationErrc::peer_busy);
  // None does: writes are refused until it has its snapshot.
  other.close("gone");
  for (int i = 0; i < 3; ++i) rig.turn();
  REQUIRE(rig.primary->nodes() == 0);
  CHECK(rig.primary->snapshot_wait(2) == Duration{});
  CHECK(rig.connect());
}

TEST_CASE(
    "replication/snapshot: who is slow to take one holds writers up for link_timeout in all, then goes") {
  PrimaryOptions options = SnapshotRig::small();
  SUBCASE("without c") {}
  SUBCASE("with c, none of it missing") { options.c = 0; }
  SnapshotRig rig(options);
  rig.fill(20'000, 200);
  LoopbackOptions late;
  late.completes_on_release = true;
  late.slots = 2;
  REQUIRE(rig.connect(late));
  bool writing = true;
  int written = 0;
  REQUIRE(rig.side.reactor->spawn_detached("writer", [&] {
    for (; writing; ++written) {
      const std::string key = "w" + std::to_string(written % 50);
      const std::string value(8'000, 'w');
      const auto bytes = entry_bytes(EntryKind::put, key.size(), value.size());
      if (!rig.primary->wait_for_room(bytes, rig.side.clock.now() + seconds(600))) break;
      rig.put(key, value);
      static_cast<void>(this_fiber::yield());
    }
  }));
  Duration passed{};
  for (; rig.lost.empty() && passed < seconds(60); passed = passed + milliseconds(50)) {
    rig.take(1);
    if (rig.far->state() == LinkState::ready) rig.acknowledge(Lsn{});
    rig.turn();
    rig.advance(milliseconds(50));
  }
  REQUIRE(rig.lost.size() == 1);
  const bool true_reason = rig.lost[0].find("held writers up for 3") != std::string::npos;
  CHECK_MESSAGE(true_reason, rig.lost[0]);
  CHECK(passed >= seconds(3));
  CHECK(passed <= seconds(10));
  CHECK(rig.primary->stats().backlog_drops == 1);
  // Expect: nobody holds them up any more, and the next snapshot waits no longer for it than the one before.
  const int before = written;
  for (int i = 0; i < 100; ++i) rig.turn();
  CHECK(written >= before + 90);
  writing = false;
  rig.turn();
  rig.advance(seconds(30));
  rig.turn();
  const Status again = rig.connect();
  REQUIRE_MESSAGE(again, again.error().message());
  CHECK(rig.primary->snapshot_wait(2) == seconds(30));
}

TEST_CASE("replication/snapshot: a replica is counted when the primary says so, whatever is committed") {
  PrimaryOptions options = SnapshotRig::small();
  options.c = 0;  // all that is appended is committed
  SnapshotRig rig(options);
  rig.fill(1'000, 200);
  Rig replica_side;
  ShadowApplier served;
  ReplicaOptions replica_options;
  replica_options.snapshot = &served;
  auto made = Replica::create(*replica_side.reactor, served, replica_options);
  REQUIRE(made);
  const std::unique_ptr<Replica> replica = *std::move(made);
  CHECK_FALSE(replica->counted());
  const auto wire =
      std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{1}, ShardId{}}, LoopbackOptions{});
  wire->hold_controls = true;
  REQUIRE(replica->attach(std::make_unique<LoopbackLink>(wire, NodeRole::replica, replica_side.clock),
                          kHistory, kEpoch));
  REQUIRE(rig.primary->attach_snapshot(
      std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.side.clock), 2, {}));
  const auto turns = [&](int count) {
    for (int i = 0; i < count; ++i) {
      rig.turn();
      replica_side.reactor->turn();
    }
  };
  turns(100);
  // 1. It has it all, and what it says of that is held back.
  CHECK(replica->stats().snapshots == 1);
  CHECK(replica->stats().commit_lsn == rig.primary->last_lsn().value);
  CHECK(rig.primary->replicas() == 0);
  CHECK_FALSE(replica->counted());
  // 2. It is heard. Expect: told in the same turn.
  wire->hold_controls = false;
  replica_side.clock.advance(milliseconds(100));
  replica_side.reactor->turn();
  turns(1);
  CHECK(rig.primary->replicas() == 1);
  CHECK(replica->counted());
  // 3. Its link goes.
  replica->close("the test is over");
  CHECK_FALSE(replica->counted());
  rig.primary->close("the test is over");
  replica_side.end();
}

TEST_CASE(
    "replication/snapshot: a node that falls behind again and again gets one full sync in thirty seconds") {
  SnapshotRig rig;
  rig.fill(100, 100);
  int snapshots = 0;
  for (int second = 0; second < 30; ++second) {
    if (rig.connect()) {
      ++snapshots;
      rig.finish();
      rig.far->close("behind again");
      for (int i = 0; i < 3; ++i) rig.turn();
    }
    rig.advance(milliseconds(999));
    rig.turn();
  }
  CHECK(snapshots == 1);
  rig.advance(seconds(1));
  rig.turn();
  const Status again = rig.connect();
  CHECK_MESSAGE(again, again.error().message());
}

TEST_CASE("replication/snapshot: who speaks but takes no range, or never says that it is whole, is dropped") {
  SnapshotRig rig;
  rig.fill(1'000, 200);
  LoopbackOptions options;
  bool takes = false;
  std::string reason = "the replica took nothing for 3000 ms although there is something to take";
  SUBCASE("the link takes no more") { options.slots = 1; }
  SUBCASE("all buffers are on their way") { options.completes_on_release = true; }
  SUBCASE("it takes all") {
    takes = true;
    reason = "the replica had a whole snapshot for 3000 ms and did not acknowledge it";
  }
  SUBCASE("it takes all, while others write") {
    takes = true;
    options.completes_on_release = true;
    options.slots = 3;
    reason = "the replica had a whole snapshot for 3000 ms and did not acknowledge it";
  }
  REQUIRE(rig.connect(options));
  for (int i = 0; i < 200 && rig.lost.empty(); ++i) {
    if (options.slots == 3) rig.try_put("k1", "again");
    rig.acknowledge(Lsn{});
    rig.turn();
    // One frame stays on its way, if there is one.
    if (takes && rig.wire->flushed > rig.wire->received) {
      rig.take(options.slots == 3 ? static_cast<int>(rig.wire->flushed - rig.wire->received) - 1 : 1'000'000);
    }
    rig.advance(milliseconds(40));
  }
  REQUIRE(rig.lost.size() == 1);
  CHECK(rig.lost[0] == reason);
  for (int i = 0; i < 3; ++i) rig.turn();
  CHECK(rig.primary->snapshot_wait(3) == Duration{});
  REQUIRE(rig.connect({}, 3));
  rig.finish();
}

TEST_CASE("replication/snapshot: who is slow, or has nothing to take yet, is not dropped") {
  SnapshotRig rig;
  const auto pass = [&](int seconds_in_all) {
    for (int i = 0; i < seconds_in_all * 10; ++i) {
      rig.acknowledge(Lsn{});
      rig.turn();
      rig.advance(milliseconds(100));
    }
  };
  SUBCASE("the log is empty") {
    REQUIRE(rig.connect());
    pass(10);
    CHECK(rig.kinds.empty());
    rig.put("a", "1");
  }
  SUBCASE("a frame every two seconds") {
    rig.fill(1'000, 200);
    LoopbackOptions narrow;
    narrow.slots = 1;
    REQUIRE(rig.connect(narrow));
    for (int i = 0; i < 100 && !rig.shadow.whole(); ++i) {
      pass(2);
      rig.take(1);
    }
  }
  rig.finish();
  rig.acknowledge(rig.shadow.received);
  rig.turn();
  CHECK(rig.lost.empty());
  CHECK(rig.primary->replicas() == 1);
}

TEST_CASE("replication/snapshot: the door offers one to whom the log no longer reaches, and who takes it") {
  SnapshotRig rig;
  rig.fill(600, 500);
  REQUIRE(rig.primary->log().first_lsn() > Lsn{1});
  Admission door(*rig.side.reactor, *rig.primary, {4 << 20, kValueBytesMax});
  Hello theirs;
  theirs.role = NodeRole::replica;
  theirs.node = 2;
  theirs.shard_count = 1;
  const auto refusal_of = [&] {
    const Verdict verdict = door.judge(theirs);
    return std::holds_alternative<Refusal>(verdict) ? std::get<Refusal>(verdict) : Refusal{};
  };
  // 1. It takes none. Expect: as ever.
  CHECK(refusal_of().reason == RefusalReason::behind_log);
  // 2. It takes one. Expect: it is told that one comes; who is within the log is told that none does.
  theirs.flags.snapshot = true;
  Verdict verdict = door.judge(theirs);
  REQUIRE(std::holds_alternative<Hello>(verdict));
  CHECK(std::get<Hello>(verdict).flags.snapshot);
  Hello near = theirs;
  near.history = kHistory;
  near.last_lsn = {590};
  const Verdict follows = door.judge(near);
  REQUIRE(std::holds_alternative<Hello>(follows));
  CHECK_FALSE(std::get<Hello>(follows).flags.snapshot);
  // 3. The link comes. Expect: a snapshot; for others busy meanwhile, for itself for 30 s.
  rig.wire = std::make_shared<LoopbackWire>(FrameContext{kHistory, {1}, {}}, LoopbackOptions{});
  rig.far = std::make_unique<LoopbackLink>(rig.wire, NodeRole::replica, rig.side.clock);
  REQUIRE(door.attach(std::make_unique<LoopbackLink>(rig.wire, NodeRole::primary, rig.side.clock), theirs,
                      std::get<Hello>(verdict)));
  CHECK(refusal_of().reason == RefusalReason::busy);
  CHECK(refusal_of().ours == 30'000);
  theirs.node = 3;
  CHECK(refusal_of().reason == RefusalReason::busy);
  rig.finish();
  rig.acknowledge(rig.shadow.received);
  rig.turn();
  CHECK(refusal_of().reason == RefusalReason::none);
  CHECK(rig.primary->replicas() == 1);
}

TEST_CASE("replication/snapshot: a primary without a table sends none") {
  StreamRig rig;
  CHECK_FALSE(rig.primary->sends_snapshots());
  const auto wire = std::make_shared<LoopbackWire>(FrameContext{kHistory, {9}, {}}, LoopbackOptions{});
  auto link = std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.primary_side.clock);
  CHECK(rig.primary->attach_snapshot(std::move(link), 2, {}).error() == ReplicationErrc::gap);
  CHECK(wire->primary_closed);
}

TEST_CASE("replication/snapshot: whatever is written between its frames, both ends have the same") {
  std::uint64_t voids = 0;
  std::uint64_t overtakes = 0;
  const std::uint64_t seeds = kSanitized ? 15 : 60;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SnapshotRig rig;
    const auto some_key = [&] {
      const std::string number = std::to_string(random.below(80));
      return std::string(random.below(8) == 0 ? "c" : "k") + number;
    };
    const auto some_value = [&](std::uint64_t below) {
      return std::string(random.below(below), static_cast<char>('a' + random.below(26)));
    };
    const auto write = [&] {
      const std::uint64_t what = random.below(20);
      if (what < 5) return static_cast<void>(rig.try_erase(some_key()));
      if (what == 5 && rig.large_puts == 0) return rig.put_large(some_key(), some_value(120'000));
      static_cast<void>(rig.try_put(some_key(), some_value(what < 8 ? 30'000 : 500)));
    };
    for (int i = 0; i < 150; ++i) {
      write();
      rig.turn();
    }
    LoopbackOptions options;
    options.slots = static_cast<std::uint32_t>(1 + random.below(6));
    options.completes_on_release = random.below(2) == 0;
    REQUIRE(rig.connect(options));
    for (int i = 0; i < 3'000 && !rig.shadow.whole(); ++i) {
      if (random.below(3) != 0) write();
      if (random.below(3) != 0) rig.turn();
      rig.take(static_cast<int>(random.below(3)));
      if (random.below(8) == 0) rig.advance(milliseconds(30));
      if (random.below(8) == 0) rig.acknowledge(Lsn{});
    }
    rig.finish();
    voids += rig.shadow.voids;
    overtakes += rig.shadow.overtakes;
  }
  CHECK(voids > 0);
  CHECK(overtakes > 0);
}

TEST_CASE("replication/snapshot: a replica that the log no longer reaches gets one, and then the stream") {
  std::uint64_t swaps = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    SnapshotRig rig;
    Rig replica_side;
    ShadowApplier served;
    ReplicaOptions options;
    options.snapshot = &served;
    auto made = Replica::create(*replica_side.reactor, served, options);
    REQUIRE(made);
    const std::unique_ptr<Replica> replica = *std::move(made);
    const auto write = [&] {
      const std::string key = "k" + std::to_string(random.below(100));
      const std::string value(random.below(random.below(6) == 0 ? 30'000 : 300), 'v');
      if (random.below(4) == 0) return static_cast<void>(rig.try_erase(key));
      if (random.below(60) == 0 && rig.large_puts == 0) return rig.put_large(key, std::string(90'000, 'L'));
      static_cast<void>(rig.try_put(key, value));
    };
    const auto turn_both = [&] {
      rig.turn();
      replica_side.reactor->turn();
    };
    const auto attach = [&](bool snapshot) {
      const FrameContext context{kHistory, Generation{++rig.generation}, ShardId{}};
      const auto wire = std::make_shared<LoopbackWire>(context, LoopbackOptions{});
      REQUIRE(replica->attach(std::make_unique<LoopbackLink>(wire, NodeRole::replica, replica_side.clock),
                              kHistory, kEpoch));
      auto near = std::make_unique<LoopbackLink>(wire, NodeRole::primary, rig.side.clock);
      const Status attached = snapshot
                                  ? rig.primary->attach_snapshot(std::move(near), 2, replica->applied_lsn())
                                  : rig.primary->attach(std::move(near), 2, replica->applied_lsn());
      REQUIRE(attached);
    };
    // 1. It follows from the start, and goes.
    attach(false);
    for (int i = 0; i < 30; ++i) {
      write();
      turn_both();
    }
    for (int i = 0; i < 20; ++i) turn_both();
    const Lsn old = replica->applied_lsn();
    const ShadowApplier::Map old_map = served.map;
    REQUIRE(old > Lsn{});
    replica->close("gone for a while");
    for (int i = 0; i < 3; ++i) rig.turn();
    // 2. What it lacks is no longer in the log.
    while (rig.primary->log().first_lsn() <= old.next()) {
      write();
      rig.turn();
    }
    // 3. A snapshot, while others write. Expect: until it is whole the old state, then that of the primary.
    attach(true);
    for (int i = 0; i < 400 && replica->stats().snapshots == 0; ++i) {
      if (random.below(2) == 0) write();
      turn_both();
      const bool swapped = replica->stats().snapshots > 0;
      if (!swapped) CHECK(served.map == old_map);
      CHECK(rig.primary->replicas() <= (swapped ? 1 : 0));
    }
    for (int i = 0; i < 100 || rig.large_puts > 0; ++i) turn_both();
    CHECK(replica->applied_lsn() == rig.primary->last_lsn());
    CHECK(rig.primary->replicas() == 1);
    CHECK(rig.primary->commit_lsn() == rig.primary->last_lsn());
    Records records;
    for (const auto& [key, record] : served.map) records[key] = {record.value, record.lsn};
    CHECK(records == rig.table.records());
    swaps += served.swapped_at.size();
    rig.primary->close("the test is over");
    replica->close("the test is over");
    replica_side.end();
  }
  CHECK(swaps == 20);
}
