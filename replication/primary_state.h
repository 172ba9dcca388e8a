/// The inside of a Primary, shared by primary.cc (set-up, who is there), primary_datapath.cc (poll and
/// flush), primary_append.cc (room and fragments), primary_lease.cc and primary_waiters.cc.
/// Thread:   owner core
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/handover.h>
#include <tidelock/replication/lease.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/quorum.h>
#include <tidelock/replication/sender.h>

#include "liveness.h"
#include "lsn_list.h"

namespace tidelock {

struct Primary::State final : Sender::Owner {
  using Peer = Sender::Peer;

  /// What so many nodes have got, and who waits for them. Neither LSN goes back.
  struct Level {
    Lsn received{};
    Lsn applied{};
    LsnList<AckWaiter> received_waiters;
    LsnList<AckWaiter> applied_waiters;
    [[nodiscard]] bool idle() const {
      return received_waiters.head() == nullptr && applied_waiters.head() == nullptr;
    }
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

  /// A wait_lease(), on its fiber's stack. `lsn`: the mark, above which a stamp has to be.
  struct LeaseWaiter {
    Lsn lsn{};
    WaitQueue queue;
    std::optional<Status> outcome;
    LeaseWaiter* next = nullptr;
    LeaseWaiter* previous = nullptr;
  };

  /// A hand_over(), on its fiber's stack.
  struct HandoverWait {
    std::uint32_t successor = 0;
    Instant until{};
    std::optional<Handover> handover;  ///< once no large put is half in
    WaitQueue queue;
    std::optional<Status> outcome;  ///< the term is over
  };

  struct OwnedTimer : Timer {
    OwnedTimer(State& owner, Callback callback) : Timer(callback), state(owner) {}
    State& state;
  };

  /// On a log of its own, or on one that is somebody else's.
  State(Reactor& owner, const PrimaryOptions& chosen, std::unique_ptr<Log> ring)
      : State(owner, chosen, *ring, nullptr) {
    own_log = std::move(ring);
    own_line.begin(chosen.epoch, Lsn{1});
  }
  /// `its_line` null: it has a line of its own.
  State(Reactor& owner, const PrimaryOptions& chosen, Log& ring, const EpochLine* its_line,
        GroupLog* its_group = nullptr)
      : reactor(owner),
        options(chosen),
        group(its_group),
        leads(its_group == nullptr),
        log(ring),
        sender(owner, ring, its_line != nullptr ? *its_line : own_line, sender_options(its_line != nullptr),
               *this, stats),
        c(chosen.c.value_or(0)),
        group_c(c),
        replicas_needed(std::max(c, 1U)),
        levels_standing(level_bit(1) | level_bit(replicas_needed)) {
    counts.reserve(16);
  }

  // primary_term.cc
  Status lead(const Term& term);
  /// `successor`: who is told to lead, 0 for nobody.
  void depose(const std::string& reason, std::uint32_t successor = 0);
  void commit_in_group();
  /// What was begun in that epoch may go on.
  [[nodiscard]] bool in_term(Epoch epoch) const { return !closed && leads && options.epoch == epoch; }

  // primary.cc
  [[nodiscard]] SenderOptions sender_options(bool foreign_log) const;
  void count_nodes();
  [[nodiscard]] std::size_t replicas() const;
  [[nodiscard]] Follower follower(std::uint32_t node, Lsn last, Epoch last_epoch) const;
  [[nodiscard]] std::uint32_t group_bytes_max() const;

  // What the sender asks and tells.
  [[nodiscard]] Lsn commit_lsn() const override {
    if (group != nullptr) return group->commit_lsn();
    return options.c == 0U ? log.last_lsn() : levels[replicas_needed - 1].applied;
  }
  [[nodiscard]] bool hurried() const override { return room_head != nullptr || fragmenting; }
  [[nodiscard]] bool short_of_replicas() const override { return too_few(); }
  void log_released() override { wake_room(); }
  void peers_changed() override;
  void link_lost(std::uint32_t node, const std::string& reason) override;
  void ticked() override { make_room_for_next(); }

  // primary_handover.cc
  Status hand_over(std::uint32_t successor, Instant deadline, const std::string& reason);
  [[nodiscard]] static Error no_successor(std::uint32_t node);
  [[nodiscard]] const Peer* whole_peer(std::uint32_t node) const;
  Handover::Step step_handover();
  void end_handover();
  /// Nothing new is appended, and who waits for room waits on.
  [[nodiscard]] bool holds_writes() const { return handing_over != nullptr; }

  // primary_lease.cc
  [[nodiscard]] bool lease_held() const;
  [[nodiscard]] std::uint64_t stamp() override;
  bool heard(std::uint32_t node, std::uint64_t echo, bool whole) override;
  Status wait_lease(Instant deadline);
  void wake_leases();
  void end_leases();
  void answer_lease(LeaseWaiter& waiter, Status status);

  // primary_datapath.cc
  std::uint32_t poll(std::uint32_t budget);
  void flush();

