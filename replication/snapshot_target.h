/// Where a snapshot goes: a table in the shadow of the one that is served, filled by the snapshot's ranges
/// and by the live entries together, each record by its LSN. The engine implements it, as it does Applier.
/// Thread:   owner core
/// Suspends: never
/// Lifetime: keys and values until the call returns, in memory of the replica's own that no peer can change
#pragma once

#include <span>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/wire.h>

namespace tidelock {

class SnapshotTarget {
 public:
  virtual ~SnapshotTarget() = default;
  /// An empty shadow. There is none.
  /// Errors:   any: the link is closed with it, and what is served stays
  virtual Status begin_shadow() = 0;
  /// Entries that the stream brought meanwhile, as to Applier::apply(): a put yields to a record of the same
  /// or a greater LSN, an erase removes only a smaller one.
  virtual Status apply_live(std::span<const EntryView> entries) = 0;
  /// Records of a range: puts and fragments, each with the LSN that it has at the sender, in any order.
  /// Fragments of one record arrive in order of their offset, apart from the live ones; the last makes it
  /// whole.
  virtual Status add_records(std::span<const EntryView> entries) = 0;
  /// The record whose fragments arrive is no longer what the sender has: forget them.
  virtual void void_record() = 0;
  /// The shadow becomes what is served, at `lsn`, in this turn.
  virtual void swap_shadow(Lsn lsn) = 0;
  /// Forgets the shadow.
  virtual void drop_shadow() = 0;
};

}  // namespace tidelock
