/// A node of the world `groups`: production's GroupNode with a table, and what the checkers see of its log.
/// Thread:   one
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <tidelock/replication/group_node.h>

#include "dial_host.h"
#include "entry_tree.h"
#include "node_table.h"
#include "scene.h"

namespace tidelock::sim {

/// All histories that a run has seen.
class Histories {
 public:
  explicit Histories(std::uint32_t keys) : keys_(keys) {}
  EntryTree& of(HistoryId id);
  [[nodiscard]] const std::vector<std::unique_ptr<EntryTree>>& all() const { return all_; }
  /// one_winner: false: somebody has led that already.
  bool led(HistoryId id, Epoch epoch) { return led_.insert({id.value, epoch_value(epoch)}).second; }

 private:
  std::uint32_t keys_;
  std::vector<std::unique_ptr<EntryTree>> all_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> led_;
};

/// The table of a group's node: what a follower applies, and what snapshots take it to.
class GroupTable final : public Applier, public SnapshotTarget {
 public:
  GroupTable(const Scene& scene, std::uint32_t node);
  Status apply(std::span<const EntryView> entries) override;
  void abandon_fragments() override { piece_.clear(); }
  Status begin_shadow() override;
  Status apply_live(std::span<const EntryView> entries) override;
  Status add_records(std::span<const EntryView> entries) override;
  void void_record() override { record_piece_.clear(); }
  void swap_shadow(Lsn lsn) override;
  void drop_shadow() override;

  [[nodiscard]] NodeTable& table() { return table_; }
  [[nodiscard]] const NodeTable& table() const { return table_; }
  /// Since the last call: the newest LSN that a swap, or the loss of its history, took it to.
  [[nodiscard]] std::optional<Lsn> swapped() { return std::exchange(swapped_, std::nullopt); }
  /// Called before each batch is applied.
  std::function<void()> before_apply;

 private:
  template <class Take>
  void each_whole(std::span<const EntryView> entries, std::string& piece, const Take& take);

  Scene scene_;
  std::uint32_t node_;
  NodeTable table_;
  std::string piece_;
  std::string shadow_piece_;
  std::string record_piece_;
  std::optional<Lsn> swapped_;
};

struct GroupLife {
  std::unique_ptr<GroupTable> table;
  std::unique_ptr<GroupNode> node;
  bool dying = false;  ///< killed; its fibers are being unwound
  // What of its log the tree has:
  EntryTree* tree = nullptr;
  std::uint64_t position = 0;
  std::size_t last = EntryTree::kRoot;
  Lsn commit{};
  Epoch led{};  ///< the newest epoch that it leads or led
};

class GroupHost final : public DialHost, private GroupNodeObserver {
 public:
  GroupHost(const Scene& scene, Histories& histories, std::uint32_t number);
  void start(Dialer& dialer);
  void kill();
  /// What its life has counted so far is added to the run's; once a life.
  void count();
  /// On its core: it looks for nobody any more, and says goodbye.
  void farewell();

  [[nodiscard]] Node& node() override { return node_; }
  [[nodiscard]] Door* door() override { return &life_->node->member(); }
  [[nodiscard]] bool up() const { return node_.up(); }
  [[nodiscard]] GroupLife& life() { return *life_; }
  [[nodiscard]] Member& member() { return life_->node->member(); }
  [[nodiscard]] std::uint32_t number() const { return node_.number(); }
  [[nodiscard]] std::string name() const { return "node " + std::to_string(node_.number()); }
  /// It is up, and its promises and its log count.
  [[nodiscard]] bool remembers() { return up() && membership().memory(); }
  [[nodiscard]] bool leads() { return up() && member().role() == MemberRole::leading; }
  [[nodiscard]] const Membership& membership() { return std::as_const(member()).membership(); }
  /// The table is what the log says, key by key.
  void check_table(const char* when);
  /// Its log as it is now reaches the tree, and what is wrong with it the verdict.
  void look_at_log();

 private:
  void after_turn();
  void follow_log(const GroupLog& log);
  void take_run(const Log::Run& run);
  void follow_commit(const GroupLog& log);
  [[nodiscard]] bool begins_to_lead();
  void check_winner();
  void check_leads();

  // GroupNodeObserver
  void role_changed(MemberRole role, const std::string& why) override;
  void note(const std::string& what) override;

  Scene scene_;
  Histories& histories_;
  Node node_;
  std::unique_ptr<GroupLife> life_;
};

}  // namespace tidelock::sim
