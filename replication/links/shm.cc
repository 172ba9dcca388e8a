// The data path of the shm link: nothing here blocks, allocates in steady state or, while both sides are
// awake, enters the kernel.
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/fence.h>
#include <tidelock/replication/errc.h>

#include "shm_link.h"

namespace tidelock {
namespace {

/// `value` is a legal successor of `seen` if it went forward, and not beyond `limit`. Unsigned arithmetic
/// makes a step back a huge step forward.
bool advances(std::uint64_t value, std::uint64_t seen, std::uint64_t limit) {
  return value - seen <= limit - seen;
}

}  // namespace

Status ShmRingLink::attach(Bytes) { return {}; }  // the ring holds copies; nothing to register

// ---- the peer's words -----------------------------------------------------------------------------------

/// Takes in the peer's words, all from one cache line.
void ShmRingLink::look() {
  if (closed_ || gone_) return;
  // `closed` first: if it is set, the positions read after it are the last ones.
  const bool said_goodbye = peers_.closed.load(std::memory_order_acquire) != 0;
  const Status checked = check_peer_words(peers_.produced.load(std::memory_order_acquire),
                                          peers_.consumed.load(std::memory_order_acquire),
                                          peers_.control_produced.load(std::memory_order_acquire),
                                          peers_.control_consumed.load(std::memory_order_acquire));
  if (!checked) {
    shut(checked.error().message());
  } else if (said_goodbye) {
    gone_ = true;
    gone_reason_ = "closed by the peer";
  }
}

Status ShmRingLink::check_peer_words(std::uint64_t produced, std::uint64_t consumed,
                                     std::uint64_t control_produced, std::uint64_t control_consumed) {
  constexpr std::uint64_t kUnaligned = kShmBatchAlignment - 1;
  if (role_ == NodeRole::replica) {
    if ((produced & kUnaligned) != 0 ||
        !advances(produced, produced_seen_, consumed_published_ + memory_.ring_bytes())) {
      return Error(ReplicationErrc::malformed, "the peer claims to have produced what the ring cannot hold");
    }
    produced_seen_ = produced;
  } else if (consumed != consumed_seen_) {
    if ((consumed & kUnaligned) != 0 || !advances(consumed, consumed_seen_, published_)) {
      return Error(ReplicationErrc::malformed, "the peer claims to have consumed what was never produced");
    }
    consumed_seen_ = consumed;
    room_came_ = room_came_ || wants_room_;
    wants_room_ = false;
  }
  if (!advances(control_produced, control_seen_, control_consumed_published_ + memory_.control_slots()) ||
      !advances(control_consumed, control_consumed_seen_, control_published_)) {
    return Error(ReplicationErrc::malformed, "the peer's control lane counters contradict ours");
  }
  control_seen_ = control_produced;
  control_consumed_seen_ = control_consumed;
  return {};
}

void ShmRingLink::heard() {
  Reactor* reactor = reactor_ != nullptr ? reactor_ : Reactor::current();
  if (reactor != nullptr) last_heard_ = reactor->now();
}

// ---- batches out ----------------------------------------------------------------------------------------

bool ShmRingLink::room_for(std::uint64_t bytes) {
  if (written_ + bytes - consumed_seen_ <= memory_.ring_bytes()) return true;
  look();
  return !closed_ && !gone_ && written_ + bytes - consumed_seen_ <= memory_.ring_bytes();
}

Status ShmRingLink::publish(const FrameHeader& header, std::span<const Bytes> ranges) {
  TL_ASSERT(role_ == NodeRole::primary, "batches travel from the primary to the replica");
  if (closed_ || gone_) return closed_error();
  std::uint64_t payload_bytes = 0;
  for (const Bytes& range : ranges) payload_bytes += range.size();
  if (payload_bytes > batch_bytes_max_) {
    return Error(ReplicationErrc::too_large, "a batch of " + std::to_string(payload_bytes) +
                                                 " bytes, this link takes " +
                                                 std::to_string(batch_bytes_max_));
  }
  TL_ASSERT(payload_bytes % kEntryAlignment == 0, "a payload consists of whole, padded entries");

  const std::uint64_t batch_bytes = align_up(kFrameHeaderBytes + payload_bytes, kShmBatchAlignment);
  const std::uint64_t tail_bytes = memory_.ring_bytes() - (written_ & ring_mask_);
  const std::uint64_t skipped_bytes = batch_bytes > tail_bytes ? tail_bytes : 0;
  const bool room = room_for(skipped_bytes + batch_bytes);
  room_came_ = false;  // the publisher learns here what poll() would have told it
  if (!room) {
    if (closed_ || gone_) return closed_error();
    wants_room_ = true;
    bump(counters_.full);
    return ReplicationErrc::link_full;
  }

  if (skipped_bytes != 0) store(memory_.ring() + (written_ & ring_mask_), kShmTailMarker);
  std::byte* to = memory_.ring() + ((written_ + skipped_bytes) & ring_mask_);
  FrameHeader sent = header;
  sent.generation = context_.generation;
  sent.sequence = sequence_out_ + 1;
  sent.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  encode_frame_header(sent, std::span<std::byte, kFrameHeaderBytes>(to, kFrameHeaderBytes));
  to += kFrameHeaderBytes;
  for (const Bytes& range : ranges) {
    if (range.empty()) continue;
    std::memcpy(to, range.data(), range.size());
    to += range.size();
  }
  written_ += skipped_bytes + batch_bytes;
  ++sequence_out_;
  bump(counters_.batches_out);
  bump(counters_.bytes_out, payload_bytes);
  return {};
}

// ---- batches in -----------------------------------------------------------------------------------------

Result<Batch> ShmRingLink::receive() {
  if (closed_) return closed_error();
  if (read_ == produced_seen_) {
    look();
    if (closed_ || read_ == produced_seen_) return nothing_left();
  }
  auto batch = read_batch();
  if (!batch) return fail(batch.error());
  heard();
  return batch;
}

/// The next batch below produced_seen_. Every length is checked against what the peer may have written since
/// it is the peer's word; the header is read once.
Result<Batch> ShmRingLink::read_batch() {
  std::uint64_t available = produced_seen_ - read_;  // a multiple of 64, more than 0
  std::uint64_t offset = read_ & ring_mask_;
  std::uint64_t position = read_;
  if (load<std::uint64_t>(memory_.ring() + offset) == kShmTailMarker) {
    const std::uint64_t tail_bytes = memory_.ring_bytes() - offset;
    // Only a batch is larger than the tail that it skips, so a tail is shorter than the largest batch.
    if (tail_bytes >= memory_.ring_bytes() / 4 || tail_bytes >= available) {
      return Error(ReplicationErrc::bad_length, "the peer skips more of the ring than a batch can need");
    }
    available -= tail_bytes;
    position += tail_bytes;
    offset = 0;
  }
  if (available < kFrameHeaderBytes || memory_.ring_bytes() - offset < kFrameHeaderBytes) {
    return Error(ReplicationErrc::bad_length, "a batch without room for its header");
  }
  std::array<std::byte, kFrameHeaderBytes> copy;
  std::memcpy(copy.data(), memory_.ring() + offset, copy.size());
  TL_TRY(const FrameHeader header, decode_frame_header(copy, context_));
  if (header.sequence != sequence_in_ + 1) {
    return Error(ReplicationErrc::gap, "batch " + std::to_string(header.sequence) + " came where batch " +
                                           std::to_string(sequence_in_ + 1) + " was due");
  }
  if (header.payload_bytes > batch_bytes_max_ || header.payload_bytes % kEntryAlignment != 0) {
    return Error(ReplicationErrc::bad_length,
                 "a batch of " + std::to_string(header.payload_bytes) + " bytes");
  }
  const std::uint64_t batch_bytes =
      align_up(std::uint64_t{kFrameHeaderBytes} + header.payload_bytes, kShmBatchAlignment);
  if (batch_bytes > available || batch_bytes > memory_.ring_bytes() - offset) {
    return Error(ReplicationErrc::bad_length, "a batch that ends beyond what was produced");
  }
  ++sequence_in_;
  read_ = position + batch_bytes;
  unreleased_.push(read_);
  bump(counters_.batches_in);
  bump(counters_.bytes_in, header.payload_bytes);
  return Batch{header, Bytes(memory_.ring() + offset + kFrameHeaderBytes, header.payload_bytes)};
}

void ShmRingLink::release() {
  TL_ASSERT(!unreleased_.empty(), "release() without a received batch");
  released_ = unreleased_.pop();
}

// ---- control --------------------------------------------------------------------------------------------

bool ShmRingLink::control_room() {
  if (control_written_ - control_consumed_seen_ < memory_.control_slots()) return true;
  look();
  return !closed_ && control_written_ - control_consumed_seen_ < memory_.control_slots();
}

void ShmRingLink::write_control(const ControlFrame& frame) {
  ControlFrame sent = frame;
  sent.generation = context_.generation;
  sent.sequence = control_written_ + 1;
  std::byte* slot = lane_out_ + (control_written_ & (memory_.control_slots() - 1)) * kControlFrameBytes;
  encode_control(sent, std::span<std::byte, kControlFrameBytes>(slot, kControlFrameBytes));
  ++control_written_;
  bump(counters_.control_out);
}

Status ShmRingLink::send_control(const ControlFrame& frame) {
  if (closed_ || gone_) return closed_error();
  const bool room = control_room();
  if (closed_ || gone_) return closed_error();
  if (room) {
    // A frame that waits is older than this one, which therefore stands for both.
    control_waiting_.reset();
    write_control(frame);
  } else {
    control_waiting_ = frame;
  }
  return {};
}

Result<ControlFrame> ShmRingLink::receive_control() {
  if (closed_) return closed_error();
  if (control_read_ == control_seen_) {
    look();
    if (closed_ || control_read_ == control_seen_) return nothing_left();
  }
  std::array<std::byte, kControlFrameBytes> copy;
  std::memcpy(copy.data(), lane_in_ + (control_read_ & (memory_.control_slots() - 1)) * kControlFrameBytes,
              copy.size());
  auto frame = decode_control(copy, context_);
  if (!frame) return fail(frame.error());
  if (frame->sequence != control_read_ + 1) {
    return fail(Error(ReplicationErrc::gap, "control frame " + std::to_string(frame->sequence) +
                                                " came where frame " + std::to_string(control_read_ + 1) +
                                                " was due"));
  }
  ++control_read_;
  bump(counters_.control_in);
  heard();
  return frame;
}

// ---- once a turn ----------------------------------------------------------------------------------------

std::uint32_t ShmRingLink::poll(std::uint32_t) {
  if (closed_) return std::exchange(close_reported_, true) ? 0 : 1;
  if (last_heard_ == Instant{}) heard();
  look();
  if (gone_ && all_read()) shut(gone_reason_);
  if (closed_) return std::exchange(close_reported_, true) ? 0 : 1;
  return std::exchange(room_came_, false) ? 1 : 0;
}

/// Publishes all that this turn has written and released, then looks once whether the peer sleeps.
void ShmRingLink::flush() {
  if (closed_ || gone_) return;
  if (control_waiting_ && control_room()) {
    write_control(*control_waiting_);
    control_waiting_.reset();
  }
  if (closed_ || gone_) return;
  const bool frames = published_ != written_ || control_published_ != control_written_;
  const bool room = consumed_published_ != released_ || control_consumed_published_ != control_read_;
  if (!frames && !room && !wake_owed_) return;
  if (published_ != written_) {
    published_ = written_;
    mine_.produced.store(published_, std::memory_order_release);
  }
  if (control_published_ != control_written_) {
    control_published_ = control_written_;
    mine_.control_produced.store(control_published_, std::memory_order_release);
  }
  if (consumed_published_ != released_) {
    consumed_published_ = released_;
    mine_.consumed.store(consumed_published_, std::memory_order_release);
  }
  if (control_consumed_published_ != control_read_) {
    control_consumed_published_ = control_read_;
    mine_.control_consumed.store(control_consumed_published_, std::memory_order_release);
  }
  wake_peer(frames);
}

/// `frames`: there is something to receive, not only credit.
void ShmRingLink::wake_peer(bool frames) {
  if (!wake_owed_) {
    // Pairs with the fence that the peer's reactor issues between arm() and has_work(): either the peer sees
    // what flush() stored, or we see its flag.
    full_fence();
    const std::uint32_t parked = peers_.parked.load(std::memory_order_relaxed);
    if (parked == kShmAwake || (parked == kShmParked && !frames)) return;
    if (peers_.parked.exchange(kShmAwake, std::memory_order_acq_rel) == kShmAwake) return;
  }
  wake_owed_ = false;
  bump(counters_.peer_wakeups);
  constexpr std::byte kWake{1};
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.get(), &kWake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  // EAGAIN: the socket is full of wakeups that the peer has not read yet, and any of them wakes it.
  if (sent >= 0 || errno == EAGAIN) return;
  if (errno == ENOBUFS || errno == ENOMEM) {
    wake_owed_ = true;
  } else {
    peer_gone("peer process ended");
  }
}

bool ShmRingLink::has_work() const {
  if (closed_) return !close_reported_;
  if (gone_ || wake_owed_ || room_came_ || read_ != produced_seen_ || control_read_ != control_seen_)
    return true;
  const auto relaxed = std::memory_order_relaxed;
  if (peers_.control_produced.load(relaxed) != control_seen_ || peers_.closed.load(relaxed) != 0) return true;
  if (role_ == NodeRole::replica) {
    if (peers_.produced.load(relaxed) != produced_seen_) return true;
  } else if (wants_room_ && peers_.consumed.load(relaxed) != consumed_seen_) {
    return true;
  }
  return control_waiting_ && peers_.control_consumed.load(relaxed) != control_consumed_seen_;
}

void ShmRingLink::arm() {
  const bool room = wants_room_ || control_waiting_.has_value();
  // Relaxed: the reactor issues the full fence after all sources are armed, and asks has_work() after it.
  mine_.parked.store(room ? kShmParkedForRoom : kShmParked, std::memory_order_relaxed);
}

void ShmRingLink::disarm() { mine_.parked.store(kShmAwake, std::memory_order_relaxed); }

}  // namespace tidelock
