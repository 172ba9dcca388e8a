// A replica that keeps the log, as the nodes of a group do; its primary is played frame by frame.
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/group_log.h>

#include "played_sender.h"
#include "reactor/null_io.h"
#include "shadow_applier.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

using Frames = PlayedSender;

constexpr Epoch kLaterEpoch{4, 2};

EntryView no_op_at(std::uint64_t lsn, Epoch epoch = kPlayedEpoch) {
  return Frames::entry(EntryKind::noop, lsn, {}, {}, epoch);
}
EntryView put_at(std::uint64_t lsn, std::string_view key, std::string_view value,
                 Epoch epoch = kPlayedEpoch) {
  return Frames::entry(EntryKind::put, lsn, key, value, epoch);
}
EntryView grouped_at(std::uint64_t lsn, std::string_view key, std::string_view value) {
  EntryView made = put_at(lsn, key, value);
  made.group_continues = true;
  return made;
}

std::string bytes_of_entry(const EntryView& entry) {
  std::string bytes(entry_bytes(entry.kind, entry.key.size(), entry.value.size()), '\0');
  encode_entry(entry, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

struct KeepingRig {
  KeepingRig() {
    auto log = Log::create(64 * 1024);
    REQUIRE(log);
    kept = std::make_unique<GroupLog>(*std::move(log));
    ReplicaOptions options;
    options.snapshot = &table;
    options.group = kept.get();
    auto made = Replica::create(*side.reactor, table, options);
    REQUIRE(made);
    replica = *std::move(made);
    replica->on_link_lost([this](const std::string& reason) { lost.push_back(reason); });
  }
  ~KeepingRig() { side.end(); }

  /// The hello's epoch is what the frames have.
  Status connect(bool snapshot_comes = false) {
    return replica->attach(primary.link(), kPlayedHistory, primary.epoch, snapshot_comes);
  }
  /// The no-op of the first epoch, with LSN 1.
  void begin() {
    REQUIRE(connect());
    primary.live({no_op_at(1)});
  }
  /// By a primary of a later epoch.
  Status follow_next(bool snapshot_comes = false) {
    primary.hang_up();
    lost.clear();
    primary.epoch = kLaterEpoch;
    return connect(snapshot_comes);
  }
  ControlFrame acknowledged() {
    side.clock.advance(milliseconds(60));
    side.reactor->turn();
    const auto frame = primary.near->receive_control();
    REQUIRE(frame);
    return *frame;
  }
  void check_lost(const std::string& why) {
    CHECK_FALSE(replica->connected());
    REQUIRE_FALSE(lost.empty());
    CHECK_MESSAGE(lost.back().find(why) != std::string::npos, lost.back());
    lost.clear();
  }
  /// Entries of the log, from the first that is whole.
  std::string log_bytes() const {
    const Log& log = kept->log();
    std::string bytes;
    for (std::uint64_t at = log.begin();;) {
      const Log::Run run = log.run_at(at, 64 * 1024);
      if (run.entries == 0) return bytes;
      bytes += as_text(run.bytes);
      at = run.next;
    }
  }
  void wait(bool committed, Epoch epoch, std::uint64_t lsn, Status& result, bool& ended) {
    REQUIRE(side.reactor->spawn_detached("reader", [this, committed, epoch, lsn, &result, &ended] {
      result = committed ? kept->wait_committed(epoch, {lsn}, Instant::never())
                         : kept->wait_visible(epoch, {lsn}, Instant::never());
      ended = true;
    }));
    side.reactor->turn();
  }

  Rig side;
  PlayedSender primary{*side.reactor, side.clock};
  ShadowApplier table;
  std::unique_ptr<GroupLog> kept;
  std::unique_ptr<Replica> replica;
  std::vector<std::string> lost;
};

}  // namespace

TEST_SUITE("replication/replica") {
  TEST_CASE("replication/replica: what it has applied is in its log as it came, over many laps") {
    KeepingRig rig;
    rig.begin();
    std::string sent = bytes_of_entry(no_op_at(1));
    std::uint64_t lsn = 1;
    // Sizes that hit the ring's end at ever other places, and batches larger than what fits at once.
    for (std::size_t round = 0; round < 60; ++round) {
      std::vector<std::string> values;
      std::vector<EntryView> batch;
      const std::size_t entries = round % 10 == 9 ? 3 : 1 + round % 5;
      values.reserve(entries);
      for (std::size_t i = 0; i < entries; ++i) {
        values.emplace_back(round % 10 == 9 ? 20'000 : 300 + (round % 3 == 0 ? 97 : 997) * i + 41 * round,
                            static_cast<char>('a' + lsn % 26));
        batch.push_back(put_at(++lsn, "k", values.back()));
        batch.back().group_continues = round % 3 == 0 && i + 1 < entries && round % 10 != 9;
        sent += bytes_of_entry(batch.back());
      }
      rig.primary.live(batch);
      REQUIRE(rig.replica->connected());
      CHECK(rig.kept->last_lsn() == Lsn{lsn});
      CHECK(rig.replica->applied_lsn() == Lsn{lsn});
      const std::string kept = rig.log_bytes();
      CHECK(sent.ends_with(kept));
      CHECK(kept.size() > 10'000 * std::min<std::size_t>(round / 10, 1));
    }
    CHECK(rig.kept->log().end() > 4 * rig.kept->log().capacity());
    CHECK(rig.kept->log().first_lsn() > Lsn{2});
    CHECK(rig.table.map["k"].lsn == lsn);
    // And where any of them stands is known.
    CHECK(rig.kept->log().position_after({lsn - 1}));
  }

  TEST_CASE("replication/replica: the log's end moves with what was applied, and with nothing else") {
    KeepingRig rig;
    rig.begin();
    std::string good = bytes_of_entry(no_op_at(1));
    std::string why;
    SUBCASE("a wrong CRC in the last entry") {
      rig.primary.wire->tamper = [](std::vector<std::byte>& batch) { batch.back() ^= std::byte{1}; };
      rig.primary.live({put_at(2, "a", "2"), put_at(3, "b", "3")});
      good += bytes_of_entry(put_at(2, "a", "2"));
      why = "CRC";
    }
    SUBCASE("a wrong CRC in the last entry of a group") {
      rig.primary.wire->tamper = [](std::vector<std::byte>& batch) { batch.back() ^= std::byte{1}; };
      rig.primary.live({put_at(2, "a", "2"), grouped_at(3, "x", "3"), put_at(4, "x", "4")});
      good += bytes_of_entry(put_at(2, "a", "2"));
      why = "CRC";
    }
    SUBCASE("a frame that ends within a group") {
      rig.primary.live({put_at(2, "a", "2"), grouped_at(3, "x", "3")});
      good += bytes_of_entry(put_at(2, "a", "2"));
      why = "ends within a group";
    }
    SUBCASE("a group that is larger than a quarter of the log") {
      const std::string large(9'000, 'v');
      rig.primary.live({grouped_at(2, "x", large), put_at(3, "x", large)});
      why = "a group of more than 16384 bytes";
    }
    SUBCASE("an LSN for a second time") {
      rig.primary.live({put_at(2, "a", "2"), put_at(2, "x", "3")});
      good += bytes_of_entry(put_at(2, "a", "2"));
      why = "LSN 2 after 2";
    }
    SUBCASE("a table without memory for one entry") {
      rig.table.entries_left = 0;
      rig.primary.live({put_at(2, "x", "2")});
      why = "no memory";
      CHECK_FALSE(rig.kept->spoiled());
    }
    rig.check_lost(why);
    CHECK(rig.log_bytes() == good);
    CHECK(rig.table.map.count("x") == 0);
    // It goes on from there.
    rig.table.entries_left = 100;
    const std::uint64_t next = rig.kept->last_lsn().value + 1;
    REQUIRE(rig.connect());
    rig.primary.live({put_at(next, "y", "y")});
    CHECK(rig.log_bytes() == good + bytes_of_entry(put_at(next, "y", "y")));
    CHECK(rig.acknowledged().applied_lsn == Lsn{next});
  }

  TEST_CASE("replication/replica: the pieces of a put that broke off are cut, and come again") {
    KeepingRig rig;
    rig.begin();
    const std::string whole = "kvalue in pieces";
    const std::uint64_t end = rig.kept->log().end();
    rig.primary.live({Frames::piece(2, whole, 0, 5, kPlayedEpoch)});
    CHECK(rig.kept->log().end() > end);
    CHECK(rig.kept->last_lsn() == Lsn{1});
    rig.primary.hang_up();
    CHECK(rig.kept->log().end() == end);
    REQUIRE(rig.connect());
    rig.primary.live({Frames::piece(2, whole, 0, 7, kPlayedEpoch)});
    rig.primary.live({Frames::piece(2, whole, 7, 9, kPlayedEpoch)});
    CHECK(rig.kept->last_lsn() == Lsn{2});
    CHECK(rig.table.map["k"].value == "value in pieces");
    CHECK(rig.log_bytes() == bytes_of_entry(no_op_at(1)) +
                                 bytes_of_entry(Frames::piece(2, whole, 0, 7, kPlayedEpoch)) +
                                 bytes_of_entry(Frames::piece(2, whole, 7, 9, kPlayedEpoch)));
  }

  TEST_CASE("replication/replica: a table without memory amid a group is spoiled, until a snapshot came") {
    KeepingRig rig;
    rig.begin();
    rig.primary.live({put_at(2, "a", "2")});
    std::size_t group = 3;
    SUBCASE("in its first slice") {}
    SUBCASE("in a later one") { group = 130; }
    rig.table.entries_left = group - 1;
    std::vector<EntryView> entries;
    for (std::size_t i = 0; i + 1 < group; ++i) entries.push_back(grouped_at(3 + i, "b", "in a group"));
    entries.push_back(put_at(2 + group, "c", "its end"));
    rig.primary.live(entries);
    rig.check_lost("no memory");
    // Expect: the log tells of nothing that is not whole in the table.
    CHECK(rig.kept->last_lsn() == Lsn{2});
    CHECK(rig.kept->spoiled());
    CHECK(rig.log_bytes() == bytes_of_entry(no_op_at(1)) + bytes_of_entry(put_at(2, "a", "2")));
    const Status again = rig.connect();
    REQUIRE_FALSE(again);
    CHECK(again.error() == ReplicationErrc::gap);
    CHECK(again.error().message().find("only a snapshot mends it") != std::string::npos);
    REQUIRE(rig.connect(true));
    rig.primary.range(0, 0, 2, {Frames::record(2, "a", "2")});
    CHECK_FALSE(rig.kept->spoiled());
    CHECK(rig.table.map == ShadowApplier::Map{{"a", {"2", 2}}});
  }

  TEST_CASE("replication/replica: an epoch begins with its no-op, and the line notes where") {
    KeepingRig rig;
    rig.begin();
    rig.primary.live({put_at(2, "a", "2")});
    REQUIRE(rig.follow_next());
    SUBCASE("it does") {
      // What the earlier primary wrote may come in the same batch.
      rig.primary.live({put_at(3, "b", "3"), no_op_at(4, kLaterEpoch), put_at(5, "c", "5", kLaterEpoch)});
      CHECK(rig.replica->connected());
      const auto starts = rig.kept->line().starts();
      REQUIRE(starts.size() == 2);
      CHECK(starts[0] == EpochStart{kPlayedEpoch, {1}});
      CHECK(starts[1] == EpochStart{kLaterEpoch, {4}});
      CHECK(rig.kept->last_lsn() == Lsn{5});
    }
    SUBCASE("it does not") {
      rig.primary.live({put_at(3, "b", "3", kLaterEpoch)});
      rig.check_lost("does not begin with its no-op");
    }
    SUBCASE("within a group") {
      rig.primary.live({grouped_at(3, "b", "3"), no_op_at(4, kLaterEpoch)});
      rig.check_lost("does not begin with its no-op");
      CHECK(rig.kept->last_lsn() == Lsn{2});
    }
  }

  TEST_CASE("replication/replica: a commit LSN counts if the primary's log goes on from this one") {
    KeepingRig rig;
    rig.begin();
    rig.primary.commit = {4};
    rig.primary.live({put_at(2, "a", "2"), put_at(3, "b", "3")});
    CHECK(rig.kept->commit_lsn() == Lsn{3});
    rig.primary.live({put_at(4, "b", "4")});
    CHECK(rig.kept->commit_lsn() == Lsn{4});
    rig.primary.live({put_at(5, "cut", "5"), put_at(6, "cut", "6"), put_at(7, "cut", "7")});
    // Its next primary has other entries from LSN 5 on.
    REQUIRE(rig.follow_next(true));
    ControlFrame told;
    told.history = kPlayedHistory;
    told.epoch = kLaterEpoch;
    told.commit_lsn = {6};
    REQUIRE(rig.primary.near->send_control(told));
    CHECK(rig.acknowledged().applied_lsn == Lsn{0});
    CHECK(rig.kept->commit_lsn() == Lsn{4});
    rig.primary.line.begin(kLaterEpoch, {5});
    rig.primary.range(0, 100, 5, {Frames::record(2, "a", "2")});
    CHECK(rig.acknowledged().applied_lsn == Lsn{0});
    CHECK(rig.kept->commit_lsn() == Lsn{4});
    CHECK(rig.table.map["cut"].lsn == 7);
    SUBCASE("and else once it has its snapshot") {
      rig.primary.range(100, 0, 6, {Frames::record(4, "b", "4"), Frames::record(6, "n", "6")});
      CHECK(rig.acknowledged().applied_lsn == Lsn{0});
      rig.primary.live({put_at(6, "n", "6", kLaterEpoch)});
      CHECK(rig.kept->commit_lsn() == Lsn{6});
      CHECK(rig.kept->last_lsn() == Lsn{6});
      CHECK(rig.replica->stats().commit_lsn == 6);
      CHECK(rig.acknowledged().applied_lsn == Lsn{6});
      CHECK(rig.table.map.count("cut") == 0);
      rig.primary.live({put_at(7, "o", "7", kLaterEpoch)});
      CHECK(rig.kept->last_lsn() == Lsn{7});
      CHECK(rig.log_bytes() == bytes_of_entry(put_at(7, "o", "7", kLaterEpoch)));
      CHECK(rig.kept->line().starts().size() == 2);
    }
    SUBCASE("which breaks: then nothing has changed") {
      rig.primary.hang_up();
      CHECK(rig.kept->last_lsn() == Lsn{7});
      CHECK(rig.kept->commit_lsn() == Lsn{4});
      CHECK(rig.kept->line().last_epoch() == kPlayedEpoch);
      CHECK(rig.table.map["cut"].lsn == 7);
    }
  }

  TEST_CASE("replication/replica: a snapshot takes nothing away that was committed") {
    KeepingRig rig;
    rig.begin();
    rig.primary.commit = {4};
    rig.primary.live({put_at(2, "a", "2"), put_at(3, "b", "3"), put_at(4, "c", "4"), put_at(5, "d", "5")});
    const auto served = rig.table.map;
    SUBCASE("by LSN") {
      REQUIRE(rig.follow_next(true));
      rig.primary.range(0, 0, 3, {});
      rig.check_lost("a snapshot of LSN 3");
    }
    SUBCASE("by epoch") {
      REQUIRE(rig.follow_next(true));
      rig.primary.line.begin(kLaterEpoch, {4});
      rig.primary.range(0, 0, 6, {});
      rig.check_lost("without what is committed here");
    }
    SUBCASE("nor comes where a stream was to go on") {
      REQUIRE(rig.follow_next());
      rig.primary.range(0, 0, 6, {});
      rig.check_lost("that no hello announced");
    }
    CHECK(rig.table.map == served);
    CHECK(rig.kept->last_lsn() == Lsn{5});
    CHECK(rig.kept->line().last_epoch() == kPlayedEpoch);
  }

  TEST_CASE("replication/replica: what follows a snapshot is of its line's last epoch") {
    KeepingRig rig;
    rig.primary.epoch = kLaterEpoch;
    rig.primary.line.begin(kLaterEpoch, {8});
    REQUIRE(rig.connect(true));
    SUBCASE("live entries before the swap") {
      rig.primary.range(0, 5, 10, {});
      rig.primary.live({put_at(11, "a", "11", kPlayedEpoch)});
      rig.primary.range(5, 0, 11, {});
      rig.check_lost("another epoch than the snapshot's line");
      CHECK(rig.kept->last_lsn() == Lsn{0});
      CHECK(rig.table.map.empty());
    }
    SUBCASE("entries after it") {
      rig.primary.range(0, 0, 10, {});
      CHECK(rig.kept->last_lsn() == Lsn{10});
      rig.primary.live({put_at(11, "a", "11", kPlayedEpoch)});
      rig.check_lost("below the one in force");
    }
  }

  TEST_CASE("replication/replica: who waits for an entry is told whether it came, whatever its LSN") {
    KeepingRig rig;
    rig.begin();
    rig.primary.live({put_at(2, "a", "2")});
    Status held, later, next_epoch, committed;
    bool held_ended = false, later_ended = false, next_ended = false, committed_ended = false;
    rig.wait(false, kPlayedEpoch, 2, held, held_ended);
    CHECK(held_ended);
    CHECK(held);
    rig.wait(false, kPlayedEpoch, 4, later, later_ended);
    rig.wait(false, kLaterEpoch, 2, next_epoch, next_ended);  // an LSN that is here, of another epoch
    rig.wait(true, kPlayedEpoch, 3, committed, committed_ended);
    rig.primary.live({put_at(3, "b", "3")});
    CHECK_FALSE((later_ended || next_ended || committed_ended));
    SUBCASE("the same epoch goes on") {
      rig.primary.commit = {3};
      rig.primary.live({put_at(4, "c", "4")});
      CHECK(later_ended);
      CHECK(later);
      CHECK(committed_ended);
      CHECK(committed);
      CHECK_FALSE(next_ended);
    }
    SUBCASE("another epoch has that LSN") {
      REQUIRE(rig.follow_next());
      rig.primary.live({no_op_at(4, kLaterEpoch)});
      CHECK(later_ended);
      CHECK(later.error() == ReplicationErrc::history_lost);
      CHECK_FALSE(committed_ended);
      rig.primary.commit = {3};
      rig.primary.live({put_at(5, "c", "5", kLaterEpoch)});
      CHECK(committed_ended);
      CHECK(committed);
    }
    SUBCASE("a snapshot replaces what was here") {
      REQUIRE(rig.follow_next(true));
      rig.primary.line.begin(kLaterEpoch, {2});
      rig.primary.range(0, 0, 2, {});
      CHECK(later_ended);
      CHECK(later.error() == ReplicationErrc::history_lost);
      CHECK(committed_ended);
      CHECK(committed.error() == ReplicationErrc::history_lost);
      CHECK(next_ended);
      CHECK(next_epoch);
    }
    // For the waiters that are left.
    if (!next_ended) {
      if (rig.primary.epoch != kLaterEpoch) REQUIRE(rig.follow_next());
      if (rig.kept->line().last_epoch() != kLaterEpoch)
        rig.primary.live({no_op_at(rig.kept->last_lsn().value + 1, kLaterEpoch)});
      rig.side.reactor->turn();
      CHECK(next_ended);
      CHECK(next_epoch.error() == ReplicationErrc::history_lost);
    }
  }

  TEST_CASE("replication/replica: a policy and a log of its own exclude each other") {
    KeepingRig rig;
    const ApplyPolicy policy;
    ReplicaOptions options;
    options.group = rig.kept.get();
    options.policy = &policy;
    const auto made = Replica::create(*rig.side.reactor, rig.table, options);
    REQUIRE_FALSE(made);
    CHECK(made.error().code() == std::make_error_code(std::errc::invalid_argument));
  }
}
