/// Tells AddressSanitizer which parts of our own memory nobody may touch. Nothing in other builds.
/// Thread:   any
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define TL_HAS_ASAN_ 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TL_HAS_ASAN_ 1
#endif
#endif

#ifdef TL_HAS_ASAN_
#include <sanitizer/asan_interface.h>
#endif

namespace tidelock {

inline void poison_memory([[maybe_unused]] const void* from, [[maybe_unused]] std::size_t bytes) {
#ifdef TL_HAS_ASAN_
  __asan_poison_memory_region(from, bytes);
#endif
}

inline void unpoison_memory([[maybe_unused]] const void* from, [[maybe_unused]] std::size_t bytes) {
#ifdef TL_HAS_ASAN_
  __asan_unpoison_memory_region(from, bytes);
#endif
}

}  // namespace tidelock
