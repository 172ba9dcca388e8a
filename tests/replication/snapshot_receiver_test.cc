// The order and the completeness of a snapshot's ranges, whatever carries them.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/snapshot_receiver.h>

using namespace tidelock;

namespace {

/// Writes down what it is told.
class ListedTarget final : public SnapshotTarget {
 public:
  Status begin_shadow() override { return note("begin"); }
  Status apply_live(std::span<const EntryView> entries) override {
    return note("live " + std::to_string(entries.size()));
  }
  Status add_records(std::span<const EntryView> entries) override {
    return note("records " + std::to_string(entries.size()));
  }
  void void_record() override { static_cast<void>(note("void")); }
  void swap_shadow(Lsn lsn) override { static_cast<void>(note("swap " + std::to_string(lsn.value))); }
  void drop_shadow() override { static_cast<void>(note("drop")); }

  std::vector<std::string> told;
  bool refuse = false;

 private:
  Status note(const std::string& what) {
    if (refuse) return ReplicationErrc::log_full;
    told.push_back(what);
    return {};
  }
};

using Told = std::vector<std::string>;

RangeHeader range(std::uint64_t from, std::uint64_t to, std::uint64_t lsn, bool last = false,
                  bool voids = false) {
  RangeHeader header;
  header.from = from;
  header.to = to;
  header.lsn = {lsn};
  header.last = last;
  header.voids = voids;
  return header;
}

EntryView record(std::uint64_t lsn) {
  EntryView entry;
  entry.kind = EntryKind::put;
  entry.key = entry.value = as_bytes("k");
  entry.lsn = {lsn};
  return entry;
}

/// Of a record of 1 byte of key and 29 of value, ten bytes from `offset` on.
EntryView piece_at(std::uint64_t offset, std::uint64_t lsn) {
  EntryView entry;
  entry.kind = EntryKind::fragment;
  entry.key_bytes = 1;
  entry.value_bytes = 29;
  entry.offset = offset;
  entry.value = as_bytes("0123456789");
  entry.lsn = {lsn};
  return entry;
}

struct ReceiverRig {
  ReceiverRig() { REQUIRE(receiver.begin({10}, {3})); }
  Status add(const RangeHeader& header, const std::vector<EntryView>& entries = {},
             std::uint64_t received = 10) {
    return receiver.add_range(header, entries, {received});
  }
  void refuses(const std::string& why, const RangeHeader& header, const std::vector<EntryView>& entries = {},
               std::uint64_t received = 10) {
    CAPTURE(why);
    const Status status = add(header, entries, received);
    REQUIRE_FALSE(status);
    CHECK(status.error() == ReplicationErrc::malformed);
    CHECK(status.error().message().find(why) != std::string::npos);
  }
  ListedTarget target;
  SnapshotReceiver receiver{&target};
};

}  // namespace

