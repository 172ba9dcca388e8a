/// The inside of a Primary, shared by primary.cc (set-up, links), primary_datapath.cc (poll and flush),
/// primary_append.cc (room and fragments) and primary_waiters.cc.
/// Thread:   owner core
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tidelock/base/counter.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/quorum.h>
#include <tidelock/replication/snapshot_sender.h>

#include "liveness.h"
#include "lsn_list.h"

namespace tidelock {

/// Published batches whose bytes a link may still need. More than any link has credit for; a link that is
/// this far ahead counts as full.
inline constexpr std::uint32_t kBatchesInFlightMax = 256;
/// A batch is cut here even if the link would take more: no CRC or copy longer than that between two looks at
/// the clock, on either side.
inline constexpr std::uint32_t kBatchBytesTarget = 64 * 1024;
/// One flush gives a link no more than that; a longer backlog goes on in the next turn.
inline constexpr std::uint32_t kFlushBytesMax = 4 * kBatchBytesTarget;

/// Of ranges that leave: behind the log's ring, so that a link may send from them as it does from the log.
inline constexpr std::size_t kSnapshotBuffers = 4;
inline constexpr std::uint32_t kSnapshotBufferBytes = kSnapshotBuffers * SnapshotSender::kRangeBytesMax;

/// link_closed is no reason of its own: the link has a better one, and says it once what it holds was
/// received.
inline void close_unless_passing(Link& link, const Error& error) {
  if (error != ReplicationErrc::link_full && error != ReplicationErrc::link_closed)
    link.close(error.message());
}

struct Primary::State {
  /// One replica: a cursor in the log.
  struct Peer {
    std::unique_ptr<Link> link;
    std::uint32_t node = 0;
    std::uint64_t cursor = 0;     ///< the next byte to publish
    std::uint64_t completed = 0;  ///< the link needs nothing before it
    std::uint64_t batches_published = 0;
    std::uint64_t batches_completed = 0;
    std::uint64_t batches_before = 0;  ///< the link's count when it was attached
    std::vector<std::uint64_t> batch_ends = std::vector<std::uint64_t>(kBatchesInFlightMax);
    Lsn sent{};     ///< the newest that is whole there; it cannot acknowledge more
    Lsn resumed{};  ///< its last, as its hello said; an acknowledgement it is not
    Lsn received{};
    Lsn applied{};
    Lsn commit_sent{};
    std::uint64_t wakeups_seen = 0;  ///< of the link's, counted in `stats` already
    Instant sent_at{};
    Instant progress_at{};   ///< when it last took something, or had nothing to take
    bool dismissed = false;  ///< closed by close(): not reported as lost

    // Of a replica that gets a snapshot.
    std::unique_ptr<SnapshotSender> sender;  ///< until its last range has left
    bool syncing = false;           ///< until it has acknowledged what makes it whole: it does not count
    Lsn whole_lsn{};                ///< which is this, of the last range
    std::uint64_t whole_batch = 0;  ///< with which all up to that has left
    Instant owes_since{};           ///< when it had taken that one
    std::array<std::uint64_t, kSnapshotBuffers> buffer_batches{};  ///< whose completion frees each
    bool range_refused = false;    ///< until the link has taken or said something
    bool range_left = false;       ///< in this turn
    Instant range_at{};            ///< when a range left
    std::uint64_t live_bytes = 0;  ///< that left after it
    std::uint64_t range_end = 0;   ///< of the log, then
    [[nodiscard]] bool waits_for_range() const { return sender != nullptr && !sender->begun(); }
    /// What it can have: a snapshot under way counts for nothing.
    [[nodiscard]] bool may_acknowledge(const ControlFrame& frame) const {
      const bool as_before = frame.received_lsn <= resumed;
      const bool may_be_whole = !syncing || (sender == nullptr && frame.applied_lsn >= whole_lsn);
      return frame.applied_lsn <= frame.received_lsn && frame.received_lsn <= sent &&
             (as_before || may_be_whole);
    }
    /// It has all that makes it whole, and has yet to say that it is.
    [[nodiscard]] bool owes_whole() const {
      return syncing && whole_batch != 0 && batches_completed >= whole_batch;
    }
    /// Nothing is on its way to it, or about to be, that it could take.
    [[nodiscard]] bool has_all(std::uint64_t log_end) const {
      return sender == nullptr && completed == log_end && batches_published == batches_completed;
    }
    /// The link may still read the buffers of ranges, the last one's included.
    [[nodiscard]] bool buffers_in_flight() const {
      return std::any_of(buffer_batches.begin(), buffer_batches.end(),
                         [this](std::uint64_t batch) { return batch > batches_completed; });
    }
  };

  /// A closed link that may still read the log.
  struct Departing {
    std::unique_ptr<Link> link;
    std::uint64_t completed = 0;
    bool buffers = false;  ///< and the buffers of ranges
  };

  /// What so many nodes have got, and who waits for them. Neither LSN goes back.
  struct Level {
    Lsn received{};
    Lsn applied{};
    LsnList<AckWaiter> received_waiters;
    LsnList<AckWaiter> applied_waiters;
    [[nodiscard]] Lsn lsn(AckLevel level) const { return level == AckLevel::received ? received : applied; }
    LsnList<AckWaiter>& waiters(AckLevel level) {
      return level == AckLevel::received ? received_waiters : applied_waiters;
    }
  };

  struct RoomWaiter {
    explicit RoomWaiter(std::uint32_t encoded_bytes) : bytes(encoded_bytes) {}
    std::uint32_t bytes;
    WaitQueue queue;
    RoomWaiter* next = nullptr;
    RoomWaiter* previous = nullptr;
  };

