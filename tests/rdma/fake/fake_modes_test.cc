// Each way to misbehave, on the fake itself.
#include <functional>

#include "fixture.h"

namespace tidelock::fake {

namespace {

void change_modes(const std::string& device, const std::function<void(Modes&)>& change) {
  Modes now = modes(device);
  change(now);
  set_modes(device, now);
}

/// Up to RTR on the sender, RTS on the receiver, and then a write is posted too early.
struct EarlyPost {
  explicit EarlyPost(PostBeforeRts mode) : pair({}, false), write(pair.a, IBV_WR_RDMA_WRITE, 1, 1) {
    change_modes("fake0", [&](Modes& m) { m.post_before_rts = mode; });
    REQUIRE(to_init(pair.b.qp) == 0);
    REQUIRE(to_rtr(pair.b.qp, "fake0", pair.a.qp->qp_num) == 0);
    REQUIRE(to_rts(pair.b.qp) == 0);
    REQUIRE(to_init(pair.a.qp) == 0);
    REQUIRE(to_rtr(pair.a.qp, "fake1", pair.b.qp->qp_num) == 0);
    pair.a.memory[0] = 'e';
    returned = write.to(pair.b, 0).post(pair.a.qp);
    step();
    CHECK(pair.b.memory[0] == 0);
    REQUIRE(to_rts(pair.a.qp) == 0);
    step();
    ran = pair.b.memory[0] == 'e';
    completions = pair.a.poll().size();
  }
  Pair pair;
  Wr write;
  int returned = 0;
  bool ran = false;
  std::size_t completions = 0;
};

}  // namespace

TEST_CASE("fake modes: a post before RTS fails at once") {
  const EarlyPost post(PostBeforeRts::positive_errno);
  CHECK(post.returned == ENOMEM);
  CHECK(post.write.bad == &post.write.wr);
  CHECK_FALSE(post.ran);
}

TEST_CASE("fake modes: a post before RTS returns a negative errno") {
  const EarlyPost post(PostBeforeRts::negative_errno);
  CHECK(post.returned == -EINVAL);
  CHECK(post.write.bad == &post.write.wr);
  CHECK_FALSE(post.ran);
}

TEST_CASE("fake modes: a post before RTS is dropped without a word") {
  const EarlyPost post(PostBeforeRts::dropped);
  CHECK(post.returned == 0);
  CHECK_FALSE(post.ran);
  CHECK(post.completions == 0);
}

TEST_CASE("fake modes: a post before RTS is done later") {
  const EarlyPost post(PostBeforeRts::deferred);
  CHECK(post.returned == 0);
  CHECK(post.ran);
  CHECK(post.completions == 1);
}

TEST_CASE("fake modes: a post before RTS fails and is done all the same") {
  const EarlyPost post(PostBeforeRts::rxe);
  CHECK(post.returned == EINVAL);
  CHECK(post.write.bad == nullptr);
  CHECK(post.ran);
  CHECK(post.completions == 1);
}

TEST_CASE("fake modes: no flush completions") {
  Pair pair;
  change_modes("fake0", [](Modes& m) { m.flush_missing = true; });
  REQUIRE(pair.a.post_recv(1) == 0);
  Wr send(pair.a, IBV_WR_SEND, 2, 4);
  REQUIRE(send.post(pair.a.qp) == 0);
  REQUIRE(to_err(pair.a.qp) == 0);
  step(10);
  CHECK(pair.a.poll().empty());
  CHECK(pending() == 0);
}

TEST_CASE("fake modes: completions are late, and stay in order") {
  Pair pair;
  hold();
  change_modes("fake0", [](Modes& m) { m.send_completion_delay_steps = 3; });
  change_modes("fake1", [](Modes& m) { m.recv_completion_delay_steps = 2; });
  REQUIRE(pair.b.post_recv(1) == 0);
  Wr first(pair.a, IBV_WR_SEND, 1, 4), second(pair.a, IBV_WR_RDMA_WRITE, 2, 4);
  REQUIRE(first.post(pair.a.qp) == 0);
  step();
  change_modes("fake0", [](Modes& m) { m.send_completion_delay_steps = 0; });
  REQUIRE(second.to(pair.b, 0).post(pair.a.qp) == 0);
  step();
  CHECK(pair.b.poll().empty());
  step();
  CHECK(pair.b.poll().size() == 1);
  CHECK(pair.a.poll().empty());
  step();
  const auto sent = pair.a.poll();
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].wr_id == 1);
  CHECK(sent[1].wr_id == 2);
}

