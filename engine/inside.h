/// Counts a fiber that is at work in a shard, so that the shard outlives its visit.
/// Thread:   owner core
#pragma once

#include <atomic>
#include <cstdint>

namespace tidelock {

class Inside {
 public:
  explicit Inside(std::uint32_t& count) : count_(count) { ++count_; }
  ~Inside() { --count_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  std::uint32_t& count_;
};

/// Adds to a counter that only this core writes.
template <class Atomic>
void bump(Atomic& counter, std::uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace tidelock
