/// The inside of a Replica, shared by replica.cc (set-up, the link, waiters) and replica_datapath.cc.
/// Thread:   owner core
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/counter.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/replica.h>
#include <tidelock/replication/snapshot_receiver.h>

#include "liveness.h"
#include "lsn_list.h"

namespace tidelock {

/// One poll takes no more than this much payload, so that no stretch of work is longer.
inline constexpr std::uint32_t kPollBytesMax = 64 * 1024;
/// Entries that are checked, then applied, before the next are looked at: their headers stay in the cache.
inline constexpr std::size_t kSliceEntries = 64;

struct Replica::State {
  /// A wait_applied(), on its fiber's stack.
  struct Waiter {
    Lsn lsn{};
    WaitQueue queue;
    bool reached = false;
    Waiter* next = nullptr;
    Waiter* previous = nullptr;
  };

  /// A put of which some fragments have come.
  struct Assembly {
    bool active = false;
    std::uint32_t key_bytes = 0;
    std::uint32_t value_bytes = 0;
    std::uint64_t next_offset = 0;
  };

  /// Of the planted ApplyPolicy only: a batch that was acknowledged and is not yet applied.
  struct Deferred {
    std::uint64_t due_turn = 0;
    std::vector<std::byte> payload;
  };

  struct OwnedTimer : Timer {
    OwnedTimer(State& owner, Callback callback) : Timer(callback), state(owner) {}
    State& state;
  };

  State(Reactor& owner, Applier& target, const ReplicaOptions& chosen)
      : reactor(owner),
        applier(target),
        options(chosen),
        group(chosen.group),
        snapshot(chosen.snapshot),
        history(chosen.history),
        epoch(chosen.epoch),
        entry_epoch(chosen.epoch) {
    checked.reserve(kSliceEntries);
  }

  // replica.cc
  Status attach(std::unique_ptr<Link> next, HistoryId its_history, Epoch its_epoch, bool snapshot_comes);
  void dismiss(const std::string& reason);
  void forget();
  void lose_link(bool report);
  void tick();
  void arm_tick();
  Status wait_applied(Lsn lsn, Instant deadline);
  void publish_applied(Lsn lsn);

  // replica_datapath.cc
  std::uint32_t poll(std::uint32_t budget);
  void flush();
  std::uint32_t take_controls(std::uint32_t budget);
  std::uint32_t take_batches(std::uint32_t budget);
  Status accept_header(const FrameHeader& header) const;
  Status accept_context(const FrameHeader& header) const;
  Status accept_batch(const Batch& batch);
  Status accept_frame(const Batch& batch);
  Bytes own_copy(Bytes payload);
  Bytes copy_to_log(Bytes payload);
  Status accept_entry(const EntryView& entry, Epoch frame_epoch);
  Status accept_epoch(const EntryView& entry, Epoch frame_epoch) const;
  Status accept_in_group(const EntryView& entry);
  Status accept_fragment(const EntryView& entry);
  Status apply_slice(std::span<const EntryView> entries);
  Status apply_checked(std::size_t count);
  void served(std::span<const EntryView> entries);
  void keep(std::span<const EntryView> entries);
  void append_to_log(std::uint32_t bytes);
  void note_commit();
  Status apply_altered(std::span<const EntryView> entries);
  void acknowledge_unchecked(Lsn last);

  // replica_snapshot.cc
  Status accept_range(const Batch& batch);
  Status begin_snapshot(Lsn lsn);
  Status finish_snapshot();
  void abandon_snapshot();
  /// What this replica says that it has. While a snapshot is under way that is what it serves; in a group,
  /// where the primary may have another log up to that LSN, nothing.
  [[nodiscard]] Lsn received_here() const {
    if (!prefix) return {};
    return snapshot.active() ? applied : received;
  }
  [[nodiscard]] Lsn applied_here() const { return prefix ? applied : Lsn{}; }
  [[nodiscard]] std::uint64_t group_bytes_max() const {
    return group == nullptr ? kGroupBytesMax
                            : std::min<std::uint64_t>(
                                  {kGroupBytesMax, options.group_bytes_max, group->log().capacity() / 4});
  }
  void defer(Bytes payload, std::uint32_t turns);
  Status apply_deferred(std::uint64_t turn_limit);
  void send_ack(bool closing);
  [[nodiscard]] bool whole_here() const {
    return options.owner != nullptr && prefix && !group->spoiled() && options.owner->memory();
  }

  Reactor& reactor;
  Applier& applier;
  ReplicaOptions options;
  GroupLog* const group;  ///< null: in none
  SnapshotReceiver snapshot;
  ReplicaStats stats;
  std::unique_ptr<Link> link;
  std::uint64_t wakeups_seen = 0;  ///< of the link's, counted in `stats` already
  std::function<void(const std::string&)> link_lost;
  HistoryId history;
  Epoch epoch;                 ///< of the primary that is followed
  Epoch entry_epoch;           ///< of the newest entry: the backlog may hold entries of earlier epochs
  Epoch entry_epoch_served{};  ///< what it was when the snapshot under way began
  bool fresh = false;          ///< the link has brought no frame yet
  bool counted = false;        ///< as the primary says
  Lsn received{};              ///< checked; the newest that is whole; during a snapshot in its shadow
  Lsn applied{};               ///< visible
  Lsn told{};                  ///< the primary's commit LSN
  bool prefix = true;          ///< of the primary's log: what is served
  Assembly assembly;
  bool goodbye = false;  ///< the primary has gone in good order; what it sent before is still taken
  Lsn received_acknowledged{};
  Lsn applied_acknowledged{};
  bool whole_acknowledged = false;
  std::uint64_t echo = 0;  ///< the newest stamp of the link
  std::uint64_t echoed = 0;
  Instant sent_at{};
  std::uint64_t turn = 0;
  std::deque<Deferred> deferred;
  /// Copy of the batch in hand, which `checked` points into, unless that is in the log already. As large as
  /// the largest batch so far: at most kGroupBytesMax.
  std::vector<std::byte> staged = std::vector<std::byte>(kPollBytesMax);
  bool in_log = false;             ///< the batch in hand was copied to where the log will have it
  Bytes unkept;                    ///< of it, what the log does not have yet
  std::vector<EntryView> checked;  ///< of the batch in hand, not yet applied: a slice, or a group
  std::uint64_t group_bytes = 0;   ///< of the group that the next entry continues
  LsnList<Waiter> waiters;
  OwnedTimer heartbeat{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).state.tick(); }};
};

}  // namespace tidelock
