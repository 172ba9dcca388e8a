/// One end of an shm link. shm.cc holds the data path; shm_link.cc start, close, parking and the peer's
/// death.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tidelock/reactor/operation.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/link.h>

#include "shm_memory.h"
#include "shm_socket.h"

namespace tidelock {

/// First in, first out; grows to the largest number ever held and then allocates no more.
class PositionQueue {
 public:
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  void push(std::uint64_t position) {
    if (tail_ - head_ == slots_.size()) grow();
    slots_[tail_++ & (slots_.size() - 1)] = position;
  }
  std::uint64_t pop() { return slots_[head_++ & (slots_.size() - 1)]; }

 private:
  void grow();
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(64);
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

/// Everything that is read from shared memory is the peer's word and is checked once, against this end's own
/// copies (x_seen_); this end never reads its own words back.
class ShmRingLink final : public Link {
 public:
  ShmRingLink(NodeRole role, UniqueFd socket, ShmMemory memory, const FrameContext& context);
  ~ShmRingLink() override;

  Status start(Reactor& reactor) override;
  [[nodiscard]] std::uint32_t batch_bytes_max() const override { return batch_bytes_max_; }
  Status attach(Bytes log_memory) override;
  Status publish(const FrameHeader& header, std::span<const Bytes> ranges) override;
  [[nodiscard]] std::uint64_t batches_completed() const override { return sequence_out_; }
  [[nodiscard]] bool drained() const override { return closed_; }  // publish() has copied
  Result<Batch> receive() override;
  void release() override;
  Status send_control(const ControlFrame& frame) override;
  Result<ControlFrame> receive_control() override;
  [[nodiscard]] LinkState state() const override { return closed_ ? LinkState::closed : LinkState::ready; }
  [[nodiscard]] Instant last_heard() const override { return last_heard_; }
  void close(const std::string& reason) override;
  [[nodiscard]] std::string close_reason() const override { return close_reason_; }
  [[nodiscard]] const char* kind() const override { return "shm"; }
  [[nodiscard]] const LinkCounters& counters() const override { return counters_; }

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

 private:
  // shm.cc: the data path
  void look();
  Status check_peer_words(std::uint64_t produced, std::uint64_t consumed, std::uint64_t control_produced,
                          std::uint64_t control_consumed);
  bool room_for(std::uint64_t bytes);
  bool control_room();
  void write_control(const ControlFrame& frame);
  Result<Batch> read_batch();
  void wake_peer(bool frames);
  void heard();

  // shm_link.cc
  static void on_socket(void* context, std::uint32_t events);
  void drain_socket();
  void peer_gone(const char* reason);
  [[nodiscard]] bool all_read() const;
  Error nothing_left();
  Error closed_error();
  Error fail(Error error);
  void shut(const std::string& reason);

  NodeRole role_;
  ShmMemory memory_;
  FrameContext context_;
  std::uint32_t batch_bytes_max_;
  std::uint64_t ring_mask_;

  ShmSide& mine_;
  ShmSide& peers_;
  std::byte* lane_out_;
  const std::byte* lane_in_;

  // Primary: positions in the ring. written_ >= published_ >= consumed_seen_ >= written_ - ring_bytes.
  std::uint64_t written_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t consumed_seen_ = 0;
  std::uint64_t sequence_out_ = 0;

  // Replica: released_ <= read_ <= produced_seen_.
  std::uint64_t produced_seen_ = 0;
  std::uint64_t read_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t consumed_published_ = 0;
  std::uint64_t sequence_in_ = 0;
  PositionQueue unreleased_;  ///< where each batch that was received and not released ends

  // Control lanes, counted in frames.
  std::uint64_t control_written_ = 0;
  std::uint64_t control_published_ = 0;
  std::uint64_t control_consumed_seen_ = 0;
  std::uint64_t control_seen_ = 0;
  std::uint64_t control_read_ = 0;
  std::uint64_t control_consumed_published_ = 0;
  std::optional<ControlFrame> control_waiting_;  ///< the newest that found the lane full

  bool wants_room_ = false;  ///< a publish was refused since credit last came
  /// Credit came for a publisher that was refused. Whichever look() took it in, poll() or publish() tells.
  bool room_came_ = false;
  bool wake_owed_ = false;  ///< the kernel had no memory for a wakeup; the next flush repeats it
  bool gone_ = false;       ///< the peer is gone or has closed: what it left is read, then we close
  bool closed_ = false;
  bool close_reported_ = false;  ///< somebody above has seen that we closed
  Instant last_heard_{};
  LinkCounters counters_;

  Reactor* reactor_ = nullptr;
  UniqueFd socket_;
  FdWatch watch_;
  std::string gone_reason_;
  std::string close_reason_;
};

}  // namespace tidelock
