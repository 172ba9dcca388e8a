/// The operation slots of one reactor: whatever the kernel may still touch after the fiber that asked for it
/// has gone its way. Private to reactor/.
/// Thread:   owner core
/// Lifetime: a slot is in use from its submission until its completion came, whoever waits or no longer does
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/io_backend.h>

namespace tidelock {

class Reactor;

class OperationPool {
 public:
  /// What one operation moves at most.
  static constexpr std::uint32_t kBufferBytes = 4096;

  /// `slots`: operations in flight at the same time. Only the slots are taken now; buffers come in blocks of
  /// sixteen, at first use, and stay.
  OperationPool(Reactor& reactor, std::uint32_t slots);
  /// Must be idle.
  ~OperationPool();
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;

  /// Runs one request and waits for its result. `into` receives what was read; `from` is copied into the slot
  /// before the request is staged. Suspends: yes (fiber)
  /// Errors:   deadline_exceeded and cancelled (detached, still in flight); out_of_operations; errno values
  Result<std::uint32_t> run(const IoRequest& request, MutableBytes into, Bytes from, Instant deadline);

  /// No operation and no FdWatch is known to the kernel.
  [[nodiscard]] bool idle() const { return in_use_ == 0 && watches_ == 0; }
  /// Slots that wait for their completion, detached ones included.
  [[nodiscard]] std::uint32_t in_use() const { return in_use_; }

  /// Counts the slots of FdWatch, which outlive their watch until the kernel has let go of them.
  void watch_began() { ++watches_; }
  void watch_ended() { --watches_; }

 private:
  struct Slot;
  static constexpr std::uint32_t kBlockSlots = 16;

  Slot* take(bool with_buffer);
  void give_back(Slot& slot);

  Reactor& reactor_;
  std::uint32_t slots_count_;
  std::uint32_t in_use_ = 0;
  std::uint32_t watches_ = 0;
  std::unique_ptr<Slot[]> slots_;
  Slot* free_ = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> buffer_blocks_;
};

}  // namespace tidelock
