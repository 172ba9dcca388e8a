// The fake's communication manager, with external queue pairs as tidelock uses it.

#include "meeting.h"

namespace tidelock::fake {

TEST_CASE("fake cm: a connection with external queue pairs, from the address to the first message") {
  Meeting m;
  CHECK(std::string(m.active_id->verbs->device->name) == "fake0");
  CHECK(m.active_id->qp == nullptr);
  REQUIRE(Meeting::move(m.active_id, m.pair.a.qp, IBV_QPS_INIT) ==
          0);  // before the request: no remote rights
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(m.pair.a.qp, &attr, IBV_QP_ACCESS_FLAGS, &init) == 0);
  CHECK(attr.qp_access_flags == 0);
  REQUIRE(m.connect() == 0);
  CHECK(readable(m.passive.handle->fd));
  const Event request = m.take_request();
  CHECK(request.private_data == padded("req", 56));
  CHECK(request.listen_id == m.listener);
  CHECK(request.param.qp_num == m.pair.a.qp->qp_num);
  CHECK(request.param.responder_resources == 2);
  CHECK(request.param.initiator_depth == 1);
  CHECK(request.param.retry_count == 6);
  CHECK(m.passive_id->context == &m);
  CHECK(std::string(m.passive_id->verbs->device->name) == "fake1");
  CHECK(rdma_get_src_port(m.passive_id) == htons(kPort));
  CHECK(rdma_get_dst_port(m.passive_id) == rdma_get_src_port(m.active_id));
  const auto* peer = reinterpret_cast<const sockaddr_in*>(rdma_get_peer_addr(m.passive_id));
  CHECK(peer->sin_addr.s_addr == address_of("10.0.0.1", 0).sin_addr.s_addr);
  REQUIRE(m.pair.b.post_recv(1) == EINVAL);
  Meeting::move_all(m.passive_id, m.pair.b.qp);
  REQUIRE(m.pair.b.post_recv(1) == 0);
  REQUIRE(m.accept() == 0);
  const Event response = m.active.take(RDMA_CM_EVENT_CONNECT_RESPONSE);
  CHECK(response.private_data == padded("rep", 196));
  CHECK(response.param.qp_num == m.pair.b.qp->qp_num);
  CHECK(response.id == m.active_id);
  Meeting::move_all(m.active_id, m.pair.a.qp);
  REQUIRE(ibv_query_qp(m.pair.a.qp, &attr, IBV_QP_RNR_RETRY, &init) == 0);
  CHECK(attr.rnr_retry == 4);  // what the peer asked for
  CHECK(attr.retry_cnt == 6);
  CHECK(attr.min_rnr_timer == 0);
  CHECK(attr.dest_qp_num == m.pair.b.qp->qp_num);
  CHECK(attr.path_mtu == IBV_MTU_4096);
  REQUIRE(ibv_query_qp(m.pair.b.qp, &attr, IBV_QP_RNR_RETRY, &init) == 0);
  CHECK(attr.rnr_retry == 5);
  CHECK(m.passive.take_all().empty());
  REQUIRE(rdma_establish(m.active_id) == 0);
  CHECK(m.passive.take(RDMA_CM_EVENT_ESTABLISHED).id == m.passive_id);
  CHECK(m.active.take_all().empty());
  Wr send(m.pair.a, IBV_WR_SEND, 1, 4);
  REQUIRE(send.post(m.pair.a.qp) == 0);
  CHECK(m.pair.b.poll().size() == 1);
  CHECK(live_objects().ids == 3);
  CHECK(live_objects().event_channels == 2);
}

TEST_CASE("fake cm: the attributes of RTR have the kernel's own bits in their mask") {
  Meeting m;
  REQUIRE(m.connect() == 0);
  m.take_request();
  REQUIRE(Meeting::move(m.passive_id, m.pair.b.qp, IBV_QPS_INIT) == 0);
  ibv_qp_attr attr{};
  int mask = 0;
  attr.qp_state = IBV_QPS_RTR;
  REQUIRE(rdma_init_qp_attr(m.passive_id, &attr, &mask) == 0);
  CHECK(ibv_modify_qp(m.pair.b.qp, &attr, mask) == EOPNOTSUPP);
  CHECK(ibv_modify_qp(m.pair.b.qp, &attr, mask & 0x1fffff) == 0);
  attr.qp_state = IBV_QPS_RTR;
  CHECK(rdma_init_qp_attr(m.active_id, &attr, &mask) == -1);  // no reply yet
  CHECK(errno == EINVAL);
}

