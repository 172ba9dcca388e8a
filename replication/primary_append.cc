// Room in the log, first come first served, and the writer's turn that a fragmented put holds.
#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

bool Primary::can_append(std::uint32_t encoded_bytes) const { return state_->can_append(encoded_bytes); }

std::uint32_t Primary::group_bytes_max() const { return state_->group_bytes_max(); }
std::uint32_t Primary::State::group_bytes_max() const {
  const std::uint64_t of_log = log.capacity() / 4;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>({options.group_bytes_max, kGroupBytesMax, of_log}));
}

Result<Lsn> Primary::try_append(EntryKind kind, Bytes key, Bytes value, std::uint32_t bytes_after) {
  State& state = *state_;
  if (key.size() > kKeyBytesMax || value.size() > kEntryBytesMax) return ReplicationErrc::too_large;
  const std::uint32_t bytes = entry_bytes(kind, key.size(), value.size());
  if (bytes > kEntryBytesMax) return ReplicationErrc::too_large;
  if (bytes_after > 0 && std::uint64_t{bytes} + bytes_after > group_bytes_max()) {
    return Error(ReplicationErrc::too_large,
                 "a group has at most " + std::to_string(group_bytes_max()) + " bytes encoded");
  }
  if (state.refuses()) return state.refusal();
  if (!state.can_append(bytes + bytes_after)) return ReplicationErrc::log_full;
  EntryView entry;
  entry.kind = kind;
  entry.key = key;
  entry.value = value;
  entry.lsn = state.log.last_lsn().next();
  entry.epoch = state.options.epoch;
  entry.group_continues = bytes_after > 0;
  return state.append(entry, bytes_after);
}

Status Primary::wait_for_room(std::uint32_t encoded_bytes, Instant deadline) {
  return state_->wait_for_room(encoded_bytes, deadline);
}

/// Room, and nobody to overtake.
bool Primary::State::can_append(std::uint32_t bytes) const {
  if (fragmenting || holds_writes() || (room_head != nullptr && admitted_bytes < bytes)) return false;
  return log.fits(bytes);
}

Lsn Primary::State::append(const EntryView& entry, std::uint32_t bytes_after) {
  log.append(entry, bytes_after);
  // Without replicas everything is free again at once, and stays readable until it is overwritten.
  if (sender.departed()) log.release_to(log.end());
  bump(stats.entries);
  set_gauge(stats.last_lsn, log.last_lsn().value);
  if (admitted_bytes > 0) {
    admitted_bytes -= std::min(admitted_bytes, entry_bytes(entry.kind, entry.key.size(), entry.value.size()));
  }
  if (room_head != nullptr) wake_room();
  return entry.lsn;
}

Status Primary::State::wait_for_room(std::uint32_t bytes, Instant deadline) {
  if (bytes > log.capacity() / 2) {
    return Error(ReplicationErrc::too_large,
                 std::to_string(bytes) + " bytes never fit a log of " + std::to_string(log.capacity()) +
                     " bytes, which takes half of its size at once: raise log_bytes");
  }
  if (refuses()) return refusal();
  const bool next = room_head == nullptr && !fragmenting && !holds_writes();
  if (next && (log.fits(bytes) || make_room(bytes))) {
    // A handler of lost links may have ended others, or all.
    return refuses() ? Status(refusal()) : Status{};
  }
  if (refuses()) return refusal();
  bump(stats.log_full_waits);
  if (room_head == nullptr && !fragmenting) held_at = reactor.now();
  RoomWaiter waiter(bytes);
  push_room(waiter);
  Wakeup wakeup = Wakeup::notified;
  while (room_head != &waiter || fragmenting || holds_writes() || !log.fits(bytes)) {
    wakeup = waiter.queue.wait(deadline);
    if (wakeup != Wakeup::notified || refuses()) break;
  }
  remove_room(waiter);
  if (wakeup != Wakeup::notified) return to_status(wakeup);
  if (refuses()) return refusal();
  admitted_bytes = bytes;
  return {};
}

Error Primary::State::refusal() const {
  if (closed) return Error(ReactorErrc::closed);
  if (!leads) return Error(ReplicationErrc::not_primary);
  return Error(ReplicationErrc::no_replica,
               std::to_string(nodes) + " of the " + std::to_string(c) + " that a write needs (c) are there");
}

void Primary::forgo_room() {
  if (std::exchange(state_->admitted_bytes, 0U) > 0) state_->wake_room();
}

