// The checkers on histories written by hand, right and wrong.
#include "checks.h"

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "has.h"
#include "history.h"
#include "plan.h"
#include "values.h"

using namespace tidelock;
using namespace tidelock::sim;
using tidelock::test::has;

namespace {

constexpr Epoch kEpochOne{1, 1};
constexpr std::uint64_t kBytes = 40;

/// Key 3: write 1 at LSN 1, write 2 at LSN 2, erased at LSN 4; key 5: write 3 at LSN 3.
Line line_by_hand() {
  Line line(0, HistoryId{7}, 8);
  line.append({3, 1, kEpochOne, kBytes});
  line.append({3, 2, kEpochOne, kBytes});
  line.append({5, 3, kEpochOne, kBytes});
  line.append({3, 0, kEpochOne, 0});
  return line;
}

EntryView entry_of(EntryKind kind, Lsn lsn, const std::string& key, const std::string& value) {
  EntryView entry;
  entry.kind = kind;
  entry.lsn = lsn;
  entry.epoch = kEpochOne;
  entry.key = as_bytes(key);
  entry.value = as_bytes(value);
  return entry;
}

}  // namespace

TEST_CASE("sim/checks: a read may find what the key held at any LSN from its floor on, and nothing older") {
  const Line line = line_by_hand();
  // 1: any state. Expect: all that it ever held, and nothing else
  for (const std::uint64_t value : {0, 1, 2}) CHECK_FALSE(check_read(line, 3, value, Lsn{0}));
  CHECK(check_read(line, 3, 3, Lsn{0}));
  // 2: notified of LSN 2. Expect: write 2 or later
  CHECK(check_read(line, 3, 1, Lsn{2}));
  CHECK_FALSE(check_read(line, 3, 2, Lsn{2}));
  CHECK_FALSE(check_read(line, 3, 0, Lsn{2}));
  // 3: LSN 3 is another key's. Expect: write 2 still stands then
  CHECK_FALSE(check_read(line, 3, 2, Lsn{3}));
  // 4: erased at 4. Expect: nothing
  CHECK(check_read(line, 3, 2, Lsn{4}));
  CHECK_FALSE(check_read(line, 3, 0, Lsn{4}));
  // 5: absent before its first write, not after
  CHECK_FALSE(check_read(line, 5, 0, Lsn{2}));
  CHECK(check_read(line, 5, 0, Lsn{3}));
  const auto text = check_read(line, 5, 0, Lsn{3});
  REQUIRE(text);
  CHECK(has(*text, "\"k5\" reads as nothing, and has not stood so since LSN 3"));
}

TEST_CASE("sim/checks: LSNs are applied one after the other, each as it was written") {
  const Line line = line_by_hand();
  CHECK_FALSE(check_next(Lsn{0}, Lsn{1}));
  CHECK(check_next(Lsn{0}, Lsn{2}));
  CHECK(check_next(Lsn{1}, Lsn{1}));
  CHECK_FALSE(check_entry(line, Lsn{2}, {3, 2, kEpochOne, kBytes}));
  CHECK(check_entry(line, Lsn{2}, {3, 1, kEpochOne, kBytes}));
  CHECK(check_entry(line, Lsn{2}, {5, 2, kEpochOne, kBytes}));
  CHECK(check_entry(line, Lsn{2}, {3, 2, Epoch{2, 1}, kBytes}));
  CHECK(check_entry(line, Lsn{2}, {3, 2, kEpochOne, kBytes - 1}));
  CHECK(check_entry(line, Lsn{5}, {3, 2, kEpochOne, kBytes}));
  CHECK(check_entry(line, Lsn{0}, {3, 2, kEpochOne, kBytes}));
}

