// rdma_cm ids: what a user asks of one. Events follow from the messages in cm_messages.cc.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include <arpa/inet.h>

#include "world.h"

namespace tidelock::fake {

namespace {

int fail(int error) {
  errno = error;
  return -1;
}

struct Half {
  CmId& id;
  Conn& conn;
};

Half half_of(World& w, rdma_cm_id* handle, const char* call) {
  CmId& id = w.ids.check(handle, call);
  return {id, *find_conn(w, id.conn)};
}

Device* device_by_ipv4(World& w, in_addr address) {
  for (auto& device : w.devices) {
    in_addr own{};
    inet_pton(AF_INET, device->config.ipv4.c_str(), &own);
    if (own.s_addr == address.s_addr) return device.get();
  }
  return nullptr;
}

bool port_taken(World& w, const Conn& but, in_addr address, in_port_t port) {
  return std::any_of(w.conns.begin(), w.conns.end(), [&](const auto& entry) {
    const Conn& other = *entry.second;
    if (&other == &but || !other.bound || other.silent || other.local.sin_port != port) return false;
    const in_addr_t any = htonl(INADDR_ANY), theirs = other.local.sin_addr.s_addr;
    return theirs == any || address.s_addr == any || theirs == address.s_addr;
  });
}

int bind(World& w, Half half, const sockaddr* address) {
  if (half.conn.state != ConnState::idle || half.conn.bound) return EINVAL;
  if (address->sa_family != AF_INET) return EAFNOSUPPORT;
  sockaddr_in wanted{};
  std::memcpy(&wanted, address, sizeof(wanted));
  Device* device = device_by_ipv4(w, wanted.sin_addr);
  if (device == nullptr && wanted.sin_addr.s_addr != htonl(INADDR_ANY)) return EADDRNOTAVAIL;
  if (wanted.sin_port != 0 && port_taken(w, half.conn, wanted.sin_addr, wanted.sin_port)) return EADDRINUSE;
  while (wanted.sin_port == 0) {
    const in_port_t port = htons(w.next_port++);
    if (!port_taken(w, half.conn, wanted.sin_addr, port)) wanted.sin_port = port;
  }
  half.conn.bound = true;
  half.conn.local = wanted;
  half.conn.device = device;
  half.id.route.addr.src_sin = wanted;
  if (device != nullptr) {
    half.id.verbs = device->cm_context.get();
    half.id.port_num = 1;
  }
  return 0;
}

/// Where routing has the choice: the first device whose port is up.
Device* any_device(World& w) {
  for (auto& device : w.devices)
    if (!device->down && device->config.port_state == IBV_PORT_ACTIVE) return device.get();
  return nullptr;
}

int bind_to_any(World& w, Half half) {
  Device* device = any_device(w);
  if (device == nullptr) return ENODEV;
  sockaddr_in source{};
  source.sin_family = AF_INET;
  inet_pton(AF_INET, device->config.ipv4.c_str(), &source.sin_addr);
  if (!half.conn.bound) return bind(w, half, reinterpret_cast<const sockaddr*>(&source));
  half.conn.device = device;
  half.conn.local.sin_addr = source.sin_addr;
  return 0;
}

std::vector<std::uint8_t> private_data_of(const rdma_conn_param& param) {
  const auto* bytes = static_cast<const std::uint8_t*>(param.private_data);
  if (bytes == nullptr) return {};
  return {bytes, bytes + param.private_data_len};
}

void take_param(Conn& conn, const rdma_conn_param& param) {
  conn.local_qp_num = param.qp_num;
  conn.responder_resources = param.responder_resources;
  conn.initiator_depth = param.initiator_depth;
  conn.rnr_retry_to_peer = std::min<std::uint8_t>(param.rnr_retry_count, 7);
}

}  // namespace

}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" {

rdma_event_channel* rdma_create_event_channel(void) {
  World& w = world();
  const Lock lock(w.mutex);
  errno = failure_of(w, Call::create_event_channel);
  if (errno != 0) return nullptr;
  auto channel = std::make_unique<CmChannel>();
  channel->serial = ++w.serial;
  channel->fd = channel->event_fd.fd();
  return &w.cm_channels.add(std::move(channel));
}

void rdma_destroy_event_channel(rdma_event_channel* handle) {
  World& w = world();
  const Lock lock(w.mutex);
  CmChannel& gone = w.cm_channels.check(handle, "rdma_destroy_event_channel");
  if (gone.ids != 0) die("rdma_destroy_event_channel: %u ids use it", gone.ids);
  if (gone.unacked != 0)
    die("rdma_destroy_event_channel: %u events of it are not acknowledged", gone.unacked);
  w.cm_channels.remove(gone);
}

