// What the communication manager fills in for an external queue pair: rdma_init_qp_attr(3).
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "world.h"

namespace tidelock::fake {

namespace {

constexpr std::uint8_t kAckTimeoutDefault = 18;
/// Attributes of the kernel's own that it leaves in the mask for RoCE; ibv_modify_qp() refuses them.
constexpr int kKernelMask = 1 << 21 | 1 << 23;

std::uint8_t chosen_index(const Device& device) {
  if (device.config.cm_gid >= 0) return static_cast<std::uint8_t>(device.config.cm_gid);
  const std::vector<Gid> gids = gids_of(device);
  const Gid wanted = mapped_gid(device.config.ipv4);
  for (std::size_t i = 0; i < gids.size(); ++i)
    if (gids[i].type == wanted.type &&
        std::memcmp(gids[i].gid.raw, wanted.gid.raw, sizeof(wanted.gid.raw)) == 0)
      return static_cast<std::uint8_t>(i);
  return 0;
}

/// Before a request was sent or received there is no connection to take anything from.
void fill_unconnected(ibv_qp_attr& attr, int& mask) {
  attr.port_num = 1;
  mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
}

void fill_init(const Conn& conn, ibv_qp_attr& attr, int& mask) {
  fill_unconnected(attr, mask);
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (conn.responder_resources > 0) attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
}

void fill_rtr(const Conn& conn, ibv_qp_attr& attr, int& mask) {
  mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | kKernelMask;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = mapped_gid(conn.peer_device->config.ipv4).gid;
  attr.ah_attr.grh.sgid_index = chosen_index(*conn.device);
  attr.ah_attr.grh.hop_limit = 64;
  attr.path_mtu = std::min(conn.device->config.active_mtu, conn.peer_device->config.active_mtu);
  attr.dest_qp_num = conn.remote_qp_num;
  attr.rq_psn = conn.psn;
  attr.max_dest_rd_atomic = conn.responder_resources;
  attr.min_rnr_timer = 0;
}

void fill_rts(const Conn& conn, ibv_qp_attr& attr, int& mask) {
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC;
  attr.sq_psn = conn.psn;
  attr.timeout = conn.ack_timeout != 0 ? conn.ack_timeout : kAckTimeoutDefault;
  attr.retry_cnt = conn.retry_count;
  attr.rnr_retry = conn.rnr_retry;
  attr.max_rd_atomic = conn.initiator_depth;
}

bool in(const Conn& conn, std::initializer_list<ConnState> states) {
  return std::find(states.begin(), states.end(), conn.state) != states.end();
}

int fill(const Conn& conn, ibv_qp_attr& attr, int& mask) {
  using enum ConnState;
  if (in(conn, {idle, addr_query, addr_resolved, route_query, route_resolved, listening})) {
    if (conn.device == nullptr) return EINVAL;
    fill_unconnected(attr, mask);
    return 0;
  }
  const bool connected = in(conn, {req_received, rep_sent, rep_received, established});
  if (attr.qp_state == IBV_QPS_INIT && (connected || conn.state == req_sent))
    fill_init(conn, attr, mask);
  else if (attr.qp_state == IBV_QPS_RTR && connected)
    fill_rtr(conn, attr, mask);
  else if (attr.qp_state == IBV_QPS_RTS && connected)
    fill_rts(conn, attr, mask);
  else
    return EINVAL;
  return 0;
}

}  // namespace
}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" int rdma_init_qp_attr(rdma_cm_id* handle, ibv_qp_attr* attr, int* mask) {
  tell_call("rdma_init_qp_attr");
  World& w = world();
  const Lock lock(w.mutex);
  const CmId& id = w.ids.check(handle, "rdma_init_qp_attr");
  errno = failure_of(w, Call::init_qp_attr);
  if (errno != 0) return -1;
  // The whole structure is overwritten, but for the state that is asked for.
  ibv_qp_attr filled{};
  filled.qp_state = attr->qp_state;
  errno = fill(*find_conn(w, id.conn), filled, *mask);
  if (errno != 0) return -1;
  *attr = filled;
  return 0;
}
