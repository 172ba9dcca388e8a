// A queue pair's set-up and end. The data path is in queue_pair_datapath.cc.
#include "queue_pair.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>
#include <utility>

#include <tidelock/rdma/errc.h>

namespace tidelock {
namespace {

/// What devices are asked for in turn, until one takes it.
std::uint32_t less_inline(std::uint32_t bytes) { return bytes > 64 ? bytes / 2 : 0; }

}  // namespace

std::size_t QueuePairShape::arena_bytes() const {
  return depth() * kReceiveBytes * 2 + std::bit_ceil(data_slots) * kBatchHeaderBytesMax;
}

Result<std::unique_ptr<QueuePair>> QueuePair::create(const Place& place, const QueuePairShape& shape) {
  TL_ASSERT(place.arena.size() >= shape.arena_bytes(), "the arena has a share for each connection");
  std::unique_ptr<QueuePair> pair(new QueuePair(place, shape));
  ibv_qp_init_attr wanted{};
  wanted.qp_context = reinterpret_cast<void*>(std::uintptr_t{place.slot} << 32 | place.generation);
  wanted.send_cq = place.cq;
  wanted.recv_cq = place.cq;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = shape.depth();
  wanted.cap.max_recv_wr = shape.depth();
  wanted.cap.max_send_sge = shape.gather;
  wanted.cap.max_recv_sge = 1;
  // The cap that a device has for inline data is not among its attributes: asking is the only way to know.
  // Some providers refuse without an errno (bnxt_re, older irdma), so any refusal leads to the next lower
  // one.
  int refusal = 0;
  for (std::uint32_t inline_bytes = shape.inline_bytes;; inline_bytes = less_inline(inline_bytes)) {
    wanted.cap.max_inline_data = inline_bytes;
    ibv_qp_init_attr given = wanted;
    errno = 0;
    pair->qp_.reset(::ibv_create_qp(place.pd, &given));
    refusal = pair->qp_ ? 0 : (errno != 0 ? errno : EINVAL);
    if (pair->qp_) pair->inline_bytes_ = inline_bytes;
    if (pair->qp_ || inline_bytes == 0) break;
  }
  if (refusal == EINVAL) {
    return Error(RdmaErrc::device_too_small, "the device has no queue pair of " +
                                                 std::to_string(shape.depth()) + " requests with " +
                                                 std::to_string(shape.gather) + " pieces each");
  }
  if (refusal != 0) return verbs_error(refusal, "cannot make a queue pair");
  return pair;
}

QueuePair::QueuePair(const Place& place, const QueuePairShape& shape)
    : place_(place),
      shape_(shape),
      receive_buffers_(place.arena.first(shape.depth() * kReceiveBytes)),
      message_buffers_(place.arena.subspan(shape.depth() * kReceiveBytes, shape.depth() * kReceiveBytes)),
      header_buffers_(place.arena.subspan(shape.depth() * kReceiveBytes * 2)),
      staged_(shape.depth()),
      pieces_(std::size_t{shape.depth()} * shape.gather),
      signalled_(shape.depth()),
      batch_mask_(std::bit_ceil(shape.data_slots) - 1U),
      batch_ends_(batch_mask_ + 1),
      arrived_(shape.data_slots),
      held_(shape.data_slots),
      control_mask_(std::bit_ceil(shape.control_slots) - 1U),
      control_lane_((control_mask_ + 1) * kControlBytes),
      receive_requests_(shape.depth()),
      receive_pieces_(shape.depth()) {
  to_repost_.reserve(shape.depth());
  for (std::size_t i = 0; i < staged_.size(); ++i) {
    staged_[i].wr_id = WorkId{WorkKind::send, 0, place.slot, place.generation}.pack();
    staged_[i].sg_list = &pieces_[i * shape.gather];
  }
}

Status QueuePair::move_to(ibv_qp_attr& attributes, int mask) {
  // modify_qp is synchronous: 0 means that the queue pair is there.
  const int failed = ::ibv_modify_qp(qp_.get(), &attributes, mask);
  if (failed == 0) return {};
  return verbs_error(failed < 0 ? -failed : failed,
                     "cannot move the queue pair to state " + std::to_string(attributes.qp_state));
}

void QueuePair::move_to_error() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  // It cannot go anywhere else from here; if the device is gone, the deadline of draining ends it.
  static_cast<void>(::ibv_modify_qp(qp_.get(), &attributes, IBV_QP_STATE));
}

Status QueuePair::make_ring(std::uint64_t ring_bytes) {
  TL_TRY(ring_, PageMemory::map(ring_bytes));
  TL_TRY(ring_mr_,
         register_memory(place_.pd, ring_->bytes(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  return {};
}

RingOffer QueuePair::offer() const {
  return {reinterpret_cast<std::uint64_t>(ring_->bytes().data()), ring_->bytes().size(), ring_mr_->rkey};
}

void QueuePair::agree(Generation generation, std::uint16_t peer_data_slots,
                      std::uint16_t peer_control_slots) {
  generation_ = generation;
  data_slots_ = std::min(peer_data_slots, shape_.data_slots);
  control_slots_ = std::min(peer_control_slots, shape_.control_slots);
}

Status QueuePair::post_all_receives() {
  for (std::uint32_t i = 0; i < shape_.depth(); ++i) queue_receive(static_cast<std::uint16_t>(i));
  return post_receives();
}

Status QueuePair::post_beacon() {
  ibv_send_wr request{};
  ibv_sge piece{reinterpret_cast<std::uint64_t>(message_buffers_.data()), kMessageHeaderBytes,
                place_.arena_lkey};
  request.wr_id = WorkId{WorkKind::beacon, 0, place_.slot, place_.generation}.pack();
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(qp_.get(), &request, &bad);
  if (failed == 0) return {};
  return Error(RdmaErrc::post_failed, "the beacon was refused: " + std::to_string(failed));
}

}  // namespace tidelock
