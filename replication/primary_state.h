/// The inside of a Primary, shared by primary.cc (set-up, links), primary_datapath.cc (poll and flush),
/// primary_append.cc (room and fragments) and primary_waiters.cc.
/// Thread:   owner core
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/replication/errc.h>
#include <tidelock/replication/primary.h>

#include "counter.h"
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

struct Primary::State {
  /// One replica: a cursor in the log.
  struct Peer {
    std::unique_ptr<Link> link;
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
    std::uint64_t wakeups_seen = 0;  ///< of the link's, counted in `stats` already
    Instant sent_at{};
    Instant progress_at{};   ///< when it last took something, or had nothing to take
    bool dismissed = false;  ///< closed by close(): not reported as lost
  };

  /// A closed link that may still read the log.
  struct Departing {
    std::unique_ptr<Link> link;
    std::uint64_t completed = 0;
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
      : reactor(owner), options(chosen), log(std::move(ring)) {
    peers.reserve(16);
  }

  // primary.cc
  void sweep();
  bool reap();
  void dismiss_all(const std::string& reason);
  void drop_all(const std::string& reason);
  void tick();
  void arm_tick();

  // primary_datapath.cc
  std::uint32_t poll(std::uint32_t budget);
  void flush();
  std::uint32_t take_controls(Peer& peer, std::uint32_t budget);
  void accept_ack(Peer& peer, const ControlFrame& frame);
  bool take_completions(Peer& peer);
  void publish_pending(Peer& peer);
  std::uint32_t publish_batch(Peer& peer);
  void send_control(Peer& peer, bool closing);
  void release_log();

  // primary_append.cc
  [[nodiscard]] bool can_append(std::uint32_t bytes) const;
  Lsn append(const EntryView& entry, std::uint32_t bytes_after = 0);
  Status wait_for_room(std::uint32_t bytes, Instant deadline);
  void append_fragment(const EntryView& fragment);
  void wake_room();
  void await_departed();
  void push_room(RoomWaiter& waiter);
  void remove_room(RoomWaiter& waiter);

  // primary_waiters.cc
  [[nodiscard]] bool reached(Lsn lsn, AckLevel level) const;
  [[nodiscard]] LsnList<AckWaiter>& waiters_of(AckLevel level) {
    return level == AckLevel::received ? received_waiters : applied_waiters;
  }
  void add_waiter(AckWaiter& waiter);
  void wake_reached();
  void expire_waiters();
  void fail_waiters();
  /// Counts it, too.
  ReplicationErrc unknown();

  [[nodiscard]] Lsn commit_lsn() const { return applied; }

  Reactor& reactor;
  PrimaryOptions options;
  std::unique_ptr<Log> log;
  PrimaryStats stats;
  std::vector<Peer> peers;
  std::vector<Departing> departing;
  std::function<void(const std::string&)> link_lost;
  Lsn received{};  ///< the furthest replica's; never goes back
  Lsn applied{};
  bool resumed = false;    ///< attach() may have moved the two: the next poll() wakes waiters
  bool unsent = false;     ///< the last flush left something that a link would have taken
  bool closed = false;     ///< nothing will be acknowledged any more
  bool iterating = false;  ///< peers are being walked: none is removed meanwhile

  bool fragmenting = false;
  RoomWaiter* fragment_waiter = nullptr;  ///< the one who is fragmenting, when the log is full
  RoomWaiter* room_head = nullptr;
  RoomWaiter* room_tail = nullptr;
  std::uint32_t admitted_bytes =
      0;  ///< room that wait_for_room() has just given away, ahead of those who wait

  LsnList<AckWaiter> received_waiters;
  LsnList<AckWaiter> applied_waiters;
  OwnedTimer expiry{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).state.expire_waiters(); }};
  OwnedTimer heartbeat{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).state.tick(); }};
};

}  // namespace tidelock
