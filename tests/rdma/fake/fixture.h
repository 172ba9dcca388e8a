/// Two sides with a queue pair each, by raw verbs, for the tests of the fake itself.
/// Thread:   one
#pragma once

#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "fake_verbs.h"

namespace tidelock::fake {

inline ibv_context* open_by_name(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = nullptr;
  for (int i = 0; i < count; ++i)
    if (name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
  ibv_free_device_list(list);
  return context;
}

inline void make_nonblocking(int fd) { REQUIRE(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0); }

inline bool readable(int fd) {
  pollfd waited{fd, POLLIN, 0};
  return poll(&waited, 1, 0) == 1;
}

struct Limits {
  std::uint32_t send_wr = 16, recv_wr = 16, sge = 4, inline_bytes = 64;
  int cqe = 64;
};

/// A context with all that one queue pair needs; what is null at the end was destroyed by the test.
struct Side {
  explicit Side(const std::string& name, const Limits& limits = {}) : device(name) {
    context = open_by_name(name);
    REQUIRE(context != nullptr);
    make_nonblocking(context->async_fd);
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    make_nonblocking(channel->fd);
    cq = ibv_create_cq(context, limits.cqe, this, channel, 0);
    memory.resize(4096);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    qp = make_qp(limits);
    REQUIRE(qp != nullptr);
  }
  ~Side() {
    if (qp != nullptr) ibv_destroy_qp(qp);
    if (mr != nullptr) ibv_dereg_mr(mr);
    if (cq != nullptr) ibv_destroy_cq(cq);
    if (channel != nullptr) ibv_destroy_comp_channel(channel);
    if (pd != nullptr) ibv_dealloc_pd(pd);
    ibv_close_device(context);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  ibv_qp* make_qp(const Limits& limits = {}) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {limits.send_wr, limits.recv_wr, limits.sge, limits.sge, limits.inline_bytes};
    init.qp_type = IBV_QPT_RC;
    return ibv_create_qp(pd, &init);
  }
  ibv_sge sge(std::size_t offset, std::uint32_t length) const {
    return {reinterpret_cast<std::uint64_t>(memory.data()) + offset, length, mr->lkey};
  }
  std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(memory.data()) + offset;
  }
  std::vector<ibv_wc> poll(int count = 64) {
    std::vector<ibv_wc> wcs(static_cast<std::size_t>(count));
    const int polled = ibv_poll_cq(cq, count, wcs.data());
    REQUIRE(polled >= 0);
    wcs.resize(static_cast<std::size_t>(polled));
    return wcs;
  }
  int post_recv(std::uint64_t wr_id, std::size_t offset = 2048, std::uint32_t length = 512) {
    ibv_sge list = sge(offset, length);
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.sg_list = &list;
    wr.num_sge = 1;
    return ibv_post_recv(qp, &wr, &bad);
  }

  std::string device;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  std::vector<std::uint8_t> memory;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
};

inline int to_init(ibv_qp* qp, unsigned access = IBV_ACCESS_REMOTE_WRITE) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = access;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

inline int to_rtr(ibv_qp* qp, const std::string& peer_device, std::uint32_t peer_qp_num) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer_qp_num;
  attr.rq_psn = 77;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.grh.dgid = mapped_gid(device_config(peer_device).ipv4).gid;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

inline int to_rts(ibv_qp* qp, std::uint8_t rnr_retry = 7, std::uint8_t retry_cnt = 3) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = 77;
  attr.max_rd_atomic = 1;
  attr.retry_cnt = retry_cnt;
  attr.rnr_retry = rnr_retry;
  attr.timeout = 14;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT |
                           IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT);
}

inline int to_err(ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

inline ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
  return attr.qp_state;
}

/// fake0's a and fake1's b, connected unless told otherwise, after a reset.
struct Pair {
  explicit Pair(const Limits& limits = {}, bool connect = true)
      : fresh((reset(), 0)), a("fake0", limits), b("fake1", limits) {
    if (connect) connect_both();
  }
  void connect_both(std::uint8_t rnr_retry = 7, std::uint8_t retry_cnt = 3) {
    REQUIRE(to_init(a.qp) == 0);
    REQUIRE(to_init(b.qp) == 0);
    REQUIRE(to_rtr(a.qp, b.device, b.qp->qp_num) == 0);
    REQUIRE(to_rtr(b.qp, a.device, a.qp->qp_num) == 0);
    REQUIRE(to_rts(a.qp, rnr_retry, retry_cnt) == 0);
    REQUIRE(to_rts(b.qp, rnr_retry, retry_cnt) == 0);
  }
  int fresh;
  Side a, b;
};

/// One work request from the first bytes of a side's memory.
struct Wr {
  Wr(const Side& from, ibv_wr_opcode opcode, std::uint64_t wr_id, std::uint32_t length,
     unsigned flags = IBV_SEND_SIGNALED) {
    list = from.sge(0, length);
    wr.wr_id = wr_id;
    wr.sg_list = &list;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
  }
  Wr(const Wr&) = delete;
  Wr& operator=(const Wr&) = delete;
  Wr& to(const Side& target, std::size_t offset) {
    wr.wr.rdma.remote_addr = target.address(offset);
    wr.wr.rdma.rkey = target.mr->rkey;
    return *this;
  }
  Wr& imm(std::uint32_t value) {
    wr.imm_data = value;
    return *this;
  }
  Wr& then(Wr& next) {
    wr.next = &next.wr;
    return *this;
  }
  int post(ibv_qp* qp) {
    bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }
  ibv_sge list{};
  ibv_send_wr wr{};
  ibv_send_wr* bad = nullptr;
};

}  // namespace tidelock::fake
