/// The one place where stacks change. Private to reactor/.
/// Whoever switches tells AddressSanitizer which stack comes next, ThreadSanitizer which fiber, and the C++
/// runtime which exceptions are being handled; none of the three can see it by itself.
/// Thread:   whichever runs the reactor's turn
#pragma once

#include <cstddef>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <boost/context/detail/fcontext.hpp>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tidelock {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// __cxa_eh_globals of the Itanium C++ ABI, section 2.2.2: the runtime keeps one for each thread, so a fiber
/// that suspends inside a catch block must take its own along.
struct ExceptionState {
  void* caught = nullptr;
  unsigned uncaught = 0;
#if defined(__ARM_EABI_UNWINDER__)
  void* propagating = nullptr;
#endif
};

/// This thread's. The address is good for as long as the thread is known not to change: one turn.
ExceptionState* thread_exception_state();

/// Something that can be switched to: a fiber, or the loop that called turn().
struct Context {
  boost::context::detail::fcontext_t stack_pointer = nullptr;
  ExceptionState exceptions;
  /// Whom this one switched to last. Kept here and not on the leaver's stack, since AddressSanitizer may keep
  /// locals in a fake frame that is freed when the leaver ends.
  Context* target = nullptr;
  // What follows is used by sanitizers only; the loop's stack is learnt at the first switch away from it.
  const void* stack_low = nullptr;
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  void* sanitizer_fiber = nullptr;
};

/// Prepares `context` to start in `entry`, which must call arrive() first and never return.
/// The transfer's data is the Context that was left.
void make_context(Context& context, std::byte* low, std::byte* base,
                  void (*entry)(boost::context::detail::transfer_t));
/// Releases what a sanitizer keeps for a context.
void destroy_context(Context& context);
/// Makes the running stack known as the loop's, before the first switch of a turn.
void adopt_thread(Context& loop);

/// First thing on the new stack: completes the switch for the one who left. Returns who arrived.
inline Context& arrive(boost::context::detail::transfer_t transfer) {
  Context& from = *static_cast<Context*>(transfer.data);
  from.stack_pointer = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.target->fake_stack, &from.stack_low, &from.stack_bytes);
#endif
  return *from.target;
}

/// Clears the sticky floating-point flags, which every inexact operation sets. jump_fcontext saves and loads
/// MXCSR whole; loading what it holds already is cheap, loading another value was measured at 75 ns, so one
/// fiber that had touched a double made each switch ten times dearer. Rounding modes and masks are kept.
inline void clear_float_flags() {
#if defined(__SSE__)
  constexpr unsigned kStickyFlags = 0x3f;  // Intel SDM volume 1, 10.2.3
  const unsigned control = _mm_getcsr();
  if ((control & kStickyFlags) != 0) _mm_setcsr(control & ~kStickyFlags);
#endif
}

/// Suspends `from` and runs `to` until somebody switches back. `thread_state` is thread_exception_state() of
/// the running thread. `last`: `from` will never run again.
inline void switch_context(Context& from, Context& to, ExceptionState& thread_state,
                           [[maybe_unused]] bool last = false) {
  from.exceptions = thread_state;
  thread_state = to.exceptions;
  clear_float_flags();
  from.target = &to;
#if defined(__SANITIZE_ADDRESS__)
  // A null place for the fake stack frees it: that of a context that ends is not needed again.
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack_low, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.sanitizer_fiber, 0);
#endif
  arrive(boost::context::detail::jump_fcontext(to.stack_pointer, &from));
}

}  // namespace tidelock
