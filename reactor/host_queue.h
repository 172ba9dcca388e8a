/// Work from threads that run no reactor: an intrusive lock-free stack that the owner takes whole and
/// reverses, so that each thread's tasks run in the order in which it submitted them.
/// Thread:   enter, push, leave and close on any; the rest on the owner core
/// Suspends: never
#pragma once

#include <atomic>
#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor_group.h>

namespace tidelock {

class HostQueue final : public PollSource {
 public:
  /// Before the first poll.
  void attach(Reactor& reactor) { reactor_ = &reactor; }

  /// A submitter stands between enter() and leave() while it pushes and wakes. False: closed, nothing to
  /// leave.
  [[nodiscard]] bool enter() {
    // Sequentially consistent on both sides: either close() came first and we see it, or settled() sees us.
    inside_.fetch_add(1);
    if (!closed_.load()) return true;
    inside_.fetch_sub(1);
    return false;
  }
  void push(HostTask& task) {
    task.next = head_.load(std::memory_order_relaxed);
    // Release: the owner finds the task's fields. Pairs with the exchange in poll().
    while (!head_.compare_exchange_weak(task.next, &task, std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
  }
  void leave() { inside_.fetch_sub(1); }
  void close() { closed_.store(true); }

  std::uint32_t poll(std::uint32_t budget) override {
    std::uint32_t done = 0;
    while (done < budget) {
      if (taken_ == nullptr) take();
      if (taken_ == nullptr) break;
      HostTask& task = *taken_;
      taken_ = task.next;  // before it runs: the task is the submitter's again afterwards
      task.run(task, *reactor_);
      ++done;
    }
    return done;
  }
  [[nodiscard]] bool has_work() const override {
    return taken_ != nullptr || head_.load(std::memory_order_relaxed) != nullptr;
  }
  /// Tasks wait, and every submitter has finished its look at the park flag.
  [[nodiscard]] bool has_settled_work() const { return has_work() && inside_.load() == 0; }
  /// Closed, nobody inside, nothing left.
  [[nodiscard]] bool drained() const { return closed_.load() && inside_.load() == 0 && !has_work(); }

 private:
  void take() {
    if (head_.load(std::memory_order_relaxed) == nullptr) return;
    HostTask* newest = head_.exchange(nullptr, std::memory_order_acquire);
    while (newest != nullptr) {
      HostTask* older = newest->next;
      newest->next = taken_;
      taken_ = newest;
      newest = older;
    }
  }

  Reactor* reactor_ = nullptr;
  HostTask* taken_ = nullptr;
  alignas(kCacheLineBytes) std::atomic<HostTask*> head_{nullptr};
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> inside_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace tidelock
