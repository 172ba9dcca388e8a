/// A lock-free stack of slot numbers. Boost.Lockfree's stack does the same, but reads a node's link without
/// an atomic while another thread may write it, which ThreadSanitizer rightly reports.
/// Thread:   any
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tidelock {

class FreeList {
 public:
  /// All of 0 to `slots` - 1 are free. `slots` < 2^32 - 1.
  explicit FreeList(std::uint32_t slots) : links_(std::make_unique<std::atomic<std::uint32_t>[]>(slots)) {
    for (std::uint32_t slot = slots; slot > 0; --slot) push(slot - 1);
  }

  void push(std::uint32_t slot) {
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    do {
      links_[slot].store(slot_of(head), std::memory_order_relaxed);
      // Releases the slot's contents to the pop that takes it.
    } while (!head_.compare_exchange_weak(head, follow(head, slot), std::memory_order_release,
                                          std::memory_order_relaxed));
  }

  /// Returns false if none is free.
  bool pop(std::uint32_t& slot) {
    std::uint64_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      slot = slot_of(head);
      if (slot == kNone) return false;
      // May be stale if another thread took the slot meanwhile: then the tag has moved and the exchange
      // fails.
      const std::uint32_t next = links_[slot].load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(head, follow(head, next), std::memory_order_acquire,
                                      std::memory_order_acquire)) {
        return true;
      }
    }
  }

 private:
  static constexpr std::uint32_t kNone = ~0U;
  static std::uint32_t slot_of(std::uint64_t head) { return static_cast<std::uint32_t>(head); }
  /// The tag in the upper half moves with every change, so that a head that came back is told apart.
  static std::uint64_t follow(std::uint64_t head, std::uint32_t slot) {
    return ((head >> 32) + 1) << 32 | slot;
  }

  std::atomic<std::uint64_t> head_{kNone};
  std::unique_ptr<std::atomic<std::uint32_t>[]> links_;
};

}  // namespace tidelock
