/// First in, first out, of a capacity that is fixed at the start; never allocates after it.
/// Thread:   one
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

#include <tidelock/base/check.h>

namespace tidelock {

template <class T>
class FixedFifo {
 public:
  explicit FixedFifo(std::size_t capacity) : capacity_(capacity), slots_(std::bit_ceil(capacity)) {}
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  [[nodiscard]] bool full() const { return tail_ - head_ == capacity_; }
  [[nodiscard]] std::size_t size() const { return tail_ - head_; }
  void push(const T& value) {
    TL_ASSERT(!full(), "more than the fifo was made for");
    slots_[tail_++ & (slots_.size() - 1)] = value;
  }
  T pop() {
    TL_ASSERT(!empty(), "pop() of an empty fifo");
    return slots_[head_++ & (slots_.size() - 1)];
  }

 private:
  std::size_t capacity_;
  std::vector<T> slots_;  // a power of two: no division finds the place
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

}  // namespace tidelock
