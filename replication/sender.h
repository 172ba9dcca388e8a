/// What reads a node's log for others: a link and a cursor for each, what a snapshot has for those that the
/// log no longer reaches, and which bytes of the log are free. It sends what is there and believes of
/// acknowledgements what can be; what they count for is its owner's. A log has one sender.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/epoch_line.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/log.h>
#include <tidelock/replication/snapshot_sender.h>
#include <tidelock/replication/snapshot_source.h>

namespace tidelock {

class AckPolicy;
class Reactor;

struct SenderOptions {
  ShardId shard{};
  std::uint32_t group_bytes_max = kEntryBytesMax;  ///< a link's batches have to take that much
  Duration heartbeat = milliseconds(100);
  Duration link_timeout = seconds(3);
  bool one_link_a_node = false;
  bool judges_line = false;  ///< a stream goes on after (Follower::last_epoch, last), not after an LSN alone
  bool whole_is_said = false;  ///< in a group: acknowledgements count from when they say `whole`
  const SnapshotSource* snapshots = nullptr;  ///< null: it sends none. Outlives the sender
  const AckPolicy* policy = nullptr;          ///< null: production's
};

/// Single-writer; readable by anyone.
struct SenderStats {
  std::atomic<std::uint64_t> batches{0}, batch_bytes{0};
  std::atomic<std::uint64_t> snapshots{0}, snapshots_applied{0}, ranges{0}, range_bytes{0};
  std::atomic<std::uint64_t> links_lost{0};
  std::atomic<std::uint64_t> peer_wakeups{0};  ///< over all links, lost ones too
};

/// Whom a link leads to, and as what it was told to expect frames.
struct Follower {
  std::uint32_t node = 0;
  Lsn last{};  ///< as its hello says: where the stream begins. It counts for nothing
  HistoryId history{};
  Epoch epoch{};       ///< of our hello: of frames both ways, as long as the link lives
  bool counts = true;  ///< its acknowledgements do, once it is whole: no candidate's that only fetches
  Epoch last_epoch{};  ///< of `last`, as its hello says; 0: not said
};

/// The owner polls and flushes it: it is in no reactor's list by itself.
class Sender {
 public:
  /// Published batches whose bytes a link may still need. More than any link has credit for; a link that is
  /// this far ahead counts as full.
  static constexpr std::uint32_t kBatchesInFlightMax = 256;
  /// A batch is cut here even if the link would take more: no CRC or copy longer than that between two looks
  /// at the clock, on either side.
  static constexpr std::uint32_t kBatchBytesTarget = 64 * 1024;
  /// Of ranges that leave: behind the log's ring, so that a link may send from them as it does from the log.
  static constexpr std::size_t kSnapshotBuffers = 4;
  /// What Log::create() is asked for if snapshots are to be sent from it.
  static constexpr std::uint32_t kSnapshotBufferBytes = kSnapshotBuffers * SnapshotSender::kRangeBytesMax;

  /// What a sender asks of its owner and tells it. Called on the core, none for an operation. None may
  /// suspend, attach or close links, but for link_lost().
  class Owner {
   public:
    virtual ~Owner() = default;
    [[nodiscard]] virtual Lsn commit_lsn() const = 0;  ///< for what is about to leave
    /// Somebody waits for room, or is amid a put: ranges are small, to leave room for it in a turn.
    [[nodiscard]] virtual bool hurried() const = 0;
    /// Writes are refused for want of replicas: no snapshot is to wait only because the node had some lately.
    [[nodiscard]] virtual bool short_of_replicas() const = 0;
    virtual void log_released() = 0;   ///< the log may have room
    virtual void peers_changed() = 0;  ///< one has come, gone or become whole
    /// A node's link was lost, for this reason; not one that dismiss_all() ends. No peers are walked. It must
    /// not destroy the sender.
    virtual void link_lost(std::uint32_t node, const std::string& reason) = 0;
    /// Half of a heartbeat has passed, and silent peers are gone. No peers are walked.
    virtual void ticked() = 0;
    /// For a control frame that leaves now. 0: none.
    [[nodiscard]] virtual std::uint64_t stamp() { return 0; }
    /// A node has said something, and echoed that stamp, 0 for none. `whole`: an acknowledgement of its
    /// counts. Must not suspend, attach or close. False: it was never stamped so; the link is closed.
    virtual bool heard(std::uint32_t node, std::uint64_t echo, bool whole) {
      static_cast<void>(node);
      static_cast<void>(whole);
      return echo == 0;
    }
  };

