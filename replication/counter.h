/// Single-writer statistics: a plain add for the owner, readable by anyone.
/// Thread:   owner core
#pragma once

#include <atomic>
#include <cstdint>

namespace tidelock {

inline void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}
inline void set_gauge(std::atomic<std::uint64_t>& gauge, std::uint64_t value) {
  gauge.store(value, std::memory_order_relaxed);
}

}  // namespace tidelock