TEST_CASE("sim/checks: an acknowledgement is true if some node has come so far") {
  Line line = line_by_hand();
  CHECK_FALSE(check_acked(line, Lsn{1}, AckLevel::local));
  CHECK(check_acked(line, Lsn{1}, AckLevel::received));
  line.received(2, Lsn{2});
  CHECK_FALSE(check_acked(line, Lsn{2}, AckLevel::received));
  CHECK(check_acked(line, Lsn{3}, AckLevel::received));
  CHECK(check_acked(line, Lsn{1}, AckLevel::applied));
  line.applied(3, Lsn{3});
  CHECK_FALSE(check_acked(line, Lsn{3}, AckLevel::applied));
  CHECK_FALSE(check_acked(line, Lsn{3}, AckLevel::received));
  // It came back empty. Expect: what it had had counts
  line.applied(3, Lsn{1});
  CHECK_FALSE(check_acked(line, Lsn{3}, AckLevel::applied));
  CHECK(check_acked(line, Lsn{4}, AckLevel::applied));
}

TEST_CASE("sim/checks: what as many replicas have to have, as many have, each counted once") {
  Line line = line_by_hand();
  line.applied(2, Lsn{3});
  line.applied(2, Lsn{4});
  // 1: one has it. Expect: true of one, not of two
  CHECK_FALSE(check_acked(line, Lsn{3}, AckLevel::applied, 1));
  CHECK(check_acked(line, Lsn{3}, AckLevel::applied, 2));
  CHECK_FALSE(check_commit(line, Lsn{0}, Lsn{3}, 1));
  CHECK(check_commit(line, Lsn{0}, Lsn{3}, 2));
  // 2: another one has received it. Expect: received by two, applied by one
  line.received(3, Lsn{3});
  CHECK_FALSE(check_acked(line, Lsn{3}, AckLevel::received, 2));
  CHECK(check_acked(line, Lsn{3}, AckLevel::applied, 2));
  line.applied(3, Lsn{3});
  CHECK_FALSE(check_commit(line, Lsn{0}, Lsn{3}, 2));
  CHECK(check_commit(line, Lsn{0}, Lsn{4}, 2));
  // 3: none needed. Expect: what is written is committed, and nothing else
  const Line alone = line_by_hand();
  CHECK_FALSE(check_commit(alone, Lsn{0}, Lsn{4}, 0));
  CHECK(check_commit(alone, Lsn{0}, Lsn{5}, 0));
  CHECK_FALSE(check_enough(2, 2));
  CHECK(check_enough(1, 2));
}

TEST_CASE("sim/checks: a snapshot's record is the write that was made at its LSN, whatever its epoch") {
  const Line line = line_by_hand();
  CHECK_FALSE(check_record(line, Lsn{2}, {3, 2, Epoch{}, kBytes}));
  CHECK(check_record(line, Lsn{1}, {3, 2, Epoch{}, kBytes}));
  CHECK(check_record(line, Lsn{2}, {5, 2, Epoch{}, kBytes}));
  CHECK(check_record(line, Lsn{2}, {3, 2, Epoch{}, kBytes - 1}));
  CHECK(check_record(line, Lsn{9}, {3, 2, Epoch{}, kBytes}));
  // What it holds at an LSN.
  for (const auto& [lsn, value] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 0}, {1, 1}, {2, 2}, {3, 2}, {4, 0}, {9, 0}})
    CHECK(line.value_at(3, Lsn{lsn}) == value);
}

