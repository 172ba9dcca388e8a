/// The receiving end of one snapshot: the ranges have to join, from the first hash to the end, and none may
/// come after an entry that it does not know of. What they and the live entries bring goes into a shadow of
/// the table; once the ranges are complete, and everything up to the LSN that the sender had at the last one
/// is there, the shadow is as good as the sender's table was, and becomes what is served.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <span>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/snapshot_target.h>
#include <tidelock/replication/wire_range.h>

namespace tidelock {

class SnapshotReceiver {
 public:
  /// `target` outlives it; null: it takes no snapshot.
  explicit SnapshotReceiver(SnapshotTarget* target) : target_(target) {}
  ~SnapshotReceiver() { abandon(); }
  SnapshotReceiver(const SnapshotReceiver&) = delete;
  SnapshotReceiver& operator=(const SnapshotReceiver&) = delete;

  [[nodiscard]] bool active() const { return active_; }
  /// `applied`: what is served now, which the snapshot must not be older than; `lsn`: of its first range.
  /// Errors:   those of SnapshotTarget::begin_shadow(); gap: it is older; bad_kind: no snapshot is taken here
  Status begin(Lsn lsn, Lsn applied);
  /// A frame of the snapshot, decoded. `received`: the last whole entry of the stream, at first the range's
  /// LSN.
  /// Errors:   malformed; those of SnapshotTarget: the snapshot is then of no use any more
  Status add_range(const RangeHeader& range, std::span<const EntryView> entries, Lsn received);
  /// Entries of the stream, in LSN order from the one after the first range's LSN on.
  Status apply_live(std::span<const EntryView> entries) { return target_->apply_live(entries); }
  /// True: finish() may be called.
  [[nodiscard]] bool complete(Lsn received) const { return active_ && last_seen_ && received >= lsn_; }
  /// The shadow is served from now on, at `received`.
  void finish(Lsn received);
  /// The sender's, as of the newest range that had it; of a complete snapshot: what goes with the shadow.
  [[nodiscard]] const EpochLine& line() const { return line_; }
  /// Forgets what has come; without a snapshot nothing happens.
  void abandon();

 private:
  /// The record of the ranges whose fragments arrive.
  struct Record {
    bool active = false;
    Lsn lsn{};
    std::uint32_t key_bytes = 0;
    std::uint32_t value_bytes = 0;
    std::uint64_t next_offset = 0;
  };

  Status check_order(const RangeHeader& range, Lsn received) const;
  Status check_fragment(const EntryView& entry);

  SnapshotTarget* target_;
  bool active_ = false;
  bool last_seen_ = false;
  std::uint64_t position_ = 0;
  Lsn lsn_{};  ///< the sender's last, of the newest range
  EpochLine line_;
  Record record_;
};

}  // namespace tidelock