  // primary_append.cc
  [[nodiscard]] bool can_append(std::uint32_t bytes) const;
  /// Fewer nodes than `c` are connected, or it leads nothing.
  [[nodiscard]] bool too_few() const { return !leads || nodes < c; }
  /// Nothing is appended, and refusal() says why.
  [[nodiscard]] bool refuses() const { return closed || too_few(); }
  [[nodiscard]] Error refusal() const;
  Lsn append(const EntryView& entry, std::uint32_t bytes_after = 0);
  Status wait_for_room(std::uint32_t bytes, Instant deadline);
  bool make_room(std::uint32_t bytes);
  void make_room_for_next();
  [[nodiscard]] bool may_drop_before(std::uint64_t position) const;
  [[nodiscard]] std::uint32_t ahead_of(const Peer& peer, std::uint64_t position) const;
  [[nodiscard]] bool dispensable(const Peer& peer, std::uint64_t position) const;
  [[nodiscard]] std::string why_dropped(const Peer& peer, std::uint64_t position) const;
  [[nodiscard]] std::uint32_t nodes_wanted() const;
  [[nodiscard]] bool append_fragment(const EntryView& fragment);
  void wake_room();
  void refuse_room();
  void await_departed();
  void push_room(RoomWaiter& waiter);
  void remove_room(RoomWaiter& waiter);

  // primary_waiters.cc
  /// Of so many replicas, 0: those that are needed. Other levels than that, and one replica's, are measured
  /// as long as somebody waits at them, and when they are asked for.
  Level& level_of(std::uint32_t replicas) {
    const std::uint32_t asked = replicas == 0 ? replicas_needed : replicas;
    TL_ASSERT(asked <= kAckReplicasMax, "more replicas than a write can wait for");
    if (((levels_standing | levels_waited) & level_bit(asked)) == 0) measure(asked);
    return levels[asked - 1];
  }
  [[nodiscard]] static constexpr std::uint64_t level_bit(std::uint32_t replicas) {
    return std::uint64_t{1} << (replicas - 1);
  }
  /// Somebody waits there from now on.
  LsnList<AckWaiter>& waiters_at(Level& level, AckLevel ack) {
    levels_waited |= level_bit(static_cast<std::uint32_t>(&level - levels.data()) + 1);
    return level.waiters(ack);
  }
  void forget_idle_levels();
  void measure(std::uint32_t replicas);
  void measure_all();
  [[nodiscard]] Lsn kth(std::uint32_t replicas, Lsn Peer::*lsn);
  [[nodiscard]] bool reached(Lsn lsn, AckLevel level, const Level& counted) const {
    if (level == AckLevel::local) return lsn <= log.last_lsn();
    return serves() && lsn <= counted.lsn(level);
  }
  /// In a group: its epoch's first entry is committed. What others have before that may be lost all the same.
  [[nodiscard]] bool serves() const { return group == nullptr || (leads && group->commit_lsn() >= first); }
  void add_waiter(AckWaiter& waiter);
  void wake_reached();
  void expire_waiters();
  void fail_waiters();
  /// Counts it, too.
  ReplicationErrc unknown();

  Reactor& reactor;
  PrimaryOptions options;
  GroupLog* const group;         ///< null: in none
  bool leads;                    ///< in a group: in a term
  std::unique_ptr<Log> own_log;  ///< null: it is somebody else's, and so is the line
  EpochLine own_line;
  Log& log;
  PrimaryStats stats;
  Sender sender;
  std::function<void(std::uint32_t, const std::string&)> on_link_lost;
  HandoverWait* handing_over = nullptr;
  std::optional<Leases> leases;  ///< the term's
  LsnList<LeaseWaiter> lease_waiters;
  std::uint64_t stamped = 0;                  ///< what its frames are stamped with
  Lsn first{};                                ///< of that: its no-op
  std::uint32_t c;                            ///< 0 if none is set
  const std::uint32_t group_c;                ///< of a group: what others go by, whatever this term's is
  std::uint32_t replicas_needed;              ///< by who does not say
  std::uint32_t nodes = 0;                    ///< connected
  std::array<Level, kAckReplicasMax> levels;  ///< of 1, 2, ... replicas
  std::uint64_t levels_standing;              ///< a bit each: are measured whoever waits
  std::uint64_t levels_waited = 0;            ///< may have waiters
  std::vector<AppliedLsn> counts;
  bool closed = false;  ///< nothing will be acknowledged any more

  bool fragmenting = false;
  RoomWaiter* fragment_waiter = nullptr;  ///< the one who is fragmenting, when the log is full
  Instant held_at{};                      ///< who waits for room has been counted up to here as held up
  RoomWaiter* room_head = nullptr;
  RoomWaiter* room_tail = nullptr;
  std::uint32_t admitted_bytes =
      0;  ///< room that wait_for_room() has just given away, ahead of those who wait

  OwnedTimer expiry{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).state.expire_waiters(); }};
};

}  // namespace tidelock
