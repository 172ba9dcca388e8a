/// The primary's end of a shard's replication: appends to the log, sends what a turn has accumulated as one
/// batch to every replica, and tells waiters when their LSN has reached their ack level.
/// Thread:   owner core
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/ack_policy.h>
#include <tidelock/replication/epoch_line.h>
#include <tidelock/replication/group_log.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/log.h>
#include <tidelock/replication/sender.h>
#include <tidelock/replication/snapshot_source.h>

namespace tidelock {

/// How far a write must have come before its caller goes on. It delays its caller and nothing else.
enum class AckLevel : std::uint8_t {
  local,     ///< in this node's log and table
  received,  ///< checked by the software of as many replicas as were asked for
  applied,   ///< visible to the readers of as many
};

/// The most replicas that a write can wait for, and the greatest PrimaryOptions::c.
inline constexpr std::uint32_t kAckReplicasMax = 64;

struct PrimaryOptions {
  ShardId shard{};
  std::uint16_t shard_count = 1;
  HistoryId history{};
  std::uint64_t routing_seed = 0;
  Epoch epoch{};
  std::uint32_t node = 0;
  std::uint64_t log_bytes = 16ULL << 20;
  /// Every link's batches must take that much: see Primary::group_bytes_max().
  std::uint32_t group_bytes_max = kEntryBytesMax;
  Duration heartbeat = milliseconds(100);  ///< a control frame leaves at least this often
  Duration link_timeout = seconds(3);      ///< a peer that says nothing for so long is dropped
  /// How many replicas must have applied an entry before it is committed, 0 to kAckReplicasMax; counted by
  /// node. With fewer connected nothing is appended. A replica that stands in the way of an append is dropped
  /// if enough others keep up (README.md, "Backlog"); a second link of a node is refused. Empty: one replica
  /// commits, none is needed to append, and the slowest one holds writers up until link_timeout.
  std::optional<std::uint32_t> c;
  /// Has what the entries of the log have made, as of the newest one, whenever the loop turns. Outlives the
  /// primary. null: it sends no snapshots.
  const SnapshotSource* snapshots = nullptr;
  const AckPolicy* policy = nullptr;  ///< null: production's
  /// Of a group: for how long whoever follows grants a lease, by a clock that goes on while the machine
  /// sleeps (CLOCK_BOOTTIME) and outlives the primary; and how many other nodes there are. Null: none.
  Clock* lease_clock = nullptr;
  Duration lease{};
  std::uint32_t others = 0;
};

/// Waits for an LSN without a fiber. Intrusive; embedded in a pooled completion slot.
/// Lifetime: from add_waiter() until `done` is called, and it always is
struct AckWaiter {
  /// Success, or outcome_unknown once the deadline has passed or the primary is closed. Must not suspend, nor
  /// destroy the primary. It may reuse the waiter at once.
  void (*done)(AckWaiter& waiter, Status status) = nullptr;
  Lsn lsn{};
  AckLevel level = AckLevel::applied;
  std::uint32_t replicas = 0;  ///< how many, by node, up to kAckReplicasMax; 0: Primary::replicas_needed()
  Instant deadline{};
  AckWaiter* next = nullptr;      ///< the list's
  AckWaiter* previous = nullptr;  ///< the list's
};

/// Single-writer; readable by anyone.
struct PrimaryStats : SenderStats {
  std::atomic<std::uint64_t> entries{0};
  std::atomic<std::uint64_t> last_lsn{0}, received_lsn{0}, applied_lsn{0};  ///< of the furthest replica
  std::atomic<std::uint64_t> commit_lsn{0};
  std::atomic<std::uint64_t> replicas{0};  ///< whole ones: those that get a snapshot count when they have it
  std::atomic<std::uint64_t> backlog_drops{0};  ///< of links_lost: replicas that stood in an append's way
  std::atomic<std::uint64_t> outcome_unknown{0};
  std::atomic<std::uint64_t> log_full_waits{0};
};

class Primary final : public PollSource {
 public:
  /// Adds itself to the reactor, which outlives it.
  /// Errors:   EINVAL for times that make no sense and for `c`; those of Log::create
  static Result<std::unique_ptr<Primary>> create(Reactor& reactor, const PrimaryOptions& options);
  /// The same on a log that is somebody else's, with the line that says which epoch wrote what of it. Both
  /// outlive the primary and all of its links (departed()). Nobody else releases or appends meanwhile, and it
  /// is cut or begun anew only while departed(). An epoch begins in the line before its first entry is
  /// appended. `options.log_bytes` is not used.
  /// Errors:   EINVAL, also if snapshots are to be sent and the log has less than
  ///           Sender::kSnapshotBufferBytes of buffers
  static Result<std::unique_ptr<Primary>> create(Reactor& reactor, const PrimaryOptions& options, Log& log,
                                                 const EpochLine& line);
  /// A group's: it leads from lead() to depose() only, any number of times. Needs PrimaryOptions::c; history,
  /// epoch and c are each term's. `group` outlives it and its links, likewise.
  static Result<std::unique_ptr<Primary>> create(Reactor& reactor, const PrimaryOptions& options,
                                                 GroupLog& group);
  /// close() if it was not called. No fiber may be waiting for room any more.
  ~Primary() override;

