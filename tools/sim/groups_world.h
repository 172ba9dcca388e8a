/// The world `groups`: two to five equal nodes that keep one history, each with production's GroupNode; links
/// and hellos between all of them, clients, operators, and the faults of a plan.
/// Thread:   one
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "group_host.h"
#include "group_load.h"
#include "plan.h"
#include "sim_dialer.h"

namespace tidelock::sim {

class GroupsWorld final : public EventTarget, private DialWatcher {
 public:
  GroupsWorld(World& world, const Shape& shape, std::vector<Fault> plan, const Planted& planted);
  ~GroupsWorld() override;

  /// Runs to the end and checks what can be checked only there.
  void run();
  [[nodiscard]] const FaultCounts& counts() const { return counts_; }
  [[nodiscard]] CallCounts calls() const { return history_.counts(); }
  [[nodiscard]] const SyncCounts& syncs() const { return syncs_; }
  [[nodiscard]] std::uint64_t undecided() const { return undecided_; }
  /// Nodes that at the end still waited for their next snapshot's turn.
  [[nodiscard]] std::uint64_t behind_log() const { return excused_; }
  /// By operators, for more than a fault: none.
  [[nodiscard]] static std::uint64_t restarted() { return 0; }

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;

 private:
  enum Kind : std::uint16_t { fault_due, restart, slow_ends, second_stands, look };

  // DialWatcher
  void judged(std::size_t by, const Hello& theirs, const tidelock::Verdict& verdict) override;
  void made(std::size_t, std::size_t, const Hello&, const Hello&, Wire&) override {}
  void attached(std::size_t, const Hello&, const Hello&) override {}
  void refused(std::size_t from, const Refusal& refusal) override;

  [[nodiscard]] Scene scene() { return {world_, shape_, oracle_, counts_, syncs_, planted_}; }
  void start(std::size_t node);
  void inject(const Fault& fault);
  [[nodiscard]] std::shared_ptr<Wire> wire_of(std::size_t node);
  void part(const Fault& fault);
  void kill(const Fault& fault);
  void slow(const Fault& fault);
  void end_slowness(std::size_t node);
  void race(const Fault& fault);
  void operate();
  [[nodiscard]] std::uint32_t memories_to_lose() const;
  /// Whoever leads the newest epoch; null: nobody does.
  [[nodiscard]] GroupHost* primary();
  [[nodiscard]] bool waits_its_turn(GroupHost& leader, GroupHost& host);
  [[nodiscard]] bool settled();
  void check_converged();
  void check_linearizable();
  void check_nothing_left();

  World& world_;
  Shape shape_;
  Planted planted_;
  Oracle oracle_{0};  ///< of the other world
  FaultCounts counts_;
  SyncCounts syncs_;
  History history_;
  Histories histories_;
  std::vector<Fault> plan_;
  TargetId target_;
  std::vector<std::unique_ptr<GroupHost>> nodes_;
  std::unique_ptr<SimDialer> dialer_;
  std::unique_ptr<GroupLoad> load_;
  std::vector<std::uint64_t> stalls_before_;  ///< by node, of a slowness that lasts
  std::vector<Instant> slow_until_;           ///< by node; 0: it is not slow
  Instant leaderless_since_{};
  bool over_ = false;  ///< everybody is told to say goodbye
  std::uint64_t operations_ = 0;
  bool clock_jumped_ = false;
  std::uint64_t undecided_ = 0;
  std::uint64_t excused_ = 0;
};

}  // namespace tidelock::sim
