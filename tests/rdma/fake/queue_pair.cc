// Queue pairs: making, moving through their states, ending.
#include <algorithm>
#include <array>
#include <cerrno>

#include "world.h"

namespace tidelock::fake {

namespace {

struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

/// For RC, after the tables of ibv_modify_qp(3) and of the IBA specification, 11.2.4.2.
constexpr std::array<Transition, 8> kTransitions{{
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_CUR_STATE},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
}};

bool mask_allowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  const int others = mask & ~IBV_QP_STATE;
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) return (others & ~IBV_QP_CUR_STATE) == 0;
  for (const Transition& t : kTransitions)
    if (t.from == from && t.to == to)
      return (others & t.required) == t.required && (others & ~(t.required | t.optional)) == 0;
  return false;
}

int check_values(World& w, const Device& device, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_PORT) && attr.port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) && attr.pkey_index != 0) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) && (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > device.config.active_mtu))
    return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) && attr.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) && attr.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31) return EINVAL;
  if ((mask & IBV_QP_TIMEOUT) && attr.timeout > 31) return EINVAL;
  if (mask & IBV_QP_AV) {
    if (attr.ah_attr.is_global == 0 || attr.ah_attr.port_num != 1) return EINVAL;  // RoCE always has a GRH
    const std::vector<Gid> gids = gids_of(device);
    if (attr.ah_attr.grh.sgid_index >= gids.size()) return EINVAL;
    if (device_by_gid(w, attr.ah_attr.grh.dgid) == nullptr) return ETIMEDOUT;  // no such neighbour
  }
  return 0;
}

void take_values(World& w, Qp& qp, const ibv_qp_attr& from, int mask) {
  ibv_qp_attr& to = qp.attr;
  if (mask & IBV_QP_STATE) to.qp_state = from.qp_state;
  if (mask & IBV_QP_ACCESS_FLAGS) to.qp_access_flags = from.qp_access_flags;
  if (mask & IBV_QP_PKEY_INDEX) to.pkey_index = from.pkey_index;
  if (mask & IBV_QP_PORT) to.port_num = from.port_num;
  if (mask & IBV_QP_AV) {
    to.ah_attr = from.ah_attr;
    qp.peer_device = device_by_gid(w, from.ah_attr.grh.dgid);
  }
  if (mask & IBV_QP_PATH_MTU) to.path_mtu = from.path_mtu;
  if (mask & IBV_QP_TIMEOUT) to.timeout = from.timeout;
  if (mask & IBV_QP_RETRY_CNT) to.retry_cnt = from.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) to.rnr_retry = from.rnr_retry;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to.max_rd_atomic = from.max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (mask & IBV_QP_MIN_RNR_TIMER) to.min_rnr_timer = from.min_rnr_timer;
  if (mask & IBV_QP_DEST_QPN) to.dest_qp_num = from.dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) to.rq_psn = qp.expected_psn = from.rq_psn & 0xffffff;
  if (mask & IBV_QP_SQ_PSN) to.sq_psn = qp.next_psn = from.sq_psn & 0xffffff;
}

int check_init(const DeviceConfig& config, const ibv_qp_init_attr& init) {
  const ibv_qp_cap& cap = init.cap;
  if (init.qp_type != IBV_QPT_RC || init.srq != nullptr) return EOPNOTSUPP;
  if (init.send_cq == nullptr || init.recv_cq == nullptr) return EINVAL;
  const auto wr_max = static_cast<std::uint32_t>(config.max_qp_wr);
  const auto sge_max = static_cast<std::uint32_t>(config.max_sge);
  if (cap.max_send_wr > wr_max || cap.max_recv_wr > wr_max) return EINVAL;
  if (cap.max_send_sge > sge_max || cap.max_recv_sge > sge_max) return EINVAL;
  return cap.max_inline_data > config.max_inline ? EINVAL : 0;
}

std::uint32_t take_number(World& w, const Device& device) {
  const std::uint32_t last = w.last_destroyed_qp_num;
  if (device.modes.reuse_qp_numbers && last != 0 && w.qp_by_number.count(last) == 0) return last;
  return w.next_qp_num++;
}

}  // namespace

Qp* qp_by_number(World& w, std::uint32_t qp_num) {
  const auto found = w.qp_by_number.find(qp_num);
  return found == w.qp_by_number.end() ? nullptr : w.qps.find(found->second);
}

void drop_work(World& w, Qp& qp) {
  qp.sq.clear();
  qp.rq.clear();
  update_head(w, qp);
}

