// What a queue pair does all day: stage, post, take completions in. Nothing here blocks or allocates; the
// only calls that leave are ibv_post_recv and ibv_post_send, once a flush.
#include <algorithm>
#include <cstring>
#include <string>

#include <tidelock/base/check.h>
#include <tidelock/rdma/errc.h>

#include "queue_pair.h"
#include "wc_error.h"

namespace tidelock {
namespace {

Error protocol(const char* what) { return Error(RdmaErrc::protocol, what); }

ibv_sge piece_of(Bytes bytes, std::uint32_t lkey) {
  return {reinterpret_cast<std::uint64_t>(bytes.data()), static_cast<std::uint32_t>(bytes.size()), lkey};
}

/// Where a batch of `bytes` goes if the ring stands at `position`: the bytes of the ring that are skipped.
std::uint64_t skipped(std::uint64_t position, std::uint64_t bytes, std::uint64_t ring_bytes) {
  const std::uint64_t tail_bytes = ring_bytes - (position & (ring_bytes - 1));
  return align_up(bytes, kBatchAlignment) > tail_bytes ? tail_bytes : 0;
}

}  // namespace

// ---- the chain ------------------------------------------------------------------------------------------

/// The next entry of the chain. Number and pieces are where they always are; opcode and what it needs are the
/// caller's.
ibv_send_wr& QueuePair::next_request() {
  TL_ASSERT(room_for_send(), "staged beyond the send queue");
  ibv_send_wr& request = staged_[staged_count_];
  request.send_flags = 0;
  return request;
}

void QueuePair::finish_request(ibv_send_wr& request, std::uint64_t bytes, bool batch) {
  if (bytes <= inline_bytes_) request.send_flags |= IBV_SEND_INLINE;
  if (staged_count_ > 0) staged_[staged_count_ - 1].next = &request;
  ++staged_count_;
  ++sends_staged_;
  ++unsignalled_;
  staged_batch_ = staged_batch_ || batch;
  if (unsignalled_ >= shape_.depth() / 4) {
    request.send_flags |= IBV_SEND_SIGNALED;
    signalled_.push({sends_staged_, batches_staged_});
    unsignalled_ = 0;
  }
}

Status QueuePair::flush() {
  // Each credit that leaves stands for a posted receive. A few are spare, so that few need not be posted
  // before an answer leaves.
  if (to_repost_.size() > QueuePairShape::kSpareReceives) TL_TRY(post_receives());
  if (messages_in_chain_ == 0 && owes_credit() && room_above_reserve() &&
      controls_sent_ - controls_returned_ < control_slots_) {
    stage_message(MessageKind::credit, {}, {});
    ++controls_sent_;
  }
  if (staged_count_ > 0) TL_TRY(post_sends());
  return to_repost_.empty() ? Status() : post_receives();
}

Status QueuePair::post_sends() {
  ibv_send_wr& last = staged_[staged_count_ - 1];
  last.next = nullptr;
  // Log bytes wait for a completion, and none may come after this one for long.
  if (staged_batch_ && unsignalled_ > 0) {
    last.send_flags |= IBV_SEND_SIGNALED;
    signalled_.push({sends_staged_, batches_staged_});
    unsignalled_ = 0;
  }
  ibv_send_wr* bad = nullptr;
  const int failed = ::ibv_post_send(qp_.get(), staged_.data(), &bad);
  const std::uint32_t posted = staged_count_;
  staged_count_ = 0;
  staged_batch_ = false;
  messages_in_chain_ = 0;
  if (failed == 0) return {};
  return Error(RdmaErrc::post_failed,
               "ibv_post_send of " + std::to_string(posted) + " requests returned " + std::to_string(failed));
}

// ---- batches out ----------------------------------------------------------------------------------------

std::uint64_t QueuePair::batch_bytes_max() const {
  return (ring_ ? ring_->bytes().size() : out_.ring_bytes) / 4;
}

Status QueuePair::publish(Bytes header, std::span<const Bytes> ranges) {
  std::uint64_t bytes = header.size();
  std::uint32_t pieces = 1;
  for (const Bytes& range : ranges) {
    bytes += range.size();
    pieces += range.empty() ? 0 : 1;
  }
  if (bytes > batch_bytes_max() || pieces > shape_.gather || header.size() > kBatchHeaderBytesMax) {
    return Error(RdmaErrc::too_large, "a batch of " + std::to_string(bytes) + " bytes in " +
                                          std::to_string(pieces) + " pieces; it can have " +
                                          std::to_string(batch_bytes_max()) + " bytes in " +
                                          std::to_string(shape_.gather));
  }
  const std::uint64_t skip = skipped(written_, bytes, out_.ring_bytes);
  const std::uint64_t end = written_ + skip + align_up(bytes, kBatchAlignment);
  // The header's slot is free once the batch that had it before has completed here, the ring's place once the
  // peer has released it; either can come first.
  if (end - freed_ > out_.ring_bytes || batches_staged_ - batches_freed_ >= data_slots_ ||
      batches_staged_ - batches_completed_ >= shape_.data_slots || !room_above_reserve()) {
    return RdmaErrc::no_credit;
  }
  const std::size_t slot = batches_staged_ & batch_mask_;
  std::byte* kept = header_buffers_.data() + slot * kBatchHeaderBytesMax;
  std::memcpy(kept, header.data(), header.size());

  ibv_send_wr& request = next_request();
  request.sg_list[0] = piece_of({kept, header.size()}, place_.arena_lkey);
  int used = 1;
  for (const Bytes& range : ranges) {
    if (range.empty()) continue;
    TL_ASSERT(range.data() >= attached_.data() &&
                  range.data() + range.size() <= attached_.data() + attached_.size(),
              "a batch is gathered from the attached memory");
    request.sg_list[used++] = piece_of(range, attached_lkey_);
  }
  request.num_sge = used;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  ++batches_staged_;
  request.imm_data = htobe32(static_cast<std::uint32_t>(batches_staged_));
  request.wr.rdma.remote_addr = out_.address + ((written_ + skip) & (out_.ring_bytes - 1));
  request.wr.rdma.rkey = out_.rkey;
  finish_request(request, bytes, true);
  written_ = end;
  batch_ends_[slot] = end;
  return {};
}

// ---- batches in -----------------------------------------------------------------------------------------

std::optional<Bytes> QueuePair::receive() {
  if (arrived_.empty()) return std::nullopt;
  const Arrived batch = arrived_.pop();
  held_.push(batch.end);
  ++batches_received_;
  return Bytes(ring_->bytes()).subspan(batch.offset, batch.bytes);
}

void QueuePair::release() {
  released_ = held_.pop();
  ++batches_released_;
}

bool QueuePair::owes_credit() const {
  const std::uint64_t ring_bytes = ring_ ? ring_->bytes().size() : 0;
  return (ring_bytes != 0 && released_ - released_told_ >= ring_bytes / 4) ||
         batches_released_ - batches_released_told_ >= data_slots_ / 4 ||
         controls_consumed_ - controls_consumed_told_ >= control_slots_ / 2;
}

// ---- messages out ---------------------------------------------------------------------------------------

void QueuePair::stage_message(MessageKind kind, Bytes first, Bytes second) {
  MessageHeader header;
  header.kind = kind;
  header.payload_bytes = static_cast<std::uint16_t>(first.size() + second.size());
  header.generation = generation_;
  header.batches_released = batches_released_;
  header.controls_consumed = controls_consumed_;
  std::byte* buffer = message_buffers_.data() + message_buffer_ * kReceiveBytes;
  if (++message_buffer_ == shape_.depth()) message_buffer_ = 0;
  ++messages_staged_;
  encode_message(header, std::span<std::byte, kMessageHeaderBytes>(buffer, kMessageHeaderBytes));
  if (!first.empty()) std::memcpy(buffer + kMessageHeaderBytes, first.data(), first.size());
  if (!second.empty()) {
    std::memcpy(buffer + kMessageHeaderBytes + first.size(), second.data(), second.size());
  }
  const std::size_t bytes = kMessageHeaderBytes + header.payload_bytes;
  ibv_send_wr& request = next_request();
  request.sg_list[0] = piece_of({buffer, bytes}, place_.arena_lkey);
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  finish_request(request, bytes, false);
  ++messages_in_chain_;
  batches_released_told_ = batches_released_;
  released_told_ = released_;
  controls_consumed_told_ = controls_consumed_;
}

Status QueuePair::stage(MessageKind kind, Bytes first, Bytes second) {
  if (!room_for_send()) return RdmaErrc::no_credit;
  stage_message(kind, first, second);
  if (unsignalled_ > 0) {  // whoever closes waits for it
    staged_[staged_count_ - 1].send_flags |= IBV_SEND_SIGNALED;
    signalled_.push({sends_staged_, batches_staged_});
    unsignalled_ = 0;
  }
  return {};
}

bool QueuePair::control_credit() const {
  // The last one may only return credit, and close() finds its place in the send queue.
  return controls_sent_ - controls_returned_ + 1 < control_slots_ && room_above_reserve();
}

bool QueuePair::send_control(std::span<const std::byte, kControlBytes> frame) {
  if (!control_credit()) return false;
  stage_message(MessageKind::control, frame, {});
  ++controls_sent_;
  return true;
}

// ---- messages in ----------------------------------------------------------------------------------------

std::optional<std::span<const std::byte, kControlBytes>> QueuePair::receive_control() {
  if (controls_read_ == controls_arrived_) return std::nullopt;
  const std::byte* at = control_at(controls_read_++);
  ++controls_consumed_;
  return std::span<const std::byte, kControlBytes>(at, kControlBytes);
}

void QueuePair::queue_receive(std::uint16_t buffer) { to_repost_.push_back(buffer); }

Status QueuePair::post_receives() {
  const std::size_t count = to_repost_.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t buffer = to_repost_[i];
    receive_pieces_[i] =
        piece_of(receive_buffers_.subspan(buffer * kReceiveBytes, kReceiveBytes), place_.arena_lkey);
    receive_requests_[i] = {};
    receive_requests_[i].wr_id = WorkId{WorkKind::receive, buffer, place_.slot, place_.generation}.pack();
    receive_requests_[i].sg_list = &receive_pieces_[i];
    receive_requests_[i].num_sge = 1;
    receive_requests_[i].next = i + 1 < count ? &receive_requests_[i + 1] : nullptr;
  }
  to_repost_.clear();
  ibv_recv_wr* bad = nullptr;
  const int failed = ::ibv_post_recv(qp_.get(), receive_requests_.data(), &bad);
  if (failed != 0) {
    // Those before the bad one were taken, and come back flushed.
    if (bad != nullptr) receives_posted_ += static_cast<std::uint32_t>(bad - receive_requests_.data());
    return Error(RdmaErrc::post_failed, "ibv_post_recv of " + std::to_string(count) + " requests returned " +
                                            std::to_string(failed));
  }
  receives_posted_ += static_cast<std::uint32_t>(count);
  return {};
}

