/// Counting where one thread writes and anyone may read.
/// Thread:   the counter's one writer
#pragma once

#include <atomic>
#include <cstdint>

namespace tidelock {

/// No read-modify-write is needed with one writer, only that readers see whole values.
inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace tidelock