int rdma_create_id(rdma_event_channel* handle, rdma_cm_id** result, void* context, rdma_port_space ps) {
  tell_call("rdma_create_id");
  World& w = world();
  const Lock lock(w.mutex);
  CmChannel& channel = w.cm_channels.check(handle, "rdma_create_id");
  if (const int error = failure_of(w, Call::create_id)) return fail(error);
  if (ps != RDMA_PS_TCP) return fail(EOPNOTSUPP);
  auto conn = std::make_unique<Conn>();
  auto id = std::make_unique<CmId>();
  conn->serial = ++w.serial;
  id->serial = ++w.serial;
  conn->id = id->serial;
  conn->channel = channel.serial;
  id->conn = conn->serial;
  id->channel = handle;
  id->context = context;
  id->ps = ps;
  id->qp_type = IBV_QPT_RC;
  ++channel.ids;
  w.conns.emplace(conn->serial, std::move(conn));
  *result = &w.ids.add(std::move(id));
  return 0;
}

int rdma_destroy_id(rdma_cm_id* handle) {
  tell_call("rdma_destroy_id");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_destroy_id");
  if (half.id.unacked != 0)
    die("rdma_destroy_id would block: %u events of the id are not acknowledged", half.id.unacked);
  if (!half.conn.silent) hang_up(w, half.conn);
  purge_events(w, half.conn.serial);
  --static_cast<CmChannel*>(half.id.channel)->ids;
  w.conns.erase(half.conn.serial);
  w.ids.remove(half.id);
  pump(w);
  return 0;
}

int rdma_bind_addr(rdma_cm_id* handle, sockaddr* address) {
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_bind_addr");
  if (const int error = failure_of(w, Call::bind_addr)) return fail(error);
  const int error = bind(w, half, address);
  return error == 0 ? 0 : fail(error);
}

int rdma_listen(rdma_cm_id* handle, int backlog) {
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_listen");
  if (const int error = failure_of(w, Call::listen)) return fail(error);
  if (!half.conn.bound || half.conn.state != ConnState::idle) return fail(EINVAL);
  half.conn.state = ConnState::listening;
  half.conn.backlog = backlog > 0 ? backlog : 1024;
  return 0;
}

