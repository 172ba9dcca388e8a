#include <algorithm>

#include <tidelock/base/check.h>
#include <tidelock/reactor/mailbox.h>

#include "mailbox_state.h"

namespace tidelock {

namespace {

/// Staged messages of a lane become visible at the latest at this number; the wakeup of a parked target still
/// waits for the flush.
constexpr std::uint32_t kPublishAt = 32;

}  // namespace

Mailbox::State::State(Reactor& owner, LaneDirectory& shared, const MailboxOptions& chosen,
                      MailboxStats& counters)
    : reactor(owner), directory(shared), options(chosen), stats(counters), self(owner.id()) {
  const std::uint32_t slots = options.lane_slots;
  TL_ASSERT(slots >= 4 && slots <= 65'536 && (slots & (slots - 1)) == 0,
            "lane_slots is a power of two from 4 to 65,536");
  TL_ASSERT(self.value < directory.cores(), "the reactor's id lies outside of the directory");
  peers.resize(directory.cores());
  touched.reserve(directory.cores());
  flushing.reserve(directory.cores());
  waiting.reserve(directory.cores());
}

Mailbox::Mailbox(Reactor& reactor, LaneDirectory& directory, const MailboxOptions& options)
    : state_(std::make_unique<State>(reactor, directory, options, stats_)) {
  reactor.add_source(*this);
  reactor.set_mailbox(this);
}

Mailbox::~Mailbox() {
  state_->reactor.set_mailbox(nullptr);
  state_->reactor.remove_source(*this);
}

Status Mailbox::try_send(CoreId target, MessageHandler handler, const void* payload, std::size_t bytes) {
  TL_ASSERT(bytes <= kMessageBytes, "a message carries at most 40 bytes");
  Peer& peer = state_->outbound(target);
  if (state_->try_stage(peer, SlotKind::message, handler, payload, bytes)) return {};
  bump(stats_.lane_full);
  return ReactorErrc::lane_full;
}

Status Mailbox::send(CoreId target, MessageHandler handler, const void* payload, std::size_t bytes,
                     Instant deadline) {
  TL_ASSERT(bytes <= kMessageBytes, "a message carries at most 40 bytes");
  return state_->stage(state_->outbound(target), SlotKind::message, handler, payload, bytes, deadline);
}

void Mailbox::flush() { state_->flush(); }

void Mailbox::on_announcement_failed(CoreId target) {
  // The position is part of the announcement and the newest supersedes, so repeating is always right.
  Peer& peer = state_->peer(target);
  peer.requests_dirty = peer.out != nullptr;
  peer.replies_dirty = peer.replies_out.connected();
  state_->touch(peer);
}

Mailbox::Peer& Mailbox::State::peer(CoreId core) {
  TL_ASSERT(core.value < peers.size(), "no such reactor in this group");
  std::unique_ptr<Peer>& place = peers[core.value];
  if (place == nullptr) place = std::make_unique<Peer>(core);
  return *place;
}

Mailbox::Peer& Mailbox::State::outbound(CoreId target) {
  Peer& to = peer(target);
  if (to.out != nullptr) return to;
  // A ring does not announce to itself; a core's lane to itself is always polled.
  const Carrier carrier = target == self ? Carrier::shared_memory : options.carrier;
  Lane& lane = directory.add_lane(self, target, std::make_unique<Lane>(options.lane_slots, carrier));
  to.out = &lane;
  to.requests_out = RingProducer(lane.requests);
  bump(stats.lanes);
  bump(stats.lane_bytes, sizeof(Lane) + lane.requests.bytes());
  return to;
}

bool Mailbox::State::try_stage(Peer& peer, SlotKind kind, MessageHandler handler, const void* payload,
                               std::size_t bytes) {
  // Behind those who wait already, and not into a slot that was promised to one of them.
  if (!peer.senders.empty() || !peer.requests_out.has_room(peer.granted)) {
    // The target can make room only for what it sees, and it may be asleep.
    if (peer.requests_dirty) flush();
    return false;
  }
  peer.requests_out.stage(kind, handler, payload, bytes);
  peer.requests_dirty = true;
  touch(peer);
  if (peer.requests_out.unpublished() >= kPublishAt && peer.out->carrier == Carrier::shared_memory) {
    peer.requests_out.publish();
  }
  bump(stats.sent);
  return true;
}

Status Mailbox::State::stage(Peer& peer, SlotKind kind, MessageHandler handler, const void* payload,
                             std::size_t bytes, Instant deadline) {
  if (try_stage(peer, kind, handler, payload, bytes)) return {};
  bump(stats.lane_full);
  if (!peer.senders_listed) {
    peer.senders_listed = true;
    waiting.push_back(&peer);
    // Read by the target's notify() after its fence, which pairs with the fence of our park.
    peer.out->sender_waits.store(true, std::memory_order_relaxed);
  }
  if (const Wakeup wakeup = peer.senders.wait(deadline); wakeup != Wakeup::notified) return to_status(wakeup);
  --peer.granted;
  peer.requests_out.stage(kind, handler, payload, bytes);
  peer.requests_dirty = true;
  touch(peer);
  bump(stats.sent);
  return {};
}

std::uint32_t Mailbox::State::serve_senders() {
  std::uint32_t woken = 0;
  for (std::size_t i = 0; i < waiting.size();) {
    Peer& peer = *waiting[i];
    while (!peer.senders.empty() && peer.requests_out.has_room(peer.granted)) {
      ++peer.granted;
      peer.senders.notify_one();
      ++woken;
    }
    if (!peer.senders.empty()) {
      ++i;
      continue;
    }
    peer.senders_listed = false;
    peer.out->sender_waits.store(false, std::memory_order_relaxed);
    waiting[i] = waiting.back();
    waiting.pop_back();
  }
  return woken;
}

bool Mailbox::State::senders_have_room() const {
  return std::any_of(waiting.begin(), waiting.end(), [](const Peer* peer) {
    return !peer->senders.empty() && peer->requests_out.has_room(peer->granted);
  });
}

void Mailbox::State::touch(Peer& peer) {
  if (peer.touched) return;
  peer.touched = true;
  touched.push_back(&peer);
}

void Mailbox::State::flush() {
  if (touched.empty()) return;
  // A failed announcement touches its peer again, while we walk.
  std::swap(touched, flushing);
  for (Peer* peer : flushing) {
    peer->touched = false;
    publish(*peer);
  }
  fence_before_claims();  // one for all peers; pairs with the fence in ParkProtocol::prepare()
  for (Peer* peer : flushing) notify(*peer);
  flushing.clear();
}

void Mailbox::State::publish(Peer& peer) {
  if (peer.requests_dirty) peer.requests_out.publish();
  if (peer.replies_dirty) peer.replies_out.publish();
  if (directory.uses_bitmap() && (peer.requests_dirty || peer.replies_dirty)) {
    // After the slots, before the fence: whoever takes the bit finds the slots, whoever parks finds the bit.
    std::atomic<std::uint64_t>& word = directory.pending(peer.core)[self.value / 64];
    word.fetch_or(std::uint64_t{1} << (self.value % 64), std::memory_order_release);
  }
}

void Mailbox::State::notify(Peer& peer) {
  const bool requests = std::exchange(peer.requests_dirty, false);
  const bool replies = std::exchange(peer.replies_dirty, false);
  const bool freed = std::exchange(peer.freed, false);
  const bool polled = (requests && peer.out->carrier == Carrier::shared_memory) ||
                      (replies && peer.in->carrier == Carrier::shared_memory);
  if (polled || (freed && peer.in->sender_waits.load(std::memory_order_relaxed))) wake(peer.core);
  if (requests) {
    const std::uint32_t position = peer.requests_out.published();
    if (!announce(peer, *peer.out, false, position)) {
      peer.requests_dirty = true;
      touch(peer);
    }
    // After wake(): has_settled_work() then knows that the flag was looked at.
    peer.out->requests_settled.store(position, std::memory_order_release);
  }
  if (replies) {
    const std::uint32_t position = peer.replies_out.published();
    if (!announce(peer, *peer.in, true, position)) {
      peer.replies_dirty = true;
      touch(peer);
    }
    peer.in->replies_settled.store(position, std::memory_order_release);
  }
}

void Mailbox::State::wake(CoreId target) {
  if (!directory.park_flag(target).claim()) return;
  bump(stats.wakeups_sent);
  Waker* waker = directory.waker(target);
  TL_ASSERT(waker != nullptr, "a reactor that parks needs a waker in its directory");
  waker->wake(self);
}

// Bits 0 to 31: the position up to which messages are announced; 32 to 47: the sender; 48: 0 for requests, 1
// for replies; 49: set, because 0 stands for a bare wakeup.
bool Mailbox::State::announce(Peer& peer, Lane& lane, bool replies, std::uint32_t position) {
  if (lane.carrier == Carrier::shared_memory) return true;
  Waker* waker = directory.waker(peer.core);
  TL_ASSERT(waker != nullptr, "a lane that is announced needs a waker in its directory");
  const std::uint64_t data = std::uint64_t{position} | std::uint64_t{self.value} << 32 |
                             std::uint64_t{replies ? 1U : 0U} << 48 | std::uint64_t{1} << 49;
  return waker->announce(self, data);
}

}  // namespace tidelock
