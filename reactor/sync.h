/// Synchronisation between fibers of ONE reactor: no atomics, no locks. Waiters are served first in, first
/// out.
/// Thread:   owner core
/// Suspends: where a function takes a deadline (fiber); never otherwise
/// Errors:   deadline_exceeded, cancelled; closed where said
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/fiber.h>

namespace tidelock {

/// Hands over directly: the lock goes to the first waiter, so nobody is overtaken.
class Mutex {
 public:
  Status lock(Instant deadline);
  [[nodiscard]] bool try_lock();
  void unlock();

 private:
  bool locked_ = false;
  WaitQueue waiters_;
};

/// Unlocks on destruction. Holds nothing if acquire failed.
class [[nodiscard]] MutexGuard {
 public:
  static Result<MutexGuard> acquire(Mutex& mutex, Instant deadline);
  MutexGuard(MutexGuard&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
  MutexGuard& operator=(MutexGuard&&) = delete;
  ~MutexGuard() {
    if (mutex_ != nullptr) mutex_->unlock();
  }

 private:
  explicit MutexGuard(Mutex& mutex) : mutex_(&mutex) {}
  Mutex* mutex_;
};

/// A wait for something that other fibers or the loop change. Since one reactor runs one fiber at a time
/// there is no mutex to give: check, wait, check again.
class Condition {
 public:
  Wakeup wait(Instant deadline) { return waiters_.wait(deadline); }
  template <class Predicate>
  Status wait_until(Predicate&& predicate, Instant deadline) {
    while (!predicate()) {
      if (const Wakeup wakeup = waiters_.wait(deadline); wakeup != Wakeup::notified) {
        if (predicate()) return {};
        return to_status(wakeup);
      }
    }
    return {};
  }
  void notify_one() { waiters_.notify_one(); }
  void notify_all() { waiters_.notify_all(); }

 private:
  WaitQueue waiters_;
};

/// Counted permits. A large request at the head is not overtaken by smaller ones behind it.
class Semaphore {
 public:
  explicit Semaphore(std::uint64_t permits) : available_(permits) {}
  Status acquire(std::uint64_t permits, Instant deadline);
  [[nodiscard]] bool try_acquire(std::uint64_t permits);
  void release(std::uint64_t permits);
  [[nodiscard]] std::uint64_t available() const { return available_; }

 private:
  struct Request;
  void wake();
  void unlink(Request& request);
  std::uint64_t available_;
  Request* head_ = nullptr;
  Request* tail_ = nullptr;
};

/// Counts those inside; close() refuses newcomers and waits until all have left.
class Gate {
 public:
  /// Errors:   closed
  Status enter();
  void leave();
  /// May be called once more after a deadline. Suspends: yes (fiber)
  Status close(Instant deadline);
  /// Refuses newcomers without waiting.
  void shut() { closed_ = true; }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] std::uint64_t inside() const { return inside_; }

 private:
  std::uint64_t inside_ = 0;
  bool closed_ = false;
  WaitQueue empty_;
};

/// A bounded queue between fibers. All of its memory is taken by the constructor.
template <class T>
class Channel {
 public:
  /// `capacity` >= 1 item.
  explicit Channel(std::size_t capacity) : slots_(capacity) {
    TL_ASSERT(capacity >= 1, "a channel holds at least one item");
  }
  /// Errors:   closed: nobody will receive it; deadline_exceeded and cancelled: it was not sent
  Status send(T value, Instant deadline) {
    while (count_ == slots_.size() && !closed_) TL_TRY(to_status(not_full_.wait(deadline)));
    if (closed_) return ReactorErrc::closed;
    slots_[(first_ + count_) % slots_.size()].emplace(std::move(value));
    ++count_;
    not_empty_.notify_one();
    return {};
  }
  /// Errors:   closed: closed and drained
  Result<T> receive(Instant deadline) {
    while (count_ == 0 && !closed_) TL_TRY(to_status(not_empty_.wait(deadline)));
    if (count_ == 0) return ReactorErrc::closed;
    std::optional<T>& slot = slots_[first_];
    T value = std::move(*slot);
    slot.reset();
    first_ = (first_ + 1) % slots_.size();
    --count_;
    not_full_.notify_one();
    return value;
  }
  /// What was sent can still be received.
  void close() {
    closed_ = true;
    not_full_.notify_all();
    not_empty_.notify_all();
  }
  [[nodiscard]] std::size_t size() const { return count_; }

 private:
  std::vector<std::optional<T>> slots_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  bool closed_ = false;
  WaitQueue not_full_;
  WaitQueue not_empty_;
};

}  // namespace tidelock
