/// A fiber as the scheduler sees it, and the scheduler: who is ready, who runs, where each one waits.
/// Private to reactor/.
/// Thread:   owner core
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tidelock/base/result.h>
#include <tidelock/reactor/fiber.h>

#include "fiber_switch.h"
#include "stack_pool.h"

namespace tidelock {

/// Stands in its own stack's control area. Made once for each stack; each spawn gives it a new body.
class Fiber {
 public:
  enum class State : std::uint8_t { idle, live, finished };

  Fiber(Scheduler& its_scheduler, Stack& its_stack) : scheduler(&its_scheduler), stack(&its_stack) {}

  Context context;
  Fiber* next = nullptr;             ///< in the ready queue
  detail::Waiter* waiter = nullptr;  ///< set while it waits for something; null while ready or running
  detail::FiberBody* body = nullptr;
  Scheduler* const scheduler;
  Stack* const stack;
  const char* name = "";
  State state = State::idle;
  bool cancelled = false;
  bool yielded = false;  ///< ready because it yielded, not because something happened
  bool has_handle = false;
  bool exit = false;  ///< the pool is being destroyed: leave the stack for good
  WaitQueue done;
};

class FiberQueue {
 public:
  void push(Fiber& fiber) {
    fiber.next = nullptr;
    (tail_ == nullptr ? head_ : tail_->next) = &fiber;
    tail_ = &fiber;
    ++size_;
  }
  /// Must not be empty.
  Fiber& pop() {
    Fiber& fiber = *head_;
    head_ = fiber.next;
    if (head_ == nullptr) tail_ = nullptr;
    --size_;
    return fiber;
  }
  [[nodiscard]] bool empty() const { return head_ == nullptr; }
  [[nodiscard]] std::uint32_t size() const { return size_; }

 private:
  Fiber* head_ = nullptr;
  Fiber* tail_ = nullptr;
  std::uint32_t size_ = 0;
};

class Scheduler {
 public:
  /// Errors:   ENOMEM
  static Result<std::unique_ptr<Scheduler>> create(Reactor& reactor);
  /// All fibers have ended and all handles are gone.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// The scheduler whose fiber runs on this thread, or null.
  [[nodiscard]] static Scheduler* of_running_fiber();
  /// The same; aborts if no fiber runs.
  [[nodiscard]] static Scheduler& here();

  /// Null if out of stacks.
  Fiber* allocate(const char* name);
  [[nodiscard]] bool can_allocate() const { return stacks_->can_take(); }
  /// Room for the fiber's closure and result, outside of the stack proper.
  static void* reserve_body(Fiber& fiber, std::size_t bytes, std::size_t alignment);
  void start(Fiber& fiber, detail::FiberBody& body);

  /// Runs ready fibers within the quota, flushing in between. Returns how many switches were made.
  std::uint64_t run_ready();
  [[nodiscard]] bool has_ready() const { return !ready_.empty(); }
  /// Fibers that have not ended.
  [[nodiscard]] std::uint32_t live() const { return live_; }

  /// For the running fiber. `queue` may be null: only the deadline or a cancellation ends that wait.
  Wakeup wait(WaitQueue* queue, Instant deadline);
  Wakeup yield();
  [[nodiscard]] Fiber* running() const { return running_; }

  /// Takes the waiter from its queue and makes its fiber ready.
  void wake(detail::Waiter& waiter, Wakeup wakeup);
  void cancel(Fiber& fiber);
  void cancel_all();
  /// The fiber's handle is gone.
  void release(Fiber& fiber);

 private:
  explicit Scheduler(Reactor& reactor) : reactor_(reactor) {}
  static void fiber_entry(boost::context::detail::transfer_t transfer);
  static void fiber_main(Fiber& self);
  void finish(Fiber& self);
  void recycle(Fiber& fiber);
  void make_ready(Fiber& fiber) { ready_.push(fiber); }
  Fiber& pop_ready() {
    Fiber& fiber = ready_.pop();
    yielders_ -= fiber.yielded ? 1 : 0;
    fiber.yielded = false;
    return fiber;
  }
  void leave(Fiber& self);
  void leave_for_good(Fiber& self);

  /// The clock is read, and staged work may be flushed, once for so many switches.
  static constexpr std::uint32_t kBatch = 16;
  /// So many switches from a turn's start, a turn in which only yielding fibers are left ends.
  static constexpr std::uint64_t kYieldsPerTurn = 64;

  Reactor& reactor_;
  FiberQueue ready_;
  Fiber* running_ = nullptr;
  ExceptionState* exceptions_ = nullptr;  ///< of the thread that runs this turn
  std::uint32_t credits_ = 0;             ///< switches left until the loop has its say
  std::uint32_t yielders_ = 0;            ///< how many in the ready queue have yielded
  std::uint32_t live_ = 0;
  Context loop_;
  std::unique_ptr<StackPool> stacks_;
};

// From fiber to fiber while there is credit, else back to the loop. Inlined with all that is above it up to
// the public functions: after a switch the processor's return stack belongs to another fiber, so each return
// is mispredicted, and one of them is enough.
[[gnu::always_inline]] inline void Scheduler::leave(Fiber& self) {
  Context* target = &loop_;
  Fiber* next = nullptr;
  if (credits_ != 0 && !ready_.empty()) {
    --credits_;
    next = &pop_ready();
    if (next == &self) return;
    target = &next->context;
  }
  running_ = next;
  switch_context(self.context, *target, *exceptions_);
}

}  // namespace tidelock
