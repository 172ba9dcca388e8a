// Snapshots in: frames of ranges, and the turn in which what they made is served. The rules are in
// snapshot_receiver.h.
#include <algorithm>
#include <utility>

#include <tidelock/replication/wire_range.h>

#include "replica_state.h"

namespace tidelock {

/// A snapshot is the first that a link brings, or it brings none: so that a stream which goes on cannot be
/// turned into one, and what lies before it is never asked for twice.
Status Replica::State::begin_snapshot(Lsn lsn) {
  if (!fresh) return Error(ReplicationErrc::malformed, "a range amid a stream");
  if (group != nullptr && prefix)
    return Error(ReplicationErrc::malformed, "a snapshot that no hello announced");
  TL_TRY(snapshot.begin(lsn, group != nullptr ? group->commit_lsn() : applied));
  received = lsn;
  entry_epoch_served = std::exchange(entry_epoch, {});
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
  told = std::max(told, batch.header.commit_lsn);
  return {};
}

/// The entries that came meanwhile are of the epoch that was the sender's newest when it built the last
/// range, and what goes on from here is held to it.
Status Replica::State::finish_snapshot() {
  const Epoch newest = snapshot.line().last_epoch();
  if (newest < entry_epoch_served) return ReplicationErrc::old_epoch;
  if (entry_epoch != Epoch{} && entry_epoch != newest) {
    return Error(ReplicationErrc::malformed, "entries of another epoch than the snapshot's line ends with");
  }
  if (group != nullptr) TL_TRY(group->replace(snapshot.line(), received));
  snapshot.finish(received);
  entry_epoch = newest;
  prefix = true;
  bump(stats.snapshots);
  set_gauge(stats.syncing, 0);
  publish_applied(received);
  return {};
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
