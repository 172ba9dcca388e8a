/// Tidelock: an embeddable key-value engine, one shard a core, replicated primary to replica.
///
///   tidelock::Options options;
///   auto engine = tidelock::Engine::open(options);
///   if (!engine) return fail(engine.error().message());
///   auto receipt = (*engine)->put("key", "value");
///
/// Thread:   any. On a fiber of one of this engine's reactors a call suspends the fiber; on any other thread
///           it blocks that thread. Either way it ends by its deadline.
/// Errors:   no exception leaves an Engine; see errc.h of engine/, replication/ and reactor/
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/engine/errc.h>
#include <tidelock/engine/options.h>
#include <tidelock/engine/stats.h>
#include <tidelock/replication/primary.h>

namespace tidelock {

class Reactor;

/// Where a write stands. A replica that has applied `lsn` of the same history shows it.
struct Receipt {
  ShardId shard{};
  HistoryId history{};
  Epoch epoch{};
  Lsn lsn{};
  friend bool operator==(const Receipt&, const Receipt&) = default;
};

struct WriteOptions {
  AckLevel ack = AckLevel::applied;
  Duration timeout = seconds(5);
  /// How many replicas, counted by node, must have got so far; 1 to kAckReplicasMax. 0: Options::c of them,
  /// at least one; in a group the primary's c, and with 0 it waits for nobody. There never fewer than that c.
  std::uint32_t replicas = 0;
};

/// In a group: what a read may show. Whatever the level, a node that does not know what its group has (after
/// its start) shows nothing.
enum class ReadLevel : std::uint8_t {
  standard,   ///< at the primary `linearizable`, elsewhere `any`; outside of groups `any`
  any,        ///< what this node holds, be it committed or not
  committed,  ///< what no later primary lacks; suspends until that is so. What one node shows never goes back
  /// At the primary only: nothing older than what was acknowledged to anybody before the call. Suspends until
  /// what it shows is committed, and others' leases say that nobody else led when it was looked at.
  linearizable,
};

struct ReadOptions {
  /// At a replica: wait until this LSN of the key's shard is visible (a receipt's). 0: whatever is there.
  Lsn min_lsn{};
  /// The receipt's, since LSNs of different histories do not compare; checked only with min_lsn. A primary
  /// that is opened again starts a new history, with the same epoch. {}: not checked.
  HistoryId history{};
  Epoch epoch{};
  Duration timeout = seconds(5);
  ReadLevel level = ReadLevel::standard;

  /// At least what `receipt` stands for, and from the same history. For keys of the receipt's shard.
  [[nodiscard]] static ReadOptions after(const Receipt& receipt, Duration timeout = seconds(5)) {
    return {receipt.lsn, receipt.history, receipt.epoch, timeout, ReadLevel::standard};
  }
};

/// An operator's word for who is to lead. `force` and `c` may each cost writes that were acknowledged.
struct PromotionOptions {
  Duration timeout = seconds(30);
  /// It leads with the promises that it gets, and without those of nodes that do not answer.
  bool force = false;
  /// It leads with this c, at most the group's, until another epoch is led: with 0 it writes alone.
  std::optional<std::uint32_t> c;
};

/// Puts and erases that leave together: those of one shard have consecutive LSNs, become visible in one turn
/// on every node (a replica that runs out of memory amid them apart) and travel in one batch. Across shards
/// there is no atomicity. For small records: one takes at most 32 KiB encoded (kEntryBytesMax), and a shard's
/// share at most Options::batch_bytes_max().
class WriteBatch {
 public:
  void put(std::string_view key, std::string_view value) {
    operations_.push_back({true, std::string(key), std::string(value)});
  }
  void erase(std::string_view key) { operations_.push_back({false, std::string(key), {}}); }
  void clear() { operations_.clear(); }
  [[nodiscard]] std::size_t size() const { return operations_.size(); }

