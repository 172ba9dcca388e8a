// How work requests fail on a well-behaved provider, and what a queue pair in ERR does with the others.
#include "fixture.h"

namespace tidelock::fake {

namespace {

/// The one completion that a failing write or send gets, and the queue pairs' states after it.
ibv_wc_status only_status(Side& side) {
  const auto wcs = side.poll();
  REQUIRE(wcs.size() == 1);
  return wcs[0].status;
}

}  // namespace

TEST_CASE("fake errors: a write outside the region, with a wrong key or without the region's right") {
  Pair pair;
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 3, 64, 0);
  SUBCASE("range") { write.to(pair.b, 4096 - 63); }
  SUBCASE("range that wraps") {
    write.to(pair.b, 0);
    write.wr.wr.rdma.remote_addr = ~std::uint64_t{0} - 10;
  }
  SUBCASE("the local key is not the remote key") {
    write.to(pair.b, 0);
    write.wr.wr.rdma.rkey = pair.b.mr->lkey;
  }
  SUBCASE("a region that is gone") {
    write.to(pair.b, 0);
    REQUIRE(ibv_dereg_mr(pair.b.mr) == 0);
    pair.b.mr = nullptr;
  }
  SUBCASE("a region that is not for remote writes") {
    write.to(pair.b, 0);
    REQUIRE(ibv_dereg_mr(pair.b.mr) == 0);
    pair.b.mr = ibv_reg_mr(pair.b.pd, pair.b.memory.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
    write.wr.wr.rdma.rkey = pair.b.mr->rkey;
  }
  REQUIRE(write.post(pair.a.qp) == 0);
  CHECK(only_status(pair.a) == IBV_WC_REM_ACCESS_ERR);  // an error is told although it was not signaled
  CHECK(state_of(pair.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(pair.b.qp) == IBV_QPS_ERR);
}

TEST_CASE("fake errors: a region of another protection domain is refused") {
  Pair pair;
  ibv_pd* other = ibv_alloc_pd(pair.b.context);
  std::vector<std::uint8_t> memory(64);
  ibv_mr* mr = ibv_reg_mr(other, memory.data(), 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 8);
  write.wr.wr.rdma.remote_addr = reinterpret_cast<std::uint64_t>(memory.data());
  write.wr.wr.rdma.rkey = mr->rkey;
  REQUIRE(write.post(pair.a.qp) == 0);
  CHECK(only_status(pair.a) == IBV_WC_REM_ACCESS_ERR);
  CHECK(ibv_dereg_mr(mr) == 0);
  CHECK(ibv_dealloc_pd(other) == 0);
}

TEST_CASE("fake errors: a write of no bytes needs no key") {
  Pair pair;
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 0);
  REQUIRE(write.post(pair.a.qp) == 0);
  CHECK(only_status(pair.a) == IBV_WC_SUCCESS);
}

TEST_CASE("fake errors: a queue pair whose right to be written is taken away refuses") {
  Pair pair;
  ibv_qp_attr attr{};
  REQUIRE(ibv_modify_qp(pair.b.qp, &attr, IBV_QP_ACCESS_FLAGS) == 0);
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 8);
  REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
  CHECK(only_status(pair.a) == IBV_WC_REM_INV_REQ_ERR);
  CHECK(state_of(pair.b.qp) == IBV_QPS_ERR);
}

