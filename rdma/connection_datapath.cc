// What the queue pair says, and the calls of a ready connection. Each is gated by our own state, never by
// what verbs would answer: what a post before RTS does depends on the provider and its version.
#include <cstring>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>

#include "core_verbs.h"
#include "queue_pair.h"

namespace tidelock {

static_assert(sizeof(Greeting) == kGreetingBytes && kControlFrameSize == kControlBytes);

// ---- completions ----------------------------------------------------------------------------------------

void RdmaConnection::on_completion(const ibv_wc& completion) {
  using Kind = QueuePair::Event::Kind;
  QueuePair::Event event;
  const Status taken = pair_->take(completion, event);
  if (ended()) {
    if (taken && event.kind == Kind::beacon) beacon_seen_ = true;
    if (closing_ && (!taken || event.kind == Kind::flushed || pair_->sends_done())) return tear_down();
    return drained_some();
  }
  if (!taken) return fail(Error(taken.error().code(), describe() + ": " + taken.error().message()));
  room_came_ = room_came_ || event.room;
  switch (event.kind) {
    case Kind::batch:
    case Kind::control:
    case Kind::credit:
      if (!ready())
        fail(Error(RdmaErrc::protocol, describe() + ": the peer sent data before both had said hello"));
      break;
    case Kind::greeting:
      on_greeting(event.message, event.payload);
      break;
    case Kind::close:
      end(ConnectionState::closed, Error(RdmaErrc::peer_closed, describe()));
      break;
    case Kind::flushed:
      // Not by us, who would have ended first, and not by a peer that is gone, which shows as a request
      // without an answer. What is left happens at this end.
      fail(Error(RdmaErrc::queue_pair_failed,
                 describe() + ": by its device, which refused what the peer asked (a write past the ring, or "
                              "after this side took the right to write away) or failed; not by a close of "
                              "either side"));
      break;
    case Kind::nothing:
    case Kind::beacon:
      break;
  }
}

void RdmaConnection::on_greeting(MessageKind kind, Bytes payload) {
  const bool expected =
      active_ ? kind != MessageKind::hello && state_ == ConnectionState::local_ready
              : kind == MessageKind::hello && !greeting_ &&
                    (state_ == ConnectionState::connecting || state_ == ConnectionState::local_ready);
  if (!expected) return fail(Error(RdmaErrc::protocol, describe() + ": a greeting that is not due"));
  if (active_ && kind == MessageKind::refuse) {
    // Told before the teardown, with what the peer gave as its reason.
    error_ = Error(RdmaErrc::refused, describe());
    final_state_ = ConnectionState::failed;
    ended_in_ = state_;
    set(ConnectionState::draining, "refused", core_.options().closing_deadline);
    const Greeting reason = [&] {
      Greeting copy{};
      std::memcpy(copy.data(), payload.data(), copy.size());
      return copy;
    }();
    tear_down();
    return tell_ended(reason);
  }
  if (active_) {
    set(ConnectionState::ready, "hello answered", Duration{0});
    const auto callbacks = std::exchange(callbacks_, {});
    if (callbacks.greeted) callbacks.greeted(*this, payload);
    return;
  }
  const auto offer = decode_offer(payload, reply_.ring_bytes);
  if (!offer) return fail(offer.error());
  pair_->accept_offer(*offer);
  greeting_.emplace();
  std::memcpy(greeting_->data(), payload.data() + kRingOfferBytes, greeting_->size());
  deliver_greeting();
}

/// HELLO may come before our own accept has returned, as ESTABLISHED may come after it or never.
void RdmaConnection::deliver_greeting() {
  if (state_ != ConnectionState::local_ready || !greeting_ || !callbacks_.greeted) return;
  core_.retire_before(*this);
  const auto greeted = std::exchange(callbacks_.greeted, nullptr);
  greeted(*this, *greeting_);
}

// ---- calls ----------------------------------------------------------------------------------------------

Status RdmaConnection::attach(Bytes memory) {
  TL_TRY(const std::uint32_t key, core_.local_key(memory));
  pair_->attach(memory, key);
  return {};
}

std::uint64_t RdmaConnection::batch_bytes_max() const { return pair_->batch_bytes_max(); }

Status RdmaConnection::publish(Bytes header, std::span<const Bytes> ranges) {
  if (!ready()) return ended() ? error() : Error(RdmaErrc::closed, "not ready yet");
  return pair_->publish(header, ranges);
}

std::uint64_t RdmaConnection::batches_completed() const { return pair_->batches_completed(); }

std::optional<Bytes> RdmaConnection::receive() { return pair_->receive(); }

void RdmaConnection::release() { pair_->release(); }

bool RdmaConnection::control_credit() const { return ready() && pair_->control_credit(); }

bool RdmaConnection::send_control(std::span<const std::byte, kControlFrameSize> frame) {
  return ready() && pair_->send_control(frame);
}

std::optional<std::span<const std::byte, kControlFrameSize>> RdmaConnection::receive_control() {
  return pair_->receive_control();
}

bool RdmaConnection::batch_waiting() const { return pair_ && pair_->batch_waiting(); }
bool RdmaConnection::control_waiting() const { return pair_ && pair_->control_waiting(); }

RdmaConnection::Traffic RdmaConnection::traffic() const {
  if (!pair_) return {};
  const QueuePair::Traffic passed = pair_->traffic();
  return {passed.batches_out, passed.batches_in, passed.messages_out, passed.messages_in};
}

std::uint32_t RdmaConnection::inline_bytes() const { return pair_ ? pair_->inline_bytes() : 0; }

void RdmaConnection::flush() {
  if (ended() || (state_ != ConnectionState::ready && state_ != ConnectionState::local_ready)) return;
  const Status flushed = pair_->flush();
  if (!flushed) fail(flushed.error());
}

}  // namespace tidelock
