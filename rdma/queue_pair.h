/// One RC queue pair with all that its data path needs: credits, slots, rings, and the chain of work requests
/// that a turn stages. queue_pair.cc makes and moves it, queue_pair_datapath.cc sends and takes in. It knows
/// no connection state: its owner gates every call.
/// Thread:   create(), move_to(), destruction: the control thread. All else: owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>

#include "fixed_fifo.h"
#include "handles.h"
#include "memory.h"
#include "message.h"

namespace tidelock {

/// What a connection asks of its queue pair.
struct QueuePairShape {
  std::uint16_t data_slots = 64;     ///< batches in flight that the peer has not released
  std::uint16_t control_slots = 16;  ///< control and credit messages that it has not consumed
  std::uint32_t inline_bytes = 256;  ///< wanted; the device may have less
  std::uint32_t gather = 4;          ///< pieces of one batch, its header included

  /// hello, hello_ack or refuse, close, and the beacon.
  static constexpr std::uint32_t kOthers = 4;
  /// Of these, receives that a ready peer has no use for: it may still send a close, once, and nothing else.
  static constexpr std::uint32_t kSpareReceives = 2;
  [[nodiscard]] std::uint32_t depth() const { return data_slots + control_slots + kOthers; }
  /// Of the core's arena: receives, sent messages, batch headers.
  [[nodiscard]] std::size_t arena_bytes() const;
};

/// Bytes before a batch's payload that publish() takes.
inline constexpr std::size_t kBatchHeaderBytesMax = 128;
inline constexpr std::uint64_t kBatchAlignment = 64;

/// Kinds of wr_id; see README.md.
enum class WorkKind : std::uint8_t { receive = 1, send = 2, beacon = 3 };
struct WorkId {
  WorkKind kind = WorkKind::receive;
  std::uint16_t buffer = 0;  ///< below 4,096
  std::uint16_t slot = 0;
  std::uint32_t generation = 0;
  [[nodiscard]] std::uint64_t pack() const {
    return std::uint64_t{static_cast<std::uint8_t>(kind)} << 60 | std::uint64_t{buffer} << 48 |
           std::uint64_t{slot} << 32 | generation;
  }
  static WorkId unpack(std::uint64_t id) {
    return {static_cast<WorkKind>(id >> 60), static_cast<std::uint16_t>(id >> 48 & 0xfff),
            static_cast<std::uint16_t>(id >> 32), static_cast<std::uint32_t>(id)};
  }
};

class QueuePair {
 public:
  struct Place {
    ibv_pd* pd = nullptr;
    ibv_cq* cq = nullptr;
    MutableBytes arena;  ///< arena_bytes() of the core's, and its key
    std::uint32_t arena_lkey = 0;
    std::uint16_t slot = 0;
    std::uint32_t generation = 0;  ///< of the slot
  };

  // ---- set-up and teardown: queue_pair.cc -----------------------------------------------------------
  /// Errors:   memlock_too_low; device_too_small; errno values
  static Result<std::unique_ptr<QueuePair>> create(const Place& place, const QueuePairShape& shape);
  [[nodiscard]] std::uint32_t number() const { return qp_->qp_num; }
  Status move_to(ibv_qp_attr& attributes, int mask);
  /// No return value: it is the way out.
  void move_to_error();
  /// After draining: the queue pair, then its ring's registration. What has arrived stays readable.
  void destroy_queue_pair() { qp_.reset(); }
  void unregister_ring() { ring_mr_.reset(); }
  /// Receiver of batches: maps and registers its ring.
  Status make_ring(std::uint64_t ring_bytes);

  // ---- before READY: owner core ---------------------------------------------------------------------
  Status post_all_receives();
  /// Both sides: the generation of the link, and what the peer can take.
  void agree(Generation generation, std::uint16_t peer_data_slots, std::uint16_t peer_control_slots);
  [[nodiscard]] RingOffer offer() const;
  void accept_offer(const RingOffer& offer) { out_ = offer; }
  /// The log, registered with the same PD.
  void attach(Bytes memory, std::uint32_t lkey) {
    attached_ = memory;
    attached_lkey_ = lkey;
  }

  // ---- the data path: queue_pair_datapath.cc ----------------------------------------------------------
  [[nodiscard]] std::uint64_t batch_bytes_max() const;
  /// Errors:   too_large; no_credit
  Status publish(Bytes header, std::span<const Bytes> ranges);
  [[nodiscard]] std::uint64_t batches_completed() const { return batches_completed_; }
  /// The next whole batch, or nothing.
  std::optional<Bytes> receive();
  void release();
  /// False: no credit now.
  bool send_control(std::span<const std::byte, kControlBytes> frame);
  [[nodiscard]] bool control_credit() const;
  /// Readable until the next call.
  std::optional<std::span<const std::byte, kControlBytes>> receive_control();
  /// Greetings and close, which have receives of their own.
  Status stage(MessageKind kind, Bytes first, Bytes second = {});
  /// Rings the doorbells: the chain of sends, and receives (before it if more than a few are due).
  /// Errors:   post_failed
  Status flush();

  /// What one completion brought.
  struct Event {
    enum class Kind : std::uint8_t { nothing, batch, control, credit, greeting, close, beacon, flushed };
    Kind kind = Kind::nothing;
    bool room = false;                          ///< the peer returned credits
    MessageKind message = MessageKind::credit;  ///< of a greeting
    Bytes payload;  ///< of a greeting; readable until the next completion is taken in
  };
  /// Into an event of the caller's, still empty: a message passes here on its way, and copies add up.
  /// Errors:   completion_failed; protocol
  Status take(const ibv_wc& completion, Event& event);

