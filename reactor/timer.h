/// Timers of one reactor: a min-heap of four children a node, each timer knowing its place. Nothing is
/// allocated once the heap has grown to the largest number of timers that were armed at once.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tidelock/base/time.h>

namespace tidelock {

class Timers;

/// Embedded in whatever waits. Disarms itself when destroyed.
class Timer {
 public:
  using Callback = void (*)(Timer&);
  explicit Timer(Callback callback) : callback_(callback) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  [[nodiscard]] bool armed() const { return owner_ != nullptr; }
  [[nodiscard]] Instant deadline() const { return deadline_; }
  void disarm();

 private:
  friend class Timers;
  Callback callback_;
  Timers* owner_ = nullptr;
  std::size_t index_ = 0;
  Instant deadline_{};
};

class Timers {
 public:
  explicit Timers(std::size_t reserve_entries);
  ~Timers();
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  /// Arms, or moves an armed timer. Equal deadlines fire in no promised order.
  void arm(Timer& timer, Instant deadline);
  /// Instant::never() if none is armed.
  [[nodiscard]] Instant next_deadline() const;
  /// Fires up to `budget` timers that are due; a callback may arm and disarm any timer. Returns how many.
  std::uint32_t fire(Instant now, std::uint32_t budget);
  [[nodiscard]] std::size_t size() const { return heap_.size(); }

 private:
  friend class Timer;
  /// The deadline stands beside the pointer, so that sifting reads no timer but those it moves.
  struct Entry {
    Instant deadline;
    Timer* timer;
  };
  void remove(Timer& timer);
  void sift_up(std::size_t index, Entry entry);
  void sift_down(std::size_t index, Entry entry);
  void place(std::size_t index, Entry entry);

  std::vector<Entry> heap_;
};

}  // namespace tidelock
