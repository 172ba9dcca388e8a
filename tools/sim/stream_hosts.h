/// The two kinds of nodes of the world `streams`: one with a Primary, some with a Replica, each with the
/// production object and what the checkers need to see of it.
/// Thread:   one
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/replication/admission.h>
#include <tidelock/replication/following.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>

#include "checks.h"
#include "faults.h"
#include "node.h"
#include "oracle.h"
#include "planted.h"
#include "shape.h"
#include "wire.h"

namespace tidelock::sim {

/// What the hosts share.
struct Scene {
  World& world;
  const Shape& shape;
  Oracle& oracle;
  FaultCounts& counts;
  Planted planted;

  void check(const char* checker, const std::string& who, const Violation& violation) const {
    if (violation) world.fail(checker, who + ": " + *violation);
  }
};

/// One life of the primary: a new history each time.
struct PrimaryLife {
  std::unique_ptr<Primary> primary;
  std::unique_ptr<Admission> admission;
  Line* line = nullptr;
  Epoch epoch{};
  std::vector<std::uint64_t> table;  ///< by key, what it holds; 0: nothing
  bool dying = false;                ///< killed; its fibers are being unwound
  LogFollower follower;
  Lsn commit{};
};

class PrimaryHost {
 public:
  explicit PrimaryHost(const Scene& scene);
  void start();
  void kill();
  [[nodiscard]] Node& node() { return node_; }
  [[nodiscard]] PrimaryLife& life() { return *life_; }
  [[nodiscard]] bool up() const { return node_.up(); }

 private:
  void after_turn();

  Scene scene_;
  Node node_;
  std::unique_ptr<PrimaryLife> life_;
};

/// Applies to a table of numbers and checks every entry against what was written.
class RecordingApplier final : public Applier {
 public:
  RecordingApplier(const Scene& scene, std::uint32_t node);
  Status apply(std::span<const EntryView> entries) override;
  void abandon_fragments() override { piece_.clear(); }

  /// The history whose entries come.
  void follow(Line& line) { line_ = &line; }
  [[nodiscard]] Line* line() const { return line_; }
  [[nodiscard]] std::uint64_t at(std::uint32_t key) const { return table_[key]; }
  [[nodiscard]] const std::vector<std::uint64_t>& table() const { return table_; }
  /// Whose batches are being applied; null: nobody's.
  void set_wire(const std::shared_ptr<Wire>& wire) { wire_ = wire; }

 private:
  void take(const EntryView& entry, Bytes key, Bytes value, bool erases);

  Scene scene_;
  std::uint32_t node_;
  Line* line_ = nullptr;
  Lsn last_{};
  std::vector<std::uint64_t> table_;
  std::string piece_;
  std::weak_ptr<Wire> wire_;
};

struct ReplicaLife {
  std::unique_ptr<RecordingApplier> applier;
  std::unique_ptr<Replica> replica;
  std::unique_ptr<Following> following;
  std::optional<Refusal> refusal;  ///< the newest one that is for good
  bool given_up = false;           ///< and so nobody dials any more
  bool ending = false;             ///< farewell() was called
  bool dying = false;
  Lsn commit{};
};

class ReplicaHost final : private FollowingObserver {
 public:
  ReplicaHost(const Scene& scene, std::uint32_t index);
  /// It follows whom `dialer` reaches, as long as it is up.
  void start(Dialer& dialer);
  void kill();
  /// On its core: it dials no more, and says goodbye.
  void farewell(const std::string& reason);
  /// The primary refused it for good: it has to be started again, empty, to follow.
  [[nodiscard]] bool given_up() const { return up() && life_->given_up; }
  /// That, because the log does not reach back to where it stands.
  [[nodiscard]] bool behind_log() const {
    return given_up() && life_->refusal && life_->refusal->reason == RefusalReason::behind_log;
  }
  [[nodiscard]] Node& node() { return node_; }
  [[nodiscard]] ReplicaLife& life() { return *life_; }
  [[nodiscard]] bool up() const { return node_.up(); }
  [[nodiscard]] std::string name() const { return "node " + std::to_string(node_.number()); }

 private:
  void after_turn();
  void pursue(ReplicaLife& life, Dialer& dialer);

  // FollowingObserver
  void follows(const Lineage& lineage) override;
  void attached(const Hello& theirs, const Link& link) override;
  void lost(const std::string& reason, AfterLoss next) override;
  void failed(const std::string&) override {}
  void given_up(const std::string& why) override;

  Scene scene_;
  Node node_;
  std::unique_ptr<ReplicaLife> life_;
};

}  // namespace tidelock::sim
