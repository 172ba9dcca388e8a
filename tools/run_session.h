/// One run from start to end: starts the nodes, passes commands on, gathers results. The parent of the nodes.
/// With RunRole::primary the replica is another machine's, behind the side channel.
/// Thread:   one owner
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core_plan.h"
#include "dataset.h"
#include "node_process.h"
#include "remote_node.h"
#include "run_limits.h"
#include "run_options.h"

namespace tidelock::tools {

/// What came of a run; whatever did not come is empty.
struct RunOutcome {
  nlohmann::json primary;  ///< the node's result message
  nlohmann::json replica;
  std::vector<std::string> notices;   ///< lines that a person should see
  std::vector<std::string> failures;  ///< nodes that did not end well: whatever else they said, they failed
  int signal = 0;                     ///< SIGINT or SIGTERM if one ended the run early
};

struct RunProgress {
  std::string phase;
  std::uint64_t loaded = 0, total = 0, ops = 0, failed = 0, checked = 0, stale = 0;
};

class RunSession {
 public:
  /// `limits`: of a run on two machines.
  RunSession(const RunOptions& options, const CorePlan& plan, const Dataset& dataset, const RunLimits& limits)
      : options_(options), plan_(plan), dataset_(dataset), limits_(limits) {}
  ~RunSession();

  using ProgressHandler = std::function<void(const RunProgress&)>;
  using NoticeHandler = std::function<void(const std::string&)>;
  /// Blocks until the run is over. Takes SIGINT and SIGTERM: the first ends the run early, a second at once.
  /// Errors:   a node could not start; the text is the node's own. ECANCELED: a signal came before the run began
  Result<RunOutcome> execute(const ProgressHandler& progress, const NoticeHandler& notice);
  /// The signal that came, or 0.
  [[nodiscard]] int signal() const { return signal_; }

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Node {
    const char* name;
    std::unique_ptr<NodeEnd> end;
    bool ready = false;
    bool gone = false;
    nlohmann::json shards = nlohmann::json::array();  ///< the results of its shards so far
    std::optional<nlohmann::json> result;
    std::string error;
  };

  Status start();
  Status meet_replica(int receipts_fd);
  Status step();
  void poll_nodes();
  void read_signals();
  void on_signal(int signal);
  Status drain(Node& node);
  void on_message(Node& node, const nlohmann::json& message);
  void command(Node& node, nlohmann::json message);
  void finish_replica();
  [[nodiscard]] bool over() const;
  void close_nodes();
  void extend_deadline();
  void limit_rest(Duration duration);
  void tell(std::string text);
  void node_failed(std::string text);

  const RunOptions& options_;
  const CorePlan& plan_;
  const Dataset& dataset_;
  const RunLimits limits_;
  Node primary_{"primary", {}, false, false, {}, {}, {}};
  Node replica_{"replica", {}, false, false, {}, {}, {}};
  RemoteNode* remote_ = nullptr;  ///< the replica, if it is on another machine
  FileHandle signals_;
  bool started_ = false;
  bool finish_sent_ = false;
  bool broken_off_ = false;
  bool enough_ = false;  ///< RunOptions::checks is reached
  RunProgress latest_;
  RunOutcome outcome_;
  int signal_ = 0;
  SteadyClock::time_point deadline_;                              ///< progress puts it off
  SteadyClock::time_point end_ = SteadyClock::time_point::max();  ///< nothing does
  ProgressHandler on_progress_;
  NoticeHandler on_notice_;
};

}  // namespace tidelock::tools
