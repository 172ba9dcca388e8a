// A replica that gets a snapshot, whose sender the test plays frame by frame.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "played_sender.h"
#include "reactor/null_io.h"
#include "shadow_applier.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

using Sent = PlayedSender;

struct SyncRig {
  explicit SyncRig(bool takes_snapshots = true) {
    ReplicaOptions options;
    options.snapshot = takes_snapshots ? &table : nullptr;
    auto made = Replica::create(*side.reactor, table, options);
    REQUIRE(made);
    replica = *std::move(made);
    replica->on_link_lost([this](const std::string& reason) { lost.push_back(reason); });
  }
  ~SyncRig() { side.end(); }

  void connect() { REQUIRE(replica->attach(primary.link(), kPlayedHistory, kPlayedEpoch)); }
  /// What the replica says that it has: received and applied, which are the same in all these tests.
  std::uint64_t acknowledged() {
    side.clock.advance(milliseconds(60));
    side.reactor->turn();
    const auto frame = primary.near->receive_control();
    REQUIRE(frame);
    CHECK(frame->received_lsn == frame->applied_lsn);
    return frame->applied_lsn.value;
  }
  void check_lost(const std::string& why) {
    CHECK_FALSE(replica->connected());
    REQUIRE_FALSE(lost.empty());
    CHECK_MESSAGE(lost.back().find(why) != std::string::npos, lost.back());
    lost.clear();
  }

  Rig side;
  PlayedSender primary{*side.reactor, side.clock};
  ShadowApplier table;
  std::unique_ptr<Replica> replica;
  std::vector<std::string> lost;
};

/// Served: a = 1 and b = 2, up to LSN 2. Under way: a snapshot of LSN 10, up to hash 100, and live 11.
struct HalfSynced : SyncRig {
  HalfSynced() {
    connect();
    primary.live({Sent::entry(EntryKind::put, 1, "a", "1"), Sent::entry(EntryKind::put, 2, "b", "2")});
    primary.hang_up();
    lost.clear();
    served = table.map;
    connect();
    primary.range(0, 100, 10, {Sent::record(4, "a", "4"), Sent::record(9, "c", "9")});
    primary.live_put(11, "d", "11");
  }
  ShadowApplier::Map served;
};

}  // namespace