TEST_CASE("fake cm: one's own acknowledgement timeout goes into the attributes") {
  Meeting m;
  std::uint8_t timeout = 14;
  REQUIRE(rdma_set_option(m.active_id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
  CHECK(rdma_set_option(m.active_id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &timeout, 1) == -1);
  m.establish();
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  REQUIRE(ibv_query_qp(m.pair.a.qp, &attr, IBV_QP_TIMEOUT, &init) == 0);
  CHECK(attr.timeout == 14);
}

TEST_CASE("fake cm: a rejection brings 28 and the private data, nobody there 8") {
  Meeting m;
  SUBCASE("rejected") {
    REQUIRE(m.connect() == 0);
    m.take_request();
    REQUIRE(rdma_reject(m.passive_id, "no", 2) == 0);
    const Event event = m.active.take(RDMA_CM_EVENT_REJECTED);
    CHECK(event.status == 28);
    CHECK(event.private_data == padded("no", 148));
    CHECK(m.accept() == -1);
  }
  SUBCASE("the request's id is destroyed") {
    REQUIRE(m.connect() == 0);
    m.take_request();
    REQUIRE(rdma_destroy_id(m.passive_id) == 0);
    m.passive_id = nullptr;
    CHECK(m.active.take(RDMA_CM_EVENT_REJECTED).status == 28);
  }
  SUBCASE("the listener ends before the request is fetched") {
    REQUIRE(m.connect() == 0);
    REQUIRE(rdma_destroy_id(m.listener) == 0);
    m.listener = nullptr;
    CHECK(m.passive.take_all().empty());
    CHECK_FALSE(readable(m.passive.handle->fd));
    CHECK(m.active.take(RDMA_CM_EVENT_REJECTED).status == 28);
  }
  SUBCASE("nobody listens") {
    REQUIRE(rdma_destroy_id(m.active_id) == 0);
    m.resolve(kPort + 1);
    REQUIRE(m.connect() == 0);
    const Event event = m.active.take(RDMA_CM_EVENT_REJECTED);
    CHECK(event.status == 8);
  }
  CHECK(rdma_establish(m.active_id) == -1);
}

TEST_CASE("fake cm: the active side goes away") {
  Meeting m;
  REQUIRE(m.connect() == 0);
  SUBCASE("while its request waits: it is accepted in vain") {
    REQUIRE(rdma_destroy_id(m.active_id) == 0);
    m.active_id = nullptr;
    m.take_request();
    CHECK(m.accept() == -1);
    CHECK(errno == EINVAL);
  }
  SUBCASE("after the request was fetched") {
    m.take_request();
    REQUIRE(rdma_destroy_id(m.active_id) == 0);
    m.active_id = nullptr;
    CHECK(m.passive.take(RDMA_CM_EVENT_REJECTED).status == 4);
  }
  SUBCASE("after the reply, before it is ready") {
    m.take_request();
    REQUIRE(m.accept() == 0);
    m.active.take(RDMA_CM_EVENT_CONNECT_RESPONSE);
    REQUIRE(rdma_destroy_id(m.active_id) == 0);
    m.active_id = nullptr;
    CHECK(m.passive.take(RDMA_CM_EVENT_REJECTED).status == 28);
  }
}

TEST_CASE("fake cm: a disconnect reaches both once, and timewait ends later; queue pairs are the user's") {
  Meeting m;
  m.establish();
  m.passive.take(RDMA_CM_EVENT_ESTABLISHED);
  hold();
  REQUIRE(rdma_disconnect(m.active_id) == 0);
  step();
  CHECK(m.passive.take(RDMA_CM_EVENT_DISCONNECTED).status == 0);
  m.active.take(RDMA_CM_EVENT_DISCONNECTED);
  CHECK(state_of(m.pair.a.qp) == IBV_QPS_RTS);
  CHECK(rdma_disconnect(m.passive_id) == 0);
  step();
  CHECK(m.passive.take_all().empty());
  step();
  m.passive.take(RDMA_CM_EVENT_TIMEWAIT_EXIT);
  m.active.take(RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_CASE("fake cm: destroying an established id disconnects the peer") {
  Meeting m;
  m.establish();
  m.passive.take(RDMA_CM_EVENT_ESTABLISHED);
  REQUIRE(rdma_destroy_id(m.active_id) == 0);
  m.active_id = nullptr;
  const std::vector<Event> events = m.passive.take_all();
  REQUIRE_FALSE(events.empty());
  CHECK(events[0].type == RDMA_CM_EVENT_DISCONNECTED);
}

TEST_CASE("fake cm: a message that a cut holds back arrives when it is healed, or is given up") {
  Meeting m;
  hold();
  cut("fake0", "fake1");
  REQUIRE(m.connect() == 0);
  SUBCASE("healed") {
    step(5);
    heal("fake0", "fake1");
    step();
    m.take_request();
  }
  SUBCASE("given up") {
    step(7);
    CHECK(m.active.take_all().empty());
    step(2);
    CHECK(m.active.take(RDMA_CM_EVENT_UNREACHABLE).status == -ETIMEDOUT);
    CHECK(m.passive.take_all().empty());
  }
}

TEST_CASE("fake cm: a disconnect over a cut is told to its own side only") {
  Meeting m;
  m.establish();
  m.passive.take(RDMA_CM_EVENT_ESTABLISHED);
  cut("fake0", "fake1");
  REQUIRE(rdma_disconnect(m.active_id) == 0);
  hold();
  step(9);
  const std::vector<Event> events = m.active.take_all();
  REQUIRE_FALSE(events.empty());
  CHECK(events[0].type == RDMA_CM_EVENT_DISCONNECTED);
  CHECK(events[0].status == -ETIMEDOUT);
  CHECK(m.passive.take_all().empty());
}

TEST_CASE("fake cm: ESTABLISHED comes late, or never, or twice, and the data before it") {
  Meeting m;
  CmFault fault;
  fault.event = RDMA_CM_EVENT_ESTABLISHED;
  SUBCASE("late") {
    hold();
    fault.action = CmAction::delay;
    fault.steps = 5;
    add_cm_fault(fault);
    go();
    m.establish();
    hold();
    m.pair.b.poll();
    step(5);
    m.passive.take(RDMA_CM_EVENT_ESTABLISHED);
  }
  SUBCASE("never") {
    add_cm_fault(fault);
    m.establish();
    step(50);
    CHECK(m.passive.take_all().empty());
    REQUIRE(m.pair.b.post_recv(1) == 0);
    Wr send(m.pair.a, IBV_WR_SEND, 1, 4);
    REQUIRE(send.post(m.pair.a.qp) == 0);
    CHECK(m.pair.b.poll().size() == 1);
  }
  SUBCASE("twice") {
    fault.action = CmAction::duplicate;
    fault.device = "fake1";
    add_cm_fault(fault);
    m.establish();
    CHECK(m.passive.take_all().size() == 2);
  }
}

TEST_CASE("fake cm: a request may be lost or come twice, an event may become another") {
  Meeting m;
  CmFault fault;
  fault.event = RDMA_CM_EVENT_CONNECT_REQUEST;
  SUBCASE("lost") {
    add_cm_fault(fault);
    REQUIRE(m.connect() == 0);
    step(50);
    CHECK(m.passive.take_all().empty());
    CHECK(m.active.take_all().empty());
  }
  SUBCASE("twice") {
    fault.action = CmAction::duplicate;
    add_cm_fault(fault);
    REQUIRE(m.connect() == 0);
    const std::vector<Event> requests = m.passive.take_all();
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].id != requests[1].id);
    m.passive_id = requests[0].id;
    CHECK(m.accept() == 0);
    m.active.take(RDMA_CM_EVENT_CONNECT_RESPONSE);
    CHECK(rdma_destroy_id(requests[1].id) == 0);
  }
  SUBCASE("replaced, and on one device only") {
    fault.event = RDMA_CM_EVENT_CONNECT_RESPONSE;
    fault.action = CmAction::replace;
    fault.status = -ECONNRESET;
    fault.device = "fake0";
    add_cm_fault(fault);
    REQUIRE(m.connect() == 0);
    m.take_request();
    REQUIRE(m.accept() == 0);
    CHECK(m.active.take(RDMA_CM_EVENT_CONNECT_ERROR).status == -ECONNRESET);
  }
}

TEST_CASE("fake cm: an id moves to another channel with its events, a listener with its requests") {
  Meeting m;
  EventChannel other;
  m.establish();
  REQUIRE(rdma_migrate_id(m.passive_id, other.handle) == 0);
  CHECK(m.passive_id->channel == other.handle);
  CHECK_FALSE(readable(m.passive.handle->fd));
  other.take(RDMA_CM_EVENT_ESTABLISHED);
  rdma_cm_id* first = m.active_id;
  m.resolve(kPort);
  REQUIRE(m.connect() == 0);
  REQUIRE(rdma_migrate_id(m.listener, other.handle) == 0);
  const Event request = other.take(RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(request.id->channel == other.handle);
  CHECK(rdma_destroy_id(request.id) == 0);
  CHECK(rdma_destroy_id(first) == 0);
  CHECK(rdma_destroy_id(m.passive_id) == 0);
  CHECK(rdma_destroy_id(m.listener) == 0);
  m.passive_id = m.listener = nullptr;
}

TEST_CASE("fake cm: addresses that are taken, foreign or unknown") {
  Meeting m;
  rdma_cm_id* id = nullptr;
  REQUIRE(rdma_create_id(m.active.handle, &id, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in taken = address_of("10.0.0.2", kPort), foreign = address_of("10.9.9.9", 0);
  sockaddr_in any_taken = address_of("0.0.0.0", kPort), any = address_of("0.0.0.0", 0);
  CHECK(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&taken)) == -1);
  CHECK(errno == EADDRINUSE);
  CHECK(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&any_taken)) == -1);
  CHECK(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&foreign)) == -1);
  CHECK(errno == EADDRNOTAVAIL);
  CHECK(rdma_listen(id, 1) == -1);
  CHECK(rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&any)) == 0);
  CHECK(rdma_get_src_port(id) != 0);
  CHECK(id->verbs == nullptr);
  CHECK(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&foreign), 10) == 0);
  CHECK(m.active.take(RDMA_CM_EVENT_ADDR_ERROR).status == -ETIMEDOUT);
  CHECK(rdma_destroy_id(id) == 0);
}

