/// The replica's half of a run on two machines: takes the run and the input from the primary's machine,
/// starts the replica, and stands between the two. The replica's process is the same as ever: its receipts
/// come out of the same queue, which this side fills.
/// Thread:   one owner
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "core_plan.h"
#include "dataset.h"
#include "node_process.h"
#include "receipts.h"
#include "run_limits.h"
#include "run_options.h"
#include "run_session.h"
#include "side_channel.h"
#include "side_messages.h"

namespace tidelock::tools {

class ReplicaSession {
 public:
  ReplicaSession(const RunOptions& options, const RunLimits& limits) : options_(options), limits_(limits) {}
  ~ReplicaSession();

  struct Result {
    RunOptions run;  ///< as the primary wants it
    CorePlan plan;
    Dataset dataset;
    RunOutcome outcome;
    bool interrupted = false;  ///< the primary's run was
  };
  /// Blocks until the run is over. SIGINT and SIGTERM end it at once; the primary is told.
  /// Errors:   nobody there; it is no primary of this version; the node could not start. ECANCELED: a signal came
  ///           before the run began
  tidelock::Result<Result> execute(const RunSession::ProgressHandler& progress,
                                   const RunSession::NoticeHandler& notice);
  /// The signal that came, or 0.
  [[nodiscard]] int signal() const { return signal_; }

 private:
  using SteadyClock = std::chrono::steady_clock;

  Status meet();
  Status take_dataset();
  Status start();
  Status run();
  Status step();
  bool read_signal();
  void wait();
  [[nodiscard]] bool behind() const;
  Status relay_from_primary();
  Status relay_from_node();
  Status on_command(const nlohmann::json& message);
  Status take_receipts(const std::string& body);
  Status give_credit();
  void watch(const nlohmann::json& message);
  void note_failure(std::string text);

  const RunOptions& options_;
  const RunLimits limits_;
  SideConfig side_;
  CorePlan plan_;
  FileHandle signals_;
  std::optional<SideChannel> channel_;
  FileHandle dataset_file_;
  std::optional<Dataset> dataset_;
  std::optional<ReceiptChannels> receipts_;
  std::optional<NodeProcess> node_;
  std::vector<std::uint64_t> got_;    ///< receipts, a shard
  std::vector<std::uint64_t> taken_;  ///< of those, by the verifier, as last told
  nlohmann::json node_shards_ = nlohmann::json::array();
  nlohmann::json primary_shards_ = nlohmann::json::array();
  bool ready_ = false;
  bool closing_ = false;
  bool over_ = false;
  bool interrupted_ = false;
  int signal_ = 0;
  SteadyClock::time_point end_;  ///< whatever the primary's machine does
  RunProgress latest_;
  RunOutcome outcome_;
  RunSession::ProgressHandler on_progress_;
  RunSession::NoticeHandler on_notice_;
};

}  // namespace tidelock::tools
