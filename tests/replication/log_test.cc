#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/log.h>

using namespace tidelock;

namespace {

constexpr std::uint64_t kSmall = 64 * 1024;

std::unique_ptr<Log> make_log(std::uint64_t bytes) {
  auto log = Log::create(bytes);
  REQUIRE(log);
  return *std::move(log);
}

std::string value_of(std::uint64_t lsn, std::size_t bytes) {
  return std::string(bytes, static_cast<char>('a' + lsn % 26));
}

/// Releases everything first: as if no replica were connected.
void put(Log& log, std::size_t value_bytes) {
  const Lsn lsn = log.last_lsn().next();
  const std::string value = value_of(lsn.value, value_bytes);
  log.release_to(log.end());
  REQUIRE(log.fits(entry_bytes(EntryKind::put, 1, value_bytes)));
  EntryView entry;
  entry.kind = EntryKind::put;
  entry.lsn = lsn;
  entry.epoch = {1, 1};
  entry.key = as_bytes("k");
  entry.value = as_bytes(value);
  log.append(entry);
}

void put_fragment(Log& log, std::uint32_t offset, std::uint32_t piece, std::uint32_t value_bytes) {
  const std::string bytes = std::string(piece, 'f');
  log.release_to(log.end());
  EntryView entry;
  entry.kind = EntryKind::fragment;
  entry.lsn = log.last_lsn().next();
  entry.key_bytes = 1;
  entry.value_bytes = value_bytes;
  entry.offset = offset;
  entry.value = as_bytes(bytes);
  log.append(entry);
}

/// Reads on from `position` in runs of at most `bytes_max`, checking that LSNs ascend by one. Returns the
/// last.
Lsn read_all(const Log& log, std::uint64_t position, std::uint32_t bytes_max, Lsn last) {
  for (;;) {
    const Log::Run run = log.run_at(position, bytes_max);
    if (run.entries == 0) break;
    CHECK(run.bytes.size() <= bytes_max);
    CHECK(run.first_lsn == last.next());
    std::uint32_t entries = 0;
    for (EntryReader reader(run.bytes); !reader.at_end(); ++entries) {
      const auto entry = reader.next();
      REQUIRE(entry);
      REQUIRE(entry->lsn == last.next());
      CHECK(as_text(entry->value) == value_of(entry->lsn.value, entry->value.size()));
      last = entry->lsn;
    }
    CHECK(run.last_lsn == last);
    CHECK(run.whole_lsn == last);
    CHECK(run.entries == entries);
    position = run.next;
  }
  CHECK(position == log.end());
  return last;
}

}  // namespace

TEST_CASE("replication/log: sizes that are no power of two or out of range are refused with the range") {
  for (const std::uint64_t bytes : {0ULL, 1ULL, 65535ULL, 32768ULL, 100'000ULL, 128ULL << 30}) {
    const auto log = Log::create(bytes);
    REQUIRE_FALSE(log);
    CHECK(log.error().message().find("64 KiB to 64 GiB") != std::string::npos);
  }
}

TEST_CASE("replication/log: what is appended is read back in order, in runs of the size asked for") {
  const auto log = make_log(kSmall);
  CHECK(log->first_lsn() == Lsn{1});
  CHECK(log->run_at(0, 4096).entries == 0);
  for (std::size_t i = 0; i < 100; ++i) put(*log, i * 3);
  CHECK(log->last_lsn() == Lsn{100});
  CHECK(log->first_lsn() == Lsn{1});
  for (const std::uint32_t bytes_max : {400U, 1000U, 4096U, 65536U}) {
    CHECK(read_all(*log, 0, bytes_max, {}) == Lsn{100});
  }
}

TEST_CASE("replication/log: over hundreds of laps every LSN that it says it holds is found and whole") {
  std::uint64_t capacity = kSmall;
  SUBCASE("the smallest log") {}
  SUBCASE("a log of several segments") { capacity = 256 * 1024; }
  const auto log = make_log(capacity);
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    const bool large = random.below(50) == 0;
    put(*log, random.below(large ? kEntryBytesMax - 48 : 300));
    if (i % 37 != 0) continue;
    const Lsn first = log->first_lsn();
    const Lsn last = log->last_lsn();
    REQUIRE(first <= last);
    const Lsn from{first.value - 1 + random.below(last.value - first.value + 2)};
    const auto position = log->position_after(from);
    REQUIRE(position);
    CHECK(read_all(*log, *position, kEntryBytesMax, from) == last);
    if (first.value > 1) CHECK(log->position_after(Lsn{first.value - 2}).error() == ReplicationErrc::gap);
    CHECK(log->position_after(last.next()).error() == ReplicationErrc::gap);
  }
}

