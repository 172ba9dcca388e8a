#include "stack_pool.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <unistd.h>

#include <sys/mman.h>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>

#include "fiber_switch.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tidelock {
namespace {

constexpr std::size_t kTouchedBytes = 8 * 1024;
constexpr std::size_t kRecordBytes = 64;
static_assert(sizeof(Stack) <= kRecordBytes);
// Stacks are a multiple of the page size apart. Were all control areas at the same offset in a page, sixteen
// fibers would fight for one set of the first-level cache; sixteen colours of 256 bytes use all of its sets.
constexpr std::size_t kColours = 16;
constexpr std::size_t kColourBytes = 256;
constexpr std::size_t kStepBytes = 256;
constexpr std::size_t kWindowBytes = 4096;
constexpr std::uint64_t kReturnsAllMeasured = 64;
constexpr std::uint64_t kReturnsPerMeasure = 16;

}  // namespace

StackPool::StackPool(std::size_t stack_bytes, std::uint32_t max_stacks)
    : page_bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
      stack_bytes_(align_up(stack_bytes, page_bytes_)),
      max_stacks_(kThreadSanitizer ? std::min(max_stacks, kSanitizerMaxStacks) : max_stacks) {
  all_.reserve(max_stacks_);
}

Result<std::unique_ptr<StackPool>> StackPool::create(std::uint32_t stack_bytes, std::uint32_t max_stacks,
                                                     std::uint32_t prepared) {
  std::unique_ptr<StackPool> pool(new StackPool(stack_bytes, max_stacks));
  const std::uint32_t wanted = std::min(prepared, pool->max_stacks_);
  for (std::uint32_t i = 0; i < wanted; ++i) {
    Stack* stack = pool->map_one();
    if (stack == nullptr) {
      return Error::from_errno(ENOMEM, "cannot map " + std::to_string(wanted * pool->map_bytes()) +
                                           " bytes for " + std::to_string(wanted) +
                                           " fiber stacks: lower prepared_fibers or stack_bytes, or raise "
                                           "the memory limit or vm.max_map_count");
    }
    stack->next_free = pool->free_;
    pool->free_ = stack;
  }
  return pool;
}

StackPool::~StackPool() {
  for (Stack* stack : all_) {
    std::byte* const map = stack->map;
#if defined(__SANITIZE_ADDRESS__)
    // What maps this range next must not inherit the shadow of our frames.
    ASAN_UNPOISON_MEMORY_REGION(stack->low, map_bytes() - page_bytes_);
#endif
    ::munmap(map, map_bytes());
  }
}

std::size_t StackPool::map_bytes() const {
  const std::size_t head = align_up(kColours * kColourBytes + kRecordBytes + kControlBytes, page_bytes_);
  return page_bytes_ + stack_bytes_ + head + align_up(kLargeBytes, page_bytes_);
}

Stack* StackPool::map_one() {
  void* const mapping = ::mmap(nullptr, map_bytes(), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  if (::mprotect(mapping, page_bytes_, PROT_NONE) != 0) {
    ::munmap(mapping, map_bytes());
    return nullptr;
  }
  auto* const map = static_cast<std::byte*>(mapping);
  std::byte* const large = map + map_bytes() - align_up(kLargeBytes, page_bytes_);
  const std::size_t colour = (all_.size() % kColours) * kColourBytes;
  std::byte* const base = large - colour - kControlBytes - kRecordBytes;
  // A page fault costs 15 us in a virtual machine: take those of the usual depth now.
  for (std::byte* page = base - kTouchedBytes; page < large; page += page_bytes_) {
    *static_cast<volatile std::byte*>(page) = std::byte{0};
  }
  auto* const stack = ::new (static_cast<void*>(base)) Stack;
  stack->map = map;
  stack->low = map + page_bytes_;
  stack->base = base;
  stack->control = base + kRecordBytes;
  stack->large = large;
  all_.push_back(stack);
  return stack;
}

Stack* StackPool::take() {
  Stack* stack = free_;
  if (stack != nullptr) {
    free_ = stack->next_free;
  } else {
    if (all_.size() == max_stacks_) return nullptr;
    stack = map_one();
    refused_ = stack == nullptr;
    if (refused_) return nullptr;
  }
  ++in_use_;
  return stack;
}

void StackPool::give_back(Stack& stack) {
  TL_ASSERT(in_use_ > 0, "a stack was given back twice");
  measure(stack);
  --in_use_;
  refused_ = false;
  stack.next_free = free_;
  free_ = &stack;
}

// The kernel hands out zeroed pages, so a word that is not zero was used, and stays so for later looks: one
// return in sixteen is looked at. A window beyond the known peak bridges frames that were reserved but not
// written, and does not read far into pages that were never touched.
[[gnu::no_sanitize_address, gnu::no_sanitize_thread]] void StackPool::measure(const Stack& stack) {
  if (++returns_ > kReturnsAllMeasured && returns_ % kReturnsPerMeasure != 0) return;
  const auto usable = static_cast<std::size_t>(stack.base - stack.low);
  std::size_t step = std::min(peak_bytes_ + kWindowBytes, usable) / kStepBytes * kStepBytes;
  while (step > peak_bytes_) {
    const std::byte* const from = stack.base - step;
    std::uint64_t seen = 0;
    for (std::size_t at = 0; at < kStepBytes; at += sizeof seen) {
      std::uint64_t word = 0;
      __builtin_memcpy(&word, from + at, sizeof word);
      seen |= word;
    }
    if (seen == 0) {
      step -= kStepBytes;
      continue;
    }
    peak_bytes_ = step;
    step = std::min(peak_bytes_ + kWindowBytes, usable) / kStepBytes * kStepBytes;
  }
}

}  // namespace tidelock