/// Wakes whoever is next if there is room for it. It looks for itself when it runs, so waking twice is
/// harmless.
void Primary::State::wake_room() {
  RoomWaiter* const next = fragmenting ? fragment_waiter : room_head;
  if (holds_writes() && !fragmenting) return;
  if (next != nullptr && log.fits(next->bytes)) next->queue.notify_one();
}

/// What waits for room is over: each looks for itself why.
void Primary::State::refuse_room() {
  for (RoomWaiter* waiter = room_head; waiter != nullptr; waiter = waiter->next) waiter->queue.notify_one();
}

/// Drops the peers that stand in the way of `bytes`, furthest behind first, if that leaves room: all of them
/// may go, and no closed link still reads what is needed. True if there is room then. Not while somebody
/// walks the peers.
bool Primary::State::make_room(std::uint32_t bytes) {
  sender.sweep();
  const std::uint64_t position = log.room_from(bytes);
  while (!log.fits(bytes)) {
    const std::vector<Peer>& peers = sender.peers();
    const auto last = std::min_element(peers.begin(), peers.end(), [](const Peer& a, const Peer& b) {
      return a.needs_from() < b.needs_from();
    });
    if (last == peers.end() || last->needs_from() >= position || !may_drop_before(position)) return false;
    // Ask once more before judging: it may be this node that stood still.
    const auto index = static_cast<std::size_t>(last - peers.begin());
    sender.offer(index);
    if (log.fits(bytes)) break;
    if (!may_drop_before(position)) return false;
    bump(stats.backlog_drops);
    sender.drop_for_room(index, why_dropped(*last, position));
  }
  return true;
}

/// All peers that need the log before `position` may be dropped, and then nothing needs it.
bool Primary::State::may_drop_before(std::uint64_t position) const {
  const std::vector<Peer>& peers = sender.peers();
  return sender.departing_needs_from() >= position &&
         std::all_of(peers.begin(), peers.end(), [&](const Peer& peer) {
           return peer.needs_from() >= position || dispensable(peer, position);
         });
}

/// For whoever waits for room: others may have gone ahead meanwhile, or fallen silent.
void Primary::State::make_room_for_next() {
  const RoomWaiter* const next = fragmenting ? fragment_waiter : room_head;
  if (next == nullptr || (holds_writes() && !fragmenting)) return;
  const Instant now = reactor.now();
  sender.count_held(log.room_from(next->bytes), now - std::exchange(held_at, now));
  make_room(next->bytes);
}

/// Those that would stay and are, one by one, enough reason to let `peer` go: they count, keep up and are at
/// least half of the log ahead of it.
std::uint32_t Primary::State::ahead_of(const Peer& peer, std::uint64_t position) const {
  const std::vector<Peer>& peers = sender.peers();
  return static_cast<std::uint32_t>(std::count_if(peers.begin(), peers.end(), [&](const Peer& other) {
    return other.counts() && other.needs_from() >= position && sender.keeps_up(other) &&
           other.completed >= peer.completed + log.capacity() / 2;
  }));
}

/// Who takes a snapshot counts for nothing yet, and may hold writers up for link_timeout in all. Else enough
/// that count have to stay and keep up, and this one does not: it is silent or takes nothing, or as many as
/// are needed (one at least) are half of the log ahead of it. A burst that outruns all of them alike drops
/// none.
bool Primary::State::dispensable(const Peer& peer, std::uint64_t position) const {
  if (peer.syncing && peer.held >= options.link_timeout) return true;
  if (!options.c.has_value()) return false;
  std::uint32_t others = 0;
  for (const Peer& other : sender.peers()) {
    others += other.counts() && other.needs_from() >= position && sender.keeps_up(other) ? 1 : 0;
  }
  if (others < c || (peer.counts() && others < nodes_wanted())) return false;
  return !sender.keeps_up(peer) || ahead_of(peer, position) >= replicas_needed;
}

/// As many as anybody waits for who can still be answered.
std::uint32_t Primary::State::nodes_wanted() const {
  const std::uint64_t possible = nodes >= kAckReplicasMax ? ~0ULL : level_bit(nodes + 1) - 1;
  std::uint32_t wanted = 0;
  for (std::uint64_t left = levels_waited & possible; left != 0; left &= left - 1) {
    const auto level = static_cast<std::uint32_t>(std::countr_zero(left));
    if (!levels[level].idle()) wanted = level + 1;
  }
  return wanted;
}

std::string Primary::State::why_dropped(const Peer& peer, std::uint64_t position) const {
  const std::string what = "the log has no room for what the replica has not taken; ";
  if (!sender.keeps_up(peer)) {
    return what + "it took or said nothing for two heartbeats, and enough others keep up";
  }
  if (peer.syncing && peer.held >= options.link_timeout) {
    return what + "during its snapshot it has held writers up for " + milliseconds_text(peer.held);
  }
  return what + std::to_string(ahead_of(peer, position)) + " others are at least half of the log ahead of it";
}

