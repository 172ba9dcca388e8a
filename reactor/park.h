/// The park protocol: how a reactor goes to sleep so that no message published meanwhile is slept through.
///
///     sleeper                               waker
///     parked = 1                            message published
///     full fence                  <pairs>   full fence
///     every source asked again              parked loaded; if set, exchanged for 0
///     asleep, if none has work              whoever got the 1 sends the wakeup
///     parked = 0, however it woke           a wakeup that failed: parked = 1 again, then the fallback
///
/// Of the two fences one comes first: either the waker sees `parked`, or the sleeper sees the message.
/// The steps are a template over how the flag is reached, so that the code which runs in production is also
/// run over a modelled memory, in every interleaving (tests/reactor/park_test.cc).
/// Thread:   the sleeper's functions on its owner core; the waker's on any
/// Suspends: never
#pragma once

#include <atomic>
#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/fence.h>

namespace tidelock {

/// `Memory` has store_parked(value), load_parked(), exchange_parked(value), sleeper_fence() and
/// waker_fence().
template <class Memory>
struct ParkProtocol {
  /// Sleeper. True: nobody had work, and whoever publishes some from now on sends a wakeup; go to sleep, then
  /// call finish(). False: there is work and the flag is down again.
  template <class HasWork>
  [[nodiscard]] static bool prepare(Memory& memory, HasWork&& has_work) {
    memory.store_parked(1);
    memory.sleeper_fence();  // pairs with waker_fence() between a waker's publication and its claim()
    if (!has_work()) return true;
    memory.store_parked(0);
    return false;
  }
  /// Sleeper, after every return from sleep.
  static void finish(Memory& memory) { memory.store_parked(0); }

  /// Waker, after it published: once for any number of claim() calls.
  static void fence_after_publication(Memory& memory) {
    memory.waker_fence();  // pairs with sleeper_fence() in prepare()
  }
  /// Waker, after the fence. True for exactly one waker of a sleeper: that one sends the wakeup. The load
  /// comes first because an exchange would take the line from a sleeper's core for nothing.
  [[nodiscard]] static bool claim(Memory& memory) {
    return memory.load_parked() != 0 && memory.exchange_parked(0) != 0;
  }
  /// Waker whose wakeup failed: raises the flag again, so that others try too, and only then uses its
  /// fallback. If the sleeper woke meanwhile, the raised flag costs one needless wakeup.
  template <class Fallback>
  static void repeat(Memory& memory, Fallback&& fallback) {
    memory.store_parked(1);
    fallback();
  }
};

/// The flag of one reactor, on a line of its own: wakers load it after each flush, it is written at parks.
class alignas(kCacheLineBytes) ParkFlag {
 public:
  template <class HasWork>
  [[nodiscard]] bool prepare(HasWork&& has_work) {
    return Protocol::prepare(memory_, has_work);
  }
  void finish() { Protocol::finish(memory_); }
  [[nodiscard]] bool claim() { return Protocol::claim(memory_); }
  template <class Fallback>
  void repeat(Fallback&& fallback) {
    Protocol::repeat(memory_, fallback);
  }
  /// Still up: nobody has claimed this sleep.
  [[nodiscard]] bool raised() { return memory_.load_parked() != 0; }

 private:
  struct Memory {
    std::atomic<std::uint32_t> parked{0};
    void store_parked(std::uint32_t value) { parked.store(value, std::memory_order_relaxed); }
    std::uint32_t load_parked() { return parked.load(std::memory_order_relaxed); }
    std::uint32_t exchange_parked(std::uint32_t value) {
      return parked.exchange(value, std::memory_order_acq_rel);
    }
    static void sleeper_fence() { full_fence(); }
    static void waker_fence() { full_fence(); }
  };
  using Protocol = ParkProtocol<Memory>;
  Memory memory_;
};

/// The waker's half of the fence pair, for whoever claims several flags after one publication.
inline void fence_before_claims() {
  full_fence();  // pairs with sleeper_fence() in ParkProtocol::prepare()
}

}  // namespace tidelock
