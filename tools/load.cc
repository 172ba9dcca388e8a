#include "load.h"

#include <cstring>

#include <tidelock/base/counter.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/wire.h>

namespace tidelock::tools {
namespace {

/// Reads do not suspend, so a fiber that only reads lets the others run after so many.
constexpr unsigned kReadsPerTurn = 8;
/// A refused write is tried again after this long: the replica may come back, and a core has other work.
constexpr Duration kRefusedPause = milliseconds(1);

/// So many receipts may wait at the replica. Each is then checked soon after its acknowledgement, while the
/// state that it must not show any more could still be there.
constexpr std::size_t kReceiptsAhead = 1024;
constexpr Duration kVerifierPause = microseconds(20);

}  // namespace

ShardLoad::ShardLoad(Engine& engine, ShardId shard, const RunOptions& run, const Dataset& dataset,
                     std::vector<std::uint32_t> keys, ReceiptChannels::Queue& receipts)
    : engine_(engine),
      shard_(shard),
      run_(run),
      dataset_(dataset),
      keys_(std::move(keys)),
      receipts_(receipts) {
  write_options_.ack = run.ack;
  write_options_.timeout = {static_cast<std::int64_t>(run.timeout_s * 1e9)};
  Random random(run.seed + shard.value);
  pad_.resize(std::size_t{run.value_bytes} + 4096);
  for (char& c : pad_) c = static_cast<char>(random.below(256));
}

Status ShardLoad::start(void (ShardLoad::*body)(std::uint32_t)) {
  for (std::uint32_t fiber = 0; fiber < run_.in_flight; ++fiber) {
    live_.fetch_add(1, std::memory_order_relaxed);
    Status started = engine_.spawn_on(shard_, [this, body, fiber] {
      (this->*body)(fiber);
      live_.fetch_sub(1, std::memory_order_release);
    });
    if (!started) {
      live_.fetch_sub(1, std::memory_order_release);
      return started;
    }
  }
  return {};
}

Status ShardLoad::start_loading() { return start(&ShardLoad::load_fiber); }

Status ShardLoad::start_driving() {
  if (keys_.empty()) return {};
  return start(&ShardLoad::drive_fiber);
}

void ShardLoad::load_fiber(std::uint32_t) {
  while (next_key_ < keys_.size() && !stop_.load(std::memory_order_relaxed)) {
    const std::uint32_t key_index = keys_[next_key_++];
    if (put(key_index, dataset_.records()[key_index].value)) bump(counters_.loaded);
  }
}

void ShardLoad::drive_fiber(std::uint32_t fiber) {
  const std::uint64_t seed = run_.seed * 1'000'003 + shard_.value * 1009ULL + fiber;
  Random random(seed);
  KeyChooser chooser(run_.keys, keys_.size(), ~seed);
  Clock& clock = engine_.reactor(shard_).clock();
  std::string value;
  std::string read_buffer;
  unsigned reads = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const std::uint32_t key_index = keys_[chooser.next()];
    if (random.unit() < run_.read_ratio) {
      if (!engine_.get(dataset_.records()[key_index].key, read_buffer)) bump(counters_.failed);
      bump(counters_.reads);
      if (++reads % kReadsPerTurn == 0) this_fiber::yield();
      continue;
    }
    value.assign(pad_, random.below(4096), run_.value_bytes);
    const std::uint64_t sequence = ++sequence_;
    std::memcpy(value.data(), &sequence, std::min(sizeof sequence, value.size()));
    const Instant start = clock.now();
    if (put(key_index, value)) {
      ack_latency_.record(static_cast<std::uint64_t>((clock.now() - start).ns));
      bump(counters_.writes);
    } else {
      this_fiber::sleep_for(kRefusedPause);
    }
  }
}

bool ShardLoad::put(std::uint32_t key_index, std::string_view value) {
  const auto receipt = engine_.put(dataset_.records()[key_index].key, value, write_options_);
  if (!receipt) {
    note_failure(receipt.error());
    return false;
  }
  keep_step_with_verifier();
  const ReceiptNote note{receipt->lsn.value, receipt->history,           receipt->epoch,
                         key_index,          crc32c(0, as_bytes(value)), engine_.reactor(shard_).now()};
  bump(receipts_.push(note) ? counters_.receipts : counters_.receipts_skipped);
  return true;
}

void ShardLoad::keep_step_with_verifier() {
  const Instant deadline = engine_.reactor(shard_).now() + write_options_.timeout;
  while (kReceiptQueueNotes - receipts_.write_available() >= kReceiptsAhead &&
         !stop_.load(std::memory_order_relaxed) && engine_.link_count() > 0 &&
         engine_.reactor(shard_).now() < deadline) {
    if (this_fiber::sleep_for(kVerifierPause) == Wakeup::cancelled) return;
  }
}

void ShardLoad::note_failure(const Error& error) {
  bump(counters_.failed);
  const std::lock_guard lock(error_mutex_);
  if (first_error_.empty()) first_error_ = error.message();
}

std::string ShardLoad::first_error() const {
  const std::lock_guard lock(error_mutex_);
  return first_error_;
}

}  // namespace tidelock::tools
