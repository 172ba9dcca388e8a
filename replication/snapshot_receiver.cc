#include <string>

#include <tidelock/base/check.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/snapshot_receiver.h>

namespace tidelock {
namespace {

Error broken(const std::string& rule) { return Error(ReplicationErrc::malformed, rule); }

}  // namespace

Status SnapshotReceiver::begin(Lsn lsn, Lsn applied) {
  TL_ASSERT(!active_, "one snapshot at a time");
  if (target_ == nullptr) return Error(ReplicationErrc::bad_kind, "a snapshot, and none is taken here");
  if (lsn < applied) {
    return Error(ReplicationErrc::gap, "a snapshot of LSN " + std::to_string(lsn.value) +
                                           ", and what is here goes to " + std::to_string(applied.value));
  }
  TL_TRY(target_->begin_shadow());
  active_ = true;
  last_seen_ = false;
  position_ = 0;
  lsn_ = lsn;
  line_ = {};
  record_ = {};
  return {};
}

Status SnapshotReceiver::add_range(const RangeHeader& range, std::span<const EntryView> entries,
                                   Lsn received) {
  TL_ASSERT(active_, "a range is of a snapshot that has begun");
  TL_TRY(check_order(range, received));
  if (!range.last && range.to == range.from && !range.voids && entries.empty()) {
    return broken("a range that brings nothing");  // else a snapshot might never end
  }
  if (range.voids) {
    record_ = {};
    target_->void_record();
  }
  for (const EntryView& entry : entries) {
    if (entry.kind == EntryKind::fragment) TL_TRY(check_fragment(entry));
  }
  if (range.last && record_.active) return broken("the last range ends amid a record");
  if (!entries.empty()) TL_TRY(target_->add_records(entries));
  position_ = range.to;
  last_seen_ = range.last;
  lsn_ = range.lsn;
  if (!range.line.starts().empty()) line_ = range.line;
  return {};
}

Status SnapshotReceiver::check_order(const RangeHeader& range, Lsn received) const {
  if (last_seen_) return broken("a range after the last one");
  if (range.from != position_) {
    return broken("a range from hash " + std::to_string(range.from) + ", the one before ended at " +
                  std::to_string(position_));
  }
  if (range.lsn < lsn_ || range.lsn < received) {
    return broken("a range of LSN " + std::to_string(range.lsn.value) + " after what the sender wrote later");
  }
  if (range.voids && !record_.active) return broken("nothing is under way that could be void");
  return {};
}

Status SnapshotReceiver::check_fragment(const EntryView& entry) {
  if (!record_.active) record_ = {true, entry.lsn, entry.key_bytes, entry.value_bytes, 0};
  if (entry.lsn != record_.lsn || entry.key_bytes != record_.key_bytes ||
      entry.value_bytes != record_.value_bytes || entry.offset != record_.next_offset) {
    return broken("a fragment that does not continue the one before");
  }
  record_.next_offset += entry.value.size();
  if (entry.last_fragment()) record_.active = false;
  return {};
}

void SnapshotReceiver::finish(Lsn received) {
  TL_ASSERT(complete(received), "only a whole snapshot is served");
  active_ = false;
  target_->swap_shadow(received);
}

void SnapshotReceiver::abandon() {
  if (!active_) return;
  active_ = false;
  target_->drop_shadow();
}

}  // namespace tidelock
