// A connection's life: states, deadlines, and the way out. What rdma_cm says is in connection_cm.cc, what the
// queue pair says in connection_datapath.cc.
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>

#include "core_verbs.h"
#include "queue_pair.h"

namespace tidelock {

RdmaConnection::RdmaConnection(RdmaCore& core, std::uint16_t slot, std::uint32_t slot_generation)
    : core_(core),
      slot_(slot),
      slot_generation_(slot_generation),
      deadline_(*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).connection.expired(); }) {
  set(ConnectionState::idle, "", Duration{0});
}

RdmaConnection::~RdmaConnection() {
  TL_ASSERT(torn_down_, "a connection is torn down before it is destroyed");
}

std::string RdmaConnection::describe() const {
  return "verbs " + core_.place().device + " " + core_.place().address + (active_ ? " -> " : " <- ") + peer_;
}

std::uintptr_t RdmaConnection::tag() const { return std::uintptr_t{slot_} << 32 | slot_generation_; }

/// `deadline` 0: none.
void RdmaConnection::set(ConnectionState state, const std::string& why, Duration deadline) {
  state_ = state;
  trace_.add(state, core_.reactor().now(), why);
  deadline_.disarm();
  if (deadline.ns > 0) core_.reactor().timers().arm(deadline_, core_.reactor().now() + deadline);
}

/// The watchdog of every state.
void RdmaConnection::expired() {
  if (teardown_ == Teardown::draining) {
    trace_.add(state_, core_.reactor().now(), "not all flushed in time");
    return destroy();
  }
  if (closing_) return tear_down();
  const char* const call = busy_ ? core_.call_under_way() : nullptr;
  fail(Error(RdmaErrc::state_deadline, describe() + " stayed " + to_string(state_) +
                                           " too long: " + trace_.text(core_.reactor().now()) +
                                           (call != nullptr ? std::string(", in ") + call : "")));
}

void RdmaConnection::job(const char* verb, std::function<Status()> work, std::function<void()> then) {
  TL_ASSERT(!busy_, "one job a connection");
  busy_ = true;
  const auto status = std::make_shared<Status>();
  core_.offload(
      verb, [status, work = std::move(work)] { *status = work(); },
      [this, status, then = std::move(then)] {
        busy_ = false;
        if (teardown_ == Teardown::wanted) return tear_down();
        if (!*status) return fail(status->error());
        then();
        take_deferred();
      });
}

/// What rdma_cm said while a job was under way.
void RdmaConnection::take_deferred() {
  while (!busy_ && !deferred_.empty()) {
    const CmEvent event = deferred_.front();
    deferred_.erase(deferred_.begin());
    on_cm(event);
  }
}

// ---- ready ----------------------------------------------------------------------------------------------

void RdmaConnection::accept(const Greeting& greeting) {
  if (ended()) return;
  TL_ASSERT(!active_ && state_ == ConnectionState::local_ready, "accept() answers a greeting");
  const Status staged = pair_->stage(MessageKind::hello_ack, greeting);
  if (!staged) return fail(staged.error());
  set(ConnectionState::ready, "hello answered", Duration{0});
  callbacks_ = {};
  flush();
}

void RdmaConnection::refuse(const Greeting& greeting) {
  if (ended()) return;
  TL_ASSERT(!active_ && state_ == ConnectionState::local_ready, "refuse() answers a greeting");
  const Status staged = pair_->stage(MessageKind::refuse, greeting);
  if (!staged) return fail(staged.error());
  close("refused the peer's hello");
}

// ---- the way out ----------------------------------------------------------------------------------------

void RdmaConnection::close(const std::string& reason) {
  if (ended()) return;
  const bool spoken = state_ == ConnectionState::ready || state_ == ConnectionState::local_ready;
  if (spoken && pair_->stage(MessageKind::close, {})) {
    flush();  // may fail it
    if (ended()) return;
    closing_ = true;
  }
  error_ = Error(RdmaErrc::closed, reason.empty() ? "closed" : reason);
  final_state_ = ConnectionState::closed;
  ended_in_ = state_;
  set(ConnectionState::draining, error_->message(), core_.options().closing_deadline);
  if (!closing_) tear_down();
  if (ended_in_ != ConnectionState::ready) tell_ended({});
}