TEST_CASE("fake cm: a backlog that is full rejects") {
  Meeting m;
  REQUIRE(rdma_destroy_id(m.listener) == 0);
  REQUIRE(rdma_create_id(m.passive.handle, &m.listener, nullptr, RDMA_PS_TCP) == 0);
  sockaddr_in any = address_of("0.0.0.0", kPort);
  REQUIRE(rdma_bind_addr(m.listener, reinterpret_cast<sockaddr*>(&any)) == 0);
  REQUIRE(rdma_listen(m.listener, 1) == 0);
  REQUIRE(m.connect() == 0);
  rdma_cm_id* first = m.active_id;
  m.resolve(kPort);
  REQUIRE(m.connect() == 0);
  CHECK(m.active.take(RDMA_CM_EVENT_REJECTED).id == m.active_id);
  CHECK(rdma_destroy_id(first) == 0);
}

TEST_CASE("fake cm: private data that is too long, and chosen calls, fail") {
  Meeting m;
  CHECK(m.connect(std::string(57, 'x')) == -1);
  CHECK(errno == EINVAL);
  fail_call(Call::connect, ENOMEM);
  CHECK(m.connect() == -1);
  CHECK(errno == ENOMEM);
  REQUIRE(m.connect(std::string(56, 'x')) == 0);
  CHECK(m.take_request().private_data == std::string(56, 'x'));
  CHECK(m.accept(std::string(197, 'x')) == -1);
  CHECK(m.accept(std::string(196, 'x')) == 0);
  CHECK(m.active.take(RDMA_CM_EVENT_CONNECT_RESPONSE).private_data == std::string(196, 'x'));
}

