/// A listener and an id that connects to it, for the tests of the fake's communication manager.
/// Thread:   one
#pragma once

#include <arpa/inet.h>

#include "fixture.h"

namespace tidelock::fake {

inline sockaddr_in address_of(const char* ipv4, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  REQUIRE(inet_pton(AF_INET, ipv4, &address.sin_addr) == 1);
  return address;
}

struct Event {
  rdma_cm_event_type type;
  int status;
  rdma_cm_id* id;
  rdma_cm_id* listen_id;
  rdma_conn_param param;
  std::string private_data;
};

/// An event channel whose events are acknowledged as they are taken.
struct EventChannel {
  EventChannel() : handle(rdma_create_event_channel()) { make_nonblocking(handle->fd); }
  ~EventChannel() { rdma_destroy_event_channel(handle); }
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  std::vector<Event> take_all() {
    std::vector<Event> taken;
    rdma_cm_event* event = nullptr;
    while (rdma_get_cm_event(handle, &event) == 0) {
      Event copy{event->event, event->status, event->id, event->listen_id, event->param.conn, {}};
      if (event->param.conn.private_data != nullptr)
        copy.private_data.assign(static_cast<const char*>(event->param.conn.private_data),
                                 event->param.conn.private_data_len);
      taken.push_back(copy);
      REQUIRE(rdma_ack_cm_event(event) == 0);
    }
    CHECK(errno == EAGAIN);
    return taken;
  }
  Event take(rdma_cm_event_type type) {
    const std::vector<Event> taken = take_all();
    REQUIRE(taken.size() == 1);
    CHECK(taken[0].type == type);
    return taken[0];
  }

  rdma_event_channel* handle;
};

inline constexpr std::uint16_t kPort = 7471;

/// A listener on fake1, and an active id on fake0 with its route resolved.
struct Meeting {
  Meeting() : pair({}, false) {
    REQUIRE(rdma_create_id(passive.handle, &listener, this, RDMA_PS_TCP) == 0);
    sockaddr_in here = address_of("10.0.0.2", kPort);
    REQUIRE(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&here)) == 0);
    REQUIRE(rdma_listen(listener, 0) == 0);
    resolve(kPort);
  }
  ~Meeting() {
    for (rdma_cm_id* id : {active_id, passive_id, listener})
      if (id != nullptr) rdma_destroy_id(id);
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  void resolve(std::uint16_t port) {
    REQUIRE(rdma_create_id(active.handle, &active_id, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in source = address_of("10.0.0.1", 0), target = address_of("10.0.0.2", port);
    REQUIRE(rdma_resolve_addr(active_id, reinterpret_cast<sockaddr*>(&source),
                              reinterpret_cast<sockaddr*>(&target), 1000) == 0);
    active.take(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(active_id, 1000) == 0);
    active.take(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  int connect(const std::string& private_data = "req") {
    rdma_conn_param param{};
    param.private_data = private_data.data();
    param.private_data_len = static_cast<std::uint8_t>(private_data.size());
    param.qp_num = pair.a.qp->qp_num;
    param.retry_count = 6;
    param.rnr_retry_count = 5;
    param.responder_resources = 1;
    param.initiator_depth = 2;
    return rdma_connect(active_id, &param);
  }
  Event take_request() {
    const Event request = passive.take(RDMA_CM_EVENT_CONNECT_REQUEST);
    passive_id = request.id;
    return request;
  }
  int accept(const std::string& private_data = "rep") {
    rdma_conn_param param{};
    param.private_data = private_data.data();
    param.private_data_len = static_cast<std::uint8_t>(private_data.size());
    param.qp_num = pair.b.qp->qp_num;
    param.rnr_retry_count = 4;
    return rdma_accept(passive_id, &param);
  }
  static int move(rdma_cm_id* id, ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attr{};
    int mask = 0;
    attr.qp_state = state;
    if (rdma_init_qp_attr(id, &attr, &mask) != 0) return errno;
    return ibv_modify_qp(qp, &attr, mask & 0x1fffff);
  }
  static void move_all(rdma_cm_id* id, ibv_qp* qp) {
    REQUIRE(move(id, qp, IBV_QPS_INIT) == 0);
    REQUIRE(move(id, qp, IBV_QPS_RTR) == 0);
    REQUIRE(move(id, qp, IBV_QPS_RTS) == 0);
  }
  void establish() {
    REQUIRE(connect() == 0);
    take_request();
    move_all(passive_id, pair.b.qp);
    REQUIRE(accept() == 0);
    active.take(RDMA_CM_EVENT_CONNECT_RESPONSE);
    move_all(active_id, pair.a.qp);
    REQUIRE(rdma_establish(active_id) == 0);
  }

  Pair pair;
  EventChannel active, passive;
  rdma_cm_id* listener = nullptr;
  rdma_cm_id* active_id = nullptr;
  rdma_cm_id* passive_id = nullptr;
};

inline std::string padded(const std::string& text, std::size_t bytes) {
  return text + std::string(bytes - text.size(), '\0');
}

}  // namespace tidelock::fake