  /// What a group's primary leads.
  struct Term {
    HistoryId history{};
    std::uint64_t routing_seed = 0;
    Epoch epoch{};  ///< above all that the line has
    std::uint32_t c = 0;
  };
  /// The epoch begins with its no-op, and nothing commits before that does.
  /// Errors:   peer_busy: links of its last term still read the log, or a fiber is not yet out of a large put
  ///           of that; gap: the log is spoiled
  Status lead(const Term& term);
  /// Ends that, in this turn: nothing is appended or acknowledged any more, what was written has
  /// outcome_unknown, what waits for room not_primary, the links close. What is in the log stays, but for a
  /// large put that is half in. Without a term nothing happens.
  void depose(const std::string& reason);
  /// Holds writes back (who appends waits for room) until `successor` has applied and the group committed all
  /// that is in the log; then ends the term as depose() does, and tells that node to lead. Reads go on until
  /// then. Suspends: yes (fiber)
  /// Errors:   no_replica: the successor does not follow, or is gone; deadline_exceeded, cancelled: the term
  ///           and its writes go on; not_primary, closed: it is over, and nobody was told; peer_busy: another
  ///           hand_over() is under way
  Status hand_over(std::uint32_t successor, Instant deadline, const std::string& reason);
  /// True outside of groups.
  [[nodiscard]] bool leads() const;

  /// A read that has captured what it answers may answer it as soon as that is committed: no other node has
  /// led since before the capture. To be called after that: reads the lease clock.
  [[nodiscard]] bool lease_held() const;
  /// The same if it is not held: waits for enough echoes of what is stamped after the call. Suspends: yes
  /// (fiber)
  /// Errors:   not_primary: it does not lead, or no longer; closed; deadline_exceeded, cancelled
  Status wait_lease(Instant deadline);
  /// Others may be bound by a lease of this epoch still.
  [[nodiscard]] bool stamped_lately() const;

  /// Appends one entry of at most kEntryBytesMax encoded, if there is room and it is this caller's turn
  /// (those in wait_for_room() are not overtaken). `bytes_after` above 0: the entry begins or continues a
  /// group (one batch on every link, visible in one turn of a replica), and that much of it is still to come,
  /// encoded and from this caller, before it suspends or returns to the loop. Suspends: never Errors:
  /// log_full: wait_for_room() and try again; closed; no_replica: fewer than `c`; too_large
  Result<Lsn> try_append(EntryKind kind, Bytes key, Bytes value, std::uint32_t bytes_after = 0);
  /// Whether entries of that size in a row would be appended now, all of them.
  [[nodiscard]] bool can_append(std::uint32_t encoded_bytes) const;
  /// The largest group: at most PrimaryOptions::group_bytes_max, kGroupBytesMax and a quarter of the log.
  [[nodiscard]] std::uint32_t group_bytes_max() const;
  /// Waits, first come first served, until entries of that size fit, one or several in a row: up to half the
  /// log. On success the room is the caller's until it suspends or returns to the loop; what it does not use
  /// it gives up with forgo_room(). Suspends: yes (fiber)
  /// Errors:   deadline_exceeded, cancelled; closed; no_replica: fewer than `c`; too_large if it can never
  ///           fit, naming the log's size
  Status wait_for_room(std::uint32_t encoded_bytes, Instant deadline);
  /// Nobody has been let in any more, whoever waits is next.
  void forgo_room();
  /// Appends a put of any legal size as fragments that share one LSN. Other writers wait meanwhile. The
  /// deadline bounds the wait for the first fragment; once that is in, the entry is completed whatever the
  /// deadline says: a replica that stands in the way for longer than link_timeout is dropped, and if the
  /// fiber is cancelled all are. It is never half visible. Suspends: yes (fiber) Errors:   deadline_exceeded,
  /// cancelled, closed, no_replica: nothing was written; too_large
  Result<Lsn> append_fragments(Bytes key, Bytes value, Instant deadline);
  /// True while a fragmented put is being appended: nobody else may append.
  [[nodiscard]] bool fragmenting() const;

