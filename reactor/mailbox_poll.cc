#include <bit>

#include <tidelock/base/check.h>
#include <tidelock/reactor/mailbox.h>

#include "mailbox_state.h"

namespace tidelock {

namespace {

/// Positions wrap; they never lie 2^31 apart.
bool is_beyond(std::uint32_t position, std::uint32_t other) {
  return static_cast<std::int32_t>(position - other) > 0;
}

}  // namespace

std::uint32_t Mailbox::poll(std::uint32_t budget) {
  const std::uint32_t done = state_->poll(budget);
  TL_ASSERT(done == 0 || !this_fiber::exists(), "handlers run on the loop, so that none of them can suspend");
  return done;
}

bool Mailbox::has_work() const { return state_->has_work(); }

void Mailbox::on_announcement(std::uint64_t data) {
  const auto position = static_cast<std::uint32_t>(data);
  const CoreId from{static_cast<std::uint16_t>(data >> 32)};
  const bool replies = (data >> 48 & 1) != 0;
  Peer& peer = state_->peer(from);
  std::uint32_t& announced = replies ? peer.replies_announced : peer.requests_announced;
  if (is_beyond(position, announced)) announced = position;  // a repeated one may come late
  state_->ready[from.value / 64] |= std::uint64_t{1} << (from.value % 64);
}

void Mailbox::on_event() {
  state_->event_pending = true;
  // An eventfd does not say who wrote.
  for (std::uint32_t core = 0; core < state_->directory.cores(); ++core) {
    state_->ready[core / 64] |= std::uint64_t{1} << (core % 64);
  }
}

bool Mailbox::has_settled_work() const {
  for (std::uint32_t i = 0; i < state_->directory.cores(); ++i) {
    const CoreId other{static_cast<std::uint16_t>(i)};
    const Peer* peer = state_->peers[i].get();
    // Settled first: what the sender did before it, its look at our flag included, is then visible here.
    if (const Lane* in = state_->directory.lane(other, state_->self); in != nullptr) {
      const std::uint32_t settled = in->requests_settled.load(std::memory_order_acquire);
      const std::uint32_t taken = peer != nullptr ? peer->requests_in.position() : 0;
      if (in->carrier == Carrier::shared_memory && is_beyond(settled, taken)) return true;
    }
    if (peer != nullptr && peer->calls != nullptr && peer->out->carrier == Carrier::shared_memory) {
      const std::uint32_t settled = peer->out->replies_settled.load(std::memory_order_acquire);
      if (is_beyond(settled, peer->calls->replies_in.position())) return true;
    }
  }
  return false;
}

std::uint32_t Mailbox::State::poll(std::uint32_t budget) {
  std::uint32_t found = waiting.empty() ? 0 : serve_senders();
  if (fiber_calls_first != fiber_calls.size()) found += start_fiber_calls();
  const std::uint32_t received = directory.uses_bitmap() ? poll_pending(budget) : poll_all(budget);
  if (received != 0) bump(stats.received, received);
  return found + received;
}

std::uint32_t Mailbox::State::poll_all(std::uint32_t budget) {
  const std::uint32_t cores = directory.cores();
  std::uint32_t received = 0;
  std::uint32_t core = next_core;
  for (std::uint32_t i = 0; i < cores && received < budget; ++i) {
    const CoreId other{static_cast<std::uint16_t>(core)};
    Peer* from = peers[core].get();
    if (from == nullptr && directory.lane(other, self) != nullptr) from = &peer(other);
    if (from != nullptr) received += poll_peer(*from, budget - received);
    core = core + 1 == cores ? 0 : core + 1;
  }
  next_core = next_core + 1 == cores ? 0 : next_core + 1;
  // Not if the budget ended the walk: lanes that were not looked at are still owed theirs.
  if (received < budget) event_pending = false;
  return received;
}

std::uint32_t Mailbox::State::poll_pending(std::uint32_t budget) {
  LaneDirectory::PendingWords& words = directory.pending(self);
  const std::uint32_t used = (directory.cores() + 63) / 64;
  const std::uint32_t first_word = next_core / 64;
  const std::uint64_t from_first = ~std::uint64_t{0} << (next_core % 64);
  std::uint32_t received = 0;
  // The word of the first core is looked at twice: from that core on, and in the end up to it.
  for (std::uint32_t i = 0; i <= used && received < budget; ++i) {
    const std::uint32_t word = (first_word + i) % used;
    if (words[word].load(std::memory_order_relaxed) != 0) {
      // A read-modify-write: a sender either finds the bit cleared and sets it again, or we find its slots.
      ready[word] |= words[word].exchange(0, std::memory_order_acq_rel);
    }
    std::uint64_t left = ready[word];
    if (i == 0) left &= from_first;
    if (i == used) left &= ~from_first;
    while (left != 0 && received < budget) {
      const std::uint32_t core = word * 64 + static_cast<std::uint32_t>(std::countr_zero(left));
      left &= left - 1;
      received += poll_peer(peer(CoreId{static_cast<std::uint16_t>(core)}), budget - received);
      if (received < budget) ready[word] &= ~(std::uint64_t{1} << (core % 64));
      next_core = core + 1 == directory.cores() ? 0 : core + 1;
    }
  }
  if (received < budget) event_pending = false;
  return received;
}

bool Mailbox::State::connect_inbound(Peer& peer) {
  if (peer.in != nullptr) return true;
  Lane* lane = directory.lane(peer.core, self);
  if (lane == nullptr) return false;
  peer.in = lane;
  peer.requests_in = RingConsumer(lane->requests);
  return true;
}

std::uint32_t Mailbox::State::poll_peer(Peer& peer, std::uint32_t budget) {
  // Replies first: they free slots and credits. But only half of the budget, so that a core with many calls
  // under way still serves the one that it calls; an odd item goes to either in turn.
  peer.odd_to_replies = !peer.odd_to_replies;
  const std::uint32_t replies = budget / 2 + (peer.odd_to_replies ? budget % 2 : 0);
  std::uint32_t received = peer.calls != nullptr ? poll_replies(peer, replies) : 0;
  if (received < budget && connect_inbound(peer)) received += poll_requests(peer, budget - received);
  if (received < budget && peer.calls != nullptr) received += poll_replies(peer, budget - received);
  return received;
}

std::uint32_t Mailbox::State::poll_requests(Peer& peer, std::uint32_t budget) {
  std::uint32_t received = 0;
  while (received < budget && may_take(*peer.in, peer.requests_in, peer.requests_announced)) {
    LaneSlot* slot = peer.requests_in.front();
    if (slot == nullptr) break;
    if (slot->kind == SlotKind::message) {
      slot->handler(reactor, peer.core, slot->payload);
    } else {
      serve_call(peer, *slot);
    }
    peer.requests_in.pop();
    ++received;
  }
  if (received != 0) {
    peer.freed = true;
    touch(peer);
  }
  return received;
}

std::uint32_t Mailbox::State::poll_replies(Peer& peer, std::uint32_t budget) {
  std::uint32_t received = 0;
  RingConsumer& ring = peer.calls->replies_in;
  while (received < budget && may_take(*peer.out, ring, peer.replies_announced)) {
    LaneSlot* slot = ring.front();
    if (slot == nullptr) break;
    complete(peer, *slot);
    ring.pop();
    ++received;
  }
  return received;
}

bool Mailbox::State::may_take(const Lane& lane, const RingConsumer& ring, std::uint32_t announced) const {
  switch (lane.carrier) {
    case Carrier::shared_memory:
      return true;
    case Carrier::msg_ring:
      return is_beyond(announced, ring.position());
    case Carrier::eventfd:
      return event_pending;
  }
  return false;
}

bool Mailbox::State::peer_has_work(const Peer& peer) const {
  if (peer.in != nullptr && may_take(*peer.in, peer.requests_in, peer.requests_announced) &&
      peer.requests_in.front() != nullptr) {
    return true;
  }
  return peer.calls != nullptr && may_take(*peer.out, peer.calls->replies_in, peer.replies_announced) &&
         peer.calls->replies_in.front() != nullptr;
}

bool Mailbox::State::has_work() const {
  if (!touched.empty() || senders_have_room() || fiber_call_can_start()) return true;
  if (directory.uses_bitmap()) {
    const LaneDirectory::PendingWords& words = directory.pending(self);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (ready[i] != 0 || words[i].load(std::memory_order_relaxed) != 0) return true;
    }
    return false;
  }
  for (std::uint32_t i = 0; i < directory.cores(); ++i) {
    const Peer* peer = peers[i].get();
    if (peer != nullptr && peer_has_work(*peer)) return true;
    const CoreId other{static_cast<std::uint16_t>(i)};
    if ((peer == nullptr || peer->in == nullptr) && directory.lane(other, self) != nullptr) return true;
  }
  return false;
}

}  // namespace tidelock