 private:
  friend class Engine;
  struct Operation {
    bool is_put;
    std::string key;
    std::string value;
  };
  std::vector<Operation> operations_;
};

/// A page of a scan that travels to another thread or core is not longer, unless it is one record that is.
inline constexpr std::size_t kScanPageBytes = 4 << 20;

/// A position in a scan: a hash position, valid across splits. Starts at 0; `done` after the last page.
struct ScanCursor {
  std::uint64_t position = 0;
  bool done = false;
};

/// Order-independent over a shard's keys, values and LSNs: equal on two nodes if and only if (up to hash
/// collisions) they hold the same.
struct Digest {
  std::uint64_t low = 0, high = 0;
  std::uint64_t keys = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

class Engine {
 public:
  /// Starts the reactors, listens or connects. A replica returns once every shard follows its primary, for
  /// which all shards together have Options::connect_timeout: then, a snapshot may still be under way. Not
  /// from a fiber.
  static Result<std::unique_ptr<Engine>> open(const Options& options);
  /// close() with ten seconds, if it was not called. An engine that will not end by then is left behind with
  /// its memory rather than pulled from under its threads.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Refuses new calls, waits for those in flight and, within half of the time, until the connected replicas
  /// have applied everything; says goodbye to the peers, ends the reactors. What a replica was left without
  /// is an event; what is still running after half of the time is cancelled. Idempotent. Not from a fiber.
  /// Errors: deadline_exceeded: it may be called again
  Status close(Duration timeout);

  /// Returns once the write has reached `options.ack`; without options, Options::ack.
  /// Errors:   nothing was written: read_only, key_size, value_too_large, out_of_memory, no_replica (fewer
  ///           connected than Options::c or `options.replicas` ask for), bad_option, busy,
  ///           closed, not_on_reactor, out_of_fibers; and when the deadline passed, or the calling fiber was
  ///           cancelled, before its turn came: log_full (of what a replica has not taken), not_written (the
  ///           text names what was in the way);
  ///           outcome_unknown: written here or on its way, not acknowledged by the deadline, or before the
  ///           calling fiber was cancelled
  Result<Receipt> put(std::string_view key, std::string_view value, const WriteOptions& options);
  Result<Receipt> put(std::string_view key, std::string_view value);
  /// Erasing an absent key is a write like any other.
  Result<Receipt> erase(std::string_view key, const WriteOptions& options);
  Result<Receipt> erase(std::string_view key);
  /// One receipt a shard that was written: its last LSN. An error names the shard; other shards may have been
  /// written.
  /// Errors:   too_large: see WriteBatch; else as put, except that out_of_memory says how many were written
  Result<std::vector<Receipt>> write(const WriteBatch& batch, const WriteOptions& options);
  /// Waits for an earlier write (made with AckLevel::local) to reach a level, at so many replicas: see
  /// WriteOptions.
  /// Errors:   outcome_unknown by the deadline, or once the calling fiber was cancelled; history_lost:
  ///           it was written in another history or epoch (each checked unless {}); wrong_shard, read_only,
  ///           busy, closed, not_on_reactor
  Status wait(const Receipt& receipt, AckLevel level, Duration timeout, std::uint32_t replicas = 0);

  /// Copies the value into `value` (its capacity is reused) and returns the LSN of the write that made it.
  /// In a group: see ReadLevel. Else reads show what this node holds; at the primary that is whatever was
  /// appended, acknowledged or not (read uncommitted): a primary that dies may take it along.
  /// Errors:   not_found; deadline_exceeded before min_lsn was visible, or what was read committed;
  ///           history_lost: no write of this history has that receipt; in a group not_ready, and not_primary
  ///           (linearizable: it does not lead, or was deposed meanwhile); bad_option: such a level elsewhere
  Result<Lsn> get(std::string_view key, std::string& value, const ReadOptions& options);
  Result<Lsn> get(std::string_view key, std::string& value);

