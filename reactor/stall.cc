#include "stall.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <execinfo.h>
#include <pthread.h>
#include <string>
#include <unistd.h>

// sigevent's thread id has a name only in newer C libraries; timer_create(2) documents this one.
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace tidelock {
namespace {

/// Unwinding needs a few KiB, a sanitizer's runtime many more; fiber stacks are too small to share.
constexpr std::size_t kSignalStackBytes = 256 * 1024;
constexpr int kFrames = 48;
constexpr std::int64_t kPrintIntervalNs = 1'000'000'000;

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void set_timer(timer_t timer, Duration interval) {
  const timespec every{interval.ns / 1'000'000'000, interval.ns % 1'000'000'000};
  const itimerspec setting{every, every};
  ::timer_settime(timer, 0, &setting, nullptr);
}

}  // namespace

StallDetector::StallDetector(int signal, Duration threshold) : signal_(signal), threshold_(threshold) {
  // Formatted now: the handler may not call printf.
  const int bytes =
      std::snprintf(headline_, sizeof headline_,
                    "tidelock: thread %d has not turned its reactor for at least %lld us; it is at:\n",
                    static_cast<int>(::gettid()), static_cast<long long>(threshold.ns / 1000));
  headline_bytes_ = std::min(static_cast<std::size_t>(bytes), sizeof headline_ - 1);
}

Result<std::unique_ptr<StallDetector>> StallDetector::start(int signal, Duration threshold) {
  if (signal < SIGRTMIN || signal > SIGRTMAX) {
    return Error::from_errno(EINVAL, "the stall signal must be a realtime one, from " +
                                         std::to_string(SIGRTMIN) + " to " + std::to_string(SIGRTMAX) +
                                         ", not " + std::to_string(signal));
  }
  if (threshold < milliseconds(1)) {
    return Error::from_errno(EINVAL, "a stall threshold below 1 ms would only measure its own signals");
  }
  // The first backtrace() loads libgcc_s, which allocates: not in a handler.
  void* frames[2];
  ::backtrace(frames, 2);
  std::unique_ptr<StallDetector> detector(new StallDetector(signal, threshold));
  TL_TRY(detector->install_handler());
  TL_TRY(detector->install_stack());
  TL_TRY(detector->create_timer());
  return detector;
}

Status StallDetector::install_handler() const {
  struct sigaction former {};
  ::sigaction(signal_, nullptr, &former);
  const bool ours = (former.sa_flags & SA_SIGINFO) != 0 && former.sa_sigaction == &StallDetector::handle;
  if (ours) return {};
  if ((former.sa_flags & SA_SIGINFO) != 0 || former.sa_handler != SIG_DFL) {
    return Error::from_errno(
        EBUSY, "signal " + std::to_string(signal_) + " already has a handler: choose another stall signal");
  }
  struct sigaction action {};
  action.sa_sigaction = &StallDetector::handle;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(signal_, &action, nullptr) != 0)
    return Error::from_errno(errno, "sigaction of the stall signal");
  return {};
}

Status StallDetector::install_stack() {
  stack_t present{};
  ::sigaltstack(nullptr, &present);
  if ((present.ss_flags & SS_DISABLE) == 0) return {};  // the host's or a sanitizer's; it serves as well
  signal_stack_ = std::make_unique<std::byte[]>(kSignalStackBytes);
  stack_t ours{};
  ours.ss_sp = signal_stack_.get();
  ours.ss_size = kSignalStackBytes;
  if (::sigaltstack(&ours, &former_stack_) != 0) return Error::from_errno(errno, "sigaltstack");
  stack_installed_ = true;
  return {};
}

Status StallDetector::create_timer() {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = signal_;
  event.sigev_value.sival_ptr = this;
  event.sigev_notify_thread_id = ::gettid();
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) {
    return Error::from_errno(errno, "timer_create: raise the limit of pending signals (ulimit -i)");
  }
  timer_exists_ = true;
  set_timer(timer_, threshold_);
  return {};
}

StallDetector::~StallDetector() {
  if (timer_exists_) {
    // A signal that is already pending names this object: it must be taken before the object goes.
    sigset_t signals;
    sigset_t former;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, signal_);
    ::pthread_sigmask(SIG_BLOCK, &signals, &former);
    ::timer_delete(timer_);
    const timespec at_once{};
    while (::sigtimedwait(&signals, nullptr, &at_once) > 0 || errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
  }
  if (stack_installed_) ::sigaltstack(&former_stack_, nullptr);
}

void StallDetector::rearm() {
  turns_seen_ = 0;
  disarmed_.store(false, std::memory_order_relaxed);
  set_timer(timer_, threshold_);
}

void StallDetector::handle(int, siginfo_t* info, void*) {
  if (info->si_code != SI_TIMER) return;  // somebody's kill(2): there is no detector in it
  const int saved_errno = errno;
  static_cast<StallDetector*>(info->si_value.sival_ptr)->on_signal();
  errno = saved_errno;
}

void StallDetector::on_signal() {
  if (asleep_.load(std::memory_order_relaxed)) {
    disarmed_.store(true, std::memory_order_relaxed);
    set_timer(timer_, Duration{0});
    return;
  }
  const std::uint64_t turns = turns_.load(std::memory_order_relaxed);
  const bool moved = turns != turns_seen_;
  turns_seen_ = turns;
  if (moved || turns == 0) return;  // before the first turn nothing can hang in one
  if (turns != turns_counted_) {
    turns_counted_ = turns;
    stalls_.store(stalls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  report();
}

/// Async-signal-safe: write, clock_gettime, and backtrace() once libgcc_s is loaded.
void StallDetector::report() {
  const std::int64_t now = monotonic_ns();
  if (printed_ns_ != 0 && now - printed_ns_ < kPrintIntervalNs) return;
  printed_ns_ = now;
  if (::write(STDERR_FILENO, headline_, headline_bytes_) < 0) return;
  void* frames[kFrames];
  const int count = ::backtrace(frames, kFrames);
  ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
}

}  // namespace tidelock
