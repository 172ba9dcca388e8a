#include "verifier.h"

#include <algorithm>

#include <fmt/format.h>

#include <tidelock/base/counter.h>
#include <tidelock/engine/errc.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/wire.h>

#include "doctor_files.h"

namespace tidelock::tools {
namespace {

constexpr std::size_t kCheckBatch = 16;
// An empty queue is looked at again after a pause that doubles up to the longest.
constexpr Duration kShortestPause = microseconds(20);
constexpr Duration kLongestPause = milliseconds(1);

}  // namespace

ShardVerifier::ShardVerifier(Engine& engine, ShardId shard, AckLevel ack, Duration timeout,
                             const Dataset& dataset, ReceiptChannels::Queue& receipts)
    : engine_(engine), shard_(shard), ack_(ack), timeout_(timeout), dataset_(dataset), receipts_(receipts) {}

Status ShardVerifier::start() {
  return engine_.spawn_on(shard_, [this] {
    body();
    done_.store(true, std::memory_order_release);
  });
}

void ShardVerifier::body() {
  Duration pause = kShortestPause;
  while (true) {
    // Before the pop: what was pushed before finish() is then seen by this round.
    const bool last_round = finishing_.load(std::memory_order_acquire);
    ReceiptNote notes[kCheckBatch];
    const std::size_t count = receipts_.pop(notes, kCheckBatch);
    for (std::size_t i = 0; i < count; ++i) check(notes[i]);
    if (count > 0) {
      pause = kShortestPause;
      if (this_fiber::yield() == Wakeup::cancelled) return;
    } else if (last_round) {
      return;
    } else {
      if (this_fiber::sleep_for(pause) == Wakeup::cancelled) return;
      pause = std::min(pause * 2, kLongestPause);
    }
  }
}

void ShardVerifier::check(const ReceiptNote& note) {
  if (note.key_index >= dataset_.records().size()) return note_violation("a receipt for an unknown key");
  const std::string_view key = dataset_.records()[note.key_index].key;
  ReadOptions options;
  if (ack_ != AckLevel::applied) {
    options.min_lsn = Lsn{note.lsn};
    options.history = note.history;
    options.epoch = note.epoch;
    // Once the primary is gone nothing more will become visible; do not wait for each of what is left.
    options.timeout = engine_.link_count() == 0 ? milliseconds(1) : timeout_;
  }
  const Result<Lsn> seen = engine_.get(key, value_, options);
  if (!seen && !(seen.error() == EngineErrc::not_found)) {
    bump(counters_.unverified);
    return note_violation(
        fmt::format("shard {}: LSN {}: {}", shard_.value, note.lsn, seen.error().message()));
  }
  bump(counters_.checked);
  const Duration delay = engine_.reactor(shard_).now() - note.acknowledged;
  delay_.record(static_cast<std::uint64_t>(std::max<std::int64_t>(delay.ns, 0)));
  if (!seen || seen->value < note.lsn) {
    bump(counters_.stale);
    return note_violation(fmt::format("shard {}: key \"{}\" was notified at LSN {} and read at LSN {}",
                                      shard_.value, printable(std::string(key)), note.lsn,
                                      seen ? seen->value : 0));
  }
  if (seen->value == note.lsn && crc32c(0, as_bytes(value_)) != note.value_crc) {
    bump(counters_.wrong);
    note_violation(fmt::format("shard {}: key \"{}\" at LSN {} holds other bytes than were written",
                               shard_.value, printable(std::string(key)), note.lsn));
  }
}

void ShardVerifier::note_violation(std::string text) {
  const std::lock_guard lock(violation_mutex_);
  if (first_violation_.empty()) first_violation_ = std::move(text);
}

std::string ShardVerifier::first_violation() const {
  const std::lock_guard lock(violation_mutex_);
  return first_violation_;
}

}  // namespace tidelock::tools