  /// Visits records of a shard from `cursor` on, and moves it past them: at least `keys_max` (and up to a few
  /// hundred more), fewer at the end, and elsewhere than on the shard's own core when the page has reached
  /// kScanPageBytes. So go on until cursor.done. A key that is present throughout a scan is visited at least
  /// once, whatever is written meanwhile. The visitor runs in the caller: on the shard's own core over the
  /// table itself, where it must neither suspend nor write; elsewhere over a copy of the page. Its arguments
  /// are gone when it returns.
  /// Suspends: a fiber, after each 64 KiB (never within a visit), on any core
  /// Errors:   deadline_exceeded, cancelled, closed: what lies before the cursor was visited, and maybe more;
  ///           out_of_memory: for a copy of the page
  using Visitor = std::function<void(std::string_view key, std::string_view value, Lsn lsn)>;
  Status scan(ShardId shard, ScanCursor& cursor, std::size_t keys_max, const Visitor& visitor,
              Duration timeout);
  /// Of what the shard holds at one LSN, which is returned too (writes wait meanwhile if need be).
  Result<std::pair<Digest, Lsn>> digest(ShardId shard, Duration timeout);

  // ---- the same without waiting, for host threads -------------------------------------------------------
  /// Called on the shard's core once the write has its level or failed; must not block.
  using PutCallback = void (*)(void* context, const Result<Receipt>& result);
  /// Copies key and value before it returns, and never waits, so that a callback may start the next. Any
  /// thread. A thread's puts to one shard keep their order.
  /// Errors:   busy: all host_slots are in use, closed, key_size, value_too_large, out_of_memory: nothing was
  ///           done; the others of put come through the callback, by the deadline
  Status put_async(std::string_view key, std::string_view value, const WriteOptions& options,
                   PutCallback callback, void* context);

  // ---- for code that wants to run on the cores ------------------------------------------------------------
  [[nodiscard]] std::uint32_t shards() const;
  /// In a group it means something only once a call has got through, or roles() show a commit LSN above 0.
  [[nodiscard]] ShardId shard_of(std::string_view key) const;
  /// Runs `body` in a fiber on the shard's core; once accepted, it runs. What it refers to must live until
  /// then. Any thread. close() waits for it, and in the end cancels it.
  /// Errors:   closed, out_of_memory, wrong_shard
  Status spawn_on(ShardId shard, std::function<void()> body);
  [[nodiscard]] Reactor& reactor(ShardId shard);

  /// The LSN that readers of this node see: appended on a primary, applied on a replica. Any thread.
  [[nodiscard]] Lsn visible_lsn(ShardId shard) const;
  [[nodiscard]] EngineStats stats() const;
  [[nodiscard]] const Options& options() const;
  /// Connected links over all shards: replicas of a primary, followed shards of a replica. Any thread.
  [[nodiscard]] std::uint32_t link_count() const;
  /// The links that there are and were, by shard and peer. Asks each core and waits for it, two seconds in
  /// all, so it is for people; on a reactor's thread, and of a core that does not answer, it shows what was
  /// seen last. Any thread.
  [[nodiscard]] std::vector<LinkInfo> links() const;

  // ---- in a group (Options::nodes) ------------------------------------------------------------------------
  /// This node's part in each shard's group. Outside of groups nothing. Any thread.
  [[nodiscard]] std::vector<ShardRole> roles() const;
  /// Stands for the primary's part, in all shards, until it leads them and what it writes can be committed.
  /// A primary that serves is not deposed: the leases that others have granted it keep it. Several nodes that
  /// are promoted at once may keep each other from it for a while.
  /// Errors:   deadline_exceeded: the text names a shard and what stood in the way, others may lead;
  ///           bad_option: in no group, or no such c; closed, not_on_reactor, out_of_fibers
  Status promote(const PromotionOptions& options);
  Status promote(Duration timeout);
  /// Hands what this node leads over to that one: writes wait here until it has all that was written, then it
  /// leads and this node follows. Writes that wait are refused (read_only) from then on, none is lost. Of
  /// shards that another node leads nothing changes.
  /// Errors:   deadline_exceeded: the text names a shard, others may be handed over; no_replica: it does not
  ///           follow; bad_option: it is none of the others; closed, not_on_reactor, out_of_fibers
  Status switch_over(std::uint32_t node, Duration timeout);

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidelock
