/// Fiber stacks: mapped on demand, kept for ever, given out last in, first out. Private to reactor/.
///
///   guard page | stack, grows down ... | base: control area | colour gap | large area
///
/// The control area holds the fiber itself and a small closure; a large one lies in the page at the very top.
/// Thread:   owner core
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tidelock/base/result.h>

namespace tidelock {

/// Where one stack lies. The record stands in the stack's own control area.
struct Stack {
  std::byte* map = nullptr;      ///< the guard page, where the mapping starts
  std::byte* low = nullptr;      ///< lowest usable byte
  std::byte* base = nullptr;     ///< one past the highest byte of the stack proper; this record stands here
  std::byte* control = nullptr;  ///< kControlBytes, aligned to a cache line
  std::byte* large = nullptr;    ///< kLargeBytes, aligned to a page, not touched before it is used
  Stack* next_free = nullptr;
  void* owner = nullptr;  ///< the owner's: null in a stack that was never used
};

class StackPool {
 public:
  static constexpr std::size_t kControlBytes = 960;
  static constexpr std::size_t kLargeBytes = 4096;
  /// ThreadSanitizer cannot tell more fibers apart than 8,128 threads and fibers in all.
  static constexpr std::uint32_t kSanitizerMaxStacks = 4000;

  /// Maps and touches `prepared` stacks of at least `stack_bytes`.
  /// Errors:   ENOMEM
  static Result<std::unique_ptr<StackPool>> create(std::uint32_t stack_bytes, std::uint32_t max_stacks,
                                                   std::uint32_t prepared);
  /// Nobody runs on any of them any more.
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  /// Null if all are in use, or the kernel refuses another mapping.
  Stack* take();
  void give_back(Stack& stack);
  /// False: take() would find nothing, as far as is known. A mapping that the kernel refused is not worth
  /// another try until a stack was given back.
  [[nodiscard]] bool can_take() const {
    return free_ != nullptr || (all_.size() < max_stacks_ && (!refused_ || in_use_ == 0));
  }

  [[nodiscard]] std::uint32_t in_use() const { return in_use_; }
  [[nodiscard]] const std::vector<Stack*>& all() const { return all_; }
  /// Deepest use seen of a stack that was given back: a lower bound, in steps of 256 bytes.
  [[nodiscard]] std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  StackPool(std::size_t stack_bytes, std::uint32_t max_stacks);
  Stack* map_one();
  [[nodiscard]] std::size_t map_bytes() const;
  void measure(const Stack& stack);

  std::size_t page_bytes_;
  std::size_t stack_bytes_;
  std::uint32_t max_stacks_;
  std::uint32_t in_use_ = 0;
  std::size_t peak_bytes_ = 0;
  std::uint64_t returns_ = 0;
  bool refused_ = false;  ///< by the kernel, and no stack was given back since
  Stack* free_ = nullptr;
  std::vector<Stack*> all_;
};

}  // namespace tidelock