void RdmaConnection::retire(const std::string& reason) {
  if (ended()) return;
  close(reason);
  if (final_state_ == ConnectionState::closed) tell_operator();
}

void RdmaConnection::abandon() {
  abandoned_ = true;
  callbacks_ = {};
  close("no longer needed");
  if (torn_down_) core_.reap_soon();
}

void RdmaConnection::fail(const Error& error) {
  if (ended()) {
    // What was closed in good order and then failed is closed all the same.
    if (closing_) tear_down();
    return;
  }
  end(ConnectionState::failed, error);
}

void RdmaConnection::end(ConnectionState state, const Error& error) {
  error_ = error;
  final_state_ = state;
  ended_in_ = state_;
  set(ConnectionState::draining, error.message(), core_.options().closing_deadline);
  tell_operator();
  tear_down();
  if (ended_in_ != ConnectionState::ready) tell_ended({});
}

/// The active side's owner is told by its callback and a ready connection's by its link. Of an attempt that
/// the passive side sees fail nobody else would say anything.
void RdmaConnection::tell_operator() {
  if (active_ || ended_in_ == ConnectionState::ready) return;
  core_.notice("attempt " + peer_ + " " + to_string(ended_in_) + " " + error_->code().message(),
               "an attempt of node " + std::to_string(request_.node) + " from " + peer_ + ", shard " +
                   std::to_string(request_.shard.value) + ", ended while " + to_string(ended_in_) + ": " +
                   error_->message());
}

void RdmaConnection::tell_ended(Bytes greeting) {
  const auto callbacks = std::exchange(callbacks_, {});
  if (callbacks.ended) callbacks.ended(*this, greeting);
}

/// ERR, so that nothing more leaves or lands; then everything that is still posted comes back as flushed.
void RdmaConnection::tear_down() {
  if (busy_) {
    teardown_ = Teardown::wanted;
    return;
  }
  if (teardown_ == Teardown::draining || teardown_ == Teardown::destroying) return;
  closing_ = false;
  if (pair_ == nullptr) {
    teardown_ = Teardown::draining;
    return destroy();
  }
  teardown_ = Teardown::draining;
  deadline_.disarm();
  busy_ = true;
  core_.offload(
      "ibv_modify_qp",
      [&core = core_, pair = pair_.get(), id = id_, connected = connected_] {
        pair->move_to_error();
        // Tells the peer at once. It fails if the peer was first.
        core.calling("rdma_disconnect");
        if (connected) static_cast<void>(::rdma_disconnect(id));
      },
      [this] {
        busy_ = false;
        drain();
      });
}

void RdmaConnection::drain() {
  // Without a beacon, only the deadline tells that the send queue is empty.
  if (!pair_->post_beacon()) beacon_seen_ = false;
  core_.reactor().timers().arm(deadline_, core_.reactor().now() + core_.options().draining_deadline);
  drained_some();
}

void RdmaConnection::drained_some() {
  if (teardown_ == Teardown::draining && !busy_ && beacon_seen_ && pair_->receives_posted() == 0) destroy();
}

/// Queue pair, its ring's registration, id: in that order, where it may block.
void RdmaConnection::destroy() {
  if (busy_ || teardown_ != Teardown::draining) return;
  teardown_ = Teardown::destroying;
  deadline_.disarm();
  busy_ = true;
  core_.offload(
      "ibv_destroy_qp",
      [this] {
        if (pair_) {
          pair_->destroy_queue_pair();
          core_.calling("ibv_dereg_mr");
          pair_->unregister_ring();
        }
        core_.calling("rdma_destroy_id");
        RdmaHandle<rdma_cm_id>{std::exchange(id_, nullptr)}.reset();
      },
      [this] {
        busy_ = false;
        torn_down_ = true;
        set(final_state_, "", Duration{0});
        if (abandoned_) core_.reap_soon();
      });
}

}  // namespace tidelock
