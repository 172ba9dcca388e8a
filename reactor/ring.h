/// The io_uring of one reactor, and the IoBackend on it. Flags and opcodes are probed, and each one that is
/// missing is named together with what is done instead.
/// Thread:   created on, and used by, the owner core's thread only (IORING_SETUP_SINGLE_ISSUER), except
///           send_from_host()
/// Errors:   io_uring_unavailable with the remedy (sysctl kernel.io_uring_disabled, seccomp, memlock)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/io_backend.h>

namespace tidelock {

struct UringOptions {
  std::uint32_t entries = 256;          ///< submission entries, 8 to 32,768; the CQ has twice as many
  std::uint32_t max_operations = 1024;  ///< operations in flight
  bool allow_msg_ring = true;           ///< false: as if the kernel had none (to test the fallback)
};

/// What the kernel gave.
struct UringFeatures {
  bool single_issuer = false;
  bool coop_taskrun = false;
  bool taskrun_flag = false;
  bool msg_ring = false;        ///< IORING_OP_MSG_RING (5.18)
  bool host_msg_ring = false;   ///< IORING_REGISTER_SEND_MSG_RING (6.13): no ring needed to send
  bool multishot_poll = false;  ///< 5.13
};

/// Single-writer; readable by anyone.
struct UringStats {
  std::atomic<std::uint64_t> enters{0};  ///< io_uring_enter calls
  std::atomic<std::uint64_t> submitted{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::uint64_t> cq_overflows{
      0};  ///< times the kernel had to keep completions aside; none is lost
  std::atomic<std::uint64_t> busy_retries{0};   ///< -EBUSY, -EAGAIN and -EINTR that were retried
  std::atomic<std::uint64_t> short_submits{0};  ///< the kernel took fewer SQEs than offered
};

/// What ended UringBackend::wait().
enum class WaitEnd : std::uint8_t {
  completion,   ///< there is one, whatever else happened
  timeout,      ///< all of the time has passed
  interrupted,  ///< a signal, or the kernel refused to sleep: time is left, and nobody has woken this ring
};

class UringBackend final : public IoBackend {
 public:
  static Result<std::unique_ptr<UringBackend>> create(const UringOptions& options);
  /// In-flight operations must have completed.
  ~UringBackend() override;

  Result<IoToken> submit(const IoRequest& request, IoCompletion& completion) override;
  void cancel(IoToken token) override;
  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  [[nodiscard]] bool has_work() const override;
  [[nodiscard]] std::uint32_t in_flight() const override;

  /// What MSG_RING brings to this ring: `data` as the sender gave it (0 is a bare wakeup and is not
  /// reported).
  using MessageHandler = void (*)(void* context, std::uint64_t data);
  void on_message(MessageHandler handler, void* context);
  /// Sends `data` (below 2^56) to another ring, submitted at once. 0 wakes it and carries nothing.
  /// If the kernel refuses (-EOVERFLOW, -EBADFD, -ENOMEM, at once or later), `failed(context, data)` runs on
  /// this reactor's loop, so that the sender can retry or use its fallback; never silent. A wakeup that
  /// succeeds leaves no completion here; its (failed, context) pair is remembered for good, so it should be
  /// one a target and not one a wakeup. A message takes one of max_operations slots until its completion.
  /// Callable from the loop and from fibers: no handler runs inside.
  /// Errors:   EOPNOTSUPP without MSG_RING; EAGAIN all slots in use, send again after a completion
  using SendFailed = void (*)(void* context, std::uint64_t data);
  Status send_message(int target_ring_fd, std::uint64_t data, SendFailed failed, void* context);
  /// From a thread without a ring, where features().host_msg_ring says that the kernel can.
  /// Errors:   EOPNOTSUPP or EBADF where it cannot; EBADF and EBADFD if the target is gone; errno values
  static Status send_from_host(int target_ring_fd, std::uint64_t data);

  /// For the driver: submits what is staged and sleeps in io_uring_enter until a completion or `timeout`.
  WaitEnd wait(Duration timeout);

  [[nodiscard]] int fd() const;
  [[nodiscard]] const UringFeatures& features() const;
  /// One line for each missing feature.
  [[nodiscard]] const std::vector<std::string>& notices() const;
  [[nodiscard]] const UringStats& stats() const;

 private:
  struct State;
  explicit UringBackend(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidelock
