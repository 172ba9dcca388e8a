#include <tidelock/base/check.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>

#include "scheduler.h"

namespace tidelock {
namespace {

/// Ends a wait by its deadline. Lives beside the waiter on the fiber's stack.
struct WaitTimer : Timer {
  explicit WaitTimer(detail::Waiter& its_waiter)
      : Timer([](Timer& timer) {
          detail::Waiter& late = *static_cast<WaitTimer&>(timer).waiter;
          // The timer stays armed until the fiber runs again, which may be after it was notified.
          if (late.fiber->waiter == &late) late.fiber->scheduler->wake(late, Wakeup::deadline);
        }),
        waiter(&its_waiter) {}
  detail::Waiter* waiter;
};

}  // namespace

Scheduler* Scheduler::of_running_fiber() {
  Reactor* const reactor = Reactor::current();
  if (reactor == nullptr || reactor->scheduler_->running_ == nullptr) return nullptr;
  return reactor->scheduler_.get();
}

Scheduler& Scheduler::here() {
  Scheduler* const scheduler = of_running_fiber();
  TL_ASSERT(scheduler != nullptr, "called outside of a fiber: spawn one to wait in");
  return *scheduler;
}

void Scheduler::wake(detail::Waiter& waiter, Wakeup wakeup) {
  if (waiter.queue != nullptr) waiter.queue->unlink(waiter);
  waiter.wakeup = wakeup;
  waiter.fiber->waiter = nullptr;
  make_ready(*waiter.fiber);
}

[[gnu::always_inline]] inline Wakeup Scheduler::yield() {
  Fiber& self = *running_;
  self.yielded = true;
  ++yielders_;
  make_ready(self);
  leave(self);
  return self.cancelled ? Wakeup::cancelled : Wakeup::notified;
}

[[gnu::always_inline]] inline Wakeup Scheduler::wait(WaitQueue* queue, Instant deadline) {
  Fiber& self = *running_;
  if (self.cancelled) return Wakeup::cancelled;
  if (deadline <= reactor_.now()) return Wakeup::deadline;
  detail::Waiter waiter;
  waiter.fiber = &self;
  if (queue != nullptr) queue->push(waiter);
  self.waiter = &waiter;
  if (deadline == Instant::never()) {
    leave(self);
  } else {
    WaitTimer timer(waiter);
    reactor_.timers().arm(timer, deadline);
    leave(self);
  }
  return waiter.wakeup;
}

Status to_status(Wakeup wakeup) {
  switch (wakeup) {
    case Wakeup::notified:
      break;
    case Wakeup::deadline:
      return ReactorErrc::deadline_exceeded;
    case Wakeup::cancelled:
      return ReactorErrc::cancelled;
  }
  return {};
}

WaitQueue::~WaitQueue() { TL_ASSERT(empty(), "a WaitQueue is destroyed while fibers wait in it"); }

Wakeup WaitQueue::wait(Instant deadline) { return Scheduler::here().wait(this, deadline); }

bool WaitQueue::notify_one() {
  if (head_ == nullptr) return false;
  // The waiter's own scheduler, not the current one: who notifies may be the turn of another reactor of the
  // same thread.
  head_->fiber->scheduler->wake(*head_, Wakeup::notified);
  return true;
}

std::size_t WaitQueue::notify_all() {
  std::size_t notified = 0;
  while (notify_one()) ++notified;
  return notified;
}

void WaitQueue::push(detail::Waiter& waiter) {
  waiter.queue = this;
  waiter.previous = tail_;
  (tail_ == nullptr ? head_ : tail_->next) = &waiter;
  tail_ = &waiter;
}

void WaitQueue::unlink(detail::Waiter& waiter) {
  (waiter.previous == nullptr ? head_ : waiter.previous->next) = waiter.next;
  (waiter.next == nullptr ? tail_ : waiter.next->previous) = waiter.previous;
  waiter.queue = nullptr;
}

namespace detail {

void* fiber_result(Fiber* fiber) { return fiber->body->result; }

Wakeup fiber_join(Fiber* fiber, Instant deadline) {
  if (fiber_finished(fiber)) return Wakeup::notified;
  TL_ASSERT(Scheduler::here().running() != fiber, "a fiber cannot join itself");
  return fiber->done.wait(deadline);
}

void fiber_cancel(Fiber* fiber) {
  TL_ASSERT(fiber != nullptr, "cancel of an empty handle");
  if (!fiber_finished(fiber)) fiber->scheduler->cancel(*fiber);
}

void fiber_release(Fiber* fiber) { fiber->scheduler->release(*fiber); }

bool fiber_finished(const Fiber* fiber) {
  TL_ASSERT(fiber != nullptr, "the handle is empty");
  return fiber->state == Fiber::State::finished;
}

}  // namespace detail

namespace this_fiber {

Wakeup yield() { return Scheduler::here().yield(); }
Wakeup sleep_until(Instant when) { return Scheduler::here().wait(nullptr, when); }
Wakeup sleep_for(Duration duration) { return sleep_until(Reactor::current()->now() + duration); }
bool cancelled() { return Scheduler::here().running()->cancelled; }
bool exists() { return Scheduler::of_running_fiber() != nullptr; }
const char* name() { return Scheduler::here().running()->name; }

}  // namespace this_fiber

}  // namespace tidelock
