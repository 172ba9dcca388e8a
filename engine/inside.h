/// Counts a fiber that is at work in a shard, so that the shard outlives its visit.
/// Thread:   owner core
#pragma once

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

}  // namespace tidelock