  /// One that is sent to: a cursor in the log.
  struct Peer {
    std::unique_ptr<Link> link;
    Follower follower;
    std::uint64_t cursor = 0;     ///< the next byte to publish
    std::uint64_t completed = 0;  ///< the link needs nothing before it
    std::uint64_t batches_published = 0;
    std::uint64_t batches_completed = 0;
    std::uint64_t batches_before = 0;  ///< the link's count when it was attached
    std::vector<std::uint64_t> batch_ends = std::vector<std::uint64_t>(kBatchesInFlightMax);
    Lsn sent{};  ///< the newest that is whole there; it cannot acknowledge more
    Lsn received{};
    Lsn applied{};
    Lsn commit_sent{};
    bool asked = false;              ///< a control frame is to leave with the next flush
    bool counts_sent = false;        ///< what it was told last of whether it counts
    std::uint64_t wakeups_seen = 0;  ///< of the link's, counted in the statistics already
    Instant sent_at{};
    Instant told_at{};       ///< of those, a control frame
    Instant progress_at{};   ///< when it last took something, or had nothing to take
    Instant said_at{};       ///< its newest word
    Duration pause{};        ///< between two words, the longest of late: its own heartbeat, if idle
    Instant claimed_at{};    ///< when another link was asked for by its number; 0: by none
    bool dismissed = false;  ///< closed by dismiss_all(): not reported as lost

    // Of one that gets a snapshot.
    std::unique_ptr<SnapshotSender> snapshot;  ///< until its last range has left
    bool whole = true;                         ///< it has said so, or need not
    bool unheard = false;                      ///< since a snapshot was to begin: perhaps it only asked
    bool syncing = false;           ///< until it has acknowledged what makes it whole: it does not count
    Lsn whole_lsn{};                ///< which is this, of the last range
    std::uint64_t whole_batch = 0;  ///< with which all up to that has left
    Instant owes_since{};           ///< when it had taken that one
    std::array<std::uint64_t, kSnapshotBuffers> buffer_batches{};  ///< whose completion frees each
    bool range_refused = false;    ///< until the link has taken or said something
    bool range_left = false;       ///< in this turn
    Instant range_at{};            ///< when a range left
    Duration held{};               ///< for so long it held writers up
    std::uint64_t live_bytes = 0;  ///< that left after it
    std::uint64_t range_end = 0;   ///< of the log, then

    [[nodiscard]] std::uint32_t node() const { return follower.node; }
    /// What it acknowledges counts.
    [[nodiscard]] bool counts() const { return !syncing && follower.counts && whole; }
    [[nodiscard]] bool waits_for_range() const { return snapshot != nullptr && !snapshot->begun(); }
    /// From where on it needs the log. Who waits for a snapshot's first range needs nothing of it.
    [[nodiscard]] std::uint64_t needs_from() const { return waits_for_range() ? ~0ULL : completed; }
    /// What it can have: a snapshot under way counts for nothing.
    [[nodiscard]] bool may_acknowledge(const ControlFrame& frame) const {
      const bool as_before = frame.received_lsn <= follower.last;
      const bool may_be_whole = !syncing || (snapshot == nullptr && frame.applied_lsn >= whole_lsn);
      return frame.applied_lsn <= frame.received_lsn && frame.received_lsn <= sent &&
             (as_before || may_be_whole);
    }
    /// It has all that makes it whole, and has yet to say that it is.
    [[nodiscard]] bool owes_whole() const {
      return syncing && whole_batch != 0 && batches_completed >= whole_batch;
    }
    /// Nothing is on its way to it, or about to be, that it could take.
    [[nodiscard]] bool has_all(std::uint64_t log_end) const {
      return snapshot == nullptr && completed == log_end && batches_published == batches_completed;
    }
    /// The link may still read the buffers of ranges, the last one's included.
    [[nodiscard]] bool buffers_in_flight() const {
      return std::any_of(buffer_batches.begin(), buffer_batches.end(),
                         [this](std::uint64_t batch) { return batch > batches_completed; });
    }
  };

  /// `line` is the log's. All outlive it, and so does the log's memory every link: see departed().
  Sender(Reactor& reactor, Log& log, const EpochLine& line, const SenderOptions& options, Owner& owner,
         SenderStats& stats);
  ~Sender() = default;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Takes over a link whose peer has said hello and goes on after its last.
  /// Errors:   gap: the log does not hold what follows, or its last is not in the line; bad_length: the link's
  ///           batches are smaller than an entry or a group may be; peer_busy: attached(); those of
  ///           Link::attach. The link is closed with that reason
  Status attach(std::unique_ptr<Link> link, const Follower& follower);
  /// The same of one that takes a snapshot first. One at a time.
  /// Errors:   as attach(); peer_busy: snapshot_wait(); gap: this sender sends none
  Status attach_snapshot(std::unique_ptr<Link> link, Follower follower);
  /// With one link a node: true as long as one of its links is not gone.
  [[nodiscard]] bool attached(std::uint32_t node) const;
  enum class Claim : std::uint8_t { free, wait, taken };
  /// Whether a link of that node may come. If it has one, that has to say something in the time that follows
  /// (`left`, as long as the answer is wait): else it is closed, for the node was started anew. If it does
  /// the number is taken: by the node itself, which does not know yet that it has lost its link, or by
  /// another.
  Claim claim(std::uint32_t node, Duration& left);
  [[nodiscard]] bool sends_snapshots() const { return options_.snapshots != nullptr; }
  /// Zero: a snapshot for this node may begin now.
  [[nodiscard]] Duration snapshot_wait(std::uint32_t node) const;

