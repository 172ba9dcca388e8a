/// The reactor's door to the kernel. UringBackend (ring.h) is the real one; tests and the simulator put one
/// without any kernel behind it.
/// Thread:   owner core, except where said
#pragma once

#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/errc.h>

namespace tidelock {

struct IoRequest {
  enum class Kind : std::uint8_t { nop, poll, poll_multishot, read, write };
  Kind kind = Kind::nop;
  int fd = -1;
  std::uint32_t poll_events = 0;  ///< POLLIN and friends, for poll and poll_multishot
  std::byte* buffer = nullptr;    ///< read and write: in memory that outlives the operation (see operation.h)
  std::uint32_t buffer_bytes = 0;
  std::uint64_t offset = ~0ULL;  ///< ~0: the file's own position (pipes, sockets)
};

/// Receives completions. Owned by the reactor's operation slab or by a long-lived object such as an FdWatch.
/// Lifetime: until on_completion was called with `more` false
class IoCompletion {
 public:
  /// `result` is the CQE's res: a count, or a negative errno. `more`: further completions will follow
  /// (multishot). Runs on the loop; never suspends.
  virtual void on_completion(std::int32_t result, bool more) = 0;

 protected:
  ~IoCompletion() = default;
};

/// Names an operation in flight; stale tokens are harmless.
struct IoToken {
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  /// Stages a request; it reaches the kernel by the next flush() at the latest.
  /// Errors:   out_of_operations; EOPNOTSUPP from a backend without a kernel
  virtual Result<IoToken> submit(const IoRequest& request, IoCompletion& completion) = 0;
  /// Asks for an early end; on_completion still comes (-ECANCELED or the result that was faster).
  virtual void cancel(IoToken token) = 0;
  /// Runs at most `budget` completions; returns how many. Enters the kernel only when it must.
  virtual std::uint32_t poll(std::uint32_t budget) = 0;
  virtual void flush() = 0;
  [[nodiscard]] virtual bool has_work() const = 0;
  /// Operations submitted and not completed.
  [[nodiscard]] virtual std::uint32_t in_flight() const = 0;
};

}  // namespace tidelock
