/// Sits beside the replica and holds each receipt of the primary against what a reader there gets.
/// With ack `applied` a plain read must show the receipt's write or a later one; with `local` and `received`
/// a read that waits for the receipt's LSN must.
/// Thread:   the body runs in one fiber on the shard's core; counters are readable by anyone
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/histogram.h>

#include "dataset.h"
#include "receipts.h"

namespace tidelock::tools {

struct VerifierCounters {
  std::atomic<std::uint64_t> checked{0};
  std::atomic<std::uint64_t> stale{0};       ///< an older state, or none, after the notification
  std::atomic<std::uint64_t> wrong{0};       ///< the receipt's LSN with other bytes
  std::atomic<std::uint64_t> unverified{0};  ///< the read failed: not visible in time, history lost
};

class ShardVerifier {
 public:
  ShardVerifier(Engine& engine, ShardId shard, AckLevel ack, Duration timeout, const Dataset& dataset,
                ReceiptChannels::Queue& receipts);
  Status start();
  /// Ends once the queue is empty.
  void finish() { finishing_.store(true, std::memory_order_release); }
  [[nodiscard]] bool finished() const { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] const VerifierCounters& counters() const { return counters_; }
  /// From the acknowledgement at the primary to the check here: an old state is gone after a while, so a
  /// check that comes late proves little.
  [[nodiscard]] const Histogram& delay() const { return delay_; }
  /// The first violation in words, or empty.
  [[nodiscard]] std::string first_violation() const;

 private:
  void body();
  void check(const ReceiptNote& note);
  void note_violation(std::string text);

  Engine& engine_;
  const ShardId shard_;
  const AckLevel ack_;
  const Duration timeout_;
  const Dataset& dataset_;
  ReceiptChannels::Queue& receipts_;
  std::string value_;
  std::atomic<bool> finishing_{false};
  std::atomic<bool> done_{false};
  VerifierCounters counters_;
  Histogram delay_;
  mutable std::mutex violation_mutex_;
  std::string first_violation_;
};

}  // namespace tidelock::tools
