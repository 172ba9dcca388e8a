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
#include "dial_host.h"
#include "node.h"
#include "node_table.h"
#include "oracle.h"
#include "scene.h"
#include "wire.h"

namespace tidelock::sim {

/// One life of the primary: a new history each time.
struct PrimaryLife {
  std::unique_ptr<Primary> primary;
  std::unique_ptr<Admission> admission;
  Line* line = nullptr;
  Epoch epoch{};
  std::unique_ptr<NodeTable> table;
  bool dying = false;  ///< killed; its fibers are being unwound
  LogFollower follower;
  Lsn commit{};
};

class PrimaryHost final : public DialHost {
 public:
  explicit PrimaryHost(const Scene& scene);
  void start();
  void kill();
  [[nodiscard]] Node& node() override { return node_; }
  [[nodiscard]] Door* door() override { return life_->admission.get(); }
  [[nodiscard]] PrimaryLife& life() { return *life_; }
  [[nodiscard]] bool up() const { return node_.up(); }
  /// Nodes that it has a link with and that have no snapshot under way, as the world knows.
  [[nodiscard]] std::size_t whole_nodes() const;
  /// What its life has counted so far is added to the run's; once a life.
  void count() const;

 private:
  void after_turn();

  Scene scene_;
  Node node_;
  std::unique_ptr<PrimaryLife> life_;
};

/// Applies to a table and checks every entry, and every record of a snapshot, against what was written.
class RecordingApplier final : public Applier, public SnapshotTarget {
 public:
  RecordingApplier(const Scene& scene, std::uint32_t node);

  Status apply(std::span<const EntryView> entries) override;
  void abandon_fragments() override { piece_.clear(); }

  Status begin_shadow() override;
  Status apply_live(std::span<const EntryView> entries) override;
  Status add_records(std::span<const EntryView> entries) override;
  void void_record() override;
  void swap_shadow(Lsn lsn) override;
  void drop_shadow() override;

  /// The history whose entries come.
  void follow(Line& line) { line_ = &line; }
  [[nodiscard]] Line* line() const { return line_; }
  /// What the key holds, 0: nothing.
  [[nodiscard]] std::uint64_t at(std::uint32_t key) const;
  /// Whose batches are being applied; null: nobody's.
  void set_wire(const std::shared_ptr<Wire>& wire) { wire_ = wire; }

 private:
  /// Nothing: it is damaged, which is said.
  [[nodiscard]] std::optional<Written> decode(const EntryView& entry, Bytes key, Bytes value) const;
  /// Calls `take(entry, key, value)` for each entry that is whole. `piece`: of the one whose fragments come.
  template <class Take>
  void each_whole(std::span<const EntryView> entries, std::string& piece, const Take& take);
  void take(const EntryView& entry, Bytes key, Bytes value);
  void take_live(const EntryView& entry, Bytes key, Bytes value);
  void take_record(const EntryView& entry, Bytes key, Bytes value);
  [[nodiscard]] std::string who() const { return "node " + std::to_string(node_); }

  Scene scene_;
  std::uint32_t node_;
  Line* line_ = nullptr;
  Lsn last_{};
  NodeTable table_;
  std::string piece_;
  Lsn shadow_last_{};  ///< of the live entries in it; 0: none yet
  std::string shadow_piece_;
  std::string record_piece_;
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

class ReplicaHost final : public DialHost, private FollowingObserver {
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
  [[nodiscard]] Node& node() override { return node_; }
  [[nodiscard]] Door* door() override { return nullptr; }
  [[nodiscard]] ReplicaLife& life() { return *life_; }
  [[nodiscard]] const ReplicaLife& life() const { return *life_; }
  [[nodiscard]] std::uint32_t number() const { return node_.number(); }
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