TEST_CASE("fake errors: local memory that is not registered") {
  Pair pair;
  Wr send(pair.a, IBV_WR_SEND, 5, 8, 0);
  send.list.lkey = pair.a.mr->rkey;
  REQUIRE(send.post(pair.a.qp) == 0);
  CHECK(only_status(pair.a) == IBV_WC_LOC_PROT_ERR);
  CHECK(state_of(pair.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(pair.b.qp) == IBV_QPS_RTS);
}

TEST_CASE("fake errors: a message longer than its receive, and a receive into memory that is not writable") {
  Pair pair;
  Wr send(pair.a, IBV_WR_SEND, 1, 9);
  SUBCASE("length") {
    REQUIRE(pair.b.post_recv(7, 0, 8) == 0);
    REQUIRE(send.post(pair.a.qp) == 0);
    CHECK(only_status(pair.b) == IBV_WC_LOC_LEN_ERR);
    CHECK(only_status(pair.a) == IBV_WC_REM_INV_REQ_ERR);
  }
  SUBCASE("key") {
    ibv_sge list = pair.b.sge(0, 16);
    list.lkey = pair.b.mr->rkey;
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.sg_list = &list;
    wr.num_sge = 1;
    REQUIRE(ibv_post_recv(pair.b.qp, &wr, &bad) == 0);
    REQUIRE(send.post(pair.a.qp) == 0);
    CHECK(only_status(pair.b) == IBV_WC_LOC_PROT_ERR);
    CHECK(only_status(pair.a) == IBV_WC_REM_OP_ERR);
  }
  CHECK(state_of(pair.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(pair.b.qp) == IBV_QPS_ERR);
}

TEST_CASE("fake errors: with rnr_retry 7 a message waits for a receive, however long") {
  Pair pair;
  Wr send(pair.a, IBV_WR_SEND, 1, 4), behind(pair.a, IBV_WR_RDMA_WRITE, 2, 4);
  REQUIRE(send.then(behind.to(pair.b, 0)).post(pair.a.qp) == 0);
  step(1000);
  CHECK(pair.a.poll().empty());
  CHECK(qp_stats(pair.a.qp->qp_num).rnr_naks >= 1000);
  CHECK(pending() == 2);
  REQUIRE(pair.b.post_recv(3) == 0);
  CHECK(pair.a.poll().size() == 2);
}

TEST_CASE("fake errors: with rnr_retry n it fails after n more attempts, and the receiver is unharmed") {
  Pair pair({}, false);
  pair.connect_both(2);
  hold();
  Wr send(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 4);
  REQUIRE(send.to(pair.b, 0).post(pair.a.qp) == 0);
  step(2);
  CHECK(pair.a.poll().empty());
  step(1);
  CHECK(only_status(pair.a) == IBV_WC_RNR_RETRY_EXC_ERR);
  CHECK(state_of(pair.a.qp) == IBV_QPS_ERR);
  CHECK(state_of(pair.b.qp) == IBV_QPS_RTS);
}

TEST_CASE("fake errors: a queue pair in ERR flushes all that is posted, in order, also what comes later") {
  Pair pair;
  hold();
  REQUIRE(pair.a.post_recv(100) == 0);
  REQUIRE(pair.a.post_recv(101) == 0);
  Wr quiet(pair.a, IBV_WR_SEND, 1, 4, 0), loud(pair.a, IBV_WR_SEND, 2, 4);
  REQUIRE(quiet.then(loud).post(pair.a.qp) == 0);
  REQUIRE(to_err(pair.a.qp) == 0);
  step();
  Wr beacon(pair.a, IBV_WR_SEND, 3, 4);
  REQUIRE(beacon.post(pair.a.qp) == 0);
  REQUIRE(pair.a.post_recv(102) == 0);
  step();
  const auto flushed = pair.a.poll();
  REQUIRE(flushed.size() == 6);
  const std::uint64_t expected[] = {1, 2, 100, 101, 3, 102};
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(flushed[i].wr_id == expected[i]);
    CHECK(flushed[i].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(flushed[i].qp_num == pair.a.qp->qp_num);
  }
  CHECK(pair.b.poll().empty());
}

TEST_CASE("fake errors: a failure flushes what is behind it") {
  Pair pair;
  Wr bad(pair.a, IBV_WR_RDMA_WRITE, 1, 4), behind(pair.a, IBV_WR_RDMA_WRITE, 2, 4, 0);
  bad.to(pair.b, 4095).then(behind.to(pair.b, 0));
  REQUIRE(bad.post(pair.a.qp) == 0);
  const auto wcs = pair.a.poll();
  REQUIRE(wcs.size() == 2);
  CHECK(wcs[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(wcs[1].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(wcs[1].wr_id == 2);
}

TEST_CASE("fake errors: nobody answers where the peer is gone, in ERR, not there yet, or another's") {
  Pair pair({}, false);
  hold();
  SUBCASE("destroyed") {
    pair.connect_both();
    REQUIRE(ibv_destroy_qp(pair.b.qp) == 0);
    pair.b.qp = nullptr;
  }
  SUBCASE("in ERR") {
    pair.connect_both();
    kill_qp(pair.b.qp->qp_num);
  }
  SUBCASE("still in INIT") {
    REQUIRE(to_init(pair.a.qp) == 0);
    REQUIRE(to_init(pair.b.qp) == 0);
    REQUIRE(to_rtr(pair.a.qp, "fake1", pair.b.qp->qp_num) == 0);
    REQUIRE(to_rts(pair.a.qp) == 0);
  }
  SUBCASE("cut off") {
    pair.connect_both();
    cut("fake0", "fake1");
  }
  SUBCASE("its port is down") {
    pair.connect_both();
    DeviceConfig config = device_config("fake1");
    config.port_state = IBV_PORT_DOWN;
    change_device("fake1", config);
  }
  SUBCASE("another sequence number") {
    pair.connect_both();
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    REQUIRE(ibv_modify_qp(pair.b.qp, &attr, IBV_QP_STATE) == 0);
    REQUIRE(to_init(pair.b.qp) == 0);
    REQUIRE(to_rtr(pair.b.qp, "fake0", pair.a.qp->qp_num) == 0);
    Wr advance(pair.a, IBV_WR_RDMA_WRITE, 1, 4, 0);
    REQUIRE(advance.to(pair.b, 0).post(pair.a.qp) == 0);
    step();
    REQUIRE(ibv_modify_qp(pair.b.qp, &attr, IBV_QP_STATE) == 0);
    REQUIRE(to_init(pair.b.qp) == 0);
    REQUIRE(to_rtr(pair.b.qp, "fake0", pair.a.qp->qp_num) == 0);
  }
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 4);
  REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
  step(3);
  CHECK(pair.a.poll().empty());
  step(1);
  CHECK(only_status(pair.a) == IBV_WC_RETRY_EXC_ERR);
  CHECK(state_of(pair.a.qp) == IBV_QPS_ERR);
}

TEST_CASE("fake errors: a cut that is healed in time costs nothing") {
  Pair pair;
  hold();
  cut("fake0", "fake1");
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 4);
  REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
  step(3);
  heal("fake0", "fake1");
  step();
  CHECK(only_status(pair.a) == IBV_WC_SUCCESS);
}

TEST_CASE("fake errors: a killed queue pair flushes on its own side") {
  Pair pair;
  REQUIRE(pair.b.post_recv(1) == 0);
  kill_qp(pair.b.qp->qp_num);
  CHECK(only_status(pair.b) == IBV_WC_WR_FLUSH_ERR);
  CHECK(state_of(pair.b.qp) == IBV_QPS_ERR);
  CHECK(state_of(pair.a.qp) == IBV_QPS_RTS);
}

TEST_CASE("fake errors: the garbage fields of a failed completion are garbage") {
  Pair pair;
  REQUIRE(pair.a.post_recv(8) == 0);
  REQUIRE(to_err(pair.a.qp) == 0);
  const auto wcs = pair.a.poll();
  REQUIRE(wcs.size() == 1);
  CHECK((wcs[0].opcode & IBV_WC_RECV) == 0);
  CHECK(wcs[0].byte_len == 0xdeadbeef);
}

}  // namespace tidelock::fake