TEST_CASE("sim/checks: only a log into which more was written than it holds leaves a node behind") {
  constexpr std::uint64_t kLog = 256 * 1024;
  Line line(0, HistoryId{7}, 8);
  for (std::uint64_t number = 1; number <= 100; ++number) line.append({3, number, kEpochOne, kBytes}, 4'000);
  CHECK(line.log_bytes_after(Lsn{0}) == 400'000);
  CHECK(line.log_bytes_after(Lsn{100}) == 0);
  CHECK_FALSE(check_left_behind(line, Lsn{0}, kLog, 0));
  // The unused end of a lap may make up for one entry of the largest size, and no more.
  CHECK_FALSE(check_left_behind(line, Lsn{42}, kLog, 0));
  CHECK(check_left_behind(line, Lsn{43}, kLog, 0));
  CHECK_FALSE(check_left_behind(line, Lsn{43}, kLog, 4'000));
  const auto text = check_left_behind(line, Lsn{90}, kLog, 0);
  REQUIRE(text);
  CHECK(has(*text, "LSN 90 behind, but at most 72768 bytes"));
}

TEST_CASE("sim/checks: who is refused for good was left behind, or follows another history") {
  const HistoryId mine{7};
  CHECK_FALSE(check_refusal({RefusalReason::behind_log, 5, 1}, mine));
  CHECK_FALSE(check_refusal({RefusalReason::history, 8, 7}, mine));
  CHECK(check_refusal({RefusalReason::history, 7, 7}, mine));
  CHECK(check_refusal({RefusalReason::history, 8, 9}, mine));
  CHECK(check_refusal({RefusalReason::malformed, 5, 6}, mine));
  CHECK(check_refusal({RefusalReason::epoch, 1, 2}, mine));
}

TEST_CASE("sim/checks: a commit LSN does not fall, and covers what a node has applied") {
  Line line = line_by_hand();
  line.applied(2, Lsn{2});
  line.received(2, Lsn{4});
  CHECK_FALSE(check_commit(line, Lsn{0}, Lsn{2}));
  CHECK_FALSE(check_commit(line, Lsn{2}, Lsn{2}));
  CHECK(check_commit(line, Lsn{2}, Lsn{1}));
  CHECK(check_commit(line, Lsn{2}, Lsn{3}));
}

TEST_CASE("sim/checks: a replica's commit LSN does not fall, and is what a primary told it") {
  Line line = line_by_hand();
  line.told(Lsn{3});
  line.told(Lsn{2});
  CHECK_FALSE(check_told(line, Lsn{1}, Lsn{3}));
  CHECK_FALSE(check_told(line, Lsn{2}, Lsn{2}));
  CHECK(check_told(line, Lsn{2}, Lsn{1}));
  CHECK(check_told(line, Lsn{3}, Lsn{4}));
}

TEST_CASE("sim/checks: the primary's log is followed from turn to turn") {
  const auto value = [](std::uint64_t number) { return make_value(number, kBytes); };
  Line line = line_by_hand();
  auto log = *Log::create(64 * 1024);
  LogFollower follower;
  log->append(entry_of(EntryKind::put, Lsn{1}, "k3", value(1)));
  CHECK_FALSE(follower.follow(*log, line));
  log->append(entry_of(EntryKind::put, Lsn{2}, "k3", value(2)));
  log->append(entry_of(EntryKind::put, Lsn{3}, "k5", value(3)));
  log->append(entry_of(EntryKind::erase, Lsn{4}, "k3", ""));
  CHECK_FALSE(follower.follow(*log, line));
  CHECK_FALSE(follower.follow(*log, line));

  // Something else than was written; something that nobody wrote; a damaged value.
  line.append({3, 9, kEpochOne, kBytes});
  log->append(entry_of(EntryKind::put, Lsn{5}, "k3", value(8)));
  const auto other = follower.follow(*log, line);
  REQUIRE(other);
  CHECK(has(*other, "LSN 5 is \"k3\" write 8"));
  // Cut to its first word it still names its write. Expect: its length gives it away
  auto cut = *Log::create(64 * 1024);
  cut->append(entry_of(EntryKind::put, Lsn{1}, "k3", value(1).substr(0, kValueBytesLeast)));
  LogFollower of_cut;
  const auto shorter = of_cut.follow(*cut, line);
  REQUIRE(shorter);
  CHECK(has(*shorter, "write 1, 8 bytes"));
  for (const bool damaged : {true, false}) {
    auto second = *Log::create(64 * 1024);
    std::string text = value(1);
    if (damaged) text[20] ^= 1;
    second->append(entry_of(EntryKind::put, Lsn{1}, "k3", text));
    LogFollower anew;
    CHECK(anew.follow(*second, damaged ? line : Line(1, HistoryId{8}, 8)));
  }
}

TEST_CASE("sim/values: a value names its write, and any byte that is not its own shows") {
  for (const std::size_t bytes : {8, 9, 15, 16, 17, 1'000}) {
    const std::string value = make_value(42, bytes);
    CHECK(value.size() == bytes);
    REQUIRE(number_of(as_bytes(value)));
    CHECK(*number_of(as_bytes(value)) == 42);
    for (std::size_t at = 8; at < bytes; ++at) {
      std::string damaged = value;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      CHECK_FALSE(number_of(as_bytes(damaged)));
      // Cut short, or with a byte too many.
      if (at > 8) CHECK_FALSE(number_of(as_bytes(value.substr(0, at))));
    }
    if (bytes > 8) CHECK_FALSE(number_of(as_bytes(value + value.back())));
  }
  CHECK_FALSE(number_of(as_bytes("short")));
  CHECK(key_of(as_bytes(key_text(17))) == 17U);
  for (const char* bad : {"", "k", "17", "kx", "k17 "}) CHECK_FALSE(key_of(as_bytes(bad)));
}

TEST_CASE("sim/history: what was refused is left out, what nobody knows the end of may happen at any time") {
  History history;
  const std::size_t done = history.begin(CallKind::put, 0, 3, 1);
  const std::size_t refused = history.begin(CallKind::put, 0, 3, 2);
  const std::size_t unknown = history.begin(CallKind::put, 0, 3, 3);
  const std::size_t lost = history.begin(CallKind::get, 0, 3, 0);
  const std::size_t other_key = history.begin(CallKind::put, 0, 4, 4);
  const std::size_t other_line = history.begin(CallKind::put, 1, 3, 5);
  static_cast<void>(history.begin(CallKind::erase, 0, 3, 0));  // it never ended
  history.end(done, Outcome::ok);
  history.end(refused, Outcome::not_done);
  history.end(unknown, Outcome::unknown);
  history.end(lost, Outcome::unknown);
  history.end(other_key, Outcome::ok);
  history.end(other_line, Outcome::ok);
  const auto calls = history.linear(0, 3);
  REQUIRE(calls.size() == 3);
  CHECK(calls[0].value == 1);
  CHECK(calls[0].end != LinearCall::kUnknown);
  CHECK(calls[1].value == 3);
  CHECK(calls[1].end == LinearCall::kUnknown);
  CHECK(calls[2].value == 0);
  CHECK(calls[2].end == LinearCall::kUnknown);
}

TEST_CASE("sim/plan: ascends in time, keeps to the mask, and a kind that is left out moves no other") {
  const Instant until = Instant{} + seconds(10);
  bool ascends = true;
  bool same = true;
  std::uint64_t faults = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const auto all = draw_plan(Streams(seed), all_faults(), 3, until);
    FaultMask without = all_faults();
    without[static_cast<std::size_t>(FaultKind::kill)] = false;
    auto rest = draw_plan(Streams(seed), without, 3, until);
    faults += all.size();
    for (std::size_t i = 1; i < all.size(); ++i) ascends = ascends && all[i - 1].at <= all[i].at;
    std::size_t at = 0;
    for (const Fault& fault : all) {
      if (fault.kind == FaultKind::kill) continue;
      same = same && at < rest.size() && rest[at].at == fault.at && rest[at].detail == fault.detail;
      ++at;
    }
    same = same && at == rest.size();
    CHECK(draw_plan(Streams(seed), FaultMask{}, 3, until).empty());
  }
  CHECK(ascends);
  CHECK(same);
  CHECK(faults > 1'000);
}