  /// Waits until `lsn` has reached `level` at so many replicas, counted by node. 0: replicas_needed(). In a
  /// group nothing but `local` is reached before the epoch's no-op is committed: others may have it, and a
  /// later primary lack it all the same.
  /// Suspends: yes (fiber)
  /// Errors:   outcome_unknown at the deadline, or when the primary is closed; cancelled
  Status wait(Lsn lsn, AckLevel level, Instant deadline, std::uint32_t replicas = 0);
  /// The same without a fiber. Calls `done` before it returns if the level is reached already. Ascending LSNs
  /// cost O(1); any order is correct.
  void add_waiter(AckWaiter& waiter);
  [[nodiscard]] bool reached(Lsn lsn, AckLevel level, std::uint32_t replicas = 0) const;
  /// What an acknowledged write waits for that does not say: `c`, at least 1.
  [[nodiscard]] std::uint32_t replicas_needed() const;

  /// Takes over a link whose peer, `node`, has said hello and resumes it after `peer_last`. That counts for
  /// nothing: only what the peer's control frames say does. The primary polls and flushes its links itself:
  /// they are not added to the reactor.
  /// `peer_last_epoch`: of that entry, as its hello says; on a log that is somebody else's both name it.
  /// Errors:   gap: the log does not hold what follows, or that entry; bad_length: the link's batches are
  ///           smaller than an entry or a group may be; peer_busy: attached(); those of Link::attach. The
  ///           link is closed with that reason
  Status attach(std::unique_ptr<Link> link, std::uint32_t node, Lsn peer_last, Epoch peer_last_epoch = {});
  /// With `c`, a node has one link at most: true as long as one of its links is not gone.
  [[nodiscard]] bool attached(std::uint32_t node) const;
  /// Takes over a link whose peer has said hello, and that it takes a snapshot: for one that the log no
  /// longer reaches. It counts as a replica once it has acknowledged what makes its snapshot whole; until
  /// then it may acknowledge what it had before, `peer_last`, and nothing above it. One snapshot at a time;
  /// snapshot_wait() says how long a node must wait.
  /// Errors:   peer_busy: not now; gap: this primary sends none; bad_length and others as attach(). The link is
  ///           closed with that reason
  Status attach_snapshot(std::unique_ptr<Link> link, std::uint32_t node, Lsn peer_last);
  [[nodiscard]] bool sends_snapshots() const;
  /// Zero: a snapshot for this node may begin now.
  [[nodiscard]] Duration snapshot_wait(std::uint32_t node) const;
  [[nodiscard]] std::size_t replicas() const;  ///< links of whole ones
  [[nodiscard]] std::size_t nodes() const;     ///< whole ones
  /// The links of the connected replicas. `visit` must neither attach nor close.
  void each_link(const std::function<void(const Link&)>& visit) const;
  /// Writes that the connected replica furthest behind has not yet applied. 0: all have everything.
  [[nodiscard]] std::uint64_t backlog() const;
  /// No link is left, and none that was closed reads the log any more (Link::drained()). The log's memory may
  /// go only then.
  [[nodiscard]] bool departed() const;
  /// Called whenever a node's link was lost, with the reason; not for those that close() ends. Must not
  /// suspend, nor destroy the primary.
  void on_link_lost(std::function<void(std::uint32_t node, const std::string& reason)> handler);

  [[nodiscard]] Lsn last_lsn() const;
  [[nodiscard]] Epoch epoch() const;
  [[nodiscard]] const PrimaryOptions& options() const;
  [[nodiscard]] const Log& log() const;
  /// What sends from its log: for links that are no replica's, too.
  [[nodiscard]] Sender& sender();
  [[nodiscard]] const PrimaryStats& stats() const;
  /// The committed prefix: what `c` replicas have applied; with c = 0 what is appended. Never falls.
  [[nodiscard]] Lsn commit_lsn() const;
  /// Sends what is pending, says goodbye on all links and closes them. Waiters get outcome_unknown, those
  /// that come later at once; who waits for room gets closed.
  void close(const std::string& reason);

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

 private:
  struct State;
  explicit Primary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidelock
