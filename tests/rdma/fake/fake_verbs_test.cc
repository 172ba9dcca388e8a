// The fake's verbs, by raw calls: what a well-behaved provider does.
#include "fixture.h"

namespace tidelock::fake {

TEST_CASE("fake verbs: the two default devices and what they say of themselves") {
  reset();
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  REQUIRE(count == 2);
  CHECK(std::string(ibv_get_device_name(list[0])) == "fake0");
  CHECK(list[2] == nullptr);
  ibv_context* context = ibv_open_device(list[1]);
  ibv_free_device_list(list);
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_ACTIVE);
  CHECK(port.active_mtu == IBV_MTU_4096);
  CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET);
  CHECK(port.gid_tbl_len == 2);
  CHECK(ibv_query_port(context, 2, &port) == EINVAL);
  ibv_device_attr attr{};
  REQUIRE(ibv_query_device(context, &attr) == 0);
  CHECK(attr.max_qp_wr == 16384);
  ibv_gid_entry entries[4];
  REQUIRE(ibv_query_gid_table(context, entries, 4, 0) == 2);
  CHECK(entries[0].gid.raw[0] == 0xfe);
  CHECK(entries[1].gid_type == IBV_GID_TYPE_ROCE_V2);
  CHECK(std::memcmp(entries[1].gid.raw, mapped_gid("10.0.0.2").gid.raw, 16) == 0);
  ibv_gid_entry entry{};
  CHECK(ibv_query_gid_ex(context, 1, 1, &entry, 0) == 0);
  CHECK(entry.gid_index == 1);
  CHECK(ibv_query_gid_ex(context, 1, 2, &entry, 0) == EINVAL);
  CHECK(live_objects().contexts == 1);
  CHECK(ibv_close_device(context) == 0);
  CHECK(live_objects().total() == 0);
}

TEST_CASE("fake verbs: no device, and a configured one") {
  set_devices({});
  int count = -1;
  ibv_free_device_list(ibv_get_device_list(&count));
  CHECK(count == 0);
  DeviceConfig config;
  config.name = "lab7";
  config.ipv4 = "192.168.7.1";
  config.port_state = IBV_PORT_DOWN;
  config.active_mtu = IBV_MTU_1024;
  config.gids = {link_local_gid(1), {mapped_gid(config.ipv4).gid, IBV_GID_TYPE_ROCE_V1}};
  config.max_inline = 16;
  config.max_sge = 3;
  set_devices({config});
  ibv_context* context = open_by_name("lab7");
  REQUIRE(context != nullptr);
  ibv_port_attr port{};
  REQUIRE(ibv_query_port(context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_DOWN);
  CHECK(port.active_mtu == IBV_MTU_1024);
  ibv_gid_entry entry{};
  CHECK(ibv_query_gid_ex(context, 1, 1, &entry, 0) == 0);
  CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V1);
  CHECK(ibv_close_device(context) == 0);
  reset();
}

TEST_CASE("fake verbs: a send consumes a receive and completes on both sides") {
  Pair pair;
  REQUIRE(pair.b.post_recv(7) == 0);
  std::memcpy(pair.a.memory.data(), "hello", 5);
  Wr send(pair.a, IBV_WR_SEND, 42, 5);
  REQUIRE(send.post(pair.a.qp) == 0);
  const auto received = pair.b.poll();
  REQUIRE(received.size() == 1);
  CHECK(received[0].wr_id == 7);
  CHECK(received[0].status == IBV_WC_SUCCESS);
  CHECK(received[0].opcode == IBV_WC_RECV);
  CHECK(received[0].byte_len == 5);
  CHECK(received[0].wc_flags == 0);
  CHECK(received[0].qp_num == pair.b.qp->qp_num);
  CHECK(std::memcmp(pair.b.memory.data() + 2048, "hello", 5) == 0);
  const auto sent = pair.a.poll();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].wr_id == 42);
  CHECK(sent[0].status == IBV_WC_SUCCESS);
  CHECK(sent[0].opcode == IBV_WC_SEND);
}

TEST_CASE("fake verbs: a write with immediate places its bytes and tells the receiver") {
  Pair pair;
  REQUIRE(pair.b.post_recv(9) == 0);
  std::memcpy(pair.a.memory.data(), "batch", 5);
  Wr first(pair.a, IBV_WR_RDMA_WRITE, 1, 3, 0), second(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 5);
  first.to(pair.b, 100).then(second.to(pair.b, 200).imm(0x01020304));
  REQUIRE(first.post(pair.a.qp) == 0);
  const auto received = pair.b.poll();
  REQUIRE(received.size() == 1);
  CHECK(received[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(received[0].wc_flags == IBV_WC_WITH_IMM);
  CHECK(received[0].imm_data == 0x01020304);
  CHECK(received[0].byte_len == 5);
  CHECK(std::memcmp(pair.b.memory.data() + 100, "bat", 3) == 0);
  CHECK(std::memcmp(pair.b.memory.data() + 200, "batch", 5) == 0);
  const auto sent = pair.a.poll();
  REQUIRE(sent.size() == 1);  // the first was not signaled
  CHECK(sent[0].wr_id == 2);
  CHECK(sent[0].opcode == IBV_WC_RDMA_WRITE);
}

TEST_CASE("fake verbs: sends with immediate, gathered and scattered") {
  Pair pair;
  ibv_sge into[2] = {pair.b.sge(0, 3), pair.b.sge(1000, 10)};
  ibv_recv_wr recv{}, *bad_recv = nullptr;
  recv.sg_list = into;
  recv.num_sge = 2;
  REQUIRE(ibv_post_recv(pair.b.qp, &recv, &bad_recv) == 0);
  std::memcpy(pair.a.memory.data() + 50, "abc", 3);
  std::memcpy(pair.a.memory.data() + 90, "defg", 4);
  ibv_sge from[3] = {pair.a.sge(50, 3), pair.a.sge(0, 0), pair.a.sge(90, 4)};
  Wr send(pair.a, IBV_WR_SEND_WITH_IMM, 1, 0);
  send.wr.sg_list = from;
  send.wr.num_sge = 3;
  send.imm(5);
  REQUIRE(send.post(pair.a.qp) == 0);
  const auto received = pair.b.poll();
  REQUIRE(received.size() == 1);
  CHECK(received[0].byte_len == 7);
  CHECK(received[0].opcode == IBV_WC_RECV);
  CHECK(received[0].wc_flags == IBV_WC_WITH_IMM);
  CHECK(received[0].imm_data == 5);
  CHECK(std::memcmp(pair.b.memory.data(), "abc", 3) == 0);
  CHECK(std::memcmp(pair.b.memory.data() + 1000, "defg", 4) == 0);
}

TEST_CASE("fake verbs: inline data is taken at the post, other data when it is sent") {
  Pair pair;
  hold();
  pair.a.memory[0] = 'x';
  Wr taken(pair.a, IBV_WR_RDMA_WRITE, 1, 1, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
  taken.list.lkey = 0;  // not looked at
  Wr read(pair.a, IBV_WR_RDMA_WRITE, 2, 1);
  taken.to(pair.b, 0).then(read.to(pair.b, 1));
  REQUIRE(taken.post(pair.a.qp) == 0);
  pair.a.memory[0] = 'y';
  CHECK(pair.a.poll().empty());
  CHECK(pending() == 2);
  go();
  CHECK(pair.b.memory[0] == 'x');
  CHECK(pair.b.memory[1] == 'y');
  CHECK(pair.a.poll().size() == 2);
  CHECK(pending() == 0);
}

TEST_CASE("fake verbs: the wire is one queue in global order, also one thing at a time") {
  Pair pair;
  hold();
  Wr first(pair.a, IBV_WR_RDMA_WRITE, 1, 1), second(pair.b, IBV_WR_RDMA_WRITE, 2, 1),
      third(pair.a, IBV_WR_RDMA_WRITE, 3, 1);
  REQUIRE(first.to(pair.b, 0).post(pair.a.qp) == 0);
  REQUIRE(second.to(pair.a, 0).post(pair.b.qp) == 0);
  REQUIRE(third.to(pair.b, 0).post(pair.a.qp) == 0);
  CHECK(run_one());
  CHECK(pair.a.poll().size() == 1);
  CHECK(pair.b.poll().empty());
  CHECK(run_one());
  CHECK(pair.b.poll().size() == 1);
  CHECK(pair.a.poll().empty());
  CHECK(run_one());
  CHECK(pair.a.poll().size() == 1);
  CHECK_FALSE(run_one());
}

TEST_CASE("fake verbs: send slots come back when a completion at or after them is polled") {
  Limits limits;
  limits.send_wr = 3;
  Pair pair(limits);
  Wr quiet(pair.a, IBV_WR_RDMA_WRITE, 1, 1, 0), loud(pair.a, IBV_WR_RDMA_WRITE, 2, 1);
  quiet.to(pair.b, 0);
  loud.to(pair.b, 0);
  REQUIRE(quiet.post(pair.a.qp) == 0);
  REQUIRE(quiet.post(pair.a.qp) == 0);
  step();
  CHECK(qp_stats(pair.a.qp->qp_num).sq_in_use == 2);  // done, and yet nobody said so
  REQUIRE(loud.post(pair.a.qp) == 0);
  Wr fourth(pair.a, IBV_WR_RDMA_WRITE, 4, 1), fifth(pair.a, IBV_WR_RDMA_WRITE, 5, 1);
  fourth.to(pair.b, 0).then(fifth.to(pair.b, 0));
  CHECK(fourth.post(pair.a.qp) == ENOMEM);
  CHECK(fourth.bad == &fourth.wr);
  REQUIRE(pair.a.poll().size() == 1);
  CHECK(qp_stats(pair.a.qp->qp_num).sq_in_use == 0);
  REQUIRE(quiet.post(pair.a.qp) == 0);
  REQUIRE(quiet.post(pair.a.qp) == 0);
  CHECK(fourth.post(pair.a.qp) == ENOMEM);  // the first of the chain is taken
  CHECK(fourth.bad == &fifth.wr);
  const QpStats stats = qp_stats(pair.a.qp->qp_num);
  CHECK(stats.sq_in_use_max == 3);
  CHECK(stats.post_send_calls == 7);
  CHECK(stats.sends_posted == 6);
  CHECK(stats.sends_signaled == 2);
}

TEST_CASE("fake verbs: limits of a queue pair and of a device") {
  Limits limits;
  limits.sge = 1;
  limits.inline_bytes = 8;
  Pair pair(limits);
  Wr wide(pair.a, IBV_WR_SEND, 1, 1);
  ibv_sge two[2] = {pair.a.sge(0, 1), pair.a.sge(1, 1)};
  wide.wr.sg_list = two;
  wide.wr.num_sge = 2;
  CHECK(wide.post(pair.a.qp) == EINVAL);
  CHECK(wide.bad == &wide.wr);
  Wr long_inline(pair.a, IBV_WR_SEND, 1, 9, IBV_SEND_INLINE);
  CHECK(long_inline.post(pair.a.qp) == EINVAL);
  Wr unknown(pair.a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 8);
  CHECK(unknown.post(pair.a.qp) == EINVAL);
  ibv_recv_wr recv{}, *bad = nullptr;
  recv.sg_list = two;
  recv.num_sge = 2;
  CHECK(ibv_post_recv(pair.a.qp, &recv, &bad) == EINVAL);
  CHECK(bad == &recv);
  Limits too_much;
  too_much.inline_bytes = 257;
  CHECK(pair.a.make_qp(too_much) == nullptr);
  CHECK(errno == EINVAL);
  too_much = {};
  too_much.send_wr = 16385;
  CHECK(pair.a.make_qp(too_much) == nullptr);
  too_much = {};
  too_much.sge = 17;
  CHECK(pair.a.make_qp(too_much) == nullptr);
  CHECK(ibv_create_cq(pair.a.context, (1 << 20) + 1, nullptr, nullptr, 0) == nullptr);
  CHECK(ibv_reg_mr(pair.a.pd, two, 1, IBV_ACCESS_REMOTE_WRITE) == nullptr);
}

TEST_CASE("fake verbs: states are passed in order and with all that they need") {
  Pair pair({}, false);
  CHECK(to_rtr(pair.a.qp, "fake1", pair.b.qp->qp_num) == EINVAL);
  CHECK(to_rts(pair.a.qp) == EINVAL);
  CHECK(pair.a.post_recv(1) == EINVAL);
  REQUIRE(to_init(pair.a.qp) == 0);
  CHECK(pair.a.qp->state == IBV_QPS_INIT);
  CHECK(pair.a.post_recv(1) == 0);
  CHECK(to_rts(pair.a.qp) == EINVAL);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  CHECK(ibv_modify_qp(pair.a.qp, &attr, IBV_QP_STATE) == EINVAL);
  CHECK(ibv_modify_qp(pair.a.qp, &attr, IBV_QP_STATE | 1 << 21) == EOPNOTSUPP);
  CHECK(state_of(pair.a.qp) == IBV_QPS_INIT);
  REQUIRE(to_rtr(pair.a.qp, "fake1", pair.b.qp->qp_num) == 0);
  REQUIRE(to_rts(pair.a.qp) == 0);
  attr = {};
  attr.min_rnr_timer = 12;
  attr.qp_access_flags = 0;
  CHECK(ibv_modify_qp(pair.a.qp, &attr, IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS) == 0);
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(pair.a.qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init) == 0);
  CHECK(attr.qp_state == IBV_QPS_RTS);
  CHECK(attr.min_rnr_timer == 12);
  CHECK(attr.dest_qp_num == pair.b.qp->qp_num);
  CHECK(init.cap.max_inline_data == 64);
  attr.qp_state = IBV_QPS_RESET;
  REQUIRE(ibv_modify_qp(pair.a.qp, &attr, IBV_QP_STATE) == 0);
  CHECK(to_rts(pair.a.qp) == EINVAL);
}

TEST_CASE("fake verbs: a completion event comes once for an arming, and not for what came before it") {
  Pair pair;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(pair.b.post_recv(1) == 0);
  REQUIRE(pair.b.post_recv(2) == 0);
  Wr send(pair.a, IBV_WR_SEND, 1, 1);
  REQUIRE(send.post(pair.a.qp) == 0);
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 0) == 0);  // the message comes with this step, before the arming
  CHECK(ibv_get_cq_event(pair.b.channel, &cq, &context) == -1);
  CHECK(errno == EAGAIN);
  CHECK_FALSE(readable(pair.b.channel->fd));
  CHECK(pair.b.poll().size() == 1);
  REQUIRE(send.post(pair.a.qp) == 0);
  step();
  CHECK(readable(pair.b.channel->fd));
  REQUIRE(ibv_get_cq_event(pair.b.channel, &cq, &context) == 0);
  CHECK(cq == pair.b.cq);
  CHECK(context == &pair.b);
  CHECK_FALSE(readable(pair.b.channel->fd));
  ibv_ack_cq_events(cq, 1);
  CHECK(pair.b.poll().size() == 1);
}

