#include <chrono>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "exit_code.h"
#include "histogram_json.h"
#include "load.h"
#include "node.h"
#include "node_events.h"

namespace tidelock::tools {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// How long the replica may take to apply what the load has left behind.
constexpr auto kLevelTime = std::chrono::seconds(60);

class PrimaryNode {
 public:
  PrimaryNode(const NodeConfig& config, NodeChannel& parent)
      : run_(config.run), config_(config), parent_(parent) {}

  Status serve() {
    TL_TRY(prepare());
    TL_TRY(parent_.send({{"event", "ready"}, {"notices", engine_->stats().notices}}));
    TL_TRY(await_command("go"));
    for (auto& load : loads_) TL_TRY(load->start_loading());
    TL_TRY(until_finished("load", SteadyClock::time_point::max()));
    const auto start = SteadyClock::now();
    if (!stopping_) {
      for (auto& load : loads_) TL_TRY(load->start_driving());
      const auto length = std::chrono::duration<double>(run_.duration_s);
      TL_TRY(until_finished("drive", start + std::chrono::duration_cast<SteadyClock::duration>(length)));
    }
    const std::chrono::duration<double> took = SteadyClock::now() - start;
    TL_TRY(send_results(took.count()));
    TL_TRY(await_command("close"));
    return engine_->close(seconds(10));
  }

 private:
  Status prepare() {
    TL_TRY(Dataset dataset, Dataset::map(kNodeDatasetFd));
    dataset_ = std::make_unique<Dataset>(std::move(dataset));
    TL_TRY(ReceiptChannels channels, ReceiptChannels::map(kNodeReceiptsFd, run_.shards));
    channels_ = std::make_unique<ReceiptChannels>(std::move(channels));
    Options options = engine_options(config_);
    options.inspect = inspect_name(::getpid());
    TL_TRY(engine_, Engine::open(options));
    std::vector<std::vector<std::uint32_t>> keys(run_.shards);
    const auto& records = dataset_->records();
    for (std::uint32_t i = 0; i < records.size(); ++i)
      keys[engine_->shard_of(records[i].key).value].push_back(i);
    for (std::uint16_t shard = 0; shard < run_.shards; ++shard) {
      loads_.push_back(std::make_unique<ShardLoad>(*engine_, ShardId{shard}, run_, *dataset_,
                                                   std::move(keys[shard]), channels_->queue(ShardId{shard})));
    }
    return {};
  }

  /// Passes on progress until every load fiber has ended; at `end` or on the parent's word they are told to.
  Status until_finished(const char* phase, SteadyClock::time_point end) {
    const auto all_finished = [this] {
      for (const auto& load : loads_) {
        if (!load->finished()) return false;
      }
      return true;
    };
    while (!all_finished()) {
      TL_TRY(auto message, parent_.receive(kNodeTick));
      if (message && message->value("command", "") == "stop") stopping_ = true;
      if (stopping_ || SteadyClock::now() >= end) {
        for (auto& load : loads_) load->stop();
      }
      TL_TRY(parent_.send(progress(phase)));
      TL_TRY(events_.forward(*engine_, parent_));
    }
    return {};
  }

  Status await_command(const char* name) {
    const auto deadline = SteadyClock::now() + std::chrono::minutes(5);
    while (SteadyClock::now() < deadline) {
      TL_TRY(auto message, parent_.receive(kNodeTick));
      TL_TRY(events_.forward(*engine_, parent_));
      if (!message) continue;
      if (message->value("command", "") == "stop") stopping_ = true;
      if (message->value("command", "") == name) return {};
    }
    return Error(std::make_error_code(std::errc::timed_out), "the parent process gave no command");
  }

  nlohmann::json progress(const char* phase) const {
    std::uint64_t loaded = 0, total = 0, ops = 0, failed = 0;
    for (const auto& load : loads_) {
      const LoadCounters& counters = load->counters();
      loaded += counters.loaded;
      total += load->keys();
      ops += counters.reads + counters.writes;
      failed += counters.failed;
    }
    return {{"event", "progress"}, {"phase", phase}, {"loaded", loaded},
            {"total", total},      {"ops", ops},     {"failed", failed}};
  }

  nlohmann::json shard_result(const ShardLoad& load, ShardId shard) {
    const LoadCounters& counters = load.counters();
    nlohmann::json json = {{"shard", shard.value},
                           {"keys", load.keys()},
                           {"loaded", counters.loaded.load()},
                           {"reads", counters.reads.load()},
                           {"writes", counters.writes.load()},
                           {"failed", counters.failed.load()},
                           {"receipts", counters.receipts.load()},
                           {"receipts_skipped", counters.receipts_skipped.load()},
                           {"first_error", load.first_error()},
                           {"ack_ns", to_json(load.ack_latency())}};
    const auto digest = engine_->digest(shard, seconds(60));
    json["last_lsn"] = engine_->visible_lsn(shard).value;
    if (digest) {
      json["digest"] = digest_text(digest->first);
      json["digest_keys"] = digest->first.keys;
    } else {
      json["first_error"] = digest.error().message();
    }
    return json;
  }

  /// With ack local the replica may still be behind; what is compared is the state that both reach. One
  /// deadline for all shards, and no wait for a replica that is gone.
  Status until_replica_is_level() {
    const auto deadline = SteadyClock::now() + kLevelTime;
    const auto level = [this] {
      for (const ShardStats& shard : engine_->stats().shards) {
        if (shard.replicas > 0 && shard.applied_lsn < shard.last_lsn) return false;
      }
      return true;
    };
    while (!level() && SteadyClock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      TL_TRY(events_.forward(*engine_, parent_));
    }
    return {};
  }

  /// A message a shard: all of them in one could be more than a socket takes.
  Status send_results(double seconds_driven) {
    TL_TRY(until_replica_is_level());
    for (std::uint16_t shard = 0; shard < run_.shards; ++shard) {
      TL_TRY(parent_.send({{"event", "shard"}, {"result", shard_result(*loads_[shard], ShardId{shard})}}));
    }
    return parent_.send({{"event", "result"},
                         {"seconds", seconds_driven},
                         {"link", link_text(*engine_)},
                         {"engine", engine_stats_json(engine_->stats())}});
  }

  const RunOptions& run_;
  const NodeConfig& config_;
  NodeChannel& parent_;
  bool stopping_ = false;
  EventForwarder events_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<ReceiptChannels> channels_;
  std::vector<std::unique_ptr<ShardLoad>> loads_;  // outlives the engine, whose fibers run in it
  std::unique_ptr<Engine> engine_;
};

}  // namespace

int run_primary(const NodeConfig& config, NodeChannel& parent) {
  PrimaryNode node(config, parent);
  const Status status = node.serve();
  return status ? kExitOk : give_up(parent, status.error());
}

}  // namespace tidelock::tools
