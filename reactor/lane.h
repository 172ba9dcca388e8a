/// The data path of a lane: a ring of 64-byte slots for one producer and one consumer, each slot carrying its
/// own sequence number, so that a message costs one cache line and neither side reads the other's position.
/// (The scheme of Vyukov's bounded queue, for one producer and one consumer.)
/// Thread:   RingProducer on the sending core, RingConsumer on the receiving one
/// Suspends: never
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>
#include <tidelock/reactor/mailbox.h>

namespace tidelock {

enum class SlotKind : std::uint16_t { message, call, call_in_fiber, reply };

/// For the producer at position p the slot is free when sequence == p; for the consumer it is full when
/// sequence == p + 1, and freed by p + slots. Positions count up for ever and wrap at 2^32.
struct alignas(kCacheLineBytes) LaneSlot {
  std::atomic<std::uint32_t> sequence{0};
  SlotKind kind{};
  std::uint16_t bytes = 0;
  MessageHandler handler = nullptr;
  std::byte payload[kMessageBytes];
};
static_assert(sizeof(LaneSlot) == kCacheLineBytes, "one message, one cache line");
static_assert(offsetof(LaneSlot, payload) % 16 == 0, "a closure in the payload may need 16-byte alignment");

class SlotRing {
 public:
  /// `slots` is a power of two, at least 2.
  explicit SlotRing(std::uint32_t slots) : mask_(slots - 1), slots_(std::make_unique<LaneSlot[]>(slots)) {
    TL_ASSERT(slots >= 2 && (slots & mask_) == 0, "a lane's slots are a power of two");
    for (std::uint32_t i = 0; i < slots; ++i) slots_[i].sequence.store(i, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t slots() const { return mask_ + 1; }
  [[nodiscard]] std::size_t bytes() const { return std::size_t{slots()} * sizeof(LaneSlot); }
  [[nodiscard]] LaneSlot& at(std::uint32_t position) { return slots_[position & mask_]; }

 private:
  std::uint32_t mask_;
  std::unique_ptr<LaneSlot[]> slots_;
};

/// Stages messages in place and publishes them together.
class RingProducer {
 public:
  RingProducer() = default;
  explicit RingProducer(SlotRing& ring) : ring_(&ring) {}

  [[nodiscard]] bool connected() const { return ring_ != nullptr; }
  /// True if the slot `ahead` places after the next one is free; then all before it are, too.
  [[nodiscard]] bool has_room(std::uint32_t ahead) const {
    const std::uint32_t position = staged_ + ahead;
    // Acquire: the consumer's last use of the payload comes before our writes to it. Pairs with pop().
    return ring_->at(position).sequence.load(std::memory_order_acquire) == position;
  }
  /// Writes the next slot, which must be free.
  void stage(SlotKind kind, MessageHandler handler, const void* payload, std::size_t bytes) {
    LaneSlot& slot = ring_->at(staged_++);
    slot.kind = kind;
    slot.bytes = static_cast<std::uint16_t>(bytes);
    slot.handler = handler;
    if (bytes != 0) std::memcpy(slot.payload, payload, bytes);
  }
  void publish() {
    for (; published_ != staged_; ++published_) {
      // Pairs with the acquire in front().
      ring_->at(published_).sequence.store(published_ + 1, std::memory_order_release);
    }
  }
  [[nodiscard]] std::uint32_t unpublished() const { return staged_ - published_; }
  [[nodiscard]] std::uint32_t published() const { return published_; }

 private:
  SlotRing* ring_ = nullptr;
  std::uint32_t staged_ = 0;
  std::uint32_t published_ = 0;
};

class RingConsumer {
 public:
  RingConsumer() = default;
  explicit RingConsumer(SlotRing& ring) : ring_(&ring) {}

  /// The oldest message, or null. It stays in place until pop().
  [[nodiscard]] LaneSlot* front() const {
    LaneSlot& slot = ring_->at(position_);
    return slot.sequence.load(std::memory_order_acquire) == position_ + 1 ? &slot : nullptr;
  }
  void pop() {
    // Pairs with the acquire in has_room().
    ring_->at(position_).sequence.store(position_ + ring_->slots(), std::memory_order_release);
    ++position_;
  }
  [[nodiscard]] std::uint32_t position() const { return position_; }

 private:
  SlotRing* ring_ = nullptr;
  std::uint32_t position_ = 0;
};

/// All messages from one core to another, and the replies to the calls among them.
///
/// Replies have a ring of their own with a slot for every call that may be outstanding. A call is outstanding
/// until its caller has freed the reply's slot, so a reply always finds room and never waits.
struct Lane {
  Lane(std::uint32_t slots, Carrier how) : requests(slots), carrier(how) {}

  SlotRing requests;
  /// Made by the caller's core before its first call leaves; the request's publication makes it visible.
  std::unique_ptr<SlotRing> replies;
  Carrier carrier;

  /// Written by the sender. `requests_settled`: the position up to which it has also looked at the target's
  /// park flag. `sender_waits`: a fiber of the sender waits for a free slot, so freeing one must wake it.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> requests_settled{0};
  std::atomic<bool> sender_waits{false};
  /// Written by the target, for the replies.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> replies_settled{0};
};

}  // namespace tidelock
