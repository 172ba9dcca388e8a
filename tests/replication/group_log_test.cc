#include <memory>
#include <string>

#include <doctest/doctest.h>

#include <tidelock/replication/errc.h>
#include <tidelock/replication/group_log.h>

#include "reactor/null_io.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr Epoch kEpochOne{1, 1};
constexpr Epoch kEpochTwo{2, 3};

std::unique_ptr<GroupLog> group_log() {
  auto log = Log::create(64 * 1024);
  REQUIRE(log);
  return std::make_unique<GroupLog>(*std::move(log));
}

void append_to(GroupLog& group, EntryKind kind, Epoch epoch) {
  EntryView entry;
  entry.kind = kind;
  entry.lsn = group.last_lsn().next();
  entry.epoch = epoch;
  if (kind == EntryKind::put) entry.key = as_bytes("k");
  group.log().release_to(group.log().end());
  group.log().append(entry);
}
void begin_in(GroupLog& group, Epoch epoch) {
  group.begin_epoch(epoch);
  append_to(group, EntryKind::noop, epoch);
  group.appended();
}

}  // namespace

TEST_CASE("replication/group_log: no more is committed than is here, and it never falls") {
  const auto group = group_log();
  begin_in(*group, kEpochOne);
  append_to(*group, EntryKind::put, kEpochOne);
  group->committed({1});
  CHECK(group->commit_lsn() == Lsn{1});
  group->committed({7});
  CHECK(group->commit_lsn() == Lsn{2});
  group->committed({1});
  CHECK(group->commit_lsn() == Lsn{2});
}

TEST_CASE("replication/group_log: another log replaces this one if it has what is committed") {
  const auto group = group_log();
  begin_in(*group, kEpochOne);
  for (int i = 0; i < 9; ++i) append_to(*group, EntryKind::put, kEpochOne);
  group->committed({5});
  group->spoil();
  EpochLine line;
  line.begin(kEpochOne, {1});
  line.begin(kEpochTwo, {6});
  SUBCASE("it has") {
    REQUIRE(group->replace(line, {7}));
    CHECK(group->last_lsn() == Lsn{7});
    CHECK(group->line().last_epoch() == kEpochTwo);
    CHECK(group->commit_lsn() == Lsn{5});
    CHECK_FALSE(group->spoiled());
    append_to(*group, EntryKind::put, kEpochTwo);
    CHECK(group->log().first_lsn() == Lsn{8});
  }
  SUBCASE("it is shorter") {
    CHECK(group->replace(line, {4}).error() == ReplicationErrc::malformed);
    CHECK(group->last_lsn() == Lsn{10});
    CHECK(group->spoiled());
  }
  SUBCASE("it has another entry there") {
    EpochLine other;
    other.begin(kEpochOne, {1});
    other.begin(kEpochTwo, {5});
    CHECK(group->replace(other, {7}).error() == ReplicationErrc::malformed);
    CHECK(group->line().last_epoch() == kEpochOne);
  }
  SUBCASE("it does not say: its line begins later") {
    EpochLine later;
    later.begin(kEpochTwo, {6});
    CHECK(group->replace(later, {7}));
  }
}

TEST_CASE("replication/group_log: readers wait for an entry, not for an LSN") {
  Rig side;
  const auto group = group_log();
  begin_in(*group, kEpochOne);
  Status result;
  bool ended = false;
  const auto wait = [&](bool committed, Epoch epoch, std::uint64_t lsn, Duration patience) {
    REQUIRE(side.reactor->spawn_detached("reader", [&, committed, epoch, lsn, patience] {
      const Instant deadline = side.clock.now() + patience;
      result = committed ? group->wait_committed(epoch, {lsn}, deadline)
                         : group->wait_visible(epoch, {lsn}, deadline);
      ended = true;
    }));
    side.reactor->turn();
  };
  const auto expect = [&](bool comes) {
    side.reactor->turn();
    side.reactor->turn();
    CHECK(ended == comes);
  };
  SUBCASE("none at all") {
    wait(true, {}, 0, seconds(1));
    expect(true);
    CHECK(result);
  }
  SUBCASE("to come") {
    wait(false, kEpochOne, 3, seconds(1));
    append_to(*group, EntryKind::put, kEpochOne);
    group->appended();
    expect(false);
    append_to(*group, EntryKind::put, kEpochOne);
    group->appended();
    expect(true);
    CHECK(result);
  }
  SUBCASE("committed") {
    wait(true, kEpochOne, 1, seconds(1));
    expect(false);
    group->committed({1});
    expect(true);
    CHECK(result);
  }
  SUBCASE("another in its place") {
    wait(true, kEpochOne, 2, seconds(1));
    begin_in(*group, kEpochTwo);
    expect(true);
    CHECK(result.error() == ReplicationErrc::history_lost);
  }
  SUBCASE("of an epoch to come, at an LSN that is here") {
    wait(false, kEpochTwo, 1, seconds(1));
    group->committed({1});
    append_to(*group, EntryKind::put, kEpochOne);
    group->appended();
    expect(false);
    begin_in(*group, kEpochTwo);
    expect(true);
    CHECK(result.error() == ReplicationErrc::history_lost);
  }
  SUBCASE("that never comes") {
    wait(true, kEpochOne, 9, milliseconds(5));
    group->line_changed();
    expect(false);
    side.clock.advance(milliseconds(6));
    expect(true);
    CHECK(result.error() == ReactorErrc::deadline_exceeded);
  }
  side.end();
}
