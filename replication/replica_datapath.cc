// Batches in, acknowledgements out. Nothing that the peer sent is believed before it was checked, and nothing
// is checked in memory that the peer can still change.
#include <algorithm>
#include <utility>

#include "replica_state.h"

namespace tidelock {

std::uint32_t Replica::poll(std::uint32_t budget) { return state_->poll(budget); }
void Replica::flush() { state_->flush(); }
void Replica::arm() {
  if (state_->link) state_->link->arm();
}
void Replica::disarm() {
  if (state_->link) state_->link->disarm();
}
bool Replica::has_work() const {
  if (!state_->deferred.empty()) return true;
  return state_->link &&
         (state_->goodbye || state_->link->has_work() || state_->link->state() == LinkState::closed);
}

std::uint32_t Replica::State::poll(std::uint32_t budget) {
  ++turn;
  std::uint32_t done = 0;
  if (!deferred.empty()) {
    ++done;
    if (const Status status = apply_deferred(turn); !status && link) link->close(status.error().message());
  }
  if (!link) return done;
  done += link->poll(budget);
  // In this order, so that all of what left before a goodbye is there when the goodbye is seen.
  done += take_controls(budget);
  done += take_batches(budget);
  if (link->state() == LinkState::closed) {
    lose_link(true);
    ++done;
  }
  return done;
}

std::uint32_t Replica::State::take_controls(std::uint32_t budget) {
  std::uint32_t taken = 0;
  while (taken < budget) {
    const auto frame = link->receive_control();
    if (!frame) break;
    ++taken;
    if (frame->epoch != epoch) {
      link->close("a control frame of another epoch than the primary's hello");
      break;
    }
    if (const Status said = check_sender(*frame, NodeRole::primary); !said) {
      link->close(said.error().message());
      break;
    }
    if (frame->lead) {
      if (options.owner == nullptr) {
        link->close("the primary asks this replica to lead, and it is in no group");
        break;
      }
      options.owner->asked_to_lead();
    }
    if (options.owner != nullptr && frame->stamp() != 0) {
      echo = frame->stamp();
      options.owner->stamped();
    }
    told = std::max(told, frame->commit_lsn);
    if (options.policy != nullptr && options.policy->believes_notification() && told > applied)
      publish_applied(told);
    counted = frame->whole;
    goodbye = goodbye || frame->closing;
  }
  if (taken > 0) note_commit();
  return taken;
}

std::uint32_t Replica::State::take_batches(std::uint32_t budget) {
  std::uint32_t taken = 0;
  std::uint64_t bytes = 0;
  while (taken < budget && bytes < kPollBytesMax) {
    const auto batch = link->receive();
    if (!batch) {
      if (goodbye) link->close("the primary said goodbye");
      break;
    }
    ++taken;
    bytes += batch->payload.size();
    bump(stats.batch_bytes, batch->payload.size());
    if (const Status accepted = accept_frame(*batch); !accepted) {
      link->close("batch " + std::to_string(batch->header.sequence) +
                  (snapshot.active() ? " of a snapshot: " : ": ") + accepted.error().message());
      break;
    }
    link->release();
    bump(stats.batches);
  }
  if (taken > 0) {
    set_gauge(stats.received_lsn, snapshot.active() ? applied.value : received.value);
    note_commit();
  }
  // Stopped by the bytes: say that there is more.
  return bytes < kPollBytesMax ? taken : budget;
}

/// In a group only what a primary says of whose log this one is a prefix: else LSNs here are of other
/// entries.
void Replica::State::note_commit() {
  if (group != nullptr && prefix) group->committed(told);
  const Lsn commit = group != nullptr ? group->commit_lsn() : std::min(told, applied);
  if (commit.value > stats.commit_lsn.load(std::memory_order_relaxed))
    set_gauge(stats.commit_lsn, commit.value);
}

/// The link has checked magic, version, CRC, sequence and context; here is what only the stream knows.
Status Replica::State::accept_header(const FrameHeader& header) const {
  TL_TRY(accept_context(header));
  // Fragments do not count as received before they are whole, so this holds in the midst of them too.
  if (header.first_lsn != received.next()) {
    return Error(ReplicationErrc::gap, "LSN " + std::to_string(header.first_lsn.value) + " after " +
                                           std::to_string(received.value));
  }
  return {};
}

Status Replica::State::accept_context(const FrameHeader& header) const {
  if (header.history != history || header.shard != options.shard) return ReplicationErrc::wrong_context;
  const bool takes_any = options.policy != nullptr && options.policy->accepts_old_epoch();
  if (header.epoch < epoch) return takes_any ? Status() : Status(ReplicationErrc::old_epoch);
  if (header.epoch > epoch) return Error(ReplicationErrc::malformed, "an epoch that no hello announced");
  return {};
}

Status Replica::State::accept_frame(const Batch& batch) {
  if (batch.payload.size() > kGroupBytesMax) {
    return Error(ReplicationErrc::too_large, "its " + std::to_string(batch.payload.size()) +
                                                 " bytes are more than a group may have, " +
                                                 std::to_string(kGroupBytesMax));
  }
  TL_TRY(batch.header.kind == FrameKind::range ? accept_range(batch) : accept_batch(batch));
  fresh = false;
  if (snapshot.complete(received)) TL_TRY(finish_snapshot());
  return {};
}

Status Replica::State::accept_batch(const Batch& batch) {
  TL_TRY(accept_header(batch.header));
  const bool planted = options.policy != nullptr && !snapshot.active();
  if (planted && options.policy->acknowledges_unchecked()) acknowledge_unchecked(batch.header.last_lsn);
  const std::uint32_t turns_early = planted ? options.policy->turns_acknowledged_early() : 0;
  checked.clear();
  group_bytes = 0;
  std::size_t whole = 0;  // of `checked`, up to where a group ends
  std::uint32_t entries = 0;
  Lsn last{};
  Status status;
  const Bytes payload = snapshot.active() ? own_copy(batch.payload) : copy_to_log(batch.payload);
  unkept = payload;
  for (EntryReader reader(payload); status && !reader.at_end();) {
    const auto entry = reader.next();
    status = entry ? accept_entry(*entry, batch.header.epoch) : Status(entry.error());
    if (!status) break;
    ++entries;
    last = entry->lsn;
    if (turns_early == 0) checked.push_back(*entry);
    if (entry->group_continues) continue;
    whole = checked.size();
    if (whole < kSliceEntries) continue;
    status = apply_checked(whole);
    whole = 0;
  }
  if (status && group_bytes > 0) status = Error(ReplicationErrc::malformed, "it ends within a group");
  // The prefix that was good is served even if the rest is not: it is history all the same.
  const Status applied_rest = apply_checked(whole);
  if (status && !applied_rest) status = applied_rest;
  TL_TRY(std::move(status));
  if (entries != batch.header.entries || last != batch.header.last_lsn) return ReplicationErrc::bad_length;
  told = std::max(told, batch.header.commit_lsn);
  if (turns_early > 0) defer(payload, turns_early);
  return {};
}

/// What the CRCs were right for is what is applied, every key and value the same however often it is read:
/// the batch itself is memory that a hostile peer may be changing. Fragments would be safe without, since
/// they are read once after their CRC; they take the same path.
Bytes Replica::State::own_copy(Bytes payload) {
  in_log = false;
  if (staged.size() < payload.size()) staged.resize(payload.size());
  std::copy(payload.begin(), payload.end(), staged.begin());
  return Bytes(staged).first(payload.size());
}

/// In a group an own copy is checked where the log will have it, unless a lap ends amid it.
Bytes Replica::State::copy_to_log(Bytes payload) {
  if (group == nullptr) return own_copy(payload);
  Log& log = group->log();
  const auto bytes = static_cast<std::uint32_t>(payload.size());
  log.release_to(log.end());  // nothing reads it while it grows by what a link brings
  const MutableBytes to = log.fits(bytes) ? log.stage(bytes) : MutableBytes{};
  if (to.empty()) return own_copy(payload);
  in_log = true;
  std::copy(payload.begin(), payload.end(), to.begin());
  return to;
}

Status Replica::State::accept_entry(const EntryView& entry, Epoch frame_epoch) {
  if (entry.lsn != received.next()) {
    return Error(ReplicationErrc::gap,
                 "LSN " + std::to_string(entry.lsn.value) + " after " + std::to_string(received.value));
  }
  TL_TRY(accept_epoch(entry, frame_epoch));
  TL_TRY(accept_in_group(entry));
  if (entry.kind == EntryKind::fragment) {
    TL_TRY(accept_fragment(entry));
  } else if (assembly.active) {
    return Error(ReplicationErrc::malformed, "another entry amid fragments");
  }
  entry_epoch = entry.epoch;
  if (!assembly.active) received = entry.lsn;
  return {};
}

Status Replica::State::accept_epoch(const EntryView& entry, Epoch frame_epoch) const {
  const bool takes_any = options.policy != nullptr && options.policy->accepts_old_epoch();
  if (entry.epoch < entry_epoch && !takes_any) return ReplicationErrc::old_epoch;
  if (entry.epoch > frame_epoch)
    return Error(ReplicationErrc::malformed, "an entry of a later epoch than its frame");
  // A snapshot brings the line that its live entries are of.
  const bool of_line = group == nullptr || snapshot.active() || entry.epoch == entry_epoch;
  if (!of_line && (entry.kind != EntryKind::noop || group_bytes > 0))
    return Error(ReplicationErrc::malformed, "an epoch that does not begin with its no-op");
  return {};
}

Status Replica::State::accept_in_group(const EntryView& entry) {
  if (group_bytes > 0 && entry.kind == EntryKind::fragment) {
    return Error(ReplicationErrc::malformed, "a fragment within a group");
  }
  const bool alone = group_bytes == 0 && !entry.group_continues;
  group_bytes += entry_bytes(entry.kind, entry.key.size(), entry.value.size());
  if (!alone && group_bytes > group_bytes_max()) {
    return Error(ReplicationErrc::too_large,
                 "a group of more than " + std::to_string(group_bytes_max()) + " bytes");
  }
  if (!entry.group_continues) group_bytes = 0;
  return {};
}

Status Replica::State::accept_fragment(const EntryView& entry) {
  if (!assembly.active) assembly = {true, entry.key_bytes, entry.value_bytes, 0};
  if (entry.key_bytes != assembly.key_bytes || entry.value_bytes != assembly.value_bytes ||
      entry.offset != assembly.next_offset) {
    return Error(ReplicationErrc::malformed, "a fragment that does not continue the one before");
  }
  assembly.next_offset += entry.value.size();
  if (entry.last_fragment()) assembly.active = false;
  return {};
}

/// The first `count` of `checked`, in this turn; the others, a group that never ended, are forgotten.
Status Replica::State::apply_checked(std::size_t count) {
  Status status;
  std::size_t done = 0;  // are served: what ends with a group
  for (std::size_t at = 0; at < count;) {
    const auto slice = std::span(checked).subspan(at, std::min(kSliceEntries, count - at));
    status = apply_slice(slice);
    if (!status) {
      // Whether any of the slice is in the table is not known, unless there was one entry only.
      const bool clean = done == at && slice.size() == 1;
      if (group != nullptr && !snapshot.active() && !clean) group->spoil();
      break;
    }
    at += slice.size();
    if (slice.back().group_continues) continue;
    served(std::span(checked).subspan(done, at - done));
    done = at;
  }
  checked.clear();
  return status;
}

Status Replica::State::apply_slice(std::span<const EntryView> entries) {
  if (snapshot.active()) {
    TL_TRY(snapshot.apply_live(entries));
  } else {
    TL_TRY(options.policy == nullptr ? applier.apply(entries) : apply_altered(entries));
  }
  bump(stats.entries, entries.size());
  return {};
}

/// They are in the table, and end with a group.
void Replica::State::served(std::span<const EntryView> entries) {
  if (snapshot.active()) return;
  if (group != nullptr) keep(entries);
  const EntryView& last = entries.back();
  const bool whole = last.kind != EntryKind::fragment || last.last_fragment();
  const Lsn lsn = whole ? last.lsn : Lsn{last.lsn.value - 1};
  if (lsn > applied) publish_applied(lsn);
}

/// The log's end moves with the table: so it never has what readers do not see.
void Replica::State::keep(std::span<const EntryView> entries) {
  std::uint32_t bytes = 0;
  for (const EntryView& entry : entries) {
    if (entry.epoch != group->line().last_epoch()) {
      append_to_log(std::exchange(bytes, 0));
      group->begin_epoch(entry.epoch);
    }
    bytes += entry_bytes(entry.kind, entry.key.size(), entry.value.size());
    // A batch may be larger than what fits at once; a group is not.
    if (!in_log && !entry.group_continues) append_to_log(std::exchange(bytes, 0));
  }
  append_to_log(bytes);
}

void Replica::State::append_to_log(std::uint32_t bytes) {
  if (bytes == 0) return;
  Log& log = group->log();
  if (in_log) {
    log.append_staged(bytes);
  } else {
    log.release_to(log.end());
    log.append_encoded(unkept.first(bytes));
  }
  unkept = unkept.subspan(bytes);
}

// ---- planted faults -------------------------------------------------------------------------------------

Status Replica::State::apply_altered(std::span<const EntryView> entries) {
  std::vector<EntryView> altered(entries.begin(), entries.end());
  options.policy->alter(altered);
  return altered.empty() ? Status() : applier.apply(altered);
}

void Replica::State::acknowledge_unchecked(Lsn last) {
  const Lsn checked_to = std::exchange(received, std::max(received, last));
  set_gauge(stats.received_lsn, received.value);
  send_ack(false);
  received = checked_to;
}

/// Claims the batch as applied and keeps a copy to apply some turns later.
void Replica::State::defer(Bytes payload, std::uint32_t turns) {
  deferred.push_back({turn + turns, {payload.begin(), payload.end()}});
  if (received > applied) publish_applied(received);
}

Status Replica::State::apply_deferred(std::uint64_t turn_limit) {
  while (!deferred.empty() && deferred.front().due_turn <= turn_limit) {
    const Deferred batch = std::move(deferred.front());
    deferred.pop_front();
    for (EntryReader reader(batch.payload); !reader.at_end();) {
      TL_TRY(const EntryView entry, reader.next());
      TL_TRY(apply_slice({&entry, 1}));
    }
  }
  return {};
}

// ---- acknowledging --------------------------------------------------------------------------------------

void Replica::State::flush() {
  if (!link || link->state() == LinkState::closed) return;
  const bool heartbeat_due = reactor.now() - sent_at >= Duration{options.heartbeat.ns / 2};
  const bool news = received_here() > received_acknowledged || applied_here() > applied_acknowledged ||
                    whole_here() != whole_acknowledged || echo != echoed;
  if (news || heartbeat_due) send_ack(false);
  link->flush();
  follow(stats.peer_wakeups, link->counters().peer_wakeups, wakeups_seen);
}

void Replica::State::send_ack(bool closing) {
  ControlFrame frame;
  frame.history = history;
  frame.epoch = epoch;
  frame.shard = options.shard;
  frame.closing = closing;
  frame.received_lsn = received_here();
  frame.applied_lsn = applied_here();
  frame.whole = whole_here();
  frame.set_echo(echo);
  const Status sent = link->send_control(frame);
  if (!sent) {
    // link_closed is no reason of its own: the link has a better one, and may still hold batches to receive.
    const bool passing =
        sent.error() == ReplicationErrc::link_full || sent.error() == ReplicationErrc::link_closed;
    if (!passing) link->close(sent.error().message());
    return;
  }
  received_acknowledged = frame.received_lsn;
  applied_acknowledged = frame.applied_lsn;
  whole_acknowledged = frame.whole;
  echoed = echo;
  sent_at = reactor.now();
}

}  // namespace tidelock