TEST_CASE("fake modes: completions are lost, failures never") {
  Pair pair;
  change_modes("fake0", [](Modes& m) { m.lose_send_completions = 1; });
  change_modes("fake1", [](Modes& m) { m.lose_recv_completions = 1; });
  REQUIRE(pair.b.post_recv(1) == 0);
  REQUIRE(pair.b.post_recv(2) == 0);
  Wr send(pair.a, IBV_WR_SEND, 1, 4);
  REQUIRE(send.post(pair.a.qp) == 0);
  step();
  CHECK(pair.a.poll().empty());
  CHECK(pair.b.poll().empty());
  REQUIRE(send.post(pair.a.qp) == 0);
  step();
  CHECK(pair.a.poll().size() == 1);
  const auto received = pair.b.poll();
  REQUIRE(received.size() == 1);
  CHECK(received[0].wr_id == 2);
  CHECK(qp_stats(pair.a.qp->qp_num).sq_in_use == 0);
}

TEST_CASE("fake modes: a send of no bytes is dropped, one with an immediate is not") {
  Pair pair;
  change_modes("fake0", [](Modes& m) { m.drop_zero_byte_sends = true; });
  REQUIRE(pair.b.post_recv(1) == 0);
  Wr empty(pair.a, IBV_WR_SEND, 1, 0), told(pair.a, IBV_WR_SEND_WITH_IMM, 2, 0);
  REQUIRE(empty.post(pair.a.qp) == 0);
  CHECK(pair.a.poll().size() == 1);
  CHECK(pair.b.poll().empty());
  REQUIRE(told.post(pair.a.qp) == 0);
  CHECK(pair.b.poll().size() == 1);
}

TEST_CASE("fake modes: the receiver claims to have no receive") {
  Pair pair;
  hold();
  change_modes("fake1", [](Modes& m) { m.rnr_attempts = 2; });
  REQUIRE(pair.b.post_recv(1) == 0);
  Wr send(pair.a, IBV_WR_SEND, 1, 4);
  REQUIRE(send.post(pair.a.qp) == 0);
  step(2);
  CHECK(pair.b.poll().empty());
  step();
  CHECK(pair.b.poll().size() == 1);
  CHECK(qp_stats(pair.a.qp->qp_num).rnr_naks == 2);
}

TEST_CASE("fake modes: the number of the last queue pair comes back, else never") {
  Pair pair({}, false);
  const std::uint32_t first = pair.a.qp->qp_num;
  REQUIRE(ibv_destroy_qp(pair.a.qp) == 0);
  pair.a.qp = pair.a.make_qp();
  CHECK(pair.a.qp->qp_num != first);
  const std::uint32_t second = pair.a.qp->qp_num;
  change_modes("fake0", [](Modes& m) { m.reuse_qp_numbers = true; });
  REQUIRE(ibv_destroy_qp(pair.a.qp) == 0);
  pair.a.qp = pair.a.make_qp();
  CHECK(pair.a.qp->qp_num == second);
}

