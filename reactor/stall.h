/// Says where a reactor hangs: a timer signals its thread once a threshold, and if the loop has not turned
/// since the last signal, the handler prints a backtrace to stderr. Opt-in, private to reactor/.
/// Thread:   created, used and destroyed on the reactor's thread; stalls() on any
/// Lifetime: the signal's handler stays installed for the life of the process; it only ever touches a
/// detector
///           that the signal itself names
/// Errors:   EINVAL for a signal that is not a realtime one or a threshold below 1 ms; EBUSY if the signal
/// has
///           another handler
#pragma once

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

namespace tidelock {

class StallDetector {
 public:
  /// `signal`: from SIGRTMIN to SIGRTMAX; several detectors (one a thread) may share it.
  static Result<std::unique_ptr<StallDetector>> start(int signal, Duration threshold);
  ~StallDetector();
  StallDetector(const StallDetector&) = delete;
  StallDetector& operator=(const StallDetector&) = delete;

  /// Once a turn. Costs two stores and a load; a system call only in the first turn after a long sleep.
  void tick() {
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    asleep_.store(false, std::memory_order_relaxed);
    if (disarmed_.load(std::memory_order_relaxed)) rearm();
  }
  /// Before the thread sleeps on purpose: until the next tick() it does not count as stalled, and the timer
  /// stops itself at its next signal, so that a parked reactor is not woken by it time and again.
  void about_to_sleep() { asleep_.store(true, std::memory_order_relaxed); }

  /// Thresholds that passed without a turn, each stall counted once.
  [[nodiscard]] std::uint64_t stalls() const { return stalls_.load(std::memory_order_relaxed); }

 private:
  StallDetector(int signal, Duration threshold);
  Status install_handler() const;
  Status install_stack();
  Status create_timer();
  void rearm();
  void on_signal();
  void report();
  static void handle(int signal, siginfo_t* info, void* context);

  // Shared by the thread and a signal handler on the same thread: relaxed atomics are enough.
  std::atomic<std::uint64_t> turns_{0};
  std::atomic<bool> asleep_{false};
  std::atomic<bool> disarmed_{false};
  std::atomic<std::uint64_t> stalls_{0};
  std::uint64_t turns_seen_ = 0;     ///< at the signal before
  std::uint64_t turns_counted_ = 0;  ///< of the stall that was counted last
  std::int64_t printed_ns_ = 0;      ///< when the last backtrace was printed
  int signal_;
  Duration threshold_;
  timer_t timer_{};
  bool timer_exists_ = false;
  bool stack_installed_ = false;
  stack_t former_stack_{};
  std::unique_ptr<std::byte[]> signal_stack_;
  char headline_[160]{};
  std::size_t headline_bytes_ = 0;
};

}  // namespace tidelock
