#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/log.h>

using namespace tidelock;

namespace {

constexpr std::uint64_t kSmall = 64 * 1024;

std::unique_ptr<Log> make_log(std::uint64_t bytes, std::uint32_t buffer_bytes = 0) {
  auto log = Log::create(bytes, buffer_bytes);
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

/// One encoded entry; `more` of its group follow.
std::string encoded_put(std::uint64_t lsn, std::size_t value_bytes, bool more = false) {
  const std::string value = value_of(lsn, value_bytes);
  EntryView entry;
  entry.kind = EntryKind::put;
  entry.lsn = {lsn};
  entry.epoch = {1, 1};
  entry.key = as_bytes("k");
  entry.value = as_bytes(value);
  entry.group_continues = more;
  std::string bytes(entry_bytes(EntryKind::put, 1, value_bytes), '\0');
  encode_entry(entry, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Puts until the end lies `offset` bytes into a lap.
void fill_to(Log& log, std::uint64_t offset) {
  const auto missing = [&] { return (offset - log.end()) % log.capacity(); };
  while (missing() != 0) {
    const std::uint64_t bytes = missing() > 4096 ? 2048 : missing();
    REQUIRE(bytes >= kEntryHeaderBytes + 8);
    put(log, bytes - kEntryHeaderBytes - 1);
  }
}

/// What a log is to be: entries and pieces, in order.
struct LogModel {
  struct Row {
    std::string bytes;
    Lsn lsn{};
    Lsn last{};  ///< that is whole: `lsn`, or of a put that lacks pieces the one before
  };
  std::vector<Row> rows;
  Lsn last{};

  void add(Row row) {
    last = row.last;
    rows.push_back(std::move(row));
  }
  void cut() {
    while (!rows.empty() && rows.back().last < rows.back().lsn) rows.pop_back();
  }
  /// All that comes after `lsn`, which is whole.
  [[nodiscard]] std::string after(Lsn lsn) const {
    std::string bytes;
    for (const Row& row : rows) {
      if (row.lsn > lsn) bytes += row.bytes;
    }
    return bytes;
  }
};

std::string bytes_from(const Log& log, std::uint64_t position, std::uint32_t bytes_max) {
  std::string bytes;
  for (;;) {
    const Log::Run run = log.run_at(position, bytes_max, static_cast<std::uint32_t>(log.capacity() / 4));
    if (run.entries == 0) break;
    bytes += as_text(run.bytes);
    position = run.next;
  }
  CHECK(position == log.end());
  return bytes;
}

/// A log that takes entries of its own and other logs' rows, is cut and begun anew, against the model.
class LogWalk {
 public:
  LogWalk(std::uint64_t capacity, std::uint64_t seed) : log_(make_log(capacity)), random_(seed) {}

  void step() {
    const std::uint64_t what = random_.below(100);
    if (what < 55) {
      take(what < 20);
    } else if (what < 90) {
      take_piece();
    } else if (what < 98) {
      log_->cut_to_whole();
      model_.cut();
      piece_ = 0;
    } else {
      log_->begin_anew(Lsn{random_.below(1000)});
      model_ = {{}, log_->last_lsn()};
      piece_ = 0;
    }
    check();
  }

 private:
  /// One entry or several rows, some of them groups, at once.
  void take(bool alone) {
    if (piece_ > 0) return take_piece();
    std::string all;
    LogModel more;
    std::uint64_t lsn = log_->last_lsn().value;
    const std::uint64_t rows = alone ? 1 : 1 + random_.below(6);
    for (std::uint64_t row = 0; row < rows; ++row) {
      std::string group;
      LogModel of_group;
      const std::uint64_t entries = alone ? 1 : 1 + random_.below(4);
      for (std::uint64_t i = 0; i < entries; ++i) {
        const Lsn its{++lsn};
        of_group.add(
            {encoded_put(lsn, random_.below(random_.below(9) == 0 ? 3000 : 300), i + 1 < entries), its, its});
        group += of_group.rows.back().bytes;
      }
      if (all.size() + group.size() > log_->capacity() / 4) break;
      all += group;
      for (LogModel::Row& entry : of_group.rows) more.add(std::move(entry));
    }
    if (more.rows.empty()) return;
    make_room(all.size());
    if (alone) {
      const auto entry = EntryReader(as_bytes(all)).next();
      REQUIRE(entry);
      log_->append(*entry);
    } else {
      log_->append_encoded(as_bytes(all));
    }
    for (LogModel::Row& row : more.rows) model_.add(std::move(row));
  }

  /// The next piece of a put of six; it comes as a row of another log, or is encoded here.
  void take_piece() {
    constexpr std::uint32_t kPieces = 6;
    if (piece_ == 0) piece_bytes_ = static_cast<std::uint32_t>(1 + random_.below(kSmall / 4 - 64));
    const std::string body(piece_bytes_, 'f');
    EntryView entry;
    entry.kind = EntryKind::fragment;
    entry.lsn = log_->last_lsn().next();
    entry.key_bytes = 1;
    entry.value_bytes = kPieces * piece_bytes_ - 1;
    entry.offset = std::uint64_t{piece_} * piece_bytes_;
    entry.value = as_bytes(body);
    std::string bytes(entry_bytes(EntryKind::fragment, 0, piece_bytes_), '\0');
    encode_entry(entry, std::as_writable_bytes(std::span(bytes)));
    make_room(bytes.size());
    if (random_.below(2) == 0) {
      log_->append(entry);
    } else {
      log_->append_encoded(as_bytes(bytes));
    }
    piece_ = (piece_ + 1) % kPieces;
    if (piece_ == 0) {
      for (LogModel::Row& row : model_.rows) {
        if (row.lsn == entry.lsn) row.last = entry.lsn;
      }
    }
    model_.add({bytes, entry.lsn, piece_ == 0 ? entry.lsn : Lsn{entry.lsn.value - 1}});
  }

  void make_room(std::size_t bytes) {
    log_->release_to(log_->end());
    REQUIRE(log_->fits(static_cast<std::uint32_t>(bytes)));
  }

  void check() {
    REQUIRE(log_->last_lsn() == model_.last);
    const Lsn first = log_->first_lsn();
    const Lsn last = log_->last_lsn();
    REQUIRE(first <= last.next());
    CHECK(log_->position_after(last.next()).error() == ReplicationErrc::gap);
    if (first.value >= 2) CHECK(log_->position_after(Lsn{first.value - 2}).error() == ReplicationErrc::gap);
    const Lsn from{first.value - 1 + random_.below(last.value - first.value + 2)};
    const auto position = log_->position_after(from);
    // Only amid a put larger than the log there may be nothing to go on from.
    if (!position) {
      REQUIRE(piece_ > 0);
      REQUIRE(from == last);
      return;
    }
    const auto bytes_max = static_cast<std::uint32_t>(64 + random_.below(log_->capacity() / 4));
    REQUIRE(bytes_from(*log_, *position, bytes_max) == model_.after(from));
    // What the model keeps beyond the ring's size is of no use any more.
    if (model_.rows.size() > 4000) model_.rows.erase(model_.rows.begin(), model_.rows.begin() + 2000);
  }

  std::unique_ptr<Log> log_;
  Random random_;
  LogModel model_;
  std::uint32_t piece_ = 0;  ///< the next of a put that is under way; 0: none is
  std::uint32_t piece_bytes_ = 0;
};

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

TEST_CASE("replication/log: rows of another log are found and read as one's own") {
  const auto log = make_log(kSmall);
  put(*log, 100);
  std::string rows;
  for (std::uint64_t lsn = 2; lsn <= 50; ++lsn) rows += encoded_put(lsn, lsn * 3);
  log->release_to(log->end());
  log->append_encoded(as_bytes(rows));
  put(*log, 100);
  CHECK(log->last_lsn() == Lsn{51});
  CHECK(read_all(*log, 0, 4096, {}) == Lsn{51});
  for (std::uint64_t lsn = 0; lsn <= 51; ++lsn) CHECK(log->position_after(Lsn{lsn}));
}

TEST_CASE("replication/log: a row copied across the ring's end stays in a row") {
  const auto log = make_log(kSmall);
  const std::uint32_t entry = entry_bytes(EntryKind::put, 1, 500);
  // A lap's rest of two entries, and a bit.
  fill_to(*log, kSmall - 2 * entry - 64);
  const Lsn before = log->last_lsn();
  std::string rows = encoded_put(before.value + 1, 500);
  for (std::uint64_t i = 2; i <= 4; ++i) rows += encoded_put(before.value + i, 500, i < 4);
  rows += encoded_put(before.value + 5, 500);
  log->release_to(log->end());
  REQUIRE(log->fits(static_cast<std::uint32_t>(rows.size())));
  log->append_encoded(as_bytes(rows));
  // Expect: the entry that fits the lap's rest, then the group as one run, although asked for less.
  const auto position = log->position_after(before);
  REQUIRE(position);
  const Log::Run first = log->run_at(*position, 64 * 1024, 64 * 1024);
  CHECK(first.entries == 1);
  const Log::Run group = log->run_at(first.next, 64, 64 * 1024);
  CHECK(group.entries == 3);
  CHECK(group.bytes.data() == log->memory().data());
  CHECK(group.last_lsn == Lsn{before.value + 4});
  CHECK(read_all(*log, *position, 64 * 1024, before) == Lsn{before.value + 5});
  CHECK(log->run_at(*log->position_after(Lsn{before.value + 1}), 64, 64 * 1024).bytes.data() ==
        group.bytes.data());
}

TEST_CASE("replication/log: a cut leaves no mark behind") {
  const auto log = make_log(256 * 1024);
  // A lap's rest that takes the small entries below, but no piece; the segment has no mark yet.
  constexpr std::uint64_t kRest = 8 * 1024;
  fill_to(*log, log->capacity() - 64 * 1024 - 1024);
  log->release_to(log->end());
  put(*log, 64 * 1024 / 2 - kEntryHeaderBytes - 1 - 1024);
  put(*log, 64 * 1024 / 2 - kEntryHeaderBytes - 1 + 2048 - kRest);
  REQUIRE(log->capacity() - log->end() % log->capacity() == kRest);
  const Lsn whole = log->last_lsn();
  const std::uint64_t end = log->end();
  put_fragment(*log, 0, 16'000, 2'000'000);
  put_fragment(*log, 16'000, 30'000, 2'000'000);
  put_fragment(*log, 46'000, 30'000, 2'000'000);
  REQUIRE(log->end() > end + kRest + 64 * 1024);
  log->cut_to_whole();
  CHECK(log->end() == end);
  CHECK(log->last_lsn() == whole);
  CHECK(*log->position_after(whole) == end);
  CHECK(log->run_at(end, kEntryBytesMax).entries == 0);
  // The LSN of the pieces, and many more, come to stand elsewhere.
  for (int i = 0; i < 900; ++i) put(*log, 100);
  for (Lsn from = whole; from < log->last_lsn(); from = from.next()) {
    const auto position = log->position_after(from);
    REQUIRE(position);
    REQUIRE(log->run_at(*position, kEntryBytesMax).first_lsn == from.next());
  }
  CHECK(read_all(*log, end, kEntryBytesMax, whole) == log->last_lsn());
}

TEST_CASE("replication/log: a cut of pieces that overran the ring leaves an empty log that goes on") {
  const auto log = make_log(kSmall);
  put(*log, 100);
  for (std::uint32_t i = 0; i < 10; ++i) put_fragment(*log, i * 16'000, 16'000, 320'000);
  REQUIRE(log->position_after(Lsn{1}).error() == ReplicationErrc::gap);
  log->cut_to_whole();
  CHECK(log->last_lsn() == Lsn{1});
  CHECK(log->first_lsn() == Lsn{2});
  const auto position = log->position_after(Lsn{1});
  REQUIRE(position);
  CHECK(*position == log->end());
  put(*log, 100);
  CHECK(read_all(*log, *position, kEntryBytesMax, Lsn{1}) == Lsn{2});
}

TEST_CASE("replication/log: what was appended after a cut is kept until it is released, too") {
  const auto log = make_log(kSmall);
  put(*log, 100);
  for (std::uint32_t i = 0; i < 3; ++i) put_fragment(*log, i * 10'000, 10'000, 320'000);
  log->release_to(log->end());
  log->cut_to_whole();
  const std::uint64_t end = log->end();
  std::uint64_t lsn = log->last_lsn().value;
  for (std::string entry;
       entry = encoded_put(lsn + 1, 5000), log->fits(static_cast<std::uint32_t>(entry.size())); ++lsn) {
    log->append_encoded(as_bytes(entry));
  }
  CHECK(log->begin() <= end);
  CHECK(read_all(*log, end, kEntryBytesMax, Lsn{1}) == Lsn{lsn});
}

TEST_CASE("replication/log: a log without pieces is not cut") {
  const auto log = make_log(kSmall);
  for (int i = 0; i < 500; ++i) put(*log, 300);
  const std::uint64_t end = log->end();
  log->cut_to_whole();
  CHECK(log->end() == end);
  CHECK(log->last_lsn() == Lsn{500});
  put(*log, 300);
  CHECK(read_all(*log, *log->position_after(Lsn{499}), kEntryBytesMax, Lsn{499}) == Lsn{501});
}

TEST_CASE("replication/log: begun anew after an LSN it goes on after that one, and has nothing before") {
  Lsn after{};
  SUBCASE("from zero") {}
  SUBCASE("below what it held") { after = Lsn{100}; }
  SUBCASE("above what it held") { after = Lsn{10'000}; }
  const auto log = make_log(256 * 1024);
  for (int i = 0; i < 3000; ++i) put(*log, 200);
  put_fragment(*log, 0, 1000, 2999);
  log->begin_anew(after);
  CHECK(log->last_lsn() == after);
  CHECK(log->first_lsn() == after.next());
  const auto position = log->position_after(after);
  REQUIRE(position);
  CHECK(*position == log->end());
  CHECK(log->fits(128 * 1024));
  if (after.value > 0) CHECK(log->position_after(Lsn{after.value - 1}).error() == ReplicationErrc::gap);
  CHECK(log->position_after(after.next()).error() == ReplicationErrc::gap);
  for (int i = 0; i < 3000; ++i) {
    put(*log, 200);
    const Lsn last = log->last_lsn();
    REQUIRE(*log->position_after(last) == log->end());
    const Lsn some{std::max(after.value, last.value - std::min<std::uint64_t>(last.value, 500))};
    const auto found = log->position_after(some);
    REQUIRE(found);
    if (some < last) REQUIRE(log->run_at(*found, 1024).first_lsn == some.next());
  }
}

TEST_CASE("replication/log: the buffers lie behind the ring, in the memory that links are attached to") {
  const auto log = make_log(kSmall, 256 * 1024);
  CHECK(log->memory().size() == kSmall + 256 * 1024);
  CHECK(log->buffers().size() == 256 * 1024);
  CHECK(log->buffers().data() == log->memory().data() + kSmall);
  CHECK(log->capacity() == kSmall);
  // Neither gets into the other's way.
  std::fill(log->buffers().begin(), log->buffers().end(), std::byte{0x5a});
  for (int i = 0; i < 1000; ++i) put(*log, 200);
  CHECK(std::all_of(log->buffers().begin(), log->buffers().end(),
                    [](std::byte value) { return value == std::byte{0x5a}; }));
  CHECK(read_all(*log, *log->position_after(Lsn{900}), 4096, Lsn{900}) == Lsn{1000});
  CHECK(make_log(kSmall)->buffers().empty());
  CHECK_FALSE(Log::create(kSmall, 4096));
  CHECK_FALSE(Log::create(kSmall, 2 << 20));
}

TEST_CASE("replication/log: whatever is appended, taken over, cut and begun anew is what a plain list says") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    LogWalk walk(seed % 2 == 0 ? kSmall : 256 * 1024, seed);
    for (int i = 0; i < 400; ++i) walk.step();
  }
}