TEST_SUITE("replication/snapshot") {
  TEST_CASE("replication/snapshot: what was there is served and acknowledged until one turn brings the new") {
    HalfSynced rig;
    bool woken = false;
    REQUIRE(rig.side.reactor->spawn_detached("waiter", [&] {
      CHECK(rig.replica->wait_applied({8}, Instant::never()));
      woken = true;
      CHECK(rig.table.map.count("c") == 1);
    }));
    CHECK(rig.acknowledged() == 2);
    CHECK(rig.table.map == rig.served);
    CHECK(rig.replica->stats().syncing == 1);
    CHECK(rig.replica->stats().received_lsn == 2);
    // The last range knows of LSN 12, which the stream has not brought yet.
    rig.primary.range(100, 0, 12, {Sent::record(12, "e", "12")});
    CHECK(rig.acknowledged() == 2);
    CHECK(rig.replica->applied_lsn() == Lsn{2});
    CHECK(rig.table.map == rig.served);
    CHECK_FALSE(woken);
    // Expect: with it the snapshot is whole.
    rig.primary.live_put(12, "e", "12");
    CHECK(rig.acknowledged() == 12);
    CHECK(woken);
    CHECK(rig.table.map ==
          ShadowApplier::Map{{"a", {"4", 4}}, {"c", {"9", 9}}, {"d", {"11", 11}}, {"e", {"12", 12}}});
    CHECK(rig.replica->stats().syncing == 0);
    CHECK(rig.replica->stats().snapshots == 1);
    CHECK(rig.replica->stats().snapshots_broken == 0);
    // And the stream goes on, to readers at once.
    rig.primary.live_put(13, "a", "13");
    CHECK(rig.table.map["a"].value == "13");
    CHECK(rig.acknowledged() == 13);
    CHECK(rig.replica->connected());
  }

  TEST_CASE("replication/snapshot: an empty replica takes one, and an empty table makes one") {
    SyncRig rig;
    rig.connect();
    SUBCASE("of nothing, at LSN 7") {
      rig.primary.range(0, 0, 7, {});
      CHECK(rig.table.map.empty());
    }
    SUBCASE("of one record") {
      rig.primary.range(0, 5, 7, {Sent::record(6, "k", "6")});
      rig.primary.range(5, 0, 7, {});
      CHECK(rig.table.map.size() == 1);
    }
    CHECK(rig.table.swapped_at == std::vector<std::uint64_t>{7});
    CHECK(rig.acknowledged() == 7);
  }

  TEST_CASE("replication/snapshot: a live put in pieces goes on across the swap") {
    HalfSynced rig;
    const std::string whole = "lvalue of a live put";
    rig.primary.live({Sent::piece(12, whole, 0, 5, kPlayedEpoch)});
    rig.primary.range(100, 0, 11, {Sent::piece(8, "rvalue of a record", 0, 18)});
    CHECK(rig.table.swapped_at == std::vector<std::uint64_t>{11});
    CHECK(rig.table.map.count("l") == 0);
    rig.primary.live({Sent::piece(12, whole, 5, 15, kPlayedEpoch)});
    CHECK(rig.table.map["l"] == ShadowApplier::Record{"value of a live put", 12});
    CHECK(rig.table.map["r"] == ShadowApplier::Record{"value of a record", 8});
    CHECK(rig.acknowledged() == 12);
  }

  TEST_CASE("replication/snapshot: a link that breaks leaves what was served, and the next begins anew") {
    struct Break {
      const char* why;
      void (*happen)(HalfSynced& rig);
    };
    const std::array<Break, 7> breaks = {{
        {"closed by the peer", [](HalfSynced& rig) { rig.primary.hang_up(); }},
        {"closed by the peer",
         [](HalfSynced& rig) {
           rig.primary.range(100, 100, 11, {Sent::piece(5, "xvalue", 0, 3)});
           rig.primary.live({Sent::piece(12, "yvalue", 0, 3, kPlayedEpoch)});
           rig.primary.hang_up();
         }},
        {"a range from hash 101", [](HalfSynced& rig) { rig.primary.range(101, 0, 11, {}); }},
        {"wrote later", [](HalfSynced& rig) { rig.primary.range(100, 0, 10, {}); }},
        {"LSN 13 after 11", [](HalfSynced& rig) { rig.primary.live_put(13, "x", "y"); }},
        {"CRC",
         [](HalfSynced& rig) {
           rig.primary.wire->tamper = [](std::vector<std::byte>& batch) { batch.back() ^= std::byte{1}; };
           rig.primary.range(100, 0, 11, {Sent::record(3, "x", "y")});
         }},
        {"of a snapshot: the shadow has no memory",
         [](HalfSynced& rig) {
           rig.table.records_max = 4;
           rig.primary.range(100, 200, 11, {Sent::record(3, "x", "y"), Sent::record(4, "z", "y")});
         }},
    }};
    for (const Break& broken : breaks) {
      for (const bool by_snapshot : {true, false}) {
        CAPTURE(broken.why);
        HalfSynced rig;
        broken.happen(rig);
        rig.check_lost(broken.why);
        CHECK(rig.table.map == rig.served);
        CHECK(rig.table.dropped == 1);
        CHECK(rig.replica->applied_lsn() == Lsn{2});
        CHECK(rig.replica->stats().received_lsn == 2);
        CHECK(rig.replica->stats().snapshots_broken == 1);
        CHECK(rig.replica->stats().syncing == 0);
        rig.table.records_max = 100;
        rig.connect();
        if (by_snapshot) {
          rig.primary.range(0, 50, 20, {Sent::record(20, "n", "20")});
          rig.primary.range(50, 0, 20, {});
          CHECK(rig.table.map == ShadowApplier::Map{{"n", {"20", 20}}});
          CHECK(rig.acknowledged() == 20);
        } else {  // the log of another primary may reach back after all
          rig.primary.live({Sent::entry(EntryKind::erase, 3, "a", "")});
          CHECK(rig.table.map == ShadowApplier::Map{{"b", {"2", 2}}});
          CHECK(rig.acknowledged() == 3);
        }
      }
    }
  }

  TEST_CASE("replication/snapshot: only as the first that a link brings, and not older than what is served") {
    HalfSynced rig;
    rig.primary.hang_up();
    rig.connect();
    SUBCASE("amid a stream") {
      rig.primary.live_put(3, "c", "3");
      rig.primary.range(0, 10, 10, {});
      rig.check_lost("a range amid a stream");
      CHECK(rig.replica->applied_lsn() == Lsn{3});
    }
    SUBCASE("for a second time") {
      rig.primary.range(0, 5, 10, {});
      rig.primary.range(5, 0, 10, {});
      rig.primary.range(0, 5, 11, {});
      rig.check_lost("a range amid a stream");
      CHECK(rig.replica->applied_lsn() == Lsn{10});
    }
    SUBCASE("older") {
      rig.primary.range(0, 10, 1, {});
      rig.check_lost("a snapshot of LSN 1");
      CHECK(rig.table.map == rig.served);
    }
    SUBCASE("by a replica without memory for it") {
      rig.table.refuse = true;
      rig.primary.range(0, 10, 10, {});
      rig.check_lost("no memory for a shadow");
      CHECK(rig.table.map == rig.served);
    }
  }

  TEST_CASE("replication/snapshot: a replica that takes none says so") {
    SyncRig rig(false);
    rig.connect();
    rig.primary.range(0, 10, 10, {});
    rig.check_lost("a snapshot, and none is taken here");
  }
}