int rdma_resolve_addr(rdma_cm_id* handle, sockaddr* source, sockaddr* target, int) {
  tell_call("rdma_resolve_addr");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_resolve_addr");
  if (const int error = failure_of(w, Call::resolve_addr)) return fail(error);
  if (half.conn.state != ConnState::idle || target->sa_family != AF_INET) return fail(EINVAL);
  int error = 0;
  if (source != nullptr && !half.conn.bound) error = bind(w, half, source);
  if (error == 0 && half.conn.device == nullptr) error = bind_to_any(w, half);
  if (error != 0) return fail(error);
  std::memcpy(&half.conn.remote, target, sizeof(half.conn.remote));
  half.id.route.addr.dst_sin = half.conn.remote;
  half.conn.state = ConnState::addr_query;
  after(w, 0, [&w, serial = half.conn.serial] {
    Conn* conn = find_conn(w, serial);
    if (conn == nullptr || conn->state != ConnState::addr_query) return;
    conn->peer_device = device_by_ipv4(w, conn->remote.sin_addr);
    conn->state = conn->peer_device != nullptr ? ConnState::addr_resolved : ConnState::idle;
    if (conn->peer_device != nullptr)
      emit(w, *conn, RDMA_CM_EVENT_ADDR_RESOLVED);
    else
      emit(w, *conn, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
  });
  pump(w);
  return 0;
}

int rdma_resolve_route(rdma_cm_id* handle, int) {
  tell_call("rdma_resolve_route");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_resolve_route");
  if (const int error = failure_of(w, Call::resolve_route)) return fail(error);
  if (half.conn.state != ConnState::addr_resolved) return fail(EINVAL);
  half.conn.state = ConnState::route_query;
  after(w, 0, [&w, serial = half.conn.serial] {
    Conn* conn = find_conn(w, serial);
    if (conn == nullptr || conn->state != ConnState::route_query) return;
    conn->state = ConnState::route_resolved;
    emit(w, *conn, RDMA_CM_EVENT_ROUTE_RESOLVED);
  });
  pump(w);
  return 0;
}

int rdma_connect(rdma_cm_id* handle, rdma_conn_param* param) {
  tell_call("rdma_connect");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_connect");
  if (const int error = failure_of(w, Call::connect)) return fail(error);
  if (half.conn.state != ConnState::route_resolved || param->private_data_len > kReqPrivateBytes)
    return fail(EINVAL);
  take_param(half.conn, *param);
  half.conn.retry_count = std::min<std::uint8_t>(param->retry_count, 7);
  half.conn.initiator = true;
  half.conn.psn = static_cast<std::uint32_t>(half.conn.serial * 7919) & 0xffffff;
  half.conn.state = ConnState::req_sent;
  send_request(w, half.conn, private_data_of(*param));
  pump(w);
  return 0;
}

int rdma_accept(rdma_cm_id* handle, rdma_conn_param* param) {
  tell_call("rdma_accept");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_accept");
  if (const int error = failure_of(w, Call::accept)) return fail(error);
  if (half.conn.state != ConnState::req_received || param->private_data_len > kRepPrivateBytes)
    return fail(EINVAL);
  take_param(half.conn, *param);
  half.conn.state = ConnState::rep_sent;
  send_reply(w, half.conn, private_data_of(*param));
  pump(w);
  return 0;
}

int rdma_reject(rdma_cm_id* handle, const void* private_data, std::uint8_t length) {
  tell_call("rdma_reject");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_reject");
  if (const int error = failure_of(w, Call::reject)) return fail(error);
  if (half.conn.state != ConnState::req_received || length > kRejPrivateBytes) return fail(EINVAL);
  rdma_conn_param param{};
  param.private_data = private_data;
  param.private_data_len = length;
  half.conn.state = ConnState::failed;
  send_reject(w, half.conn, kRejectConsumer, private_data_of(param));
  pump(w);
  return 0;
}

int rdma_establish(rdma_cm_id* handle) {
  tell_call("rdma_establish");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_establish");
  if (const int error = failure_of(w, Call::establish)) return fail(error);
  if (half.conn.state != ConnState::rep_received) return fail(EINVAL);
  half.conn.state = ConnState::established;
  send_ready(w, half.conn);
  pump(w);
  return 0;
}

int rdma_disconnect(rdma_cm_id* handle) {
  tell_call("rdma_disconnect");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_disconnect");
  if (const int error = failure_of(w, Call::disconnect)) return fail(error);
  if (half.conn.peer == 0) return fail(EINVAL);
  // In any other state the kernel sends nothing and says success.
  if (half.conn.state == ConnState::established && !half.conn.silent) {
    half.conn.state = ConnState::disconnecting;
    send_disconnect(w, half.conn);
  }
  pump(w);
  return 0;
}

int rdma_migrate_id(rdma_cm_id* handle, rdma_event_channel* target) {
  tell_call("rdma_migrate_id");
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_migrate_id");
  if (const int error = failure_of(w, Call::migrate_id)) return fail(error);
  if (half.id.unacked != 0)
    die("rdma_migrate_id would block: %u events of the id are not acknowledged", half.id.unacked);
  CmChannel& from = *static_cast<CmChannel*>(half.id.channel);
  CmChannel& to = w.cm_channels.check(target, "rdma_migrate_id");
  std::deque<CmEvent> stay;
  for (CmEvent& event : from.events) {
    const bool moves = event.counted == half.conn.serial;
    (moves ? to.events : stay).push_back(std::move(event));
    if (moves) to.event_fd.raise();
  }
  if (!from.events.empty() && stay.empty()) from.event_fd.clear();
  from.events = std::move(stay);
  for (auto& [serial, conn] : w.conns)
    if (serial == half.conn.serial || (conn->listener == half.conn.serial && conn->id == 0))
      conn->channel = to.serial;
  half.id.channel = target;
  --from.ids;
  ++to.ids;
  return 0;
}

int rdma_set_option(rdma_cm_id* handle, int level, int option, void* value, std::size_t length) {
  World& w = world();
  const Lock lock(w.mutex);
  const Half half = half_of(w, handle, "rdma_set_option");
  if (const int error = failure_of(w, Call::set_option)) return fail(error);
  if (level != RDMA_OPTION_ID) return fail(ENOSYS);
  switch (option) {
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (length != sizeof(std::uint8_t)) return fail(EINVAL);
      half.conn.ack_timeout = *static_cast<const std::uint8_t*>(value);
      return 0;
    case RDMA_OPTION_ID_TOS:
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY:
      return 0;
    default:
      return fail(ENOSYS);
  }
}

__be16 rdma_get_src_port(rdma_cm_id* id) { return id->route.addr.src_sin.sin_port; }

__be16 rdma_get_dst_port(rdma_cm_id* id) { return id->route.addr.dst_sin.sin_port; }

}  // extern "C"
