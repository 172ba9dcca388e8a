/// Counting where one thread writes and anyone may read.
/// Thread:   the counter's one writer
#pragma once

#include <atomic>
#include <cstdint>

namespace tidelock {

/// No read-modify-write is needed with one writer, only that readers see whole values: a load and a store do
/// what a locked instruction would do for twenty times the price.
inline void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}
inline void set_gauge(std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
  gauge.store(value, std::memory_order_relaxed);
}

/// Adds what another single-writer counter has gained since `seen`, which moves along. For counters that end
/// with their owner, such as a link's.
inline void follow(std::atomic<std::uint64_t>& counter, const std::atomic<std::uint64_t>& other,
                   std::uint64_t& seen) {
  const std::uint64_t now = other.load(std::memory_order_relaxed);
  if (now != seen) bump(counter, now - seen);
  seen = now;
}

}  // namespace tidelock
