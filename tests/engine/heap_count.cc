// In a file of its own: next to their callers, gcc would see that new and delete are malloc and free, and
// complain.
#include "engine/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> count{0};

}  // namespace

void* operator new(std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  std::abort();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  count.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  const auto align = static_cast<std::size_t>(alignment);
  if (::posix_memalign(&memory, align < sizeof(void*) ? sizeof(void*) : align, bytes) == 0) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tidelock::test {

std::uint64_t heap_allocations() { return count.load(std::memory_order_relaxed); }

}  // namespace tidelock::test
