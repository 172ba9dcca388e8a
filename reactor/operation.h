/// Kernel operations of fibers, and standing watches on descriptors.
/// Whatever the kernel may still touch lives in a slot of the owner's slab, never on a fiber's stack: a
/// deadline or a cancellation detaches the waiting fiber, and only the completion frees the slot.
/// Thread:   owner core
#pragma once

#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/io_backend.h>

namespace tidelock {

class Reactor;

/// Fiber I/O on the current reactor. Data passes through the slot's own 4 KiB buffer.
/// Suspends: yes (fiber)
/// Errors:   deadline_exceeded, cancelled (the operation may still take effect), out_of_operations, errno
/// values
namespace io {
Status nop(Instant deadline);
/// Returns the ready events. `events`: POLLIN and friends.
Result<std::uint32_t> poll(int fd, std::uint32_t events, Instant deadline);
/// Reads up to 4 KiB; 0 at the end of the file.
Result<std::uint32_t> read(int fd, MutableBytes into, Instant deadline);
/// Writes up to 4 KiB; returns how many bytes were taken.
Result<std::uint32_t> write(int fd, Bytes from, Instant deadline);
}  // namespace io

/// Calls `handler` on the loop whenever `fd` has one of `events`, and re-arms the poll whenever the kernel
/// ends it, so no readiness is lost. The handler must drain the descriptor (to EAGAIN).
/// Lifetime: stop() (or the destructor) asks the kernel for the end; the slot that the kernel knows outlives
///           the watch. The caller closes `fd` after it has stopped the watch.
class FdWatch {
 public:
  using Handler = void (*)(void* context, std::uint32_t events);
  FdWatch() = default;
  ~FdWatch() { stop(); }
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

  Status start(Reactor& reactor, int fd, std::uint32_t events, Handler handler, void* context);
  void stop();
  [[nodiscard]] bool active() const { return slot_ != nullptr; }

 private:
  class Slot;
  Slot* slot_ = nullptr;
};

}  // namespace tidelock
