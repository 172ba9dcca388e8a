#include "checks.h"

#include <algorithm>

#include <fmt/format.h>

#include <tidelock/replication/wire.h>

#include "values.h"

namespace tidelock::sim {
namespace {

constexpr std::uint32_t kRunBytes = 64 * 1024;

std::string value_text(std::uint64_t value) {
  return value == 0 ? "nothing" : fmt::format("write {}", value);
}

std::string entry_text(const Written& entry) {
  return fmt::format("\"{}\" {}, {} bytes, epoch {}", key_text(entry.key), value_text(entry.value),
                     entry.bytes, entry.epoch.counter);
}

}  // namespace

bool Line::stood(std::uint32_t key, std::uint64_t value, Lsn from) const {
  // What it held at `from`, and each value after that.
  std::uint64_t held = 0;
  for (const Change& change : changes_[key]) {
    if (change.lsn > from && held == value) return true;
    held = change.value;
  }
  return held == value;
}

std::uint64_t Line::value_at(std::uint32_t key, Lsn lsn) const {
  std::uint64_t held = 0;
  for (const Change& change : changes_[key]) {
    if (change.lsn > lsn) break;
    held = change.value;
  }
  return held;
}

Violation check_read(const Line& line, std::uint32_t key, std::uint64_t found, Lsn floor) {
  if (line.stood(key, found, floor)) return std::nullopt;
  return fmt::format("\"{}\" reads as {}, and has not stood so since LSN {}", key_text(key),
                     value_text(found), floor.value);
}

Violation check_next(Lsn last, Lsn next) {
  if (next == last.next()) return std::nullopt;
  return fmt::format("LSN {} was applied after {}", next.value, last.value);
}

Violation check_entry(const Line& line, Lsn lsn, const Written& entry) {
  const Written* const written = line.at(lsn);
  if (written == nullptr) return fmt::format("LSN {} was never written", lsn.value);
  if (*written == entry) return std::nullopt;
  return fmt::format("LSN {} is {}, and was written as {}", lsn.value, entry_text(entry),
                     entry_text(*written));
}

Violation check_record(const Line& line, Lsn lsn, Written entry) {
  if (const Written* const written = line.at(lsn)) entry.epoch = written->epoch;
  return check_entry(line, lsn, entry);
}

Violation check_acked(const Line& line, Lsn lsn, AckLevel level, std::uint32_t replicas) {
  if (level == AckLevel::local) return std::nullopt;
  const bool applied = level == AckLevel::applied;
  const auto have = std::count_if(line.marks().begin(), line.marks().end(), [&](const auto& node) {
    return (applied ? node.second.applied : node.second.received) >= lsn;
  });
  if (have >= std::int64_t{replicas}) return std::nullopt;
  return fmt::format("LSN {} was acknowledged as {} by {}, and {} nodes have", lsn.value,
                     applied ? "applied" : "received", replicas, have);
}

Violation check_commit(const Line& line, Lsn before, Lsn commit, std::uint32_t replicas) {
  if (commit < before) return fmt::format("the commit LSN fell from {} to {}", before.value, commit.value);
  if (commit == before) return std::nullopt;
  if (commit > line.last()) return fmt::format("commit LSN {}, and nobody wrote that", commit.value);
  const auto have = std::count_if(line.marks().begin(), line.marks().end(),
                                  [&](const auto& node) { return node.second.applied >= commit; });
  if (have >= std::int64_t{replicas}) return std::nullopt;
  return fmt::format("commit LSN {}, and {} of the {} nodes that it takes have applied it", commit.value,
                     have, replicas);
}

Violation check_enough(std::size_t whole, std::uint32_t c) {
  if (whole >= c) return std::nullopt;
  return fmt::format("a write is taken with {} of the {} replicas that it takes", whole, c);
}

Violation check_told(const Line& line, Lsn before, Lsn commit) {
  if (commit < before) return fmt::format("its commit LSN fell from {} to {}", before.value, commit.value);
  if (commit <= line.told()) return std::nullopt;
  return fmt::format("its commit LSN is {}, and the primary has told of {}", commit.value, line.told().value);
}

Violation check_left_behind(const Line& line, Lsn last, std::uint64_t log_bytes, std::uint64_t under_way) {
  // The end of one lap may be unused: less than the largest entry or group.
  const std::uint64_t most = line.log_bytes_after(last) + under_way + kEntryBytesMax;
  if (most > log_bytes) return std::nullopt;
  return fmt::format(
      "is told that the log has left LSN {} behind, but at most {} bytes were written since, "
      "and the log has {}",
      last.value, most, log_bytes);
}

Violation check_refusal(const Refusal& refusal, HistoryId of_replica) {
  if (refusal.reason == RefusalReason::behind_log) return std::nullopt;  // check_left_behind()
  const bool another = refusal.theirs == of_replica.value && refusal.ours != refusal.theirs;
  if (refusal.reason == RefusalReason::history && another) return std::nullopt;
  return fmt::format("is refused for good: reason {}, the primary has {}, it has {}",
                     static_cast<int>(refusal.reason), refusal.ours, refusal.theirs);
}

Violation check_expired(Lsn lsn, bool reached) {
  if (!reached) return std::nullopt;
  return fmt::format("a wait for LSN {} ended by its deadline although that was there", lsn.value);
}

Violation LogFollower::follow(const Log& log, const Line& line) {
  if (position_ < log.begin()) {  // more than the log holds was written since the last look
    position_ = log.begin();
    last_ = Lsn{};
  }
  while (position_ < log.end()) {
    const Log::Run run = log.run_at(position_, kRunBytes, kGroupBytesMax);
    if (run.entries == 0) return std::nullopt;
    for (EntryReader reader(run.bytes); !reader.at_end();) {
      const auto entry = reader.next();
      if (!entry) return fmt::format("the log after LSN {}: {}", last_.value, entry.error().message());
      const bool piece = entry->kind == EntryKind::fragment;
      if (last_ != Lsn{} && entry->lsn != last_.next() && !(piece && entry->lsn == last_))
        return fmt::format("LSN {} stands after {} in the log", entry->lsn.value, last_.value);
      if (entry->epoch < epoch_) return fmt::format("the epoch falls at LSN {}", entry->lsn.value);
      last_ = entry->lsn;
      epoch_ = entry->epoch;
      if (piece) continue;
      Written written{key_of(entry->key).value_or(0), 0, entry->epoch, entry->value.size()};
      if (entry->kind == EntryKind::put) {
        const auto number = number_of(entry->value);
        if (!number) return fmt::format("the value at LSN {} is damaged", entry->lsn.value);
        written.value = *number;
      }
      if (auto wrong = check_entry(line, entry->lsn, written)) return wrong;
    }
    position_ = run.next;
  }
  return std::nullopt;
}

}  // namespace tidelock::sim
