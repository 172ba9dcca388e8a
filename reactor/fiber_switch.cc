#include "fiber_switch.h"

#include <cxxabi.h>

namespace tidelock {

// Not inlined: a compiler that saw through it might keep the thread's address across a switch.
[[gnu::noinline]] ExceptionState* thread_exception_state() {
  return reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
}

void make_context(Context& context, std::byte* low, std::byte* base,
                  void (*entry)(boost::context::detail::transfer_t)) {
  const auto bytes = static_cast<std::size_t>(base - low);
  clear_float_flags();  // the new context starts with the flags of this moment
  context.stack_pointer = boost::context::detail::make_fcontext(base, bytes, entry);
  context.stack_low = low;
  context.stack_bytes = bytes;
#if defined(__SANITIZE_THREAD__)
  context.sanitizer_fiber = __tsan_create_fiber(0);
#endif
}

void destroy_context([[maybe_unused]] Context& context) {
#if defined(__SANITIZE_THREAD__)
  if (context.sanitizer_fiber != nullptr) __tsan_destroy_fiber(context.sanitizer_fiber);
  context.sanitizer_fiber = nullptr;
#endif
}

void adopt_thread([[maybe_unused]] Context& loop) {
#if defined(__SANITIZE_THREAD__)
  loop.sanitizer_fiber = __tsan_get_current_fiber();
#endif
}

}  // namespace tidelock
