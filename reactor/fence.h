/// The full fence of the park protocols. One function, so that each use can name its partner and so that
/// ThreadSanitizer, which does not model fences, sees a read-modify-write instead.
/// Thread:   any
#pragma once

#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define TIDELOCK_FENCE_BY_RMW 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TIDELOCK_FENCE_BY_RMW 1
#endif
#endif

namespace tidelock {

inline void full_fence() {
#if defined(TIDELOCK_FENCE_BY_RMW)
  static std::atomic<int> anchor{0};
  anchor.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Tells the core that this is a spin loop.
inline void spin_hint() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace tidelock

#undef TIDELOCK_FENCE_BY_RMW
