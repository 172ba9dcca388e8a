// Room in the log, first come first served, and the writer's turn that a fragmented put holds.
#include <algorithm>
#include <utility>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

bool Primary::can_append(std::uint32_t encoded_bytes) const { return state_->can_append(encoded_bytes); }

std::uint32_t Primary::group_bytes_max() const {
  const std::uint64_t of_log = state_->log->capacity() / 4;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>({state_->options.group_bytes_max, kGroupBytesMax, of_log}));
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
  if (!state.can_append(bytes + bytes_after)) return ReplicationErrc::log_full;
  EntryView entry;
  entry.kind = kind;
  entry.key = key;
  entry.value = value;
  entry.lsn = state.log->last_lsn().next();
  entry.epoch = state.options.epoch;
  entry.group_continues = bytes_after > 0;
  return state.append(entry, bytes_after);
}

Status Primary::wait_for_room(std::uint32_t encoded_bytes, Instant deadline) {
  return state_->wait_for_room(encoded_bytes, deadline);
}

/// Room, and nobody to overtake.
bool Primary::State::can_append(std::uint32_t bytes) const {
  if (fragmenting || (room_head != nullptr && admitted_bytes < bytes)) return false;
  return log->fits(bytes);
}

Lsn Primary::State::append(const EntryView& entry, std::uint32_t bytes_after) {
  log->append(entry, bytes_after);
  // Without replicas everything is free again at once, and stays readable until it is overwritten.
  if (peers.empty() && departing.empty()) log->release_to(log->end());
  bump(stats.entries);
  set_gauge(stats.last_lsn, log->last_lsn().value);
  if (admitted_bytes > 0) {
    admitted_bytes -= std::min(admitted_bytes, entry_bytes(entry.kind, entry.key.size(), entry.value.size()));
  }
  if (room_head != nullptr) wake_room();
  return entry.lsn;
}

Status Primary::State::wait_for_room(std::uint32_t bytes, Instant deadline) {
  if (bytes > log->capacity() / 2) {
    return Error(ReplicationErrc::too_large,
                 std::to_string(bytes) + " bytes never fit a log of " + std::to_string(log->capacity()) +
                     " bytes, which takes half of its size at once: raise log_bytes");
  }
  if (room_head == nullptr && !fragmenting && log->fits(bytes)) return {};
  bump(stats.log_full_waits);
  RoomWaiter waiter(bytes);
  push_room(waiter);
  Wakeup wakeup = Wakeup::notified;
  while (room_head != &waiter || fragmenting || !log->fits(bytes)) {
    wakeup = waiter.queue.wait(deadline);
    if (wakeup != Wakeup::notified) break;
  }
  remove_room(waiter);
  if (wakeup == Wakeup::notified) {
    admitted_bytes = bytes;
    return {};
  }
  return to_status(wakeup);
}

void Primary::forgo_room() {
  if (std::exchange(state_->admitted_bytes, 0U) > 0) state_->wake_room();
}

/// Wakes whoever is next if there is room for it. It looks for itself when it runs, so waking twice is
/// harmless.
void Primary::State::wake_room() {
  RoomWaiter* const next = fragmenting ? fragment_waiter : room_head;
  if (next != nullptr && log->fits(next->bytes)) next->queue.notify_one();
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
  const std::uint64_t piece_max = std::min<std::uint64_t>(kEntryBytesMax, state.log->capacity() / 4);
  const std::uint64_t body_max = piece_max - kFragmentHeaderBytes;
  const std::uint64_t whole = key.size() + value.size();
  const auto first = static_cast<std::uint32_t>(std::min(whole, body_max));
  TL_TRY(state.wait_for_room(entry_bytes(EntryKind::fragment, 0, first), deadline));

  state.fragmenting = true;
  EntryView fragment;
  fragment.kind = EntryKind::fragment;
  fragment.lsn = state.log->last_lsn().next();
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
    state.append_fragment(fragment);
    offset += body;
    since_yield += body;
    if (since_yield + body_max > kBatchBytesTarget && offset < whole) {
      since_yield = 0;
      static_cast<void>(this_fiber::yield());
    }
  }
  state.fragmenting = false;
  state.wake_room();
  return fragment.lsn;
}

/// Waits for room as long as it takes: a replica that does not give any is dropped by the heartbeat's tick,
/// and if that does not help either, all of them are. Once none reads the log any more everything fits.
void Primary::State::append_fragment(const EntryView& fragment) {
  const std::uint32_t bytes = entry_bytes(EntryKind::fragment, fragment.key.size(), fragment.value.size());
  RoomWaiter waiter(bytes);
  fragment_waiter = &waiter;
  while (!log->fits(bytes)) {
    const Wakeup wakeup = waiter.queue.wait(reactor.now() + options.link_timeout * 2);
    if (wakeup == Wakeup::notified) continue;
    drop_all(wakeup == Wakeup::cancelled ? "a large put was cancelled half way"
                                         : "the log had no room for the rest of a large put");
    if (wakeup == Wakeup::cancelled) await_departed();
  }
  fragment_waiter = nullptr;
  append(fragment);
}

/// A cancelled fiber cannot wait, but a yield lets the loop run all the same; and that is what links need to
/// let go, with their timers and completions. It comes soon: see Link::drained().
void Primary::State::await_departed() {
  while (!departing.empty()) static_cast<void>(this_fiber::yield());
}

}  // namespace tidelock
