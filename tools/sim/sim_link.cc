#include "sim_link.h"

#include <algorithm>
#include <array>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/errc.h>

namespace tidelock::sim {

SimLink::~SimLink() {
  close("the link was destroyed");
  wire_->detach(side_);
}

Status SimLink::start(Reactor& reactor) {
  reactor_ = &reactor;
  heard_ = reactor.now();
  return {};
}

Status SimLink::attach(Bytes log_memory) {
  log_ = log_memory;
  return {};
}

void SimLink::heard() {
  if (reactor_ != nullptr) heard_ = reactor_->now();
}

// ---- batches --------------------------------------------------------------------------------------------

Status SimLink::publish(const FrameHeader& header, std::span<const Bytes> ranges) {
  TL_ASSERT(side_ == Side::primary, "batches travel from the primary to the replica");
  if (closed_ || wire_->end(side_).gone) return closed_error();
  std::uint64_t payload_bytes = 0;
  for (const Bytes& range : ranges) {
    TL_ASSERT(range.empty() ||
                  (range.data() >= log_.data() && range.data() + range.size() <= log_.data() + log_.size()),
              "ranges lie in the attached memory");
    payload_bytes += range.size();
  }
  if (payload_bytes > batch_bytes_max()) {
    return Error(ReplicationErrc::too_large, std::to_string(payload_bytes) + " bytes, this link takes " +
                                                 std::to_string(batch_bytes_max()));
  }
  if (mute()) {
    ++completed_seen_;  // it goes nowhere, and nothing reads it
    return {};
  }
  if (!wire_->has_room(kFrameHeaderBytes + payload_bytes)) {
    wants_bytes_ = kFrameHeaderBytes + payload_bytes;
    bump(counters_.full);
    wire_->out_of_room();
    return ReplicationErrc::link_full;
  }
  wants_bytes_ = 0;
  wire_->check_answered();
  wire_->note_commit(header.commit_lsn);
  wire_->add(header, ranges, payload_bytes);
  bump(counters_.batches_out);
  bump(counters_.bytes_out, payload_bytes);
  return {};
}

bool SimLink::drained() const {
  return closed_ && (side_ == Side::replica || mute() || wire_->log_released_);
}

Result<Batch> SimLink::receive() {
  if (closed_) return closed_error();
  if (mute()) return ReplicationErrc::link_empty;
  if (wire_->received_ == wire_->arrived_) return nothing_left();
  const Wire::Parcel& parcel = wire_->parcel(wire_->received_ + 1);
  if (parcel.early) wire_->counts_.hit(FaultKind::notify_before_data);
  const std::byte* const at = wire_->ring_.data() + parcel.position;
  std::array<std::byte, kFrameHeaderBytes> copy{};
  std::copy_n(at, copy.size(), copy.begin());
  const auto header = decode_frame_header(copy, wire_->context_);
  if (!header) return refuse(header.error(), parcel.corrupted);
  if (header->sequence != wire_->received_ + 1) {
    return refuse(Error(ReplicationErrc::gap, "batch " + std::to_string(header->sequence)), parcel.corrupted);
  }
  // The length that came with the completion is the truth.
  if (header->payload_bytes != parcel.payload_bytes)
    return refuse(Error(ReplicationErrc::bad_length), parcel.corrupted);
  ++wire_->received_;
  heard();
  bump(counters_.batches_in);
  bump(counters_.bytes_in, parcel.payload_bytes);
  return Batch{*header, Bytes(at + kFrameHeaderBytes, parcel.payload_bytes)};
}

Error SimLink::refuse(Error error, bool corrupted) {
  wire_->refused(corrupted);
  shut(error.message());
  return error;
}

void SimLink::release() {
  TL_ASSERT(wire_->released_ < wire_->received_, "release() without a received batch");
  wire_->note_released(wire_->parcel(++wire_->released_));
}

// ---- control --------------------------------------------------------------------------------------------

/// The newest frame supersedes one that has not left yet.
Status SimLink::send_control(const ControlFrame& frame) {
  if (closed_ || wire_->end(side_).gone) return closed_error();
  if (mute()) return {};
  if (side_ == Side::primary) {
    wire_->check_answered();
    wire_->note_commit(frame.commit_lsn);
  }
  wire_->end(other(side_)).lane.staged = frame;
  return {};
}

Result<ControlFrame> SimLink::receive_control() {
  if (closed_) return closed_error();
  if (mute()) return ReplicationErrc::link_empty;
  Wire::Lane& lane = wire_->end(side_).lane;
  if (lane.arrived.empty()) return nothing_left();
  const Wire::Letter letter = lane.arrived.front();
  lane.arrived.pop_front();
  ++lane.consumed;
  const auto frame = decode_control(letter.bytes, wire_->context_);
  if (!frame) return refuse(frame.error(), letter.corrupted);
  if (frame->sequence <= control_sequence_in_)
    return refuse(Error(ReplicationErrc::gap, "a control frame that is not newer"), letter.corrupted);
  control_sequence_in_ = frame->sequence;
  heard();
  bump(counters_.control_in);
  return *frame;
}

// ---- life -----------------------------------------------------------------------------------------------

bool SimLink::all_read() const {
  const bool batches = side_ == Side::primary || wire_->received_ == wire_->arrived_;
  return batches && wire_->end(side_).lane.arrived.empty();
}

Error SimLink::closed_error() {
  if (closed_) reported_ = true;
  return Error(ReplicationErrc::link_closed, closed_ ? reason_ : wire_->end(side_).gone_reason);
}

/// What had arrived before the peer went is still given; then this end is closed, too.
Error SimLink::nothing_left() {
  if (!closed_ && wire_->end(side_).gone && all_read()) shut(wire_->end(side_).gone_reason);
  return closed_ ? closed_error() : Error(ReplicationErrc::link_empty);
}

void SimLink::close(const std::string& reason) {
  if (closed_) return;
  // The owner has received something that it does not like.
  for (std::uint64_t held = wire_->released_ + 1; side_ == Side::replica && held <= wire_->received_;
       ++held) {
    wire_->refused(wire_->parcel(held).corrupted);
  }
  shut(reason.empty() ? "closed" : reason);
  reported_ = true;
}

/// Idempotent: the first reason stays.
void SimLink::shut(const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  reason_ = reason;
  if (!mute()) wire_->close(side_);
}

std::uint32_t SimLink::poll(std::uint32_t) {
  std::uint32_t done = 0;
  if (!mute() && side_ == Side::primary && completed_seen_ != wire_->completed_) {
    done += static_cast<std::uint32_t>(wire_->completed_ - completed_seen_);
    completed_seen_ = wire_->completed_;
  }
  if (wants_bytes_ != 0 && wire_->has_room(wants_bytes_)) {
    wants_bytes_ = 0;
    ++done;
  }
  if (!closed_ && wire_->end(side_).gone && all_read()) {
    shut(wire_->end(side_).gone_reason);
    reported_ = true;
    ++done;
  }
  return done;
}

void SimLink::flush() {
  if (mute()) return;
  if (!closed_ && side_ == Side::primary) wire_->ring_doorbell();
  if (!closed_) wire_->send_staged_control(side_);
  wire_->tell_credits(side_);
}

bool SimLink::has_work() const {
  if (mute()) return false;
  if (closed_) return !reported_;
  const Wire::End& end = wire_->ends_[index_of(side_)];
  if (end.gone || !end.lane.arrived.empty()) return true;
  if (side_ == Side::replica) return wire_->received_ != wire_->arrived_;
  return completed_seen_ != wire_->completed_ || (wants_bytes_ != 0 && wire_->has_room(wants_bytes_));
}

}  // namespace tidelock::sim
