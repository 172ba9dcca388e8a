// Completions: how they get into a queue, out of it, and how they wake who sleeps.
#include <algorithm>
#include <cerrno>

#include "world.h"

namespace tidelock::fake {

namespace {

void notify(Cq& cq, bool solicited) {
  if (cq.armed == Armed::no || (cq.armed == Armed::solicited && !solicited)) return;
  cq.armed = Armed::no;
  if (cq.channel == nullptr) return;
  Channel& channel = *static_cast<Channel*>(cq.channel);
  channel.cqs.push_back(cq.serial);
  channel.event_fd.raise();
}

void push_now(World& w, std::uint64_t cq_serial, const Cqe& cqe) {
  Cq* cq = w.cqs.find(cq_serial);
  if (cq == nullptr || cq->dead) return;
  const Qp* qp = w.qps.find(cqe.qp);
  if (qp == nullptr || qp->silent) return;
  if (cq->entries.size() == static_cast<std::size_t>(cq->cqe)) {
    if (device_of(cq->context).modes.cq_overrun_aborts)
      die("overrun of a completion queue of %d entries", cq->cqe);
    cq->dead = true;
    raise_on_cq(w, *cq, IBV_EVENT_CQ_ERR);
    return;
  }
  cq->entries.push_back(cqe);
  notify(*cq, cqe.solicited || cqe.wc.status != IBV_WC_SUCCESS);
}

/// Late completions of one queue stay in order, also where the delay changes.
void push(World& w, Cq& cq, const Cqe& cqe, std::uint32_t delay_steps, std::uint64_t& due) {
  due = std::max(w.tick + delay_steps, due);
  if (due <= w.tick) return push_now(w, cq.serial, cqe);
  after(w, due - w.tick, [&w, cq_serial = cq.serial, cqe] { push_now(w, cq_serial, cqe); });
}

/// "If the completion status is other than IBV_WC_SUCCESS, only wr_id, status, qp_num and vendor_err are
/// valid" (ibv_poll_cq(3)): the rest is garbage here, so that nobody relies on it.
void spoil(ibv_wc& wc) {
  wc.opcode = static_cast<ibv_wc_opcode>(0x55);
  wc.byte_len = 0xdeadbeef;
  wc.imm_data = 0xdeadbeef;
  wc.wc_flags = 0xff;
  wc.vendor_err = 0x81;
}

bool lost(std::uint32_t& remaining, ibv_wc_status status) {
  if (status != IBV_WC_SUCCESS || remaining == 0) return false;
  --remaining;
  return true;
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
}

void retire(World& w, const Cqe& cqe) {
  Qp* qp = w.qps.find(cqe.qp);
  if (qp == nullptr) return;
  std::uint64_t& retired = cqe.send ? qp->sends_retired : qp->recvs_retired;
  retired = std::max(retired, cqe.index + 1);
}

}  // namespace

void complete_send(World& w, Qp& qp, const SendWqe& wqe, ibv_wc_status status, std::uint32_t bytes) {
  if (status == IBV_WC_SUCCESS && !wqe.signaled) return;
  Modes& modes = qp.its_device->modes;
  if (lost(modes.lose_send_completions, status)) return;
  Cqe cqe;
  cqe.qp = qp.serial;
  cqe.send = true;
  cqe.index = wqe.index;
  cqe.wc.wr_id = wqe.wr_id;
  cqe.wc.status = status;
  cqe.wc.qp_num = qp.qp_num;
  cqe.wc.opcode = completion_opcode(wqe.opcode);
  cqe.wc.byte_len = bytes;
  if (status != IBV_WC_SUCCESS) spoil(cqe.wc);
  push(w, *static_cast<Cq*>(qp.send_cq), cqe, modes.send_completion_delay_steps, qp.send_cqe_due);
}

void complete_recv(World& w, Qp& qp, const RecvWqe& wqe, ibv_wc wc, bool solicited) {
  Modes& modes = qp.its_device->modes;
  if (lost(modes.lose_recv_completions, wc.status)) return;
  Cqe cqe;
  cqe.qp = qp.serial;
  cqe.index = wqe.index;
  cqe.solicited = solicited;
  cqe.wc = wc;
  cqe.wc.wr_id = wqe.wr_id;
  cqe.wc.qp_num = qp.qp_num;
  if (wc.status != IBV_WC_SUCCESS) spoil(cqe.wc);
  push(w, *static_cast<Cq*>(qp.recv_cq), cqe, modes.recv_completion_delay_steps, qp.recv_cqe_due);
}

void purge_cqes(World& w, const Qp& qp) {
  for (auto& [serial, cq] : w.cqs)
    std::erase_if(cq->entries, [&](const Cqe& cqe) { return cqe.qp == qp.serial; });
}

int poll_cq(ibv_cq* handle, int count, ibv_wc* wc) {
  World& w = world();
  const Lock lock(w.mutex);
  Cq& cq = w.cqs.check(handle, "ibv_poll_cq");
  pump(w);
  int polled = 0;
  while (polled < count && !cq.entries.empty() && !cq.dead) {
    wc[polled++] = cq.entries.front().wc;
    retire(w, cq.entries.front());
    cq.entries.pop_front();
  }
  return polled;
}

/// What the step before the arming completes raises no event: who does not poll again afterwards misses it,
/// as on a card that was that fast.
int req_notify_cq(ibv_cq* handle, int solicited_only) {
  World& w = world();
  const Lock lock(w.mutex);
  Cq& cq = w.cqs.check(handle, "ibv_req_notify_cq");
  if (const int error = failure_of(w, Call::req_notify_cq)) return error;
  pump(w);
  // Asking for every completion is not weakened by asking for solicited ones later.
  if (solicited_only == 0)
    cq.armed = Armed::any;
  else if (cq.armed == Armed::no)
    cq.armed = Armed::solicited;
  return 0;
}

}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" {

int ibv_get_cq_event(ibv_comp_channel* handle, ibv_cq** cq, void** cq_context) {
  World& w = world();
  Lock lock(w.mutex);
  Channel& channel = w.channels.check(handle, "ibv_get_cq_event");
  if (!wait_until(w, lock, channel.event_fd, [&] { return !channel.cqs.empty(); })) {
    errno = EAGAIN;
    return -1;
  }
  Cq& source = *w.cqs.find(channel.cqs.front());
  channel.cqs.pop_front();
  if (channel.cqs.empty()) channel.event_fd.clear();
  ++source.events_got;
  *cq = &source;
  *cq_context = source.cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  World& w = world();
  const Lock lock(w.mutex);
  Cq& source = w.cqs.check(cq, "ibv_ack_cq_events");
  source.events_acked += count;
  if (source.events_acked > source.events_got) die("ibv_ack_cq_events: more acknowledged than got");
}

}  // extern "C"