void schedule_flush(World& w, Qp& qp) {
  if (qp.flush_scheduled || qp.silent) return;
  qp.flush_scheduled = true;
  after(w, 0, [&w, serial = qp.serial] {
    Qp* flushed = w.qps.find(serial);
    if (flushed == nullptr) return;
    flushed->flush_scheduled = false;
    if (flushed->attr.qp_state != IBV_QPS_ERR) return;
    const std::deque<SendWqe> sends = std::exchange(flushed->sq, {});
    const std::deque<RecvWqe> recvs = std::exchange(flushed->rq, {});
    if (flushed->its_device->modes.flush_missing || flushed->silent) return;
    for (const SendWqe& wqe : sends) complete_send(w, *flushed, wqe, IBV_WC_WR_FLUSH_ERR, 0);
    ibv_wc wc{};
    wc.status = IBV_WC_WR_FLUSH_ERR;
    for (const RecvWqe& wqe : recvs) complete_recv(w, *flushed, wqe, wc, false);
  });
}

void fail_qp(World& w, Qp& qp) {
  qp.attr.qp_state = IBV_QPS_ERR;
  update_head(w, qp);
  schedule_flush(w, qp);
}

}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  tell_call("ibv_create_qp");
  World& w = world();
  const Lock lock(w.mutex);
  Pd& domain = w.pds.check(pd, "ibv_create_qp");
  Device& device = device_of(pd->context);
  errno = failure_of(w, Call::create_qp);
  if (errno == 0) errno = check_init(device.config, *init);
  if (errno != 0) return nullptr;
  auto qp = std::make_unique<Qp>();
  qp->serial = ++w.serial;
  qp->context = pd->context;
  qp->qp_context = init->qp_context;
  qp->pd = pd;
  qp->send_cq = &w.cqs.check(init->send_cq, "ibv_create_qp");
  qp->recv_cq = &w.cqs.check(init->recv_cq, "ibv_create_qp");
  qp->handle = static_cast<std::uint32_t>(qp->serial);
  qp->qp_num = take_number(w, device);
  qp->state = IBV_QPS_RESET;
  qp->qp_type = init->qp_type;
  qp->its_device = &device;
  qp->init = *init;
  ++domain.users;
  ++static_cast<Cq*>(qp->send_cq)->users;
  ++static_cast<Cq*>(qp->recv_cq)->users;
  w.qp_by_number[qp->qp_num] = qp->serial;
  return &w.qps.add(std::move(qp));
}

int ibv_modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  tell_call("ibv_modify_qp");
  World& w = world();
  const Lock lock(w.mutex);
  Qp& qp = w.qps.check(handle, "ibv_modify_qp");
  if (const int error = failure_of(w, Call::modify_qp)) return error;
  constexpr int kStandardBits = (1 << 21) - 1;
  if ((mask & ~kStandardBits) != 0) return EOPNOTSUPP;
  const ibv_qp_state from = qp.attr.qp_state;
  const ibv_qp_state to = (mask & IBV_QP_STATE) ? attr->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from) return EINVAL;
  if (!mask_allowed(from, to, mask)) return EINVAL;
  if (const int error = check_values(w, *qp.its_device, *attr, mask)) return error;
  take_values(w, qp, *attr, mask);
  if (mask & IBV_QP_STATE) qp.state = to;
  if (to == IBV_QPS_RESET) {
    drop_work(w, qp);
    purge_cqes(w, qp);
    qp.sends_retired = qp.sends;
    qp.recvs_retired = qp.recvs;
  }
  if (to == IBV_QPS_ERR) schedule_flush(w, qp);
  update_head(w, qp);
  pump(w);
  return 0;
}

int ibv_query_qp(ibv_qp* handle, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  World& w = world();
  const Lock lock(w.mutex);
  Qp& qp = w.qps.check(handle, "ibv_query_qp");
  *attr = qp.attr;
  attr->cur_qp_state = attr->qp_state;
  attr->cap = qp.init.cap;
  *init = qp.init;
  handle->state = attr->qp_state;
  return 0;
}

int ibv_destroy_qp(ibv_qp* handle) {
  tell_call("ibv_destroy_qp");
  World& w = world();
  const Lock lock(w.mutex);
  Qp& qp = w.qps.check(handle, "ibv_destroy_qp");
  if (qp.async_got != qp.async_acked)
    die("ibv_destroy_qp would block: an async event of it is not acknowledged");
  if (qp.posting) die("ibv_destroy_qp while another thread posts to it");
  drop_work(w, qp);
  if (!qp.its_device->modes.cqes_outlive_qp) purge_cqes(w, qp);
  forget_async(*static_cast<Context*>(qp.context), qp.serial, 0);
  --static_cast<Pd*>(qp.pd)->users;
  --static_cast<Cq*>(qp.send_cq)->users;
  --static_cast<Cq*>(qp.recv_cq)->users;
  if (qp_by_number(w, qp.qp_num) == &qp) w.qp_by_number.erase(qp.qp_num);
  w.last_destroyed_qp_num = qp.qp_num;
  w.qps.remove(qp);
  pump(w);
  return 0;
}

}  // extern "C"
