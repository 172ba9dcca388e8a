/// One shard on its owner core: its table, its log and stream, and every operation on them.
/// Writes: memory is reserved in the table, the entry is appended to the log, the table takes it with its
/// LSN, all in one turn, so that the order of the log is the order in which writes become visible.
/// Thread:   owner core, except stats()
/// Suspends: where a function takes a deadline (fiber); never otherwise
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/engine/engine.h>
#include <tidelock/engine/options.h>
#include <tidelock/engine/stats.h>
#include <tidelock/reactor/boot_clock.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/sync.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/admission.h>
#include <tidelock/replication/following.h>
#include <tidelock/replication/group_node.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>
#include <tidelock/replication/snapshot_source.h>
#include <tidelock/replication/snapshot_target.h>

#include "call.h"
#include "group_seed.h"
#include "table.h"

namespace tidelock {

/// No copy is longer than this between two looks at the fiber quota; a larger one is made in pieces, by a
/// fiber.
inline constexpr std::size_t kCopyBytes = 64 * 1024;

struct ShardConfig {
  ShardId id{};
  HistoryId history{};  ///< a replica takes its primary's: see follow()
  std::uint64_t routing_seed = 0;
  Epoch epoch{};
  GroupSeed* seed = nullptr;  ///< in a group: the engine's. Outlives the shard
  Clock* clock = nullptr;     ///< in a group: what leases go by; null: the machine's (BootClock)
};

/// What a write waits for. `replicas`: see WriteOptions.
struct AckNeed {
  AckLevel level = AckLevel::local;
  std::uint32_t replicas = 0;
};

/// Single-writer; readable by anyone, and for as long as the engine lives.
struct ShardCounters {
  std::atomic<std::uint64_t> keys{0}, memory_bytes{0};
  std::atomic<std::uint64_t> puts{0}, gets{0}, erases{0};
  std::atomic<std::uint64_t> visible_lsn{0};
};

/// In a group: what ShardRole shows. Single-writer, readable by anyone.
struct GroupState {
  std::atomic<GroupRole> role{GroupRole::none};
  std::atomic<bool> memory{false};
  std::atomic<std::uint64_t> history{0}, epoch{0}, commit_lsn{0}, role_count{0};
  std::atomic<std::uint32_t> leader{0};
};

class Shard final : private Applier,
                    private SnapshotTarget,
                    private SnapshotSource,
                    private PollSource,
                    private GroupNodeObserver {
 public:
  /// On the owner core.
  /// Errors:   those of the table and the log, with the size that was not to be had
  static Result<std::unique_ptr<Shard>> create(Reactor& reactor, const Options& options,
                                               const ShardConfig& config);
  /// After close(). On any thread once the core no longer turns.
  ~Shard() override;

  [[nodiscard]] ShardId id() const { return config_.id; }
  [[nodiscard]] CoreId core() const { return {config_.id.value}; }  ///< shard i lives on core i
  [[nodiscard]] Reactor& reactor() const { return reactor_; }

  // ---- from fibers of the owner core (shard_write.cc, shard_read.cc, shard_scan.cc) -----------------
  Result<Receipt> write(const BatchItem& item, AckNeed ack, Instant deadline);
  /// The items become visible in one turn.
  Result<Receipt> write_all(std::span<const BatchItem> items, AckNeed ack, Instant deadline);
  Status wait(const Receipt& receipt, AckNeed ack, Instant deadline);
  Result<Lsn> get(std::uint64_t hash, Bytes key, std::string& value, const Receipt& after, ReadLevel level,
                  Instant deadline);
  Result<std::pair<Digest, Lsn>> digest(Instant deadline);
  Status scan(ScanCursor& cursor, std::size_t keys_max, const Engine::Visitor& visitor, Instant deadline);

  // ---- from the loop (shard_calls.cc) ---------------------------------------------------------------
  /// Completes the call now or later. Writes keep the order in which they were started.
  void start(Call& call);
  /// Runs `body` in a fiber, as soon as there is one.
  void spawn(std::function<void()> body);

  // ---- set-up and end, from the loop (shard.cc) -----------------------------------------------------
  /// Replica: what the first primary said.
  void follow(HistoryId history, std::uint64_t routing_seed, Epoch epoch);
  /// Primary: who comes in.
  [[nodiscard]] Door& door() {
    return node_ ? static_cast<Door&>(node_->member()) : static_cast<Door&>(*admission_);
  }
  /// Replica: makes what will follow Options::primary, not yet started. Both outlive it: destroy() ends it.
  Following& pursue(Dialer& dialer, FollowingObserver& observer);
  /// In a group: begins to look for whom to follow. Both outlive it: destroy() ends it.
  /// Errors:   out_of_fibers
  Status join(Dialer& dialer, GroupNodeObserver& watch);
  /// In a group: stands until it leads and its writes can be committed. Suspends: yes (fiber)
  /// Errors:   deadline_exceeded, with what stood in the way; closed; cancelled
  Status promote(const PromoteOptions& how, Instant deadline);
  /// In a group: hands over to that node and follows it; nothing is done if this one does not lead. Suspends:
  /// yes (fiber)
  /// Errors:   those of GroupNode::switch_over()
  Status switch_over(std::uint32_t node, Instant deadline);
  /// In a group. Any thread, as long as the shard lives.
  [[nodiscard]] ShardRole role() const;
  /// Primary.
  void on_replica_lost(std::function<void(const std::string& reason)> handler);
  /// On the owner core; its streams' links.
  void each_link(const std::function<void(const Link&)>& visit) const;
  [[nodiscard]] const Primary* primary() const { return primary_; }
  /// Any thread, until destroy(). Of a primary: the memory that its links are attached to, for registering it
  /// once. Of a replica: empty.
  [[nodiscard]] Bytes log_memory() const { return primary_ ? primary_->log().memory() : Bytes{}; }
  /// Primary: what a connected replica has not applied yet.
  [[nodiscard]] std::uint64_t backlog() const { return leads() ? primary_->backlog() : 0; }
  [[nodiscard]] Lsn visible_lsn() const { return {counters_.visible_lsn.load(std::memory_order_relaxed)}; }
  [[nodiscard]] Epoch epoch() const { return config_.epoch; }
  [[nodiscard]] HistoryId history() const { return config_.history; }

  /// Refuses newcomers, and dials no more.
  void shut();
  /// Calls, fibers and links that are still at work here.
  [[nodiscard]] bool quiet() const;
  /// Says goodbye to the peers; every waiter gets its error.
  void close_links(const std::string& reason);
  /// After close_links(): nothing reads the log any more.
  [[nodiscard]] bool departed() const { return primary_ == nullptr || primary_->departed(); }
  /// Gives everything back. The shard is quiet and departed. Idempotent.
  void destroy();

  /// Any thread, until destroy().
  void fill(ShardStats& stats) const;
  [[nodiscard]] std::uint32_t links() const;
  [[nodiscard]] const ShardCounters& counters() const { return counters_; }

 private:
  class DigestSum;
  static constexpr const char* kLargePut = "a large put";

  /// While it lives nobody else writes.
  class [[nodiscard]] Hold {
   public:
    Hold(Shard& shard, const char* holder);
    Hold(Hold&& other) noexcept : shard_(std::exchange(other.shard_, nullptr)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold();

   private:
    Shard* shard_;
  };

  struct OwnedTimer : Timer {
    OwnedTimer(Shard& owner, Callback callback) : Timer(callback), shard(owner) {}
    Shard& shard;
  };

  /// What a GroupNode dials with, which is made before there are any links.
  class LateDialer final : public Dialer {
   public:
    Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline,
                               std::optional<Refusal>* refusal) override {
      return real->dial(address, ours, deadline, refusal);
    }
    Dialer* real = nullptr;
  };

  Shard(Reactor& reactor, const Options& options, const ShardConfig& config);
  Status create_ends();
  Status create_group_node();

  Status apply(std::span<const EntryView> entries) override;
  void abandon_fragments() override;
  Status apply_one(const EntryView& entry);
  Status apply_fragment(const EntryView& entry);
  static Status add_fragment(Table& table, Table::Assembly& assembly, const EntryView& entry);
  [[nodiscard]] std::uint64_t hash_of(Bytes key) const { return hash_key(config_.routing_seed, key); }

  // shard_sync.cc
  std::uint64_t walk(std::uint64_t position, std::size_t bytes_max, SnapshotSource::Visit visit,
                     void* context) const override;
  bool find(Bytes key, Record& found) const override;
  Status begin_shadow() override;
  Status apply_live(std::span<const EntryView> entries) override;
  Status add_records(std::span<const EntryView> entries) override;
  void void_record() override;
  void swap_shadow(Lsn lsn) override;
  void drop_shadow() override;
  Result<std::unique_ptr<Table>> new_table();
  Status add_newer_fragment(Table::Assembly& assembly, const EntryView& entry);
  void retire(std::unique_ptr<Table> table);
  /// A retired one that nobody reads any more.
  [[nodiscard]] Table* dismantled() const;
  void count_memory();
  [[nodiscard]] bool has_memory_to_free() const;
  void free_some_memory();

  // shard_group.cc
  void role_changed(MemberRole role, const std::string& why) override;
  void takes_line(const Lineage& lineage) override;
  void note(const std::string& what) override;
  /// Whether it appends: a primary that is in no group, or leads.
  [[nodiscard]] bool leads() const {
    return primary_ != nullptr && (node_ == nullptr || node_->member().role() == MemberRole::leading);
  }
  [[nodiscard]] Member& member() const { return node_->member(); }
  [[nodiscard]] Lsn group_commit() const { return member().log().commit_lsn(); }
  [[nodiscard]] bool has_memory() const { return std::as_const(member()).membership().memory(); }
  [[nodiscard]] bool has_group_news() const;
  void publish_group();
  [[nodiscard]] Error not_leading() const;
  [[nodiscard]] Error other_seed() const;
  [[nodiscard]] bool seed_fits() const {
    return node_ == nullptr || config_.seed->takes(config_.routing_seed);
  }
  [[nodiscard]] AckNeed need_now(AckNeed ack) const;
  [[nodiscard]] AckLevel level_now(AckNeed ack) const;
  [[nodiscard]] bool stands_for(const Receipt& receipt) const;
  Status await_memory(Instant deadline);
  Status check_group_receipt(const Receipt& receipt) const;
  Status await_group_visible(const Receipt& after, Instant deadline);
  /// What a read of that level asks for here and now: `any`, `committed` or `linearizable`.
  Result<ReadLevel> asked_level(ReadLevel level) const;
  /// `level`: committed or linearizable.
  Result<Lsn> get_committed(std::uint64_t hash, Bytes key, std::string& value, const Receipt& after,
                            ReadLevel level, Instant deadline);

  /// User fibers for which there was no stack, and the tables' deferred frees.
  std::uint32_t poll(std::uint32_t budget) override;
  [[nodiscard]] bool has_work() const override;
  std::uint32_t spawn_some(std::uint32_t budget);

  [[nodiscard]] Status primary_here() const;
  Status writable(AckNeed ack) const;
  Result<Lsn> try_write(const BatchItem& item, std::uint32_t bytes_after = 0);
  Result<Lsn> try_write_all(std::span<const BatchItem> items);
  Error end_half_written(const Error& error, std::size_t written, std::size_t all);
  Result<Lsn> append(const BatchItem& item, AckNeed ack, Instant deadline);
  Result<Lsn> append_all(std::span<const BatchItem> items, AckNeed ack, Instant deadline);
  Result<Lsn> append_large(const BatchItem& item, AckNeed ack, Instant deadline);
  Result<Table::Assembly> assemble(const BatchItem& item);
  /// `holder`: a literal, for the errors of those that wait meanwhile.
  Result<Hold> hold_writes(const char* holder, Instant deadline);
  [[nodiscard]] Error not_written(const Error& error, const char* obstacle) const;
  [[nodiscard]] Error log_stayed_full(const Error& error) const;
  /// Of a write that waited for the log, or behind others that do.
  [[nodiscard]] Error no_turn(const Error& error) const;
  Status await_ack(Lsn lsn, AckNeed ack, Instant deadline);
  Status await_turn(std::uint32_t bytes, Instant deadline);
  [[nodiscard]] bool may_append() const { return !held_ && !primary_->fragmenting(); }
  void stand(const BatchItem& item, Lsn lsn);
  void wrote(Lsn lsn);
  [[nodiscard]] Receipt receipt(Lsn lsn) const { return {config_.id, config_.history, config_.epoch, lsn}; }

  Status await_visible(const Receipt& after, Instant deadline);
  Status check_receipt(const Receipt& receipt) const;
  /// In a group: what somebody knows of who has seen an answer. Nothing that is later.
  struct Seen {
    Epoch epoch{};
    Lsn lsn{};
    bool committed = false;
  };
  [[nodiscard]] Seen seen_of(Lsn lsn) const;
  Result<Lsn> get_here(std::uint64_t hash, Bytes key, std::string& value, Seen& seen);
  Status copy_large(std::uint64_t hash, Bytes key, std::string& value);
  Status digest_pass(Digest& digest, Instant deadline);
  Status pause(Instant deadline);
  Wakeup let_others_run(std::size_t bytes);
  Status copy_page(Call& call);

  void start_write(Call& call);
  bool try_start_write(Call& call);
  void enqueue_write(Call& call);
  void drain_writes();
  void expire_writes();
  [[nodiscard]] bool readable_at_once(const Call& call, ReadLevel level) const;
  void start_read(Call& call);
  void start_wait(Call& call);
  void start_digest(Call& call);
  void start_scan(Call& call);
  void await_level(Call& call, Lsn lsn);
  void finish(Call& call, Status status);
  static void level_reached(AckWaiter& waiter, Status status);

  Reactor& reactor_;
  const Options& options_;
  ShardConfig config_;
  bool shut_ = false;
  std::uint32_t inside_ = 0;          ///< calls and fibers at work here
  std::uint32_t unbroken_calls_ = 0;  ///< of fibers, since the loop or one of them last let others run
  std::size_t unbroken_bytes_ = 0;    ///< that those calls copied
  std::unique_ptr<Table> table_;
  // One of primary and replica; in a group both, the node's, and its role says which one works.
  Primary* primary_ = nullptr;
  const Replica* replica_ = nullptr;
  std::unique_ptr<Primary> own_primary_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<Replica> own_replica_;
  std::unique_ptr<Following> following_;
  BootClock boot_clock_;
  LateDialer dialer_;
  std::unique_ptr<GroupNode> node_;
  GroupNodeObserver* watch_ = nullptr;
  Condition group_changed_;  ///< role, memory or commit LSN
  GroupState group_;
  bool seed_refused_ = false;
  Table::Assembly assembly_;       ///< replica: the put whose fragments arrive
  std::unique_ptr<Table> shadow_;  ///< replica: what a snapshot fills
  Table::Assembly shadow_live_;    ///< there: the put whose fragments arrive
  Table::Assembly shadow_record_;  ///< there: the snapshot's record whose fragments arrive
  std::vector<std::unique_ptr<Table>> retired_;
  bool freed_retired_ = false;  ///< the latest slice of memory that was freed was a retired table's
  bool freed_shadow_ = false;   ///< or the shadow's, when it was not
  std::uint64_t tables_made_ = 0;

  bool held_ = false;  ///< a digest or a large put keeps other writes off
  const char* holder_ = "";
  Condition released_;
  Mutex large_;                  ///< one large put at a time
  Call* writes_head_ = nullptr;  ///< calls that wait for their turn to append, the first one in work
  Call* writes_tail_ = nullptr;
  OwnedTimer overdue_{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).shard.expire_writes(); }};
  std::deque<std::function<void()>> spawn_backlog_;
  std::size_t spawn_starting_ = 0;  ///< fibers that will take a body each

  ShardCounters counters_;
};

}  // namespace tidelock