TEST_CASE(
    "replication/log: half of the capacity always fits once everything is released, wherever the end is") {
  const auto log = make_log(kSmall);
  Random random(3);
  for (int i = 0; i < 5'000; ++i) {
    put(*log, random.below(2000));
    log->release_to(log->end());
    REQUIRE(log->fits(kSmall / 2));
    REQUIRE_FALSE(log->fits(kSmall / 2 + 8));
    if (i % 10 == 0) put(*log, kEntryBytesMax - kEntryHeaderBytes - 1);
  }
}

TEST_CASE("replication/log: what a replica still needs is never overwritten") {
  const auto log = make_log(kSmall);
  put(*log, 1000);
  const std::uint64_t needed = log->end();
  put(*log, 1000);
  log->release_to(needed);
  const std::uint32_t bytes = entry_bytes(EntryKind::put, 1, 5000);
  const std::string value = "x";
  int appended = 0;
  while (log->fits(bytes)) {
    EntryView entry;
    entry.kind = EntryKind::put;
    entry.lsn = log->last_lsn().next();
    const std::string key = "k";
    const std::string large = value_of(entry.lsn.value, 5000);
    entry.key = as_bytes(key);
    entry.value = as_bytes(large);
    log->append(entry);
    ++appended;
  }
  CHECK(appended >= 11);
  CHECK(log->begin() <= needed);
  CHECK(read_all(*log, needed, kEntryBytesMax, Lsn{1}) == log->last_lsn());
  log->release_to(log->end());
  CHECK(log->fits(bytes));
}

TEST_CASE("replication/log: resuming never starts in the midst of a fragmented entry") {
  const auto log = make_log(kSmall);
  put(*log, 100);  // 1
  const std::uint64_t whole_end = log->end();
  put_fragment(*log, 0, 1000, 2999);
  put_fragment(*log, 1000, 1000, 2999);
  CHECK(log->last_lsn() == Lsn{1});
  CHECK(*log->position_after(Lsn{1}) == whole_end);
  CHECK(log->run_at(whole_end, kEntryBytesMax).whole_lsn == Lsn{1});
  put_fragment(*log, 2000, 1000, 2999);  // 2 is whole
  CHECK(log->last_lsn() == Lsn{2});
  CHECK(*log->position_after(Lsn{1}) == whole_end);
  CHECK(log->run_at(whole_end, kEntryBytesMax).whole_lsn == Lsn{2});
  put(*log, 100);  // 3
  // Overwrite the first piece only: 2 can no longer be resumed, 3 can.
  while (log->begin() <= whole_end) put(*log, 200);
  CHECK(log->first_lsn() == Lsn{3});
  CHECK(log->position_after(Lsn{1}).error() == ReplicationErrc::gap);
  CHECK(log->position_after(Lsn{2}));
}

TEST_CASE(
    "replication/log: a fragmented entry larger than the log leaves nothing to resume from until it is "
    "whole") {
  const auto log = make_log(kSmall);
  put(*log, 100);
  constexpr std::uint32_t kPiece = 16'000;
  constexpr std::uint32_t kPieces = 20;
  for (std::uint32_t i = 0; i + 1 < kPieces; ++i)
    put_fragment(*log, i * kPiece, kPiece, kPiece * kPieces - 1);
  CHECK(log->first_lsn() == Lsn{2});
  CHECK(log->position_after(Lsn{1}).error() == ReplicationErrc::gap);
  put_fragment(*log, (kPieces - 1) * kPiece, kPiece, kPiece * kPieces - 1);
  CHECK(log->last_lsn() == Lsn{2});
  CHECK(*log->position_after(Lsn{2}) == log->end());
  CHECK(log->position_after(Lsn{1}).error() == ReplicationErrc::gap);
  put(*log, 100);
  CHECK(log->position_after(Lsn{2}));
}
