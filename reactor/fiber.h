/// Fibers: cooperative tasks of one reactor, each on a pooled stack with a guard page under it.
/// A fiber runs until it suspends; nothing on another core ever touches its stack.
/// Thread:   owner core
/// Lifetime: a fiber's closure and result live at the top of its own stack until it has ended and its
///           JoinHandle is gone
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/errc.h>

namespace tidelock {

class Reactor;
class Scheduler;
class Fiber;
class WaitQueue;

/// Why a suspended fiber runs again.
enum class Wakeup : std::uint8_t { notified, deadline, cancelled };

/// deadline -> deadline_exceeded, cancelled -> cancelled, notified -> success.
Status to_status(Wakeup wakeup);

namespace detail {
/// One wait of one fiber; lives on that fiber's stack while it is suspended.
struct Waiter {
  Waiter* previous = nullptr;
  Waiter* next = nullptr;
  Fiber* fiber = nullptr;
  WaitQueue* queue = nullptr;  ///< null once it was taken out, or for a plain sleep
  Wakeup wakeup = Wakeup::notified;
};
}  // namespace detail

/// Fibers that wait for the same thing, first in, first out. The basis of everything in sync.h.
class WaitQueue {
 public:
  WaitQueue() = default;
  /// Nobody may be waiting.
  ~WaitQueue();
  WaitQueue(const WaitQueue&) = delete;
  WaitQueue& operator=(const WaitQueue&) = delete;

  /// Suspends the current fiber until notified, the deadline or cancellation, whichever came first. A
  /// cancelled fiber does not suspend again: it gets `cancelled` at once; and one whose deadline is not after
  /// Reactor::now() gets `deadline` at once. Suspends: yes (fiber)
  Wakeup wait(Instant deadline);
  /// Makes the first waiter ready; false if there is none. Callable from the loop and from fibers.
  bool notify_one();
  std::size_t notify_all();
  [[nodiscard]] bool empty() const { return head_ == nullptr; }

 private:
  friend class Scheduler;
  void push(detail::Waiter& waiter);
  void unlink(detail::Waiter& waiter);

  detail::Waiter* head_ = nullptr;
  detail::Waiter* tail_ = nullptr;
};

namespace detail {

/// What stands at the top of a fiber's stack: how to run the closure and how to destroy closure and result.
struct FiberBody {
  void (*run)(FiberBody&) = nullptr;
  void (*destroy)(FiberBody&) = nullptr;
  void* result = nullptr;  ///< set by run; null for void
};

template <class F, class R>
struct TypedFiberBody : FiberBody {
  explicit TypedFiberBody(F&& f) : closure(std::move(f)) {
    run = [](FiberBody& body) {
      auto& self = static_cast<TypedFiberBody&>(body);
      if constexpr (std::is_void_v<R>) {
        self.closure();
        self.finished = true;
      } else {
        self.result = ::new (static_cast<void*>(&self.storage)) R(self.closure());
        self.finished = true;
      }
    };
    destroy = [](FiberBody& body) {
      auto& self = static_cast<TypedFiberBody&>(body);
      if constexpr (!std::is_void_v<R>) {
        if (self.finished) static_cast<R*>(self.result)->~R();
      }
      self.~TypedFiberBody();
    };
  }
  F closure;
  bool finished = false;
  using Stored = std::conditional_t<std::is_void_v<R>, char, R>;
  alignas(Stored) std::byte storage[sizeof(Stored)];
};

void* fiber_result(Fiber* fiber);
Wakeup fiber_join(Fiber* fiber, Instant deadline);
void fiber_cancel(Fiber* fiber);
void fiber_release(Fiber* fiber);
[[nodiscard]] bool fiber_finished(const Fiber* fiber);

}  // namespace detail

/// Owns the right to a fiber's result. Dropping it lets the fiber go on, detached.
/// Lifetime: must not outlive the reactor
template <class R>
class [[nodiscard]] JoinHandle {
 public:
  JoinHandle() = default;
  explicit JoinHandle(Fiber* fiber) : fiber_(fiber) {}
  JoinHandle(JoinHandle&& other) noexcept : fiber_(std::exchange(other.fiber_, nullptr)) {}
  JoinHandle& operator=(JoinHandle&& other) noexcept {
    if (this != &other) {
      detach();
      fiber_ = std::exchange(other.fiber_, nullptr);
    }
    return *this;
  }
  ~JoinHandle() { detach(); }

  [[nodiscard]] bool valid() const { return fiber_ != nullptr; }
  [[nodiscard]] bool finished() const { return detail::fiber_finished(fiber_); }
  /// Asks the fiber to end: its current and every later suspension returns `cancelled`. It still has to be
  /// joined or dropped.
  void cancel() { detail::fiber_cancel(fiber_); }
  /// Waits for the fiber to end and takes its result; after a value the handle is empty. On deadline or
  /// cancellation of the caller the handle stays valid and join may be called again.
  /// Suspends: yes (fiber)
  Result<R> join(Instant deadline) {
    TL_ASSERT(valid(), "join of an empty handle");
    const Wakeup wakeup = detail::fiber_join(fiber_, deadline);
    if (wakeup != Wakeup::notified) return to_status(wakeup).error();
    if constexpr (std::is_void_v<R>) {
      detach();
      return {};
    } else {
      R value = std::move(*static_cast<R*>(detail::fiber_result(fiber_)));
      detach();
      return value;
    }
  }
  void detach() {
    if (fiber_ != nullptr) detail::fiber_release(std::exchange(fiber_, nullptr));
  }

 private:
  Fiber* fiber_ = nullptr;
};

/// The calling fiber. Each function aborts if the caller is not a fiber.
namespace this_fiber {
/// Lets the other ready fibers run, and the loop after at most 64 yields. Suspends: yes. `cancelled` (after
/// having yielded all the same) if this fiber was cancelled.
Wakeup yield();
/// Suspends: yes. `deadline` is the normal end; at once if `when` has passed.
Wakeup sleep_until(Instant when);
Wakeup sleep_for(Duration duration);
[[nodiscard]] bool cancelled();
/// True on a fiber, false on the loop itself and on any other thread.
[[nodiscard]] bool exists();
/// The name given to spawn.
[[nodiscard]] const char* name();
}  // namespace this_fiber

}  // namespace tidelock
