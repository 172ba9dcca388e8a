#include "scheduler.h"

#include <cstdio>
#include <exception>
#include <new>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/reactor.h>

namespace tidelock {
namespace {

template <class T>
void publish(std::atomic<T>& cell, T value) {
  cell.store(value, std::memory_order_relaxed);
}

// Called inside the catch block, so that terminate() still knows the exception.
[[noreturn]] void report_escaped(const char* fiber_name) noexcept {
  std::fprintf(stderr, "tidelock: an exception left the fiber '%s'; catch it in the closure\n", fiber_name);
  std::terminate();
}

void run_body(const Fiber& fiber) {
  try {
    fiber.body->run(*fiber.body);
  } catch (...) {
    report_escaped(fiber.name);
  }
}

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::create(Reactor& reactor) {
  const ReactorOptions& options = reactor.options();
  std::unique_ptr<Scheduler> scheduler(new Scheduler(reactor));
  TL_TRY(scheduler->stacks_,
         StackPool::create(options.stack_bytes, options.max_fibers, options.prepared_fibers));
  return scheduler;
}

Scheduler::~Scheduler() {
  if (stacks_ == nullptr) return;
  TL_ASSERT(live_ == 0, "a reactor is destroyed while fibers live: cancel_all(), then turn until idle()");
  TL_ASSERT(stacks_->in_use() == 0, "a JoinHandle outlives its reactor");
  exceptions_ = thread_exception_state();
  adopt_thread(loop_);
  for (Stack* stack : stacks_->all()) {
    if (stack->owner == nullptr) continue;
    auto& fiber = *static_cast<Fiber*>(stack->owner);
    if (kAddressSanitizer) {
      // Only the fiber itself can have its fake stack freed, by leaving.
      fiber.exit = true;
      switch_context(loop_, fiber.context, *exceptions_);
    }
    destroy_context(fiber.context);
    fiber.~Fiber();
  }
}

Fiber* Scheduler::allocate(const char* name) {
  Stack* const stack = stacks_->take();
  if (stack == nullptr) return nullptr;
  static_assert(sizeof(Fiber) + 256 <= StackPool::kControlBytes);
  if (stack->owner == nullptr) {
    auto* const made = ::new (static_cast<void*>(stack->control)) Fiber(*this, *stack);
    make_context(made->context, stack->low, stack->base, &fiber_entry);
    stack->owner = made;
  }
  auto* const fiber = static_cast<Fiber*>(stack->owner);
  fiber->name = name;
  return fiber;
}

void* Scheduler::reserve_body(Fiber& fiber, std::size_t bytes, std::size_t alignment) {
  const std::size_t offset = align_up(sizeof(Fiber), kCacheLineBytes);
  if (alignment <= kCacheLineBytes && offset + bytes <= StackPool::kControlBytes) {
    return fiber.stack->control + offset;
  }
  TL_ASSERT(bytes <= StackPool::kLargeBytes && alignment <= StackPool::kLargeBytes, "closure too large");
  return fiber.stack->large;
}

void Scheduler::start(Fiber& fiber, detail::FiberBody& body) {
  fiber.body = &body;
  fiber.state = Fiber::State::live;
  fiber.cancelled = false;
  fiber.has_handle = true;
  ++live_;
  publish<std::uint64_t>(reactor_.stats_.fibers_live, live_);
  bump(reactor_.stats_.fibers_spawned);
  make_ready(fiber);
}

void Scheduler::fiber_entry(boost::context::detail::transfer_t transfer) {
  arrive(transfer);
  // The switch was made for the sake of running_, except by the destructor, which runs no new fiber.
  fiber_main(*Scheduler::here().running_);
}

// A pooled stack keeps this frame for ever and runs one body after the other in it. So a spawn prepares no
// context, and ThreadSanitizer's shadow of the calls stays balanced.
void Scheduler::fiber_main(Fiber& self) {
  while (!self.exit) {
    run_body(self);
    self.scheduler->finish(self);
  }
  self.scheduler->leave_for_good(self);
}

void Scheduler::finish(Fiber& self) {
  // Without a handle nobody waits for the result. The closure's destructor may still suspend.
  if (!self.has_handle) {
    self.body->destroy(*self.body);
    self.body = nullptr;
  }
  self.state = Fiber::State::finished;
  --live_;
  publish<std::uint64_t>(reactor_.stats_.fibers_live, live_);
  self.done.notify_all();
  // Whoever gets this stack next runs only after leave() has saved where it stands.
  if (!self.has_handle) recycle(self);
  leave(self);
}

void Scheduler::recycle(Fiber& fiber) {
  fiber.state = Fiber::State::idle;
  stacks_->give_back(*fiber.stack);
  publish<std::uint64_t>(reactor_.stats_.stack_bytes_peak, stacks_->peak_bytes());
}

void Scheduler::release(Fiber& fiber) {
  fiber.has_handle = false;
  if (fiber.state != Fiber::State::finished) return;
  fiber.body->destroy(*fiber.body);
  fiber.body = nullptr;
  recycle(fiber);
}

std::uint64_t Scheduler::run_ready() {
  if (ready_.empty()) return 0;
  // A turn may have moved to another thread since the last one, hence anew each time.
  exceptions_ = thread_exception_state();
  adopt_thread(loop_);
  const Instant end = reactor_.now() + reactor_.options().fiber_quota;
  Instant flushed = reactor_.now();
  std::uint64_t switches = 0;
  while (true) {
    credits_ = kBatch - 1;
    Fiber& fiber = pop_ready();
    running_ = &fiber;
    switch_context(loop_, fiber.context, *exceptions_);
    switches += kBatch - credits_;
    // With only yielding fibers left the turn ends, so that one that spins on yield() sees new input soon.
    if (ready_.empty() || (ready_.size() == yielders_ && switches >= kYieldsPerTurn)) break;
    const Instant now = reactor_.refresh_now();
    if (now >= end) break;
    if (now - flushed >= reactor_.options().flush_interval) {
      reactor_.flush_sources();
      flushed = now;
    }
  }
  bump(reactor_.stats_.fiber_switches, switches);
  return switches;
}

void Scheduler::leave_for_good(Fiber& self) {
  switch_context(self.context, loop_, *exceptions_, true);
  TL_ASSERT(false, "a fiber ran after its end");
}

void Scheduler::cancel(Fiber& fiber) {
  fiber.cancelled = true;
  // A fiber that was notified already keeps what it was notified of: its waiter is gone from here.
  if (fiber.waiter != nullptr) wake(*fiber.waiter, Wakeup::cancelled);
}

void Scheduler::cancel_all() {
  for (Stack* stack : stacks_->all()) {
    if (stack->owner == nullptr) continue;
    auto& fiber = *static_cast<Fiber*>(stack->owner);
    if (fiber.state == Fiber::State::live) cancel(fiber);
  }
}

}  // namespace tidelock