Status QueuePair::take(const ibv_wc& completion, Event& event) {
  const WorkId id = WorkId::unpack(completion.wr_id);
  if (id.kind == WorkKind::receive && receives_posted_ > 0) --receives_posted_;
  if (id.kind == WorkKind::beacon) {
    event.kind = Event::Kind::beacon;
    return {};
  }
  if (completion.status != IBV_WC_SUCCESS) {
    if (completion.status == IBV_WC_WR_FLUSH_ERR) {
      event.kind = Event::Kind::flushed;
      return {};
    }
    return Error(RdmaErrc::completion_failed, describe_wc_status(completion.status, completion.vendor_err));
  }
  if (id.kind == WorkKind::receive) return take_receive(completion, id, event);
  // Sends complete in order: the oldest signalled one, and all before it.
  if (signalled_.empty()) return protocol("the device completed a request that was not signalled");
  const Signalled done = signalled_.pop();
  sends_completed_ = done.sends;
  batches_completed_ = done.batches;
  return {};
}

Status QueuePair::take_receive(const ibv_wc& completion, WorkId id, Event& event) {
  if (id.buffer >= shape_.depth()) return protocol("a completion names a buffer that does not exist");
  queue_receive(id.buffer);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    event.kind = Event::Kind::batch;
    return take_batch(completion);
  }
  if (completion.opcode != IBV_WC_RECV) return protocol("the peer used an operation that is not in use here");
  if (completion.byte_len > kReceiveBytes) return protocol("a message longer than its receive");
  return take_message(receive_buffers_.subspan(id.buffer * kReceiveBytes, completion.byte_len), event);
}

