// A group's primary: when its epoch begins and ends, and what commits in it.
#include <algorithm>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

Status Primary::lead(const Term& term) { return state_->lead(term); }
void Primary::depose(const std::string& reason) { state_->depose(reason); }
bool Primary::leads() const { return state_->leads; }

Status Primary::State::lead(const Term& term) {
  TL_ASSERT(group != nullptr && !leads, "a group's primary leads one epoch at a time");
  TL_ASSERT(term.c <= kAckReplicasMax, "a c that can be waited for");
  if (!sender.departed() || fragmenting) {
    return Error(ReplicationErrc::peer_busy,
                 "what it sent as the primary of an earlier epoch is not gone yet");
  }
  if (group->spoiled()) {
    return Error(ReplicationErrc::gap,
                 "the table shows entries that are not in the log: a snapshot mends it");
  }
  options.history = term.history;
  options.routing_seed = term.routing_seed;
  options.epoch = term.epoch;
  options.c = c = term.c;
  replicas_needed = std::max(c, 1U);
  // What others had in an earlier term counts for nothing: it may have been cut since.
  for (Level& level : levels) level.received = level.applied = {};
  levels_standing = level_bit(1) | level_bit(replicas_needed);
  nodes = 0;

  group->cut_to_whole();
  group->begin_epoch(term.epoch);
  log.release_to(log.end());
  EntryView entry;
  entry.kind = EntryKind::noop;
  entry.lsn = first = log.last_lsn().next();
  entry.epoch = term.epoch;
  append(entry);
  leads = true;
  stamped = 0;
  if (options.lease_clock != nullptr)
    leases.emplace(Quorum{options.others, group_c}, options.lease, options.link_timeout,
                   *options.lease_clock);
  return {};
}

void Primary::State::depose(const std::string& reason, std::uint32_t successor) {
  if (group == nullptr || !leads) return;
  leads = false;  // before anybody hears of it: they may come back
  end_leases();
  end_handover();
  admitted_bytes = 0;
  sender.dismiss_all(reason, successor);
  fail_waiters();
  refuse_room();
  if (fragment_waiter != nullptr) fragment_waiter->queue.notify_one();
}

/// Entries of earlier epochs commit with the first of this one, never by their own count: as many may have
/// had them and a later primary lack them all the same.
void Primary::State::commit_in_group() {
  if (group == nullptr || !leads || closed) return;
  group->appended();
  const Lsn counted = c == 0 ? log.last_lsn() : levels[c - 1].applied;
  if (counted < first) return;
  group->committed(counted);
}

}  // namespace tidelock
