// What travels between two communication managers. Which message does what in which state follows rdma_cm(7),
// rdma_connect(3), rdma_accept(3), rdma_reject(3), rdma_disconnect(3) and the IBA specification, chapter 12.
#include <cerrno>

#include <arpa/inet.h>

#include "world.h"

namespace tidelock::fake {

namespace {

using Bytes = std::vector<std::uint8_t>;

/// Waits while the devices are cut from one another, then arrives; or is given up, as after all of its
/// retries.
struct Message {
  Device* from = nullptr;
  Device* to = nullptr;
  std::function<void()> arrive, expire;
  std::uint64_t deadline = 0;
};

void travel(World& w, const Message& message, std::uint64_t steps) {
  after(w, steps, [&w, message] {
    if (reaches(w, *message.from, *message.to)) return message.arrive();
    if (w.tick < message.deadline) return travel(w, message, 1);
    if (message.expire) message.expire();
  });
}

void post(World& w, Device* from, Device* to, std::function<void()> arrive, std::function<void()> expire) {
  Message message;
  message.from = from;
  message.to = to;
  message.arrive = std::move(arrive);
  message.expire = std::move(expire);
  message.deadline = w.tick + from->modes.cm_timeout_steps;
  travel(w, message, 0);
}

void time_out(World& w, std::uint64_t serial, ConnState while_in) {
  Conn* conn = find_conn(w, serial);
  if (conn == nullptr || conn->state != while_in) return;
  conn->state = ConnState::failed;
  emit(w, *conn, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

void reject(World& w, Device* from, Device* to, std::uint64_t peer, int reason, const Bytes& private_data) {
  post(
      w, from, to,
      [&w, peer, reason, private_data] {
        Conn* conn = find_conn(w, peer);
        if (conn == nullptr) return;
        const ConnState state = conn->state;
        if (state != ConnState::req_sent && state != ConnState::req_received &&
            state != ConnState::rep_sent && state != ConnState::rep_received)
          return;
        conn->state = ConnState::failed;
        CmEvent event;
        event.conn = event.counted = peer;
        event.type = RDMA_CM_EVENT_REJECTED;
        event.status = reason;
        event.private_data = private_data;
        event.private_data.resize(kRejPrivateBytes);
        emit(w, std::move(event));
      },
      nullptr);
}

Conn* find_listener(World& w, const Device& device, const sockaddr_in& address) {
  for (auto& [serial, conn] : w.conns) {
    if (conn->state != ConnState::listening || conn->silent) continue;
    if (conn->local.sin_port != address.sin_port) continue;
    const bool any = conn->local.sin_addr.s_addr == htonl(INADDR_ANY);
    if (any || (conn->device == &device && conn->local.sin_addr.s_addr == address.sin_addr.s_addr))
      return conn.get();
  }
  return nullptr;
}

rdma_conn_param seen_by_peer(const Conn& sender) {
  rdma_conn_param param{};
  param.responder_resources = sender.initiator_depth;
  param.initiator_depth = sender.responder_resources;
  param.retry_count = sender.retry_count;
  param.rnr_retry_count = sender.rnr_retry_to_peer;
  param.qp_num = sender.local_qp_num;
  return param;
}

void take_terms(Conn& to, const Conn& from) {
  to.peer = from.serial;
  to.remote_qp_num = from.local_qp_num;
  to.responder_resources = from.initiator_depth;
  to.initiator_depth = from.responder_resources;
  to.rnr_retry = from.rnr_retry_to_peer;
}

void request_arrives(World& w, Conn& from, const Bytes& private_data) {
  Device* device = from.peer_device;
  Conn* listener = find_listener(w, *device, from.remote);
  if (listener == nullptr) return reject(w, device, from.device, from.serial, kRejectInvalidService, {});
  if (listener->requests_waiting >= listener->backlog)
    return reject(w, device, from.device, from.serial, kRejectConsumer, {});
  auto passive = std::make_unique<Conn>();
  passive->serial = ++w.serial;
  passive->channel = listener->channel;
  passive->listener = listener->serial;
  passive->state = ConnState::req_received;
  passive->device = device;
  passive->peer_device = from.device;
  passive->local = from.remote;
  passive->remote = from.local;
  passive->psn = from.psn;
  passive->retry_count = from.retry_count;
  passive->ack_timeout = from.ack_timeout;
  take_terms(*passive, from);
  from.peer = passive->serial;
  ++listener->requests_waiting;
  CmEvent event;
  event.conn = passive->serial;
  event.counted = listener->serial;
  event.type = RDMA_CM_EVENT_CONNECT_REQUEST;
  event.param = seen_by_peer(from);
  event.private_data = private_data;
  event.private_data.resize(kReqPrivateBytes);
  w.conns.emplace(passive->serial, std::move(passive));
  emit(w, std::move(event));
}

void reply_arrives(World& w, const Conn& from, const Bytes& private_data) {
  Conn* active = find_conn(w, from.peer);
  if (active == nullptr || active->state != ConnState::req_sent) return;
  active->state = ConnState::rep_received;
  take_terms(*active, from);
  CmEvent event;
  event.conn = event.counted = active->serial;
  event.type = RDMA_CM_EVENT_CONNECT_RESPONSE;
  event.param = seen_by_peer(from);
  event.private_data = private_data;
  event.private_data.resize(kRepPrivateBytes);
  emit(w, std::move(event));
}

/// One DISCONNECTED a side, whoever began.
void disconnected(World& w, std::uint64_t serial, int status) {
  Conn* conn = find_conn(w, serial);
  if (conn == nullptr) return;
  const ConnState state = conn->state;
  if (state != ConnState::established && state != ConnState::rep_sent && state != ConnState::rep_received &&
      state != ConnState::disconnecting)
    return;
  conn->state = ConnState::disconnected;
  emit(w, *conn, RDMA_CM_EVENT_DISCONNECTED, status);
  after(w, conn->device->modes.timewait_steps, [&w, serial] {
    if (const Conn* late = find_conn(w, serial)) emit(w, *late, RDMA_CM_EVENT_TIMEWAIT_EXIT);
  });
}

}  // namespace

Conn* find_conn(World& w, std::uint64_t serial) {
  const auto found = w.conns.find(serial);
  return found == w.conns.end() ? nullptr : found->second.get();
}

void send_request(World& w, Conn& from, Bytes private_data) {
  const std::uint64_t serial = from.serial;
  const auto arrive = [&w, serial, private_data = std::move(private_data)] {
    Conn* conn = find_conn(w, serial);
    if (conn != nullptr && conn->state == ConnState::req_sent) request_arrives(w, *conn, private_data);
  };
  post(w, from.device, from.peer_device, arrive, [&w, serial] { time_out(w, serial, ConnState::req_sent); });
}

void send_reply(World& w, Conn& from, Bytes private_data) {
  const std::uint64_t serial = from.serial, peer = from.peer;
  const auto arrive = [&w, serial, private_data = std::move(private_data)] {
    const Conn* conn = find_conn(w, serial);
    if (conn != nullptr && conn->state == ConnState::rep_sent) reply_arrives(w, *conn, private_data);
  };
  post(w, from.device, from.peer_device, arrive, [&w, serial, peer] {
    time_out(w, serial, ConnState::rep_sent);
    time_out(w, peer, ConnState::req_sent);
  });
}

void send_ready(World& w, Conn& from) {
  const std::uint64_t peer = from.peer;
  const auto arrive = [&w, peer] {
    Conn* passive = find_conn(w, peer);
    if (passive == nullptr || passive->state != ConnState::rep_sent) return;
    passive->state = ConnState::established;
    emit(w, *passive, RDMA_CM_EVENT_ESTABLISHED);
  };
  post(w, from.device, from.peer_device, arrive, [&w, peer] { time_out(w, peer, ConnState::rep_sent); });
}

void send_reject(World& w, const Conn& from, int reason, Bytes private_data) {
  reject(w, from.device, from.peer_device, from.peer, reason, private_data);
}

void send_disconnect(World& w, Conn& from) {
  const std::uint64_t serial = from.serial, peer = from.peer;
  const auto arrive = [&w, serial, peer] {
    disconnected(w, peer, 0);
    disconnected(w, serial, 0);
  };
  post(w, from.device, from.peer_device, arrive, [&w, serial] { disconnected(w, serial, -ETIMEDOUT); });
}

void hang_up(World& w, Conn& conn) {
  switch (conn.state) {
    case ConnState::req_sent:
      send_reject(w, conn, kRejectTimeout, {});
      break;
    case ConnState::req_received:
    case ConnState::rep_sent:
    case ConnState::rep_received:
      send_reject(w, conn, kRejectConsumer, {});
      break;
    case ConnState::established:
      send_disconnect(w, conn);
      break;
    case ConnState::listening:
      for (auto entry = w.conns.begin(); entry != w.conns.end();) {
        Conn& waiting = *entry->second;
        const bool its = waiting.listener == conn.serial && waiting.id == 0;
        if (its && waiting.state == ConnState::req_received) send_reject(w, waiting, kRejectConsumer, {});
        entry = its ? w.conns.erase(entry) : std::next(entry);
      }
      break;
    default:
      break;
  }
  conn.state = ConnState::failed;
}

}  // namespace tidelock::fake
