// Polling the completion queue: what a core does in every turn.
#include <algorithm>
#include <utility>

#include <tidelock/base/counter.h>
#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>

#include "core_verbs.h"

namespace tidelock {

std::uint32_t RdmaCore::poll_completions(std::uint32_t budget) {
  polled_ = true;
  Verbs& verbs = *verbs_;
  std::uint32_t taken = 0;
  while (taken < budget) {
    if (verbs.fetched_count == 0) {
      verbs.fetched_count = ::ibv_poll_cq(verbs.cq.get(), Verbs::kBatch, verbs.fetched.data());
      if (verbs.fetched_count < 0) {
        verbs.fetched_count = 0;
        fail_all(
            Error(RdmaErrc::device_failed, "the completion queue of " + place_.device + " cannot be read"));
        return taken + 1;
      }
      if (verbs.fetched_count == 0) break;
    }
    const int found = std::exchange(verbs.fetched_count, 0);
    for (int i = 0; i < found; ++i) dispatch(verbs.fetched[static_cast<std::size_t>(i)]);
    taken += static_cast<std::uint32_t>(found);
    if (found < Verbs::kBatch) break;  // there were no more, and what came since waits for the next turn
  }
  if (taken != 0) bump(counters_.completions, taken);
  taken_ += taken;
  return taken;
}

void RdmaCore::dispatch(const ibv_wc& completion) {
  const WorkId id = WorkId::unpack(completion.wr_id);
  RdmaConnection* connection = find(id.slot, id.generation);
  if (connection == nullptr) return bump(counters_.completions_stale);
  if (completion.status != IBV_WC_SUCCESS) bump(counters_.completion_errors);
  connection->on_completion(completion);
}

std::uint32_t RdmaCore::poll(std::uint32_t budget) {
  std::uint32_t work = 0;
  if (any_posted_.load(std::memory_order_relaxed)) {
    run_posted();
    ++work;
  }
  // Not if a link has looked since our last poll: it is polled before us, and once is enough.
  if (!std::exchange(polled_, false)) {
    poll_completions(budget);
    polled_ = false;
  }
  return work + std::exchange(taken_, 0);
}

void RdmaCore::flush() {
  polled_ = false;
  if (reap_) reap();
}

/// Poll, arm, poll again (has_work()): a completion between the first and the arming raises no event.
void RdmaCore::arm() {
  if (armed_) return;
  armed_ = ::ibv_req_notify_cq(verbs_->cq.get(), 0) == 0;
}

bool RdmaCore::has_work() const {
  if (any_posted_.load(std::memory_order_acquire) || reap_) return true;
  Verbs& verbs = *verbs_;
  if (verbs.fetched_count == 0) {
    verbs.fetched_count = std::max(0, ::ibv_poll_cq(verbs.cq.get(), Verbs::kBatch, verbs.fetched.data()));
  }
  return verbs.fetched_count != 0;
}

void RdmaCore::drain_completion_channel() {
  unsigned events = 0;
  for (;;) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (::ibv_get_cq_event(verbs_->completion_channel.get(), &cq, &context) != 0) break;
    ++events;
  }
  if (events == 0) return;
  // One acknowledgement for all: it takes a mutex, and a CQ with one too few or too many cannot be destroyed.
  ::ibv_ack_cq_events(verbs_->cq.get(), events);
  bump(counters_.completion_events, events);
  armed_ = false;
}

}  // namespace tidelock