  [[nodiscard]] const std::vector<Peer>& peers() const { return peers_; }
  /// No link is left, and none that was closed reads the log any more (Link::drained()). The log's memory may
  /// go only then, and the log be cut or begun anew.
  [[nodiscard]] bool departed() const { return peers_.empty() && departing_.empty(); }

  /// Of closed links: some still read the log.
  [[nodiscard]] bool departing() const { return !departing_.empty(); }

  /// From where on the oldest of them does.
  [[nodiscard]] std::uint64_t departing_needs_from() const;

  /// Takes what has come. Closed links stay in peers() until sweep(), so that what they said is counted.
  std::uint32_t poll(std::uint32_t budget);
  /// True once after acknowledgements have come.
  bool take_acknowledged() { return std::exchange(acknowledged_, false); }
  void flush();
  void arm();
  void disarm();
  [[nodiscard]] bool has_work() const;

  /// Takes out links that are closed: their peers are gone, but the log waits for them until they are
  /// drained. Not while somebody walks the peers.
  void sweep();
  /// The same if poll() came upon one. True if it did.
  bool sweep_closed();
  /// Publishes what that one of peers() lacks and its link takes.
  void offer(std::size_t peer) { publish(peers_[peer]); }
  /// Closes one of them on this node's own account: that it will need a snapshot is not its fault.
  void drop_for_room(std::size_t peer, const std::string& reason);
  /// Those that take a snapshot and need the log before `position` have held writers up for so long more.
  void count_held(std::uint64_t position, Duration by);
  /// It took something within two heartbeats, or had nothing to take, and said something: within two of its
  /// own if they are longer.
  [[nodiscard]] bool keeps_up(const Peer& peer) const;
  /// A control frame leaves on every link with the next flush.
  void tell_all() {
    for (Peer& peer : peers_) peer.asked = true;
  }
  /// Says goodbye on all links and closes them. `successor`: the node that is told to lead with it; 0: none.
  void dismiss_all(const std::string& reason, std::uint32_t successor = 0);
  /// Without links the log has room for everything, once none reads it any more.
  void drop_all(const std::string& reason);

 private:
  /// A closed link that may still read the log.
  struct Departing {
    std::unique_ptr<Link> link;
    std::uint64_t completed = 0;
    bool buffers = false;  ///< and the buffers of ranges
  };
  struct OwnedTimer : Timer {
    OwnedTimer(Sender& owner, Callback callback) : Timer(callback), sender(owner) {}
    Sender& sender;
  };

  // sender.cc
  Status take_link(Link& link);
  void add_peer(Peer peer, std::unique_ptr<Link> link);
  [[nodiscard]] static Error busy(std::uint32_t node);
  bool reap();
  [[nodiscard]] Duration silence_max(const Peer& peer) const;
  void tick();
  void arm_tick();

  // sender_datapath.cc
  std::uint32_t take_controls(Peer& peer, std::uint32_t budget);
  void accept_ack(Peer& peer, const ControlFrame& frame);
  bool take_completions(Peer& peer);
  void publish(Peer& peer);
  void publish_pending(Peer& peer);
  std::uint32_t publish_batch(Peer& peer);
  [[nodiscard]] FrameHeader frame_for(const Peer& peer) const;
  void send_control(Peer& peer, bool closing, bool lead = false);
  void release_log();
  [[nodiscard]] std::uint64_t needed_by_policy() const;

  // sender_snapshot.cc
  void publish_with_ranges(Peer& peer);
  void publish_range(Peer& peer);
  static std::optional<std::size_t> free_buffer(const Peer& peer);
  void accept_whole(Peer& peer);

  Reactor& reactor_;
  Log& log_;
  const EpochLine& line_;
  SenderOptions options_;
  Owner& owner_;
  SenderStats& stats_;
  std::vector<Peer> peers_;
  std::vector<Departing> departing_;
  SnapshotBackOff back_off_;
  bool acknowledged_ = false;  ///< and nobody was told yet
  bool unsent_ = false;        ///< the last flush left something that a link would have taken
  bool any_closed_ = false;    ///< poll() came upon one
  bool iterating_ = false;     ///< peers are being walked: none is removed meanwhile
  OwnedTimer heartbeat_{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).sender.tick(); }};
};

}  // namespace tidelock
