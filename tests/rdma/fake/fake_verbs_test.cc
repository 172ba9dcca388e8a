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

}  // namespace tidelock::fake