TEST_SUITE("replication/snapshot") {
  TEST_CASE(
      "replication/snapshot: whole once the ranges have joined and what the last one knows of is there") {
    ReceiverRig rig;
    REQUIRE(rig.add(range(0, 100, 10), {record(4), record(10)}));
    REQUIRE(rig.receiver.apply_live({}));
    REQUIRE(rig.add(range(100, 200, 12), {}, 11));
    CHECK_FALSE(rig.receiver.complete({12}));
    REQUIRE(rig.add(range(200, 0, 15, true), {record(1)}, 12));
    CHECK_FALSE(rig.receiver.complete({14}));
    CHECK(rig.receiver.active());
    REQUIRE(rig.receiver.complete({15}));
    rig.receiver.finish({16});
    CHECK_FALSE(rig.receiver.active());
    CHECK_FALSE(rig.receiver.complete({16}));
    rig.receiver.abandon();
    CHECK(rig.target.told == Told{"begin", "records 2", "live 0", "records 1", "swap 16"});
  }

  TEST_CASE("replication/snapshot: an empty table is one range from the first hash to the end") {
    ReceiverRig rig;
    REQUIRE(rig.add(range(0, 0, 10, true)));
    CHECK(rig.receiver.complete({10}));
  }

  TEST_CASE("replication/snapshot: ranges that do not join are refused") {
    {
      ReceiverRig rig;
      rig.refuses("a range from hash 5", range(5, 100, 10));
    }
    ReceiverRig rig;
    REQUIRE(rig.add(range(0, 100, 10)));
    rig.refuses("a range from hash 99", range(99, 200, 10));
    rig.refuses("a range from hash 101", range(101, 200, 10));
    rig.refuses("a range from hash 0", range(0, 100, 10));
    REQUIRE(rig.add(range(100, 100, 10), {record(3)}));
    REQUIRE(rig.add(range(100, 0, 10, true)));
    rig.refuses("after the last one", range(0, 0, 10, true));
    CHECK(rig.target.told == Told{"begin", "records 1"});
  }

  TEST_CASE("replication/snapshot: a range that brings nothing is refused, or it might never end") {
    ReceiverRig rig;
    REQUIRE(rig.add(range(0, 100, 10)));
    rig.refuses("brings nothing", range(100, 100, 10));
  }

  TEST_CASE("replication/snapshot: a range that does not know of the entries before it is refused") {
    ReceiverRig rig;
    REQUIRE(rig.add(range(0, 100, 12)));
    rig.refuses("wrote later", range(100, 200, 11));
    rig.refuses("wrote later", range(100, 200, 12), {}, 13);
    REQUIRE(rig.add(range(100, 200, 13), {}, 13));
  }

  TEST_CASE("replication/snapshot: a large record comes in pieces, in order, or is void") {
    ReceiverRig rig;
    rig.refuses("could be void", range(0, 1, 10, false, true));
    REQUIRE(rig.add(range(0, 0, 10), {piece_at(0, 5)}));
    REQUIRE(rig.add(range(0, 0, 10), {record(3), piece_at(10, 5)}));
    rig.refuses("does not continue", range(0, 7, 10), {piece_at(10, 5)});
    rig.refuses("does not continue", range(0, 7, 10), {piece_at(20, 6)});
    EntryView longer = piece_at(20, 5);
    longer.value_bytes = 39;
    rig.refuses("does not continue", range(0, 7, 10), {longer});
    rig.refuses("amid a record", range(0, 0, 10, true));
    REQUIRE(rig.add(range(0, 7, 11), {piece_at(20, 5), piece_at(0, 9)}));
    REQUIRE(rig.add(range(7, 8, 12, false, true), {piece_at(0, 10)}));
    rig.refuses("does not continue", range(8, 9, 12), {piece_at(0, 10)});
    REQUIRE(rig.add(range(8, 0, 12, true, true)));
    CHECK(rig.target.told ==
          Told{"begin", "records 1", "records 2", "records 2", "void", "records 1", "void"});
    CHECK(rig.receiver.complete({12}));
  }

  TEST_CASE(
      "replication/snapshot: one that is older than what is served, or that nobody takes, does not begin") {
    ListedTarget target;
    SnapshotReceiver receiver(&target);
    Status begun = receiver.begin({10}, {11});
    REQUIRE_FALSE(begun);
    CHECK(begun.error() == ReplicationErrc::gap);
    CHECK(target.told.empty());
    target.refuse = true;
    begun = receiver.begin({10}, {10});
    REQUIRE_FALSE(begun);
    CHECK(begun.error() == ReplicationErrc::log_full);
    CHECK_FALSE(receiver.active());
    SnapshotReceiver none(nullptr);
    CHECK(none.begin({10}, {3}).error() == ReplicationErrc::bad_kind);
  }

  TEST_CASE("replication/snapshot: what breaks off is forgotten, and the next begins anew") {
    ListedTarget target;
    SnapshotReceiver receiver(&target);
    REQUIRE(receiver.begin({10}, {3}));
    REQUIRE(receiver.add_range(range(0, 50, 10), {}, {10}));
    receiver.abandon();
    receiver.abandon();
    REQUIRE(receiver.begin({20}, {3}));
    REQUIRE(receiver.add_range(range(0, 0, 20, true), {}, {20}));
    CHECK(receiver.complete({20}));
    receiver.finish({20});
    CHECK(target.told == Told{"begin", "drop", "begin", "swap 20"});
  }
}
