/// What ring.cc (life), ring_probe.cc (what the kernel gives) and ring_datapath.cc (every turn) share.
/// Private to reactor/.
/// Thread:   owner core
#pragma once

#include <cstdint>
#include <liburing.h>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/reactor/ring.h>

namespace tidelock {

/// IORING_REGISTER_SEND_MSG_RING of linux/io_uring.h (Linux 6.13); liburing 2.3 does not name it.
inline constexpr unsigned kRegisterSendMsgRing = 31;

/// The top eight bits of a CQE's user_data say whose it is. Nothing of ours is zero.
enum class CqeKind : std::uint8_t {
  operation = 1,  ///< generation (32 bits), slot (24 bits)
  cancel,         ///< the answer to a cancel request: of no interest
  message,        ///< another ring's MSG_RING: its 56 bits of data
  send,           ///< the outcome of a message that we sent: slot
  wakeup,         ///< a wakeup that we sent and that failed: index of the sender
  probe,
};

inline constexpr unsigned kKindShift = 56;
inline constexpr unsigned kGenerationShift = 24;
inline constexpr std::uint64_t kPayloadMask = (1ULL << kKindShift) - 1;
inline constexpr std::uint32_t kSlotLimit = 1U << kGenerationShift;

constexpr std::uint64_t make_user_data(CqeKind kind, std::uint64_t payload) {
  return (static_cast<std::uint64_t>(kind) << kKindShift) | payload;
}

/// Fills a MSG_RING entry. The target gets a CQE of kind `message` with `data`.
void prepare_message(io_uring_sqe& sqe, int target_ring_fd, std::uint64_t data);

/// Flags of the submission ring: what waits for an entry into the kernel.
inline constexpr unsigned kEntryWanted = IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW;

struct UringBackend::State {
  static constexpr std::uint32_t kNone = ~0U;
  /// Distinct senders of wakeups that are remembered; beyond that a wakeup takes a send slot.
  static constexpr std::size_t kWakeupSenders = 1024;

  struct Operation {
    IoCompletion* completion = nullptr;  ///< null: the slot is free
    std::uint32_t generation = 1;
    std::uint32_t next_free = kNone;
    bool cancel_wanted = false;  ///< no SQE was free for it yet
  };
  struct Send {
    SendFailed failed = nullptr;
    void* context = nullptr;
    std::uint64_t data = 0;
    std::uint32_t next_free = kNone;
  };
  struct Cqe {
    std::uint64_t user_data;
    std::int32_t result;
    std::uint32_t flags;
  };

  explicit State(const UringOptions& options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // ring_probe.cc
  Status open(const UringOptions& options);
  int set_up(std::uint32_t entries, unsigned flags);
  void probe_opcodes(bool allow_msg_ring);
  bool probe_host_message();

  // ring_datapath.cc
  Result<IoToken> submit(const IoRequest& request, IoCompletion& completion);
  void cancel(IoToken token);
  bool stage_cancel(std::uint32_t slot);
  void retry_cancels();
  std::uint32_t poll(std::uint32_t budget);
  void flush();
  WaitEnd wait(Duration timeout);
  Status send(int target_ring_fd, std::uint64_t data, SendFailed failed, void* context);

  io_uring_sqe* next_sqe();
  bool handle_refusal(int error, int attempt);
  void enter_for_events();
  unsigned read_flags_and_count();
  [[nodiscard]] bool kernel_wants_entry();
  void set_completions_aside();
  std::uint32_t drain_set_aside(std::uint32_t budget);
  std::uint32_t drain_ring(std::uint32_t budget);
  void dispatch(const Cqe& cqe);
  void complete_operation(const Cqe& cqe);
  void complete_send(const Cqe& cqe);
  std::uint32_t sender_index(SendFailed failed, void* context);
  [[nodiscard]] bool completions_ready() const {
    return set_aside_next < set_aside.size() || io_uring_cq_ready(&ring) != 0;
  }
  [[nodiscard]] unsigned sq_flags() const { return IO_URING_READ_ONCE(*ring.sq.kflags); }

  io_uring ring{};
  bool ring_open = false;
  bool in_overflow = false;
  std::uint32_t in_flight = 0;
  std::uint32_t sends_in_flight = 0;
  std::uint32_t free_operation = kNone;
  std::uint32_t free_send = kNone;
  std::uint32_t cancels_wanted = 0;
  std::vector<Operation> operations;
  std::vector<Send> sends;
  std::vector<Send> wakeup_senders;
  /// Completions taken out of a full CQ so that the kernel could go on; handled before those in the ring.
  std::vector<Cqe> set_aside;
  std::size_t set_aside_next = 0;
  MessageHandler message_handler = nullptr;
  void* message_context = nullptr;
  UringFeatures features;
  std::vector<std::string> notices;
  UringStats stats;
};

}  // namespace tidelock
