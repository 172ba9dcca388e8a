#include <tidelock/base/check.h>
#include <tidelock/reactor/sync.h>

namespace tidelock {

Status Mutex::lock(Instant deadline) {
  if (try_lock()) return {};
  // `notified` means that unlock() passed the lock on without opening it: even a cancellation that came after
  // that leaves this fiber the owner.
  return to_status(waiters_.wait(deadline));
}

bool Mutex::try_lock() {
  if (locked_) return false;
  locked_ = true;
  return true;
}

void Mutex::unlock() {
  TL_ASSERT(locked_, "unlock of a mutex that is not locked");
  if (!waiters_.notify_one()) locked_ = false;
}

Result<MutexGuard> MutexGuard::acquire(Mutex& mutex, Instant deadline) {
  TL_TRY(mutex.lock(deadline));
  return MutexGuard(mutex);
}

/// One fiber in line, on its own stack.
struct Semaphore::Request {
  std::uint64_t permits = 0;
  Request* previous = nullptr;
  Request* next = nullptr;
  WaitQueue granted;
};

Status Semaphore::acquire(std::uint64_t permits, Instant deadline) {
  if (try_acquire(permits)) return {};
  Request request;
  request.permits = permits;
  request.previous = tail_;
  (tail_ == nullptr ? head_ : tail_->next) = &request;
  tail_ = &request;
  const Wakeup wakeup = request.granted.wait(deadline);
  if (wakeup == Wakeup::notified) return {};  // wake() took the permits and the place in line
  unlink(request);
  wake();  // those behind may have waited for this one only
  return to_status(wakeup);
}

bool Semaphore::try_acquire(std::uint64_t permits) {
  if (head_ != nullptr || available_ < permits) return false;
  available_ -= permits;
  return true;
}

void Semaphore::release(std::uint64_t permits) {
  available_ += permits;
  wake();
}

void Semaphore::wake() {
  while (head_ != nullptr && head_->permits <= available_) {
    Request& request = *head_;
    available_ -= request.permits;
    unlink(request);
    request.granted.notify_one();
  }
}

void Semaphore::unlink(Request& request) {
  (request.previous == nullptr ? head_ : request.previous->next) = request.next;
  (request.next == nullptr ? tail_ : request.next->previous) = request.previous;
}

Status Gate::enter() {
  if (closed_) return ReactorErrc::closed;
  ++inside_;
  return {};
}

void Gate::leave() {
  TL_ASSERT(inside_ > 0, "leave of a gate that nobody entered");
  if (--inside_ == 0 && closed_) empty_.notify_all();
}

Status Gate::close(Instant deadline) {
  closed_ = true;
  while (inside_ > 0) TL_TRY(to_status(empty_.wait(deadline)));
  return {};
}

}  // namespace tidelock
