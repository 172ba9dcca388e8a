#include <algorithm>

#include <tidelock/base/check.h>
#include <tidelock/reactor/mailbox.h>

#include "mailbox_state.h"

namespace tidelock {

namespace {

// In a call's slot: body, id, closure. In a reply's: id, result. The id is the caller's slot and generation.
constexpr std::size_t kBodyAt = 0;
constexpr std::size_t kIdAt = 8;
constexpr std::size_t kClosureAt = 16;
constexpr std::size_t kReplyIdAt = 0;
constexpr std::size_t kResultAt = 8;

}  // namespace

Mailbox::Calls::Calls(SlotRing& replies)
    : replies_in(replies), credits(replies.slots()), slots(std::make_unique<Slot[]>(replies.slots())) {
  for (std::uint32_t i = 0; i < replies.slots(); ++i) slots[i].next_free = i + 1;
  slots[replies.slots() - 1].next_free = kNone;
}

std::uint32_t Mailbox::Calls::take() {
  TL_ASSERT(free_head != kNone, "each call slot has one credit");
  const std::uint32_t index = free_head;
  free_head = slots[index].next_free;
  slots[index].state = Slot::State::waiting;
  return index;
}

void Mailbox::Calls::give_back(std::uint32_t index) {
  Slot& slot = slots[index];
  slot.state = Slot::State::free;
  ++slot.generation;
  slot.next_free = free_head;
  free_head = index;
  credits.release(1);
}

Status Mailbox::call_raw(bool in_fiber, CoreId target, CallBody body, const void* closure, std::size_t bytes,
                         std::byte* reply, Instant deadline) {
  static_assert(kClosureAt + kCallBytes <= kMessageBytes && kResultAt + kCallBytes <= kMessageBytes);
  Peer& peer = state_->outbound(target);
  if (peer.calls == nullptr) {
    SlotRing& ring = *(peer.out->replies = std::make_unique<SlotRing>(peer.out->requests.slots() / 2));
    peer.calls = std::make_unique<Calls>(ring);
    bump(stats_.lane_bytes, ring.bytes() + std::size_t{ring.slots()} * sizeof(Calls::Slot));
  }
  Calls& calls = *peer.calls;
  TL_TRY(calls.credits.acquire(1, deadline));
  const std::uint32_t index = calls.take();
  Calls::Slot& slot = calls.slots[index];

  std::byte payload[kMessageBytes];
  store(payload + kBodyAt, body);
  store(payload + kIdAt, std::uint64_t{slot.generation} << 32 | index);
  std::memcpy(payload + kClosureAt, closure, bytes);
  const SlotKind kind = in_fiber ? SlotKind::call_in_fiber : SlotKind::call;
  if (Status sent = state_->stage(peer, kind, nullptr, payload, sizeof payload, deadline); !sent) {
    calls.give_back(index);
    return sent;
  }
  bump(stats_.calls);
  const Wakeup wakeup = slot.caller.wait(deadline);
  if (slot.state != Calls::Slot::State::done) {
    slot.state = Calls::Slot::State::abandoned;  // the reply gives the slot back
    return to_status(wakeup);
  }
  std::memcpy(reply, slot.reply, sizeof slot.reply);
  calls.give_back(index);
  return {};
}

void Mailbox::State::complete(Peer& target, const LaneSlot& slot) {
  const auto id = load<std::uint64_t>(slot.payload + kReplyIdAt);
  const auto index = static_cast<std::uint32_t>(id);
  Calls::Slot& call = target.calls->slots[index];
  TL_ASSERT(call.generation == id >> 32 && call.state != Calls::Slot::State::free,
            "a reply to a call that nobody made");
  if (call.state == Calls::Slot::State::abandoned) {
    bump(stats.late_replies);
    target.calls->give_back(index);
    return;
  }
  std::memcpy(call.reply, slot.payload + kResultAt, sizeof call.reply);
  call.state = Calls::Slot::State::done;
  call.caller.notify_one();
}

void Mailbox::State::serve_call(Peer& caller, const LaneSlot& slot) {
  const auto body = load<CallBody>(slot.payload + kBodyAt);
  const auto id = load<std::uint64_t>(slot.payload + kIdAt);
  if (slot.kind == SlotKind::call) {
    alignas(8) std::byte result[kCallBytes] = {};
    body(reactor, slot.payload + kClosureAt, result);
    reply(caller, id, result);
    return;
  }
  FiberCall call{body, &caller, id, {}};
  std::memcpy(call.closure, slot.payload + kClosureAt, sizeof call.closure);
  fiber_calls.push_back(call);
  start_fiber_calls();
}

void Mailbox::State::reply(Peer& caller, std::uint64_t id, const std::byte* result) {
  if (!caller.replies_out.connected()) caller.replies_out = RingProducer(*caller.in->replies);
  TL_ASSERT(caller.replies_out.has_room(0), "the reply's slot was reserved when its call was sent");
  std::byte payload[kMessageBytes];
  store(payload + kReplyIdAt, id);
  std::memcpy(payload + kResultAt, result, kCallBytes);
  caller.replies_out.stage(SlotKind::reply, nullptr, payload, kResultAt + kCallBytes);
  caller.replies_dirty = true;
  touch(caller);
  bump(stats.sent);
}

bool Mailbox::State::fiber_call_can_start() const {
  return fiber_calls_first != fiber_calls.size() &&
         fiber_calls_running < std::max(reactor.options().max_fibers / 2, 1U) && reactor.can_spawn();
}

std::uint32_t Mailbox::State::start_fiber_calls() {
  std::uint32_t started = 0;
  while (fiber_call_can_start()) {
    const FiberCall call = fiber_calls[fiber_calls_first];
    // Out of fibers after all: the call keeps its place until a stack was given back.
    if (!reactor.spawn_detached("mailbox call", [this, call] { run_fiber_calls(call); })) break;
    ++started;
    ++fiber_calls_running;
    ++fiber_calls_first;
    // A trickle of calls that never lets the queue run empty must not make it grow.
    if (fiber_calls_first * 2 > fiber_calls.size()) {
      fiber_calls.erase(fiber_calls.begin(),
                        fiber_calls.begin() + static_cast<std::ptrdiff_t>(fiber_calls_first));
      fiber_calls_first = 0;
    }
  }
  return started;
}

void Mailbox::State::run_fiber_calls(FiberCall first) {
  alignas(8) std::byte result[kCallBytes] = {};
  first.body(reactor, first.closure, result);
  reply(*first.caller, first.id, result);
  --fiber_calls_running;
  // The stack of this fiber comes back only once it has ended, so others start from poll().
}

}  // namespace tidelock
