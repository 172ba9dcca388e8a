/// The full fence of the park protocols. One function, so that each use can name its partner and so that
/// ThreadSanitizer, which does not model fences, sees a read-modify-write instead.
/// Thread:   any
#pragma once

#include <atomic>

namespace tidelock {

inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<int> anchor{0};
  anchor.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace tidelock
