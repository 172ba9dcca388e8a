// Snapshots in: frames of ranges, and the turn in which what they made is served. The rules are in
// snapshot_receiver.h.
#include <algorithm>

#include <tidelock/replication/wire_range.h>

#include "replica_state.h"

namespace tidelock {

/// A snapshot is the first that a link brings, or it brings none: so that a stream which goes on cannot be
/// turned into one, and what lies before it is never asked for twice.
Status Replica::State::begin_snapshot(Lsn lsn) {
  if (!fresh) return Error(ReplicationErrc::malformed, "a range amid a stream");
  TL_TRY(snapshot.begin(lsn, applied));
  received = lsn;
  entry_epoch_served = entry_epoch;
  set_gauge(stats.syncing, 1);
  return {};
}

Status Replica::State::accept_range(const Batch& batch) {
  TL_TRY(accept_context(batch.header));
  TL_TRY(const RangeHeader range, decode_range(batch.header, own_copy(batch.payload), checked));
  if (!snapshot.active()) TL_TRY(begin_snapshot(range.lsn));
  const Status added = snapshot.add_range(range, checked, received);
  checked.clear();
  TL_TRY(added);
  commit = std::max(commit, batch.header.commit_lsn);
  return {};
}

void Replica::State::finish_snapshot() {
  snapshot.finish(received);
  bump(stats.snapshots);
  set_gauge(stats.syncing, 0);
  publish_applied(received);
}

/// The stream goes on from what is served.
void Replica::State::abandon_snapshot() {
  if (!snapshot.active()) return;
  snapshot.abandon();
  received = applied;
  entry_epoch = entry_epoch_served;
  bump(stats.snapshots_broken);
  set_gauge(stats.syncing, 0);
}

}  // namespace tidelock
