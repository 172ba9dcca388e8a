/// The replica's end of a shard's replication: checks, applies, then acknowledges. What it has acknowledged
/// as applied is visible to every reader on this core from then on.
/// Thread:   owner core
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/group_log.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/snapshot_target.h>

namespace tidelock {

/// Where entries go: the shard's table. Called once a batch piece, never once an operation.
class Applier {
 public:
  virtual ~Applier() = default;
  /// Entries are checked and in LSN order. Fragments arrive in order of their offset; the last one makes the
  /// put visible. After an error the link is closed and the same entries come again with the next one.
  /// Suspends: never
  /// Lifetime: keys and values until the call returns, in memory of the replica's own that no peer can change
  virtual Status apply(std::span<const EntryView> entries) = 0;
  /// The stream broke: forget any half-assembled put.
  virtual void abandon_fragments() = 0;
};

/// A replica's part of a group asks and tells what is a node's. On the loop; must not suspend, attach or
/// close.
class ReplicaOwner {
 public:
  virtual ~ReplicaOwner() = default;
  /// Its acknowledgements count, as far as the node is concerned.
  [[nodiscard]] virtual bool memory() const = 0;
  /// Log and table go up to that, and the log is a prefix of the primary's.
  virtual void applied(Lsn lsn) = 0;
  /// The primary's control frame had a stamp, which will be echoed. Called right after the frame was taken.
  virtual void stamped() = 0;
  /// The primary has ended its epoch and asks this node for another.
  virtual void asked_to_lead() = 0;
};

/// What a replica applies, and when it says so. Production has one way, these defaults; tests plant others to
/// prove that the verifier and the simulator see them.
class ApplyPolicy {
 public:
  virtual ~ApplyPolicy() = default;
  /// How many further turns a received batch waits before it is applied although it was already acknowledged
  /// as applied. 0: apply, then acknowledge.
  [[nodiscard]] virtual std::uint32_t turns_acknowledged_early() const { return 0; }
  /// True: what a batch's header says is acknowledged as received before its entries are checked.
  [[nodiscard]] virtual bool acknowledges_unchecked() const { return false; }
  /// The LSN after which a new link goes on; whoever says hello for it has to claim the same.
  [[nodiscard]] virtual Lsn resume_from(Lsn applied) const { return applied; }
  /// True: a commit LSN that a control frame brings counts as applied here.
  [[nodiscard]] virtual bool believes_notification() const { return false; }
  /// True: a frame of an older epoch than the primary's hello is taken like others.
  [[nodiscard]] virtual bool accepts_old_epoch() const { return false; }
  /// Up to which LSN those who wait are woken.
  [[nodiscard]] virtual Lsn wakes_to(Lsn applied) const { return applied; }
  /// Entries that were checked, before they reach the table.
  virtual void alter(std::vector<EntryView>& entries) const { static_cast<void>(entries); }
};

struct ReplicaOptions {
  ShardId shard{};
  HistoryId history{};
  Epoch epoch{};  ///< what is below it is refused
  Duration heartbeat = milliseconds(100);
  Duration link_timeout = seconds(3);
  SnapshotTarget* snapshot = nullptr;  ///< outlives the replica; null: it takes no snapshots
  /// In a group: what comes is kept there, and outlives the replica. While there is a link, nothing else
  /// reads or writes the log. Null: in no group, no log is kept.
  GroupLog* group = nullptr;
  std::uint32_t group_bytes_max = kGroupBytesMax;  ///< there: of entries; a quarter of the log at most
  ReplicaOwner* owner = nullptr;                   ///< with it; outlives the replica
  const ApplyPolicy* policy = nullptr;             ///< null: production's
};

struct ReplicaStats {
  std::atomic<std::uint64_t> entries{0}, batches{0}, batch_bytes{0};
  std::atomic<std::uint64_t> received_lsn{0}, applied_lsn{0}, commit_lsn{0};
  std::atomic<std::uint64_t> link_up{0};
  std::atomic<std::uint64_t> links_lost{0};
  std::atomic<std::uint64_t> syncing{0};  ///< 1 while a snapshot is under way
  std::atomic<std::uint64_t> snapshots{0}, snapshots_broken{0};
  std::atomic<std::uint64_t> peer_wakeups{0};  ///< over all links, lost ones too
};

class Replica final : public PollSource {
 public:
  /// Adds itself to the reactor; reactor, applier and policy outlive it.
  /// Errors:   EINVAL for times that make no sense, and for a policy in a group
  static Result<std::unique_ptr<Replica>> create(Reactor& reactor, Applier& applier,
                                                 const ReplicaOptions& options);
  /// close() if it was not called. No fiber may be waiting.
  ~Replica() override;

  /// Follows a new link, from applied_lsn() on; `history` and `epoch` are what the primary said in its hello.
  /// The previous link, if any, is closed. A replica without a history takes the primary's. If the primary's
  /// log does not reach back so far, a snapshot comes first, and what is here is served until it is whole.
  /// In a group a snapshot may also take the place of entries that only this node has. `snapshot_comes`: as
  /// the primary's hello said; if it did not, the log here is a prefix of the primary's.
  /// Errors:   wrong_context, old_epoch; gap: no stream mends what is here. The link is closed with that reason
  Status attach(std::unique_ptr<Link> link, HistoryId history, Epoch epoch, bool snapshot_comes = false);
  [[nodiscard]] bool connected() const;
  [[nodiscard]] const Link* link() const;  ///< null: none
  /// True once the link has brought anything: the primary has it on its core, too.
  [[nodiscard]] bool heard() const;
  /// True while the primary says that acknowledgements of this replica count: not before a snapshot is whole.
  [[nodiscard]] bool counted() const;
  [[nodiscard]] bool takes_snapshots() const;
  /// Called on the loop whenever a link was lost, with the reason; not for one that close() or attach() ends.
  void on_link_lost(std::function<void(const std::string& reason)> handler);

  [[nodiscard]] Lsn applied_lsn() const;
  [[nodiscard]] HistoryId history() const;  ///< 0: none yet
  [[nodiscard]] Epoch epoch() const;
  /// Suspends until `lsn` is applied; in a group an LSN says too little, see GroupLog. Suspends: yes (fiber)
  /// Errors:   deadline_exceeded, cancelled
  Status wait_applied(Lsn lsn, Instant deadline);
  [[nodiscard]] const ReplicaStats& stats() const;
  /// In a group, without a link: what it had is of no history any more, and its log begins anew. It takes the
  /// next primary's.
  void forget();
  void close(const std::string& reason);

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

 private:
  struct State;
  explicit Replica(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidelock
