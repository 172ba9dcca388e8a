// Groups: what is written together travels in one batch and becomes visible in one turn.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>

#include "stream_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

std::uint32_t put_bytes(std::size_t value_bytes) { return entry_bytes(EntryKind::put, 1, value_bytes); }

/// A group of `count` puts of one size into the log alone.
void put_group(Log& log, std::size_t count, std::size_t value_bytes) {
  const std::string value(value_bytes, 'g');
  for (std::size_t left = count; left-- > 0;) {
    EntryView entry;
    entry.kind = EntryKind::put;
    entry.lsn = log.last_lsn().next();
    entry.key = as_bytes("k");
    entry.value = as_bytes(value);
    entry.group_continues = left > 0;
    log.append(entry, static_cast<std::uint32_t>(left) * put_bytes(value_bytes));
  }
}

/// The same through a primary, if there is room.
bool put_group(Primary& primary, std::size_t count, std::size_t value_bytes) {
  const std::string value(value_bytes, 'g');
  if (!primary.can_append(static_cast<std::uint32_t>(count) * put_bytes(value_bytes))) return false;
  for (std::size_t left = count; left-- > 0;) {
    REQUIRE(primary.try_append(EntryKind::put, as_bytes("k"), as_bytes(value),
                               static_cast<std::uint32_t>(left) * put_bytes(value_bytes)));
  }
  return true;
}

PrimaryOptions grouped(std::uint64_t log_bytes) {
  PrimaryOptions options;
  options.log_bytes = log_bytes;
  options.group_bytes_max = kGroupBytesMax;
  return options;
}

}  // namespace

TEST_CASE("replication/group: a run of the log never ends within a group") {
  auto log = Log::create(64 * 1024);
  REQUIRE(log);
  put_group(**log, 1, 100);
  put_group(**log, 5, 1000);
  put_group(**log, 1, 100);
  const std::uint32_t group = 5 * put_bytes(1000);
  // 1. Less than the single entry and the group. Expect: the single one.
  const Log::Run single = (*log)->run_at(0, 3000);
  CHECK(single.entries == 1);
  // 2. Less than the group. Expect: nothing, or all of it if groups may be longer.
  CHECK((*log)->run_at(single.next, 3000).entries == 0);
  CHECK((*log)->run_at(single.next, 3000, group - 1).entries == 0);
  const Log::Run whole = (*log)->run_at(single.next, 3000, group);
  CHECK(whole.entries == 5);
  CHECK(whole.last_lsn == Lsn{6});
  // 3. More than the group. Expect: on to the next entry.
  CHECK((*log)->run_at(single.next, group + 1000).entries == 6);
}

TEST_CASE("replication/group: it stands in a row over hundreds of laps, and every LSN is found") {
  auto made = Log::create(1 << 20);
  REQUIRE(made);
  Log& log = **made;
  Random random(5);
  for (int i = 0; i < 2'000; ++i) {
    log.release_to(log.end());
    const std::size_t count = 1 + random.below(40);
    const std::uint64_t before = log.end();
    const Lsn first = log.last_lsn().next();
    // Up to a quarter of the log, so that whole segments are skipped at the end of a lap.
    put_group(log, count, random.below(6'000));
    const Log::Run run = log.run_at(before, 1, 1 << 20);
    REQUIRE(run.entries == count);
    REQUIRE(run.next == log.end());
    REQUIRE(run.first_lsn == first);
    const Lsn oldest = log.first_lsn();
    const Lsn from{oldest.value - 1 + random.below(log.last_lsn().value - oldest.value + 1)};
    const auto position = log.position_after(from);
    REQUIRE(position);
    REQUIRE(log.run_at(*position, 1, 1 << 20).first_lsn == from.next());
  }
}

TEST_CASE("replication/group: larger than a batch's target it still leaves in one batch") {
  StreamRig rig(grouped(4 << 20));
  LoopbackOptions options;
  options.batch_bytes_max = kGroupBytesMax;
  REQUIRE(rig.connect(options));
  rig.settle();
  rig.put("before", std::string(20'000, 'v'));
  REQUIRE(put_group(*rig.primary, 300, 3'000));
  const Lsn last = rig.primary->last_lsn();
  rig.put("after", "v");
  std::vector<std::uint64_t> seen;
  for (int i = 0; i < 20; ++i) {
    rig.turns(1);
    seen.push_back(rig.replica->applied_lsn().value);
  }
  CHECK(rig.replica->applied_lsn() == last.next());
  for (const std::uint64_t lsn : seen) CHECK((lsn <= 1 || lsn >= last.value));
  CHECK(rig.applier.largest_slice <= 64);
}

TEST_CASE("replication/group: in any order of turns a replica never stops within one") {
  for (const bool late : {false, true}) {
    StreamRig rig(grouped(256 * 1024));
    LoopbackOptions options;
    options.slots = 3;
    options.completes_on_release = late;
    REQUIRE(rig.connect(options));
    Random random(late ? 9 : 8);
    std::vector<bool> ends(1, true);  // whether a group ends with that LSN
    for (int i = 0; i < 20'000; ++i) {
      if (random.below(2) == 0) {
        const std::size_t count = 1 + random.below(30);
        if (put_group(*rig.primary, count, random.below(2'000))) {
          ends.insert(ends.end(), count - 1, false);
          ends.push_back(true);
        }
      }
      if (random.below(2) == 0) rig.turn_primary();
      if (random.below(2) == 0) rig.turn_replica();
      REQUIRE(ends[rig.replica->applied_lsn().value]);
    }
    rig.settle();
    CHECK(rig.replica->applied_lsn() == rig.primary->last_lsn());
    CHECK(rig.primary->last_lsn() > Lsn{10'000});
  }
}

TEST_CASE(
    "replication/group: beyond the limit it is refused with it, and links that could not take it, too") {
  StreamRig rig(grouped(1 << 20));
  CHECK(rig.primary->group_bytes_max() == (1 << 18));
  const auto refused = rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes("v"), 1 << 18);
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == ReplicationErrc::too_large);
  CHECK(refused.error().message().find("262144") != std::string::npos);
  const Status attached = rig.connect();  // batches of 64 KiB
  REQUIRE_FALSE(attached);
  CHECK(attached.error() == ReplicationErrc::bad_length);
  CHECK(attached.error().message().find("262144") != std::string::npos);
}

TEST_CASE("replication/group: without room for all of it nothing is appended") {
  PrimaryOptions options = grouped(64 * 1024);
  StreamRig rig(options);
  LoopbackOptions late;
  late.completes_on_release = true;
  const auto far = rig.connect_by_hand(late);
  while (rig.primary->can_append(10'000)) rig.put("f", std::string(5'000, 'f'));
  const Lsn before = rig.primary->last_lsn();
  REQUIRE(rig.primary->can_append(put_bytes(1'000)));
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("k"), {}, 10'000).error() ==
        ReplicationErrc::log_full);
  CHECK(rig.primary->last_lsn() == before);
}