  struct OwnedTimer : Timer {
    OwnedTimer(State& owner, Callback callback) : Timer(callback), state(owner) {}
    State& state;
  };

  State(Reactor& owner, const PrimaryOptions& chosen, std::unique_ptr<Log> ring)
      : reactor(owner),
        options(chosen),
        log(std::move(ring)),
        c(chosen.c.value_or(0)),
        replicas_needed(std::max(c, 1U)),
        levels_used(replicas_needed) {
    peers.reserve(16);
    counts.reserve(16);
    line.begin(chosen.epoch, Lsn{1});
  }

  // primary.cc
  [[nodiscard]] bool attached(std::uint32_t node) const;
  [[nodiscard]] static Error busy(std::uint32_t node);
  void count_nodes();
  void sweep();
  bool reap();
  void dismiss_all(const std::string& reason);
  void drop_all(const std::string& reason);
  void tick();
  void arm_tick();
  Status take_link(Link& link);
  void add_peer(Peer peer, std::unique_ptr<Link> link);
  [[nodiscard]] std::uint32_t group_bytes_max() const;

  // primary_snapshot.cc
  [[nodiscard]] Duration snapshot_wait(std::uint32_t node) const;
  void publish_with_ranges(Peer& peer);
  void publish_range(Peer& peer);
  static std::optional<std::size_t> free_buffer(const Peer& peer);
  void accept_whole(Peer& peer);
  [[nodiscard]] std::size_t replicas() const;

  // primary_datapath.cc
  std::uint32_t poll(std::uint32_t budget);
  void flush();
  std::uint32_t take_controls(Peer& peer, std::uint32_t budget);
  void accept_ack(Peer& peer, const ControlFrame& frame);
  bool take_completions(Peer& peer);
  void publish(Peer& peer);
  void publish_pending(Peer& peer);
  std::uint32_t publish_batch(Peer& peer);
  void send_control(Peer& peer, bool closing);
  void release_log();
  [[nodiscard]] std::uint64_t needed_by_policy() const;

  // primary_append.cc
  [[nodiscard]] bool can_append(std::uint32_t bytes) const;
  /// Fewer nodes than `c` are connected: nothing is appended.
  [[nodiscard]] bool too_few() const { return nodes < c; }
  [[nodiscard]] Error refusal() const;
  Lsn append(const EntryView& entry, std::uint32_t bytes_after = 0);
  Status wait_for_room(std::uint32_t bytes, Instant deadline);
  bool make_room(std::uint32_t bytes);
  void make_room_for_next();
  [[nodiscard]] bool keeps_up(const Peer& peer) const;
  [[nodiscard]] bool dispensable(const Peer& peer) const;
  void append_fragment(const EntryView& fragment);
  void wake_room();
  void refuse_room();
  void await_departed();
  void push_room(RoomWaiter& waiter);
  void remove_room(RoomWaiter& waiter);

  // primary_waiters.cc
  /// Of so many replicas, 0: those that are needed. It is measured from when it is first asked for.
  Level& level_of(std::uint32_t replicas) {
    const std::uint32_t asked = replicas == 0 ? replicas_needed : replicas;
    if (asked > levels_used) use_levels(asked);
    return levels[asked - 1];
  }
  void use_levels(std::uint32_t replicas);
  void measure(std::uint32_t replicas);
  void measure_all();
  [[nodiscard]] Lsn kth(std::uint32_t replicas, Lsn Peer::*lsn);
  [[nodiscard]] bool reached(Lsn lsn, AckLevel level, const Level& counted) const {
    return lsn <= (level == AckLevel::local ? log->last_lsn() : counted.lsn(level));
  }
  void add_waiter(AckWaiter& waiter);
  void wake_reached();
  void expire_waiters();
  void fail_waiters();
  /// Counts it, too.
  ReplicationErrc unknown();

  [[nodiscard]] Lsn commit_lsn() const {
    return options.c == 0U ? log->last_lsn() : levels[replicas_needed - 1].applied;
  }

  Reactor& reactor;
  PrimaryOptions options;
  std::unique_ptr<Log> log;
  PrimaryStats stats;
  std::vector<Peer> peers;
  std::vector<Departing> departing;
  std::function<void(const std::string&)> link_lost;
  EpochLine line;  ///< of the log: this primary has written all of it
  SnapshotBackOff back_off;
  std::uint32_t c;                            ///< 0 if none is set
  std::uint32_t replicas_needed;              ///< by who does not say
  std::uint32_t nodes = 0;                    ///< connected
  std::array<Level, kAckReplicasMax> levels;  ///< of 1, 2, ... replicas
  std::uint32_t levels_used;                  ///< as far as anybody has asked
  std::vector<AppliedLsn> counts;
  bool acks_came = false;  ///< and nobody was told yet
  bool unsent = false;     ///< the last flush left something that a link would have taken
  bool closed = false;     ///< nothing will be acknowledged any more
  bool iterating = false;  ///< peers are being walked: none is removed meanwhile

  bool fragmenting = false;
  RoomWaiter* fragment_waiter = nullptr;  ///< the one who is fragmenting, when the log is full
  RoomWaiter* room_head = nullptr;
  RoomWaiter* room_tail = nullptr;
  std::uint32_t admitted_bytes =
      0;  ///< room that wait_for_room() has just given away, ahead of those who wait

  OwnedTimer expiry{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).state.expire_waiters(); }};
  OwnedTimer heartbeat{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).state.tick(); }};
};

}  // namespace tidelock