  [[nodiscard]] bool batch_waiting() const { return !arrived_.empty(); }
  [[nodiscard]] bool control_waiting() const { return controls_read_ != controls_arrived_; }
  /// All that was sent has completed (as far as it was signalled).
  [[nodiscard]] bool sends_done() const { return signalled_.empty(); }

  // ---- after ERR ----------------------------------------------------------------------------------------
  Status post_beacon();
  [[nodiscard]] std::uint32_t receives_posted() const { return receives_posted_; }

  struct Traffic {
    std::uint64_t batches_out = 0, batches_in = 0;
    std::uint64_t messages_out = 0, messages_in = 0;
  };
  [[nodiscard]] Traffic traffic() const {
    return {batches_staged_, batches_arrived_, messages_staged_, messages_arrived_};
  }
  [[nodiscard]] std::uint32_t inline_bytes() const { return inline_bytes_; }
  [[nodiscard]] std::uint64_t sends_outstanding() const { return sends_staged_ - sends_completed_; }

 private:
  struct Signalled {
    std::uint64_t sends = 0;
    std::uint64_t batches = 0;
  };
  struct Arrived {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t end = 0;  ///< ring position after it
  };
  QueuePair(const Place& place, const QueuePairShape& shape);
  ibv_send_wr& next_request();
  [[nodiscard]] bool room_for_send() const { return sends_outstanding() < shape_.depth(); }
  /// Greetings, close and the beacon find their places in the send queue whatever else was sent.
  [[nodiscard]] bool room_above_reserve() const {
    return sends_outstanding() + QueuePairShape::kOthers < shape_.depth();
  }
  void finish_request(ibv_send_wr& request, std::uint64_t bytes, bool batch);
  void stage_message(MessageKind kind, Bytes first, Bytes second);
  Status post_sends();
  Status post_receives();
  void queue_receive(std::uint16_t buffer);
  Status take_receive(const ibv_wc& completion, WorkId id, Event& event);
  Status take_batch(const ibv_wc& completion);
  Status take_message(Bytes message, Event& event);
  Status take_credits(const MessageHeader& header, bool& room);
  [[nodiscard]] bool owes_credit() const;
  std::byte* control_at(std::uint64_t number) {
    return control_lane_.data() + (number & control_mask_) * kControlBytes;
  }

  Place place_;
  QueuePairShape shape_;
  std::unique_ptr<PageMemory> ring_;
  RdmaHandle<ibv_mr> ring_mr_;
  RdmaHandle<ibv_qp> qp_;  // destroyed before the ring's registration
  std::uint32_t inline_bytes_ = 0;
  Generation generation_{};
  std::uint16_t data_slots_ = 0;  ///< agreed: the lesser of both sides'
  std::uint16_t control_slots_ = 0;

  // The arena: receives, then sent messages, then batch headers.
  MutableBytes receive_buffers_;
  MutableBytes message_buffers_;
  MutableBytes header_buffers_;

  // Sends. staged_ is a chain that flush() posts; the counters count since the start.
  std::vector<ibv_send_wr> staged_;
  std::vector<ibv_sge> pieces_;
  std::uint32_t staged_count_ = 0;
  bool staged_batch_ = false;
  std::uint64_t sends_staged_ = 0;
  std::uint64_t sends_completed_ = 0;
  std::uint64_t unsignalled_ = 0;
  std::uint64_t messages_staged_ = 0;
  std::uint32_t message_buffer_ = 0;  ///< of the next one
  std::uint64_t messages_arrived_ = 0;
  std::uint32_t messages_in_chain_ = 0;  ///< that carry our credits
  FixedFifo<Signalled> signalled_;

  // Batches out.
  Bytes attached_;
  std::uint32_t attached_lkey_ = 0;
  RingOffer out_;
  std::uint64_t written_ = 0;  ///< ring position
  std::uint64_t freed_ = 0;    ///< ring position up to which the peer has released
  std::uint64_t batches_staged_ = 0;
  std::uint64_t batches_completed_ = 0;
  std::uint64_t batches_freed_ = 0;
  // Places of batches and of control frames are their numbers' low bits: as many as slots, rounded up to a
  // power of two.
  std::uint32_t batch_mask_;
  std::vector<std::uint64_t> batch_ends_;  ///< ring positions, by batch number

  // Batches in.
  std::uint64_t landed_ = 0;  ///< ring position after the last that arrived
  std::uint64_t batches_arrived_ = 0;
  std::uint64_t batches_received_ = 0;
  std::uint64_t batches_released_ = 0;
  std::uint64_t batches_released_told_ = 0;
  std::uint64_t released_ = 0;  ///< ring positions
  std::uint64_t released_told_ = 0;
  FixedFifo<Arrived> arrived_;
  FixedFifo<std::uint64_t> held_;  ///< where each batch that was received and not released ends

  // Control, both ways.
  std::uint64_t controls_sent_ = 0;
  std::uint64_t controls_returned_ = 0;  ///< of those
  std::uint64_t controls_consumed_ = 0;
  std::uint64_t controls_consumed_told_ = 0;
  std::uint64_t controls_arrived_ = 0;  ///< control messages for the owner, and how many it has read
  std::uint64_t controls_read_ = 0;
  std::uint32_t control_mask_;
  std::vector<std::byte> control_lane_;

  // Receives.
  std::uint32_t receives_posted_ = 0;
  std::vector<std::uint16_t> to_repost_;
  std::vector<ibv_recv_wr> receive_requests_;
  std::vector<ibv_sge> receive_pieces_;
};

}  // namespace tidelock
