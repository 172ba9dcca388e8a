#include "verbs_link.h"

#include <array>
#include <cstring>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/rdma/errc.h>
#include <tidelock/replication/errc.h>

namespace tidelock {

VerbsLink::VerbsLink(RdmaConnection& connection, NodeRole role, const FrameContext& context)
    : connection_(connection), core_(connection.core()), role_(role), context_(context) {}

VerbsLink::~VerbsLink() {
  if (Reactor::current() == &core_.reactor()) {
    connection_.abandon();
  } else {  // it never came to its core
    core_.post([&connection = connection_] { connection.abandon(); });
  }
}

Status VerbsLink::start(Reactor& reactor) {
  TL_ASSERT(&reactor == &core_.reactor(), "a verbs link lives on its connection's core");
  heard();
  if (connection_.ended()) return Error(ReplicationErrc::link_closed, connection_.error().message());
  return {};
}

Status VerbsLink::attach(Bytes log_memory) { return connection_.attach(log_memory); }

std::uint32_t VerbsLink::batch_bytes_max() const {
  return static_cast<std::uint32_t>(connection_.batch_bytes_max()) - kFrameHeaderBytes;
}

// ---- batches --------------------------------------------------------------------------------------------

Status VerbsLink::publish(const FrameHeader& header, std::span<const Bytes> ranges) {
  TL_ASSERT(role_ == NodeRole::primary, "batches travel from the primary to the replica");
  if (closed_ || connection_.ended()) return closed_error();
  std::uint64_t payload_bytes = 0;
  for (const Bytes& range : ranges) payload_bytes += range.size();
  if (payload_bytes > batch_bytes_max()) {
    return Error(ReplicationErrc::too_large, "a batch of " + std::to_string(payload_bytes) +
                                                 " bytes, this link takes " +
                                                 std::to_string(batch_bytes_max()));
  }
  TL_ASSERT(payload_bytes % kEntryAlignment == 0, "a payload consists of whole, padded entries");
  FrameHeader sent = header;
  sent.generation = context_.generation;
  sent.sequence = sequence_out_ + 1;
  sent.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  std::array<std::byte, kFrameHeaderBytes> encoded{};
  encode_frame_header(sent, encoded);
  const Status published = connection_.publish(encoded, ranges);
  wants_room_ = !published;
  if (!published) {
    if (published.error() == RdmaErrc::no_credit) {
      bump(counters_.full);
      return ReplicationErrc::link_full;
    }
    if (published.error() == RdmaErrc::too_large) {
      return Error(ReplicationErrc::too_large, published.error().message());
    }
    return closed_error();
  }
  ++sequence_out_;
  bump(counters_.batches_out);
  bump(counters_.bytes_out, payload_bytes);
  return {};
}

std::uint64_t VerbsLink::batches_completed() const { return connection_.batches_completed(); }

bool VerbsLink::drained() const { return closed_ && connection_.torn_down(); }

Result<Batch> VerbsLink::receive() {
  if (closed_) return closed_error();
  const auto arrived = connection_.receive();
  if (!arrived) return nothing_left();
  auto batch = check(*arrived);
  if (!batch) return fail(batch.error());
  ++sequence_in_;
  bump(counters_.batches_in);
  bump(counters_.bytes_in, batch->payload.size());
  heard();
  return batch;
}

/// The ring stays writable for the peer, so the header is read once, and checked and used from the copy.
Result<Batch> VerbsLink::check(Bytes arrived) {
  if (arrived.size() < kFrameHeaderBytes) {
    return Error(ReplicationErrc::bad_length, "a batch shorter than its header");
  }
  std::array<std::byte, kFrameHeaderBytes> copy{};
  std::memcpy(copy.data(), arrived.data(), copy.size());
  TL_TRY(const FrameHeader header, decode_frame_header(copy, context_));
  if (header.sequence != sequence_in_ + 1) {
    return Error(ReplicationErrc::gap, "batch " + std::to_string(header.sequence) + " came where batch " +
                                           std::to_string(sequence_in_ + 1) + " was due");
  }
  if (header.payload_bytes != arrived.size() - kFrameHeaderBytes) {
    return Error(ReplicationErrc::bad_length,
                 "a batch claims " + std::to_string(header.payload_bytes) + " bytes, " +
                     std::to_string(arrived.size() - kFrameHeaderBytes) + " came");
  }
  return Batch{header, arrived.subspan(kFrameHeaderBytes)};
}

void VerbsLink::release() { connection_.release(); }

// ---- control --------------------------------------------------------------------------------------------

bool VerbsLink::write_control(const ControlFrame& frame) {
  if (!connection_.control_credit()) return false;
  ControlFrame sent = frame;
  sent.generation = context_.generation;
  sent.sequence = control_sequence_out_ + 1;
  std::array<std::byte, kControlFrameBytes> encoded{};
  encode_control(sent, encoded);
  if (!connection_.send_control(encoded)) return false;
  ++control_sequence_out_;
  bump(counters_.control_out);
  return true;
}

Status VerbsLink::send_control(const ControlFrame& frame) {
  if (closed_ || connection_.ended()) return closed_error();
  // A frame that waits is older than this one, which therefore stands for both.
  control_waiting_.reset();
  if (!write_control(frame)) control_waiting_ = frame;
  return {};
}

Result<ControlFrame> VerbsLink::receive_control() {
  if (closed_) return closed_error();
  const auto arrived = connection_.receive_control();
  if (!arrived) return nothing_left();
  auto frame = decode_control(*arrived, context_);
  if (!frame) return fail(frame.error());
  if (frame->sequence != control_sequence_in_ + 1) {
    return fail(Error(ReplicationErrc::gap, "control frame " + std::to_string(frame->sequence) +
                                                " came where frame " +
                                                std::to_string(control_sequence_in_ + 1) + " was due"));
  }
  ++control_sequence_in_;
  bump(counters_.control_in);
  heard();
  return frame;
}

// ---- once a turn ----------------------------------------------------------------------------------------

std::uint32_t VerbsLink::poll(std::uint32_t budget) {
  if (!closed_) {
    core_.poll_completions(budget);
    if (connection_.ended() && all_read()) shut(connection_.error().message());
  }
  if (closed_) return std::exchange(close_reported_, true) ? 0 : 1;
  if (!connection_.take_room()) return 0;
  heard();
  return wants_room_ || control_waiting_ ? 1 : 0;
}

void VerbsLink::flush() {
  if (closed_ || connection_.ended()) return;
  if (control_waiting_ && write_control(*control_waiting_)) control_waiting_.reset();
  connection_.flush();
}

bool VerbsLink::has_work() const {
  if (closed_) return !close_reported_;
  return connection_.ended() || !all_read() ||
         (connection_.room_came() && (wants_room_ || control_waiting_)) || core_.has_work();
}

std::vector<LinkTransition> VerbsLink::transitions() const {
  std::vector<LinkTransition> transitions;
  for (const ConnectionTransition& transition : connection_.trace().list()) {
    transitions.push_back({transition.at, to_string(transition.state), transition.why});
  }
  return transitions;
}

// ---- the end --------------------------------------------------------------------------------------------

bool VerbsLink::all_read() const { return !connection_.batch_waiting() && !connection_.control_waiting(); }

Error VerbsLink::nothing_left() {
  if (connection_.ended() && all_read()) shut(connection_.error().message());
  return closed_ ? closed_error() : Error(ReplicationErrc::link_empty);
}

Error VerbsLink::closed_error() {
  if (closed_) close_reported_ = true;
  return Error(ReplicationErrc::link_closed, closed_ ? close_reason_ : connection_.error().message());
}

Error VerbsLink::fail(Error error) {
  shut(error.message());
  return error;
}

void VerbsLink::close(const std::string& reason) {
  if (closed_) return;
  shut(reason.empty() ? "closed" : reason);
  close_reported_ = true;
}

/// Idempotent: the first reason stays. What was published still leaves, before the goodbye.
void VerbsLink::shut(const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  close_reason_ = reason;
  connection_.close(reason);
}

}  // namespace tidelock