TEST_CASE("fake cm: a device is removed") {
  Meeting m;
  m.establish();
  m.passive.take(RDMA_CM_EVENT_ESTABLISHED);
  remove_device("fake1");
  const std::vector<Event> events = m.passive.take_all();
  REQUIRE(events.size() == 2);  // the listener's and the connection's
  CHECK(events[0].type == RDMA_CM_EVENT_DEVICE_REMOVAL);
  CHECK(events[1].type == RDMA_CM_EVENT_DEVICE_REMOVAL);
  ibv_async_event event{};
  REQUIRE(ibv_get_async_event(m.pair.b.context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
  ibv_ack_async_event(&event);
  CHECK(m.active.take_all().empty());
}

TEST_CASE("fake cm: a process dies: its peer is disconnected, and nobody listens any more") {
  Meeting m;
  m.establish();
  m.passive.take(RDMA_CM_EVENT_ESTABLISHED);
  kill_device_users("fake1");
  const std::vector<Event> events = m.active.take_all();
  REQUIRE_FALSE(events.empty());
  CHECK(events[0].type == RDMA_CM_EVENT_DISCONNECTED);
  rdma_cm_id* first = m.active_id;
  m.resolve(kPort);
  REQUIRE(m.connect() == 0);
  CHECK(m.active.take(RDMA_CM_EVENT_REJECTED).status == 8);
  CHECK(rdma_destroy_id(first) == 0);
  CHECK(m.passive.take_all().empty());
}

TEST_CASE("fake cm: a call that blocks lets time pass until its event is there") {
  Meeting m;
  CmFault fault;
  fault.event = RDMA_CM_EVENT_CONNECT_REQUEST;
  fault.action = CmAction::delay;
  fault.steps = 1000;
  add_cm_fault(fault);
  REQUIRE(m.connect() == 0);
  REQUIRE(fcntl(m.passive.handle->fd, F_SETFL, 0) == 0);
  rdma_cm_event* event = nullptr;
  REQUIRE(rdma_get_cm_event(m.passive.handle, &event) == 0);
  CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
  m.passive_id = event->id;
  REQUIRE(rdma_ack_cm_event(event) == 0);
}

}  // namespace tidelock::fake
