#include <chrono>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

#include <nlohmann/json.hpp>

#include "exit_code.h"
#include "histogram_json.h"
#include "node.h"
#include "node_events.h"
#include "verifier.h"

namespace tidelock::tools {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// How long a replica may take to reach the primary's last LSN and to check what is queued.
constexpr auto kFinishTime = std::chrono::seconds(60);

class ReplicaNode {
 public:
  ReplicaNode(const NodeConfig& config, NodeChannel& parent, const ApplyPolicy* planted)
      : run_(config.run), config_(config), parent_(parent), planted_(planted) {}

  Status serve() {
    TL_TRY(prepare());
    TL_TRY(parent_.send({{"event", "ready"}, {"notices", engine_->stats().notices}}));
    for (auto& verifier : verifiers_) TL_TRY(verifier->start());
    TL_TRY(nlohmann::json finish, await_command("finish"));
    await_lsns(finish);
    TL_TRY(end_verifiers());
    TL_TRY(events_.forward(*engine_, parent_));
    TL_TRY(send_results());
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
    options.apply_policy = planted_;
    options.inspect = inspect_name(::getpid());
    TL_TRY(engine_, Engine::open(options));
    const Duration timeout{static_cast<std::int64_t>(run_.timeout_s * 1e9)};
    for (std::uint16_t shard = 0; shard < run_.shards; ++shard) {
      verifiers_.push_back(std::make_unique<ShardVerifier>(*engine_, ShardId{shard}, run_.ack, timeout,
                                                           *dataset_, channels_->queue(ShardId{shard})));
    }
    return {};
  }

  Result<nlohmann::json> await_command(const char* name) {
    while (true) {
      TL_TRY(auto message, parent_.receive(kNodeTick));
      TL_TRY(events_.forward(*engine_, parent_));
      if (message && message->value("command", "") == name) return std::move(*message);
      TL_TRY(parent_.send(progress()));
    }
  }

  /// Until the primary's last LSNs are here or, if it is gone, until the links have noticed.
  void await_lsns(const nlohmann::json& finish) {
    const auto deadline = SteadyClock::now() + kFinishTime;
    const bool primary_gone = finish.at("last_lsns").empty();
    while (primary_gone && engine_->link_count() > 0 && SteadyClock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (const auto& want : finish.at("last_lsns")) {
      const ShardId shard{want.at("shard").get<std::uint16_t>()};
      const Lsn lsn{want.at("lsn").get<std::uint64_t>()};
      while (engine_->visible_lsn(shard) < lsn && engine_->link_count() > 0 && SteadyClock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  Status end_verifiers() {
    const auto deadline = SteadyClock::now() + kFinishTime;
    for (auto& verifier : verifiers_) verifier->finish();
    for (auto& verifier : verifiers_) {
      while (!verifier->finished()) {
        if (SteadyClock::now() > deadline)
          return Error(std::make_error_code(std::errc::timed_out), "the verifier did not come to an end");
        TL_TRY(auto message, parent_.receive(milliseconds(20)));
        TL_TRY(parent_.send(progress()));
      }
    }
    return {};
  }

  nlohmann::json progress() const {
    std::uint64_t checked = 0, stale = 0;
    for (const auto& verifier : verifiers_) {
      checked += verifier->counters().checked;
      stale += verifier->counters().stale;
    }
    return {{"event", "progress"}, {"checked", checked}, {"stale", stale}};
  }

  Status send_results() {
    for (std::uint16_t index = 0; index < run_.shards; ++index) {
      const VerifierCounters& counters = verifiers_[index]->counters();
      nlohmann::json shard = {{"shard", index},
                              {"checked", counters.checked.load()},
                              {"stale", counters.stale.load()},
                              {"wrong", counters.wrong.load()},
                              {"unverified", counters.unverified.load()},
                              {"check_delay_ns", to_json(verifiers_[index]->delay())},
                              {"first_violation", verifiers_[index]->first_violation()},
                              {"last_lsn", engine_->visible_lsn(ShardId{index}).value}};
      if (const auto digest = engine_->digest(ShardId{index}, seconds(60)))
        shard["digest"] = digest_text(digest->first);
      TL_TRY(parent_.send({{"event", "shard"}, {"result", std::move(shard)}}));
    }
    return parent_.send({{"event", "result"},
                         {"link", link_text(*engine_)},
                         {"engine", engine_stats_json(engine_->stats())}});
  }

  const RunOptions& run_;
  const NodeConfig& config_;
  NodeChannel& parent_;
  const ApplyPolicy* planted_;
  EventForwarder events_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<ReceiptChannels> channels_;
  std::vector<std::unique_ptr<ShardVerifier>> verifiers_;  // outlives the engine, whose fibers run in it
  std::unique_ptr<Engine> engine_;
};

}  // namespace

int run_replica(const NodeConfig& config, NodeChannel& parent, const ApplyPolicy* planted) {
  ReplicaNode node(config, parent, planted);
  const Status status = node.serve();
  return status ? kExitOk : give_up(parent, status.error());
}

}  // namespace tidelock::tools
