// A work request on its way: what the requester's card and the responder's card do with it. A responder
// checks the operation, then its receives, then the key, as the kernel's soft-RoCE does.
#include <algorithm>
#include <cstring>
#include <optional>

#include "world.h"

namespace tidelock::fake {

namespace {

using Bytes = std::vector<std::uint8_t>;

bool is_send(ibv_wr_opcode opcode) { return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM; }
bool is_write(ibv_wr_opcode opcode) { return !is_send(opcode); }
bool has_imm(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool needs_recv(ibv_wr_opcode opcode) { return opcode != IBV_WR_RDMA_WRITE; }

std::uint64_t start_tick(const Qp& qp, const SendWqe& wqe) {
  std::uint64_t delay = qp.delay_steps;
  if (is_write(wqe.opcode)) delay = std::max<std::uint64_t>(delay, qp.its_device->modes.write_delay_steps);
  return std::max(wqe.posted_tick + delay, wqe.next_attempt_tick);
}

/// Reads the sender's memory now, not at the post, as a card does.
std::optional<Bytes> gather(World& w, const Qp& qp, const SendWqe& wqe) {
  if (wqe.is_inline) return wqe.inline_data;
  Bytes data;
  for (const ibv_sge& sge : wqe.sges) {
    if (sge.length == 0) continue;
    const std::uint8_t* bytes = local_bytes(w, qp, sge, false);
    if (bytes == nullptr) return std::nullopt;
    data.insert(data.end(), bytes, bytes + sge.length);
  }
  return data;
}

/// The queue pair that answers, or null: then nobody does, and the requester tries again.
Qp* find_responder(World& w, const Qp& qp) {
  if (!reaches(w, *qp.its_device, *qp.peer_device) || !reaches(w, *qp.peer_device, *qp.its_device))
    return nullptr;
  Qp* peer = qp_by_number(w, qp.attr.dest_qp_num);
  if (peer == nullptr || peer->silent || peer->its_device != qp.peer_device) return nullptr;
  const ibv_qp_state state = peer->attr.qp_state;
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return nullptr;
  // No packet names its sender's queue pair: only address and sequence number keep an old one out.
  return peer->peer_device == qp.its_device && peer->expected_psn == qp.next_psn ? peer : nullptr;
}

void advance_psn(Qp& qp, Qp& peer, std::size_t bytes) {
  const std::size_t mtu = std::size_t{128} << qp.attr.path_mtu;
  const auto packets = static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes + mtu - 1) / mtu));
  qp.next_psn = (qp.next_psn + packets) & 0xffffff;
  peer.expected_psn = (peer.expected_psn + packets) & 0xffffff;
}

void finish(World& w, Qp& qp, ibv_wc_status status, std::size_t bytes) {
  const SendWqe wqe = std::move(qp.sq.front());
  qp.sq.pop_front();
  complete_send(w, qp, wqe, status, static_cast<std::uint32_t>(bytes));
  if (status == IBV_WC_SUCCESS)
    update_head(w, qp);
  else
    fail_qp(w, qp);
}

/// No answer. True if that was the last attempt.
bool try_again(World& w, Qp& qp, SendWqe& wqe) {
  const Modes& modes = qp.its_device->modes;
  const bool forever = modes.retry_seven_is_forever && qp.attr.retry_cnt == 7;
  if (++wqe.attempts > qp.attr.retry_cnt && !forever) {
    finish(w, qp, IBV_WC_RETRY_EXC_ERR, 0);
    return true;
  }
  wqe.next_attempt_tick = w.tick + modes.retry_steps;
  return false;
}

/// A receiver that is not ready. True if that was the last attempt. 7 means for ever, as specified.
bool try_again_rnr(World& w, Qp& qp, SendWqe& wqe) {
  ++qp.stats.rnr_naks;
  if (qp.attr.rnr_retry != 7 && ++wqe.rnr_attempts > qp.attr.rnr_retry) {
    finish(w, qp, IBV_WC_RNR_RETRY_EXC_ERR, 0);
    return true;
  }
  wqe.next_attempt_tick = w.tick + 1;
  return false;
}

bool receiver_ready(Qp& peer) {
  std::uint32_t& refusals = peer.its_device->modes.rnr_attempts;
  if (refusals > 0) {
    --refusals;
    return false;
  }
  return !peer.rq.empty();
}

/// A responder that refuses a request goes to ERR itself (class C fault).
void refuse(World& w, Qp& qp, Qp& peer, ibv_wc_status status) {
  if (peer.its_device->modes.access_error_event) raise_on_qp(w, peer, IBV_EVENT_QP_ACCESS_ERR);
  fail_qp(w, peer);
  finish(w, qp, status, 0);
}

void corrupt(World& w, const Qp& qp, Bytes& data) {
  for (auto c = w.corruptions.begin(); c != w.corruptions.end(); ++c) {
    if ((c->qp_num != 0 && c->qp_num != qp.qp_num) || c->k >= data.size()) continue;
    data[c->k] = static_cast<std::uint8_t>(~data[c->k]);
    w.corruptions.erase(c);
    return;
  }
}