TEST_CASE("fake verbs: an arming for solicited completions waits for one, or for an error") {
  Pair pair;
  REQUIRE(pair.b.post_recv(1) == 0);
  REQUIRE(pair.b.post_recv(2) == 0);
  REQUIRE(pair.b.post_recv(3) == 0);
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 1) == 0);
  Wr plain(pair.a, IBV_WR_SEND, 1, 1), solicited(pair.a, IBV_WR_SEND, 2, 1, IBV_SEND_SOLICITED);
  REQUIRE(plain.post(pair.a.qp) == 0);
  step();
  CHECK_FALSE(readable(pair.b.channel->fd));
  REQUIRE(solicited.post(pair.a.qp) == 0);
  step();
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  REQUIRE(ibv_get_cq_event(pair.b.channel, &cq, &context) == 0);
  ibv_ack_cq_events(cq, 1);
  REQUIRE(ibv_req_notify_cq(pair.b.cq, 1) == 0);
  REQUIRE(to_err(pair.b.qp) == 0);
  REQUIRE(ibv_get_cq_event(pair.b.channel, &cq, &context) == 0);
  ibv_ack_cq_events(cq, 1);
}

TEST_CASE("fake verbs: what is in use is not destroyed") {
  Pair pair;
  CHECK(ibv_destroy_cq(pair.a.cq) == EBUSY);
  CHECK(ibv_dealloc_pd(pair.a.pd) == EBUSY);
  CHECK(ibv_destroy_comp_channel(pair.a.channel) == EBUSY);
  const LiveObjects live = live_objects();
  CHECK(live.contexts == 2);
  CHECK(live.pds == 2);
  CHECK(live.cqs == 2);
  CHECK(live.mrs == 2);
  CHECK(live.qps == 2);
  CHECK(live.comp_channels == 2);
  CHECK(live.total() == 12);
  CHECK(qp_numbers("fake0") == std::vector<std::uint32_t>{pair.a.qp->qp_num});
  CHECK(pair.a.qp->qp_num != pair.b.qp->qp_num);
}

TEST_CASE("fake verbs: names") {
  CHECK(std::string(ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR)) == "IBV_WC_RNR_RETRY_EXC_ERR");
  CHECK(std::string(ibv_port_state_str(IBV_PORT_DOWN)) == "IBV_PORT_DOWN");
  CHECK(std::string(ibv_event_type_str(IBV_EVENT_PORT_ERR)) == "IBV_EVENT_PORT_ERR");
  CHECK(std::string(ibv_node_type_str(IBV_NODE_CA)) == "IBV_NODE_CA");
  CHECK(std::string(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED)) == "RDMA_CM_EVENT_ESTABLISHED");
}

}  // namespace tidelock::fake
