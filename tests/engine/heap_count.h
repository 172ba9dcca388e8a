/// Counts the whole program's calls of operator new, so that a test can show that a piece of code makes none,
/// and makes them fail, to show what a piece of code then leaves behind.
/// Thread:   any
#pragma once

#include <cstdint>

namespace tidelock::test {

[[nodiscard]] std::uint64_t heap_allocations();

/// While it lives, `allowed` allocations of the calling thread succeed; all after these throw std::bad_alloc.
class HeapLimit {
 public:
  explicit HeapLimit(std::uint64_t allowed);
  ~HeapLimit();
  HeapLimit(const HeapLimit&) = delete;
  HeapLimit& operator=(const HeapLimit&) = delete;
};

}  // namespace tidelock::test
