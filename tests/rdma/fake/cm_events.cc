// Communication events: their queue, what a test makes of them, fetching and acknowledging them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "world.h"

namespace tidelock::fake {

namespace {

void enqueue(World& w, const CmEvent& event) {
  Conn* conn = find_conn(w, event.conn);
  if (conn == nullptr || conn->silent) return;
  if (conn->id == 0 && event.type != RDMA_CM_EVENT_CONNECT_REQUEST) return;  // nobody knows of it yet
  CmChannel* channel = w.cm_channels.find(conn->channel);
  if (channel == nullptr) return;
  channel->events.push_back(event);
  channel->event_fd.raise();
}

bool take_fault(World& w, const CmEvent& event, CmFault& taken) {
  const Conn* conn = find_conn(w, event.conn);
  for (auto fault = w.cm_faults.begin(); fault != w.cm_faults.end(); ++fault) {
    if (fault->event != event.type) continue;
    const Device* device = conn == nullptr ? nullptr : conn->device;
    if (!fault->device.empty() && (device == nullptr || device->config.name != fault->device)) continue;
    taken = *fault;
    if (--fault->times == 0) w.cm_faults.erase(fault);
    return true;
  }
  return false;
}

/// A request that comes twice is two requests.
CmEvent duplicate(World& w, const CmEvent& event) {
  if (event.type != RDMA_CM_EVENT_CONNECT_REQUEST) return event;
  const Conn* first = find_conn(w, event.conn);
  if (first == nullptr) return event;
  auto second = std::make_unique<Conn>(*first);
  second->serial = ++w.serial;
  CmEvent copy = event;
  copy.conn = second->serial;
  w.conns.emplace(second->serial, std::move(second));
  if (Conn* listener = find_conn(w, event.counted)) ++listener->requests_waiting;
  return copy;
}

void fill_address(CmId& id, const Conn& conn) {
  id.route.addr.src_sin = conn.local;
  id.route.addr.dst_sin = conn.remote;
  if (conn.device == nullptr) return;
  id.verbs = conn.device->cm_context.get();
  id.port_num = 1;
}

CmId& make_requested_id(World& w, Conn& conn, const CmId& listen_id) {
  auto id = std::make_unique<CmId>();
  id->serial = ++w.serial;
  id->conn = conn.serial;
  id->channel = listen_id.channel;
  id->context = listen_id.context;
  id->ps = listen_id.ps;
  id->qp_type = listen_id.qp_type;
  fill_address(*id, conn);
  conn.id = id->serial;
  conn.channel = static_cast<CmChannel*>(listen_id.channel)->serial;
  ++static_cast<CmChannel*>(listen_id.channel)->ids;
  return w.ids.add(std::move(id));
}

CmUserEvent& hand_out(World& w, CmChannel& channel, const CmEvent& event) {
  Conn& conn = *find_conn(w, event.conn);
  CmId& counted = *w.ids.find(find_conn(w, event.counted)->id);
  auto user = std::make_unique<CmUserEvent>();
  user->serial = ++w.serial;
  user->event = event.type;
  user->status = event.status;
  user->param.conn = event.param;
  user->private_data = event.private_data;
  if (!user->private_data.empty()) {
    user->param.conn.private_data = user->private_data.data();
    user->param.conn.private_data_len = static_cast<std::uint8_t>(user->private_data.size());
  }
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    user->listen_id = &counted;
    user->id = &make_requested_id(w, conn, counted);
    --find_conn(w, event.counted)->requests_waiting;
  } else {
    user->id = &counted;
    if (event.type == RDMA_CM_EVENT_ADDR_RESOLVED) fill_address(counted, conn);
  }
  user->counted_id = counted.serial;
  user->channel = channel.serial;
  ++counted.unacked;
  ++channel.unacked;
  return w.cm_events.add(std::move(user));
}

}  // namespace

void emit(World& w, CmEvent event) {
  CmFault fault;
  if (!take_fault(w, event, fault)) return enqueue(w, event);
  switch (fault.action) {
    case CmAction::lose:
      break;
    case CmAction::delay:
      after(w, fault.steps, [&w, event = std::move(event)] { enqueue(w, event); });
      break;
    case CmAction::duplicate: {
      const CmEvent second = duplicate(w, event);
      enqueue(w, event);
      enqueue(w, second);
      break;
    }
    case CmAction::replace:
      event.type = fault.replacement;
      event.status = fault.status;
      enqueue(w, event);
      break;
  }
}

void emit(World& w, const Conn& conn, rdma_cm_event_type type, int status) {
  CmEvent event;
  event.conn = event.counted = conn.serial;
  event.type = type;
  event.status = status;
  emit(w, std::move(event));
}

/// The kernel takes back the events of an id that ends; of a listener also the requests.
void purge_events(World& w, std::uint64_t serial) {
  const Conn* conn = find_conn(w, serial);
  CmChannel* channel = conn == nullptr ? nullptr : w.cm_channels.find(conn->channel);
  if (channel == nullptr) return;
  const auto its = [&](const CmEvent& event) { return event.conn == serial || event.counted == serial; };
  if (std::erase_if(channel->events, its) > 0 && channel->events.empty()) channel->event_fd.clear();
}

}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" {

int rdma_get_cm_event(rdma_event_channel* handle, rdma_cm_event** event) {
  World& w = world();
  Lock lock(w.mutex);
  CmChannel& channel = w.cm_channels.check(handle, "rdma_get_cm_event");
  if (!wait_until(w, lock, channel.event_fd, [&] { return !channel.events.empty(); })) {
    errno = EAGAIN;
    return -1;
  }
  const CmEvent got = channel.events.front();
  channel.events.pop_front();
  if (channel.events.empty()) channel.event_fd.clear();
  *event = &hand_out(w, channel, got);
  return 0;
}

int rdma_ack_cm_event(rdma_cm_event* event) {
  World& w = world();
  const Lock lock(w.mutex);
  CmUserEvent& acked = w.cm_events.check(event, "rdma_ack_cm_event");
  --w.ids.find(acked.counted_id)->unacked;
  --w.cm_channels.find(acked.channel)->unacked;
  w.cm_events.remove(acked);
  return 0;
}

}  // extern "C"
