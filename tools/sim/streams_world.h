/// The world `streams`: one node with a Primary, one to three with a Replica, links between them, clients,
/// and the faults of a plan; from the start of all nodes to their last check.
/// Thread:   one
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "history.h"
#include "plan.h"
#include "sim_dialer.h"
#include "stream_hosts.h"
#include "workload.h"

namespace tidelock::sim {

class StreamsWorld final : public EventTarget, private DialWatcher {
 public:
  StreamsWorld(World& world, const Shape& shape, std::vector<Fault> plan, const Planted& planted);
  ~StreamsWorld() override;

  /// Runs to the end and checks what can be checked only there.
  void run();
  [[nodiscard]] const FaultCounts& counts() const { return counts_; }
  [[nodiscard]] CallCounts calls() const { return history_.counts(); }
  [[nodiscard]] const SyncCounts& syncs() const { return syncs_; }
  /// Keys whose history was too much to search.
  [[nodiscard]] std::uint64_t undecided() const { return undecided_; }
  /// Replicas that could not follow at the end, since the log no longer reaches back to where they stand,
  /// and no snapshot came.
  [[nodiscard]] std::uint64_t behind_log() const { return behind_log_; }

  /// Replicas that the operator's stand-in started again, empty, since the primary had refused them for good.
  [[nodiscard]] std::uint64_t restarted() const { return restarted_; }

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;

 private:
  enum Kind : std::uint16_t { fault_due, restart, slow_ends, look };

  // DialWatcher: node 0 is the primary.
  void judged(std::size_t by, const Hello& theirs, const tidelock::Verdict& verdict) override;
  void made(std::size_t from, std::size_t by, const Hello& theirs, const Hello& ours, Wire& wire) override;
  void attached(std::size_t by, const Hello& theirs, const Hello& ours) override;
  void refused(std::size_t from, const Refusal& refusal) override;

  void start_primary();
  void start_replica(std::size_t replica);
  void inject(const Fault& fault);
  void part(const Fault& fault);
  void kill(const Fault& fault);
  void slow(const Fault& fault);
  void end_slowness(Node& slowed);
  void restart_node(std::size_t node);
  void restart_refused(std::size_t replica);
  void look_after();
  [[nodiscard]] Node& node_of(const Fault& fault);
  [[nodiscard]] Node& node(std::size_t index) {
    return index == 0 ? primary_->node() : replicas_[index - 1]->node();
  }
  [[nodiscard]] bool settled();
  /// Replicas that the log reaches back to.
  [[nodiscard]] std::size_t followers() const;
  /// Its next snapshot waits for the last one to be long enough ago.
  [[nodiscard]] bool waits_its_turn(std::size_t replica) const;
  /// It cannot follow: left behind by a log whose primary sends no snapshots, or waits_its_turn() at the end.
  [[nodiscard]] bool excused(std::size_t replica) const;
  /// Enough follow for a write to be applied as it takes.
  [[nodiscard]] bool enough() const;
  void check_converged();
  void check_linearizable();
  void check_nothing_left();

  [[nodiscard]] Scene scene() { return {world_, shape_, oracle_, counts_, syncs_, planted_}; }

  World& world_;
  Shape shape_;
  Planted planted_;
  Oracle oracle_;
  FaultCounts counts_;
  SyncCounts syncs_;
  History history_;
  std::vector<Fault> plan_;
  TargetId target_;
  std::unique_ptr<PrimaryHost> primary_;
  std::vector<std::unique_ptr<ReplicaHost>> replicas_;
  std::unique_ptr<SimDialer> dialer_;
  std::unique_ptr<Workload> workload_;
  std::vector<std::uint64_t> stalls_before_;  ///< by node, of a slowness that lasts
  std::vector<Instant> slow_until_;           ///< by node; 0: it is not slow
  bool over_ = false;                         ///< nobody is waited for any more
  std::uint64_t undecided_ = 0;
  std::uint64_t behind_log_ = 0;
  std::uint64_t restarted_ = 0;
};

}  // namespace tidelock::sim