TEST_CASE("fake modes: completions may outlive their queue pair") {
  Pair pair;
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 4);
  SUBCASE("not by default") {
    REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
    step();
    REQUIRE(ibv_destroy_qp(pair.a.qp) == 0);
    CHECK(pair.a.poll().empty());
  }
  SUBCASE("in this mode") {
    change_modes("fake0", [](Modes& m) { m.cqes_outlive_qp = true; });
    REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
    step();
    REQUIRE(ibv_destroy_qp(pair.a.qp) == 0);
    CHECK(pair.a.poll().size() == 1);
  }
  pair.a.qp = nullptr;
}

TEST_CASE("fake modes: an event and no completion") {
  Pair pair;
  REQUIRE(pair.a.post_recv(1) == 0);
  ibv_async_event event{};
  CHECK(ibv_get_async_event(pair.a.context, &event) == -1);
  CHECK(errno == EAGAIN);
  SUBCASE("QP_FATAL") {
    raise_qp_event(pair.a.qp->qp_num, IBV_EVENT_QP_FATAL);
    CHECK(readable(pair.a.context->async_fd));
    REQUIRE(ibv_get_async_event(pair.a.context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_QP_FATAL);
    CHECK(event.element.qp == pair.a.qp);
    CHECK(state_of(pair.a.qp) == IBV_QPS_ERR);
  }
  SUBCASE("CQ_ERR") {
    raise_cq_event(pair.a.cq, IBV_EVENT_CQ_ERR);
    REQUIRE(ibv_get_async_event(pair.a.context, &event) == 0);
    CHECK(event.element.cq == pair.a.cq);
    REQUIRE(to_err(pair.a.qp) == 0);
  }
  SUBCASE("DEVICE_FATAL") {
    raise_event("fake0", IBV_EVENT_DEVICE_FATAL);
    REQUIRE(ibv_get_async_event(pair.a.context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
    ibv_port_attr port{};
    REQUIRE(ibv_query_port(pair.a.context, 1, &port) == 0);
    CHECK(port.state == IBV_PORT_DOWN);
  }
  SUBCASE("GID_CHANGE") {
    raise_event("fake0", IBV_EVENT_GID_CHANGE);
    REQUIRE(ibv_get_async_event(pair.a.context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_GID_CHANGE);
    CHECK(event.element.port_num == 1);
    CHECK(state_of(pair.a.qp) == IBV_QPS_RTS);
  }
  ibv_ack_async_event(&event);
  CHECK_FALSE(readable(pair.a.context->async_fd));
  CHECK_FALSE(readable(pair.b.context->async_fd));
  step(5);
  CHECK(pair.a.poll().empty());
}

TEST_CASE("fake modes: a port that goes down loses messages until it is back") {
  Pair pair;
  hold();
  raise_event("fake1", IBV_EVENT_PORT_ERR);
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 4);
  REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
  step(2);
  CHECK(pair.a.poll().empty());
  raise_event("fake1", IBV_EVENT_PORT_ACTIVE);
  step();
  CHECK(pair.a.poll().size() == 1);
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(pair.b.context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_PORT_ERR);
  ibv_ack_async_event(&event);
  REQUIRE(ibv_get_async_event(pair.b.context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_PORT_ACTIVE);
  ibv_ack_async_event(&event);
}

TEST_CASE("fake modes: a responder that refuses raises an event, too") {
  Pair pair;
  change_modes("fake1", [](Modes& m) { m.access_error_event = true; });
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 4);
  REQUIRE(write.to(pair.b, 4095).post(pair.a.qp) == 0);
  step();
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(pair.b.context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR);
  ibv_ack_async_event(&event);
}

TEST_CASE("fake modes: a second queue pair overtakes the first one's writes") {
  Pair pair;
  hold();
  ibv_qp* second_a = pair.a.make_qp();
  ibv_qp* second_b = pair.b.make_qp();
  for (ibv_qp* qp : {second_a, second_b}) REQUIRE(to_init(qp) == 0);
  REQUIRE(to_rtr(second_a, "fake1", second_b->qp_num) == 0);
  REQUIRE(to_rtr(second_b, "fake0", second_a->qp_num) == 0);
  for (ibv_qp* qp : {second_a, second_b}) REQUIRE(to_rts(qp) == 0);
  SUBCASE("all writes of the device") {
    change_modes("fake0", [](Modes& m) { m.write_delay_steps = 3; });
  }
  SUBCASE("one queue pair") { delay_qp(pair.a.qp->qp_num, 3); }
  std::swap(pair.b.qp, second_b);
  REQUIRE(pair.b.post_recv(1) == 0);
  std::swap(pair.b.qp, second_b);
  pair.a.memory[0] = 'n';
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 1), told(pair.a, IBV_WR_SEND, 2, 1);
  REQUIRE(write.to(pair.b, 0).post(pair.a.qp) == 0);
  REQUIRE(told.post(second_a) == 0);
  step();
  CHECK(pair.b.poll().size() == 1);  // notified,
  CHECK(pair.b.memory[0] == 0);      // and the old value is read
  step(2);
  CHECK(pair.b.memory[0] == 'n');
  CHECK(ibv_destroy_qp(second_a) == 0);
  CHECK(ibv_destroy_qp(second_b) == 0);
}

TEST_CASE("fake modes: the notification comes before the data of its own chain") {
  Pair pair;
  hold();
  change_modes("fake1", [](Modes& m) { m.data_after_notification_steps = 2; });
  REQUIRE(pair.b.post_recv(1) == 0);
  pair.a.memory[0] = 'd';
  Wr data(pair.a, IBV_WR_RDMA_WRITE, 1, 1), told(pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 1);
  REQUIRE(data.to(pair.b, 0).then(told.to(pair.b, 10)).post(pair.a.qp) == 0);
  step();
  CHECK(pair.b.poll().size() == 1);
  CHECK(pair.b.memory[0] == 0);
  CHECK(pair.b.memory[10] == 0);
  step(2);
  CHECK(pair.b.memory[0] == 'd');
  CHECK(pair.b.memory[10] == 'd');
}

TEST_CASE("fake modes: a byte of the next write that has it is inverted") {
  Pair pair;
  corrupt_next_write(2);
  Wr small(pair.a, IBV_WR_RDMA_WRITE, 1, 2, IBV_SEND_INLINE);
  Wr wide(pair.a, IBV_WR_RDMA_WRITE, 2, 4, IBV_SEND_INLINE),
      after(pair.a, IBV_WR_RDMA_WRITE, 3, 4, IBV_SEND_INLINE);
  small.to(pair.b, 0).then(wide.to(pair.b, 100).then(after.to(pair.b, 200)));
  REQUIRE(small.post(pair.a.qp) == 0);
  step();
  CHECK(pair.b.memory[0] == 0);
  CHECK(pair.b.memory[101] == 0);
  CHECK(pair.b.memory[102] == 0xff);
  CHECK(pair.b.memory[103] == 0);
  CHECK(pair.b.memory[202] == 0);
}

TEST_CASE("fake modes: chosen calls fail") {
  Pair pair;
  fail_call(Call::reg_mr, ENOMEM);
  CHECK(ibv_reg_mr(pair.a.pd, pair.a.memory.data(), 8, 0) == nullptr);
  CHECK(errno == ENOMEM);
  ibv_mr* mr = ibv_reg_mr(pair.a.pd, pair.a.memory.data(), 8, 0);
  CHECK(mr != nullptr);
  CHECK(ibv_dereg_mr(mr) == 0);
  fail_call(Call::create_qp, EAGAIN, 1, 2);
  ibv_qp* qp = pair.a.make_qp();
  CHECK(qp != nullptr);
  CHECK(pair.a.make_qp() == nullptr);
  CHECK(pair.a.make_qp() == nullptr);
  CHECK(errno == EAGAIN);
  CHECK(ibv_destroy_qp(qp) == 0);
  fail_call(Call::modify_qp, EIO);
  CHECK(to_err(pair.a.qp) == EIO);
  CHECK(state_of(pair.a.qp) == IBV_QPS_RTS);
  fail_call(Call::open_device, EMFILE);
  CHECK(open_by_name("fake0") == nullptr);
}

TEST_CASE("fake modes: the n-th post fails as chosen") {
  Pair pair;
  pair.a.memory[0] = 'p';
  Wr first(pair.a, IBV_WR_RDMA_WRITE, 1, 1), second(pair.a, IBV_WR_RDMA_WRITE, 2, 1);
  first.to(pair.b, 0).then(second.to(pair.b, 1));
  SUBCASE("in the middle of a chain") {
    fail_post_send({2, -EIO, 1, pair.a.qp->qp_num});
    Wr other(pair.b, IBV_WR_RDMA_WRITE, 9, 1);
    CHECK(other.to(pair.a, 5).post(pair.b.qp) == 0);  // another queue pair's does not count
    CHECK(second.post(pair.a.qp) == 0);
    CHECK(first.post(pair.a.qp) == -EIO);
    CHECK(first.bad == &second.wr);
    step();
    CHECK(pair.b.memory[0] == 'p');
    CHECK(pair.a.poll().size() == 2);
  }
  SUBCASE("with no WR named, and none taken") {
    fail_post_send({1, EINVAL, -1, 0});
    CHECK(first.post(pair.a.qp) == EINVAL);
    CHECK(first.bad == nullptr);
    step();
    CHECK(pair.b.memory[0] == 0);
    CHECK(first.post(pair.a.qp) == 0);
  }
}

TEST_CASE("fake modes: an overrun may be an error instead of an abort") {
  Limits limits;
  limits.cqe = 1;
  limits.recv_wr = 1;
  Pair pair(limits);
  change_modes("fake0", [](Modes& m) { m.cq_overrun_aborts = m.rq_overrun_aborts = false; });
  CHECK(pair.a.post_recv(1) == 0);
  CHECK(pair.a.post_recv(2) == ENOMEM);
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 1);
  write.to(pair.b, 0);
  REQUIRE(write.post(pair.a.qp) == 0);
  REQUIRE(write.post(pair.a.qp) == 0);
  step();
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(pair.a.context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_CQ_ERR);
  ibv_ack_async_event(&event);
  CHECK(pair.a.poll().empty());
}

TEST_CASE("fake modes: retry_cnt 7 may mean for ever, and attempts may be far apart") {
  Pair pair({}, false);
  pair.connect_both(7, 7);
  hold();
  cut("fake0", "fake1");
  Wr write(pair.a, IBV_WR_RDMA_WRITE, 1, 1);
  write.to(pair.b, 0);
  SUBCASE("for ever") {
    change_modes("fake0", [](Modes& m) { m.retry_seven_is_forever = true; });
    REQUIRE(write.post(pair.a.qp) == 0);
    step(1000);
    CHECK(pair.a.poll().empty());
  }
  SUBCASE("far apart") {
    change_modes("fake0", [](Modes& m) { m.retry_steps = 10; });
    REQUIRE(write.post(pair.a.qp) == 0);
    step(70);
    CHECK(pair.a.poll().empty());
    step(1);
    CHECK(pair.a.poll().size() == 1);
  }
}

TEST_CASE("fake modes: a side dies as a process does") {
  Pair pair;
  REQUIRE(pair.b.post_recv(1) == 0);
  kill_device_users("fake1");
  Wr send(pair.a, IBV_WR_SEND, 1, 1);
  REQUIRE(send.post(pair.a.qp) == 0);
  run_until_idle();
  const auto wcs = pair.a.poll();
  REQUIRE(wcs.size() == 1);
  CHECK(wcs[0].status == IBV_WC_RETRY_EXC_ERR);
  CHECK(pair.b.poll().empty());
}

}  // namespace tidelock::fake