void Primary::State::push_room(RoomWaiter& waiter) {
  waiter.previous = room_tail;
  (room_tail != nullptr ? room_tail->next : room_head) = &waiter;
  room_tail = &waiter;
}

void Primary::State::remove_room(RoomWaiter& waiter) {
  (waiter.next != nullptr ? waiter.next->previous : room_tail) = waiter.previous;
  (waiter.previous != nullptr ? waiter.previous->next : room_head) = waiter.next;
}

Result<Lsn> Primary::append_fragments(Bytes key, Bytes value, Instant deadline) {
  State& state = *state_;
  if (key.empty() || key.size() > kKeyBytesMax || value.size() > kValueBytesMax) {
    return Error(ReplicationErrc::too_large, "a key of " + std::to_string(key.size()) + " and a value of " +
                                                 std::to_string(value.size()) + " bytes: keys have 1 to " +
                                                 std::to_string(kKeyBytesMax) + ", values up to " +
                                                 std::to_string(kValueBytesMax));
  }
  // A quarter of the log, so that pieces flow while others wait to be taken.
  const std::uint64_t piece_max = std::min<std::uint64_t>(kEntryBytesMax, state.log.capacity() / 4);
  const std::uint64_t body_max = piece_max - kFragmentHeaderBytes;
  const std::uint64_t whole = key.size() + value.size();
  const auto first = static_cast<std::uint32_t>(std::min(whole, body_max));
  TL_TRY(state.wait_for_room(entry_bytes(EntryKind::fragment, 0, first), deadline));

  state.fragmenting = true;
  EntryView fragment;
  fragment.kind = EntryKind::fragment;
  fragment.lsn = state.log.last_lsn().next();
  fragment.epoch = state.options.epoch;
  fragment.key_bytes = static_cast<std::uint32_t>(key.size());
  fragment.value_bytes = static_cast<std::uint32_t>(value.size());
  std::uint64_t since_yield = 0;
  for (std::uint64_t offset = 0; offset < whole;) {
    const std::uint64_t body = std::min(whole - offset, body_max);
    const std::uint64_t key_from = std::min<std::uint64_t>(offset, key.size());
    const std::uint64_t value_from = offset - key_from;
    const std::uint64_t of_key = std::min(key.size() - key_from, body);
    fragment.offset = offset;
    fragment.key = key.subspan(key_from, of_key);
    fragment.value = value.subspan(value_from, body - of_key);
    if (!state.append_fragment(fragment)) break;
    offset += body;
    since_yield += body;
    if (since_yield + body_max > Sender::kBatchBytesTarget && offset < whole) {
      since_yield = 0;
      static_cast<void>(this_fiber::yield());
    }
  }
  state.fragmenting = false;
  if (!state.in_term(fragment.epoch))
    return state.closed ? Error(ReactorErrc::closed) : Error(ReplicationErrc::not_primary);
  state.wake_room();
  return fragment.lsn;
}

/// Waits for room as long as it takes: a replica that does not give any is dropped by the heartbeat's tick,
/// and if that does not help either, all of them are. Once none reads the log any more everything fits.
/// False: the term is over, and what is in of the put will be cut; or the primary is closed.
bool Primary::State::append_fragment(const EntryView& fragment) {
  const std::uint32_t bytes = entry_bytes(EntryKind::fragment, fragment.key.size(), fragment.value.size());
  RoomWaiter waiter(bytes);
  fragment_waiter = &waiter;
  held_at = reactor.now();
  while (in_term(fragment.epoch) && !log.fits(bytes) && !make_room(bytes)) {
    const Wakeup wakeup = waiter.queue.wait(reactor.now() + options.link_timeout * 2);
    if (wakeup == Wakeup::notified) continue;
    sender.drop_all(wakeup == Wakeup::cancelled ? "a large put was cancelled half way"
                                                : "the log had no room for the rest of a large put");
    if (wakeup == Wakeup::cancelled) await_departed();
  }
  fragment_waiter = nullptr;
  if (!in_term(fragment.epoch)) return false;
  append(fragment);
  return true;
}

/// A cancelled fiber cannot wait, but a yield lets the loop run all the same; and that is what links need to
/// let go, with their timers and completions. It comes soon: see Link::drained().
void Primary::State::await_departed() {
  while (sender.departing()) static_cast<void>(this_fiber::yield());
}

}  // namespace tidelock