void place(World& w, Qp& peer, const SendWqe& wqe, Bytes data) {
  if (data.empty()) return;
  const auto copy = [&w, serial = peer.serial, rkey = wqe.rkey, addr = wqe.remote_addr,
                     bytes = std::move(data)] {
    const Qp* qp = w.qps.find(serial);
    if (qp == nullptr) return;
    if (std::uint8_t* target = remote_bytes(w, *qp, rkey, addr, bytes.size()))
      std::memcpy(target, bytes.data(), bytes.size());
  };
  const std::uint32_t late = peer.its_device->modes.data_after_notification_steps;
  if (late == 0)
    copy();
  else
    after(w, late, copy);
}

RecvWqe take_recv(Qp& peer) {
  RecvWqe wqe = std::move(peer.rq.front());
  peer.rq.pop_front();
  return wqe;
}

void notify_receiver(World& w, Qp& qp, Qp& peer, const SendWqe& wqe, const RecvWqe& recv, std::size_t bytes) {
  ibv_wc wc{};
  wc.opcode = is_send(wqe.opcode) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  wc.byte_len = static_cast<std::uint32_t>(bytes);
  wc.src_qp = qp.qp_num;
  if (has_imm(wqe.opcode)) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = wqe.imm;
  }
  complete_recv(w, peer, recv, wc, wqe.solicited);
}

void run_write(World& w, Qp& qp, Qp& peer, const SendWqe& wqe, Bytes data) {
  const std::size_t size = data.size();
  // The key of a write of no bytes is not checked.
  if (size > 0 && remote_bytes(w, peer, wqe.rkey, wqe.remote_addr, size) == nullptr)
    return refuse(w, qp, peer, IBV_WC_REM_ACCESS_ERR);
  corrupt(w, qp, data);
  place(w, peer, wqe, std::move(data));
  advance_psn(qp, peer, size);
  if (has_imm(wqe.opcode)) notify_receiver(w, qp, peer, wqe, take_recv(peer), size);
  finish(w, qp, IBV_WC_SUCCESS, size);
}

ibv_wc_status scatter(World& w, const Qp& peer, const RecvWqe& recv, const Bytes& data) {
  std::size_t room = 0, done = 0;
  for (const ibv_sge& sge : recv.sges) room += sge.length;
  if (room < data.size()) return IBV_WC_LOC_LEN_ERR;
  for (const ibv_sge& sge : recv.sges) {
    const std::size_t part = std::min<std::size_t>(sge.length, data.size() - done);
    if (part == 0) continue;
    std::uint8_t* target = local_bytes(w, peer, sge, true);
    if (target == nullptr) return IBV_WC_LOC_PROT_ERR;
    std::memcpy(target, data.data() + done, part);
    done += part;
  }
  return IBV_WC_SUCCESS;
}

void run_send(World& w, Qp& qp, Qp& peer, const SendWqe& wqe, const Bytes& data) {
  const RecvWqe recv = take_recv(peer);
  const ibv_wc_status status = scatter(w, peer, recv, data);
  if (status == IBV_WC_SUCCESS) {
    advance_psn(qp, peer, data.size());
    notify_receiver(w, qp, peer, wqe, recv, data.size());
    return finish(w, qp, IBV_WC_SUCCESS, data.size());
  }
  ibv_wc wc{};
  wc.status = status;
  complete_recv(w, peer, recv, wc, false);
  fail_qp(w, peer);
  finish(w, qp, status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, 0);
}

}  // namespace

bool run_head(World& w, Qp& qp) {
  if (w.tick < start_tick(qp, qp.sq.front())) return false;
  std::optional<Bytes> data = gather(w, qp, qp.sq.front());
  if (!data) {
    finish(w, qp, IBV_WC_LOC_PROT_ERR, 0);
    return true;
  }
  Qp* peer = find_responder(w, qp);
  SendWqe& wqe = qp.sq.front();
  if (peer == nullptr) return try_again(w, qp, wqe);
  wqe.attempts = 0;
  if (wqe.opcode == IBV_WR_SEND && data->empty() && qp.its_device->modes.drop_zero_byte_sends) {
    advance_psn(qp, *peer, 0);
    finish(w, qp, IBV_WC_SUCCESS, 0);
    return true;
  }
  if (is_write(wqe.opcode) && (peer->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
    refuse(w, qp, *peer, IBV_WC_REM_INV_REQ_ERR);
    return true;
  }
  if (needs_recv(wqe.opcode) && !receiver_ready(*peer)) return try_again_rnr(w, qp, wqe);
  if (is_write(wqe.opcode))
    run_write(w, qp, *peer, wqe, std::move(*data));
  else
    run_send(w, qp, *peer, wqe, *data);
  return true;
}

}  // namespace tidelock::fake
