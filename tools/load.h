/// The load of one shard: fibers on the shard's own core that first put every record of the input once, then
/// read and write for a while. Each acknowledged write leaves a receipt for the verifier.
/// Thread:   bodies run on the shard's core; counters are readable by anyone
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/histogram.h>

#include "dataset.h"
#include "key_chooser.h"
#include "receipts.h"
#include "run_options.h"

namespace tidelock::tools {

struct LoadCounters {
  std::atomic<std::uint64_t> loaded{0};  ///< records of the input acknowledged
  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> writes{0};            ///< acknowledged, while driving
  std::atomic<std::uint64_t> failed{0};            ///< not acknowledged: refused or outcome unknown
  std::atomic<std::uint64_t> receipts{0};          ///< handed to the verifier
  std::atomic<std::uint64_t> receipts_skipped{0};  ///< the verifier's queue was full
};

class ShardLoad {
 public:
  ShardLoad(Engine& engine, ShardId shard, const RunOptions& run, const Dataset& dataset,
            std::vector<std::uint32_t> keys, ReceiptChannels::Queue& receipts);

  /// Start the fibers; return at once. finished() tells when all of them have ended.
  Status start_loading();
  Status start_driving();
  void stop() { stop_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool finished() const { return live_.load(std::memory_order_acquire) == 0; }

  [[nodiscard]] const LoadCounters& counters() const { return counters_; }
  [[nodiscard]] const Histogram& ack_latency() const { return ack_latency_; }
  [[nodiscard]] std::uint64_t keys() const { return keys_.size(); }
  /// The first failure's text, or empty.
  [[nodiscard]] std::string first_error() const;

 private:
  Status start(void (ShardLoad::*body)(std::uint32_t));
  void load_fiber(std::uint32_t fiber);
  void drive_fiber(std::uint32_t fiber);
  bool put(std::uint32_t key_index, std::string_view value);
  void keep_step_with_verifier();
  void note_failure(const Error& error);

  Engine& engine_;
  const ShardId shard_;
  const RunOptions& run_;
  const Dataset& dataset_;
  const std::vector<std::uint32_t> keys_;  ///< of this shard, as indices into the dataset
  ReceiptChannels::Queue& receipts_;
  WriteOptions write_options_;
  std::string pad_;  ///< random bytes that values are cut from
  std::uint32_t next_key_ = 0;
  std::uint64_t sequence_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint32_t> live_{0};
  LoadCounters counters_;
  Histogram ack_latency_;
  mutable std::mutex error_mutex_;
  std::string first_error_;
};

}  // namespace tidelock::tools
