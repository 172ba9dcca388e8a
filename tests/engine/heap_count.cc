// In a file of its own: next to their callers, gcc would see that new and delete are malloc and free, and
// complain.
#include "engine/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr std::uint64_t kUnlimited = ~0ULL;

std::atomic<std::uint64_t> count{0};
thread_local std::uint64_t allowed_left = kUnlimited;

void count_one() {
  count.fetch_add(1, std::memory_order_relaxed);
  if (allowed_left == kUnlimited) return;
  if (allowed_left == 0) throw std::bad_alloc();
  --allowed_left;
}

}  // namespace

void* operator new(std::size_t bytes) {
  count_one();
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  std::abort();
}
// A sanitizer's runtime has one of its own, whose memory must not come back to our delete.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  count_one();
  void* memory = nullptr;
  const auto align = static_cast<std::size_t>(alignment);
  if (::posix_memalign(&memory, align < sizeof(void*) ? sizeof(void*) : align, bytes) == 0) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tidelock::test {

HeapLimit::HeapLimit(std::uint64_t allowed) { allowed_left = allowed; }
HeapLimit::~HeapLimit() { allowed_left = kUnlimited; }

std::uint64_t heap_allocations() { return count.load(std::memory_order_relaxed); }

}  // namespace tidelock::test