/// The completion is the only word that a batch is there. Where it lies follows from its size; the immediate
/// must be the next sequence.
Status QueuePair::take_batch(const ibv_wc& completion) {
  if (ring_ == nullptr) return protocol("the peer wrote with immediate, but has no ring here");
  const std::uint64_t ring_bytes = ring_->bytes().size();
  const std::uint64_t bytes = completion.byte_len;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0 ||
      be32toh(completion.imm_data) != static_cast<std::uint32_t>(batches_arrived_ + 1)) {
    return protocol("an immediate that is not the next sequence");
  }
  if (bytes == 0 || bytes > ring_bytes / 4) return protocol("a batch of a size that no batch can have");
  if (batches_arrived_ - batches_released_told_ >= shape_.data_slots) {
    return protocol("more batches than the peer had credit for");
  }
  const std::uint64_t skip = skipped(landed_, bytes, ring_bytes);
  const std::uint64_t start = landed_ + skip;
  const std::uint64_t end = start + align_up(bytes, kBatchAlignment);
  if (end - released_told_ > ring_bytes) return protocol("a batch over one that was not released");
  landed_ = end;
  ++batches_arrived_;
  arrived_.push({start & (ring_bytes - 1), bytes, end});
  return {};
}

Status QueuePair::take_message(Bytes message, Event& event) {
  TL_TRY(const MessageHeader header, decode_message(message, generation_));
  TL_TRY(take_credits(header, event.room));
  ++messages_arrived_;
  const Bytes payload = message.subspan(kMessageHeaderBytes);
  switch (header.kind) {
    case MessageKind::hello:
    case MessageKind::hello_ack:
    case MessageKind::refuse:
      event.kind = Event::Kind::greeting;
      event.message = header.kind;
      event.payload = payload;
      break;
    case MessageKind::control:
      if (controls_arrived_ - controls_read_ >= shape_.control_slots) {
        return protocol("more control frames than the peer had credit for");
      }
      std::memcpy(control_at(controls_arrived_++), payload.data(), kControlBytes);
      event.kind = Event::Kind::control;
      break;
    case MessageKind::credit:
      ++controls_consumed_;
      event.kind = Event::Kind::credit;
      break;
    case MessageKind::close:
      event.kind = Event::Kind::close;
      break;
  }
  return {};
}

/// The peer's counters may only go forward, and not beyond what it was sent.
Status QueuePair::take_credits(const MessageHeader& header, bool& room) {
  if (header.batches_released - batches_freed_ > batches_staged_ - batches_freed_) {
    return protocol("the peer released batches that it was not sent");
  }
  if (header.controls_consumed - controls_returned_ > controls_sent_ - controls_returned_) {
    return protocol("the peer consumed control frames that it was not sent");
  }
  room = header.batches_released != batches_freed_ || header.controls_consumed != controls_returned_;
  if (header.batches_released != batches_freed_) {
    batches_freed_ = header.batches_released;
    freed_ = batch_ends_[(batches_freed_ - 1) & batch_mask_];
  }
  controls_returned_ = header.controls_consumed;
  return {};
}

}  // namespace tidelock
