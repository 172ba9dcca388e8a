// Devices, contexts, what they say of themselves, and their asynchronous events.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "world.h"

#undef ibv_query_port

namespace tidelock::fake {

std::unique_ptr<Context> make_context(World& w, Device& device) {
  auto context = std::make_unique<Context>();
  context->serial = ++w.serial;
  context->device = &device;
  context->its_device = &device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->cmd_fd = -1;
  context->async_fd = context->event_fd.fd();
  context->num_comp_vectors = 1;
  context->abi_compat = nullptr;  // not extended: the inline wrappers call the exported functions
  return context;
}

void raise_async(World&, Context& context, const AsyncEvent& event) {
  context.events.push_back(event);
  context.event_fd.raise();
}

void raise_on_qp(World& w, Qp& qp, ibv_event_type type) {
  AsyncEvent event;
  event.event.event_type = type;
  event.event.element.qp = &qp;
  event.qp = qp.serial;
  raise_async(w, *static_cast<Context*>(qp.context), event);
}

void raise_on_cq(World& w, Cq& cq, ibv_event_type type) {
  AsyncEvent event;
  event.event.event_type = type;
  event.event.element.cq = &cq;
  event.cq = cq.serial;
  raise_async(w, *static_cast<Context*>(cq.context), event);
}

/// The kernel takes back what was raised for an object and not fetched before its end.
void forget_async(Context& context, std::uint64_t qp, std::uint64_t cq) {
  if (context.events.empty()) return;
  const auto gone = [&](const AsyncEvent& event) {
    return (qp != 0 && event.qp == qp) || (cq != 0 && event.cq == cq);
  };
  context.events.erase(std::remove_if(context.events.begin(), context.events.end(), gone),
                       context.events.end());
  if (context.events.empty()) context.event_fd.clear();
}

namespace {

bool is_cq_event(ibv_event_type type) { return type == IBV_EVENT_CQ_ERR; }

bool is_qp_event(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return true;
    default:
      return false;
  }
}

void fill_gid_entry(ibv_gid_entry& entry, const Gid& gid, std::size_t index) {
  entry.gid = gid.gid;
  entry.gid_index = static_cast<std::uint32_t>(index);
  entry.port_num = 1;
  entry.gid_type = gid.type;
  entry.ndev_ifindex = 2;
}

bool is_zero(const ibv_gid& gid) {
  return std::all_of(std::begin(gid.raw), std::end(gid.raw), [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace
}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" {

ibv_device** ibv_get_device_list(int* num_devices) {
  World& w = world();
  const Lock lock(w.mutex);
  auto* list = static_cast<ibv_device**>(std::calloc(w.devices.size() + 1, sizeof(ibv_device*)));
  for (std::size_t i = 0; i < w.devices.size(); ++i) list[i] = w.devices[i].get();
  if (num_devices != nullptr) *num_devices = static_cast<int>(w.devices.size());
  return list;
}

void ibv_free_device_list(ibv_device** list) { std::free(static_cast<void*>(list)); }

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

__be64 ibv_get_device_guid(ibv_device* device) {
  __be64 guid = 0;
  std::memcpy(&guid, device->name, sizeof(guid));
  return guid;
}

ibv_context* ibv_open_device(ibv_device* device) {
  World& w = world();
  const Lock lock(w.mutex);
  errno = failure_of(w, Call::open_device);
  if (errno != 0) return nullptr;
  Context& context = w.contexts.add(make_context(w, *static_cast<Device*>(device)));
  return &context;
}

int ibv_close_device(ibv_context* context) {
  World& w = world();
  const Lock lock(w.mutex);
  Context& closed = w.contexts.check(context, "ibv_close_device");
  if (closed.users != 0) die("ibv_close_device: %u objects of the context are still there", closed.users);
  w.contexts.remove(closed);
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  World& w = world();
  const Lock lock(w.mutex);
  if (const int error = failure_of(w, Call::query_device)) return error;
  const DeviceConfig& config = device_of(context).config;
  *attr = {};
  std::strcpy(attr->fw_ver, "0.0.0");
  attr->node_guid = attr->sys_image_guid = ibv_get_device_guid(context->device);
  attr->max_mr_size = ~std::uint64_t{0};
  attr->page_size_cap = 4096;
  attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = 1 << 16;
  attr->max_qp_wr = config.max_qp_wr;
  attr->max_sge = attr->max_sge_rd = config.max_sge;
  attr->max_cqe = config.max_cqe;
  attr->max_qp_rd_atom = attr->max_res_rd_atom = attr->max_qp_init_rd_atom = 16;
  attr->max_pkeys = 1;
  attr->phys_port_cnt = 1;
  return 0;
}

int ibv_query_port(ibv_context* context, std::uint8_t port_num, _compat_ibv_port_attr* compat) {
  World& w = world();
  const Lock lock(w.mutex);
  if (const int error = failure_of(w, Call::query_port)) return error;
  if (port_num != 1) return EINVAL;
  const Device& device = device_of(context);
  // The inline wrapper has zeroed a whole ibv_port_attr and passes it on under the older name.
  auto* attr = reinterpret_cast<ibv_port_attr*>(compat);
  attr->state = device.down ? IBV_PORT_DOWN : device.config.port_state;
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = device.config.active_mtu;
  attr->gid_tbl_len = static_cast<int>(gids_of(device).size());
  attr->max_msg_sz = 1u << 31;
  attr->pkey_tbl_len = 1;
  attr->phys_state = attr->state == IBV_PORT_ACTIVE ? 5 : 3;
  attr->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int ibv_query_gid(ibv_context* context, std::uint8_t port_num, int index, ibv_gid* gid) {
  World& w = world();
  const Lock lock(w.mutex);
  const std::vector<Gid> gids = gids_of(device_of(context));
  if (port_num != 1 || index < 0 || static_cast<std::size_t>(index) >= gids.size()) return -1;
  *gid = gids[static_cast<std::size_t>(index)].gid;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port_num, std::uint32_t gid_index,
                      ibv_gid_entry* entry, std::uint32_t flags, std::size_t entry_size) {
  tell_call("ibv_query_gid_ex");
  World& w = world();
  const Lock lock(w.mutex);
  if (const int error = failure_of(w, Call::query_gid)) return error;
  const std::vector<Gid> gids = gids_of(device_of(context));
  if (port_num != 1 || flags != 0 || gid_index >= gids.size() || entry_size < sizeof(*entry)) return EINVAL;
  if (is_zero(gids[gid_index].gid)) return ENODATA;
  fill_gid_entry(*entry, gids[gid_index], gid_index);
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, std::size_t max_entries,
                             std::uint32_t flags, std::size_t entry_size) {
  World& w = world();
  const Lock lock(w.mutex);
  if (const int error = failure_of(w, Call::query_gid)) return -error;
  if (flags != 0 || entry_size < sizeof(*entries)) return -EINVAL;
  const std::vector<Gid> gids = gids_of(device_of(context));
  std::size_t count = 0;
  for (std::size_t i = 0; i < gids.size(); ++i) {
    if (is_zero(gids[i].gid)) continue;
    if (count == max_entries) return -EINVAL;
    fill_gid_entry(entries[count++], gids[i], i);
  }
  return static_cast<ssize_t>(count);
}

int ibv_fork_init(void) { return 0; }

ibv_fork_status ibv_is_fork_initialized(void) {
  World& w = world();
  const Lock lock(w.mutex);
  return w.fork_status;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  World& w = world();
  Lock lock(w.mutex);
  Context& source = w.contexts.check(context, "ibv_get_async_event");
  if (!wait_until(w, lock, source.event_fd, [&] { return !source.events.empty(); })) {
    errno = EAGAIN;
    return -1;
  }
  const AsyncEvent got = source.events.front();
  source.events.pop_front();
  if (source.events.empty()) source.event_fd.clear();
  if (Qp* qp = w.qps.find(got.qp)) ++qp->async_got;
  if (Cq* cq = w.cqs.find(got.cq)) ++cq->async_got;
  *event = got.event;
  return 0;
}

void ibv_ack_async_event(ibv_async_event* event) {
  World& w = world();
  const Lock lock(w.mutex);
  if (is_qp_event(event->event_type)) {
    Qp& qp = w.qps.check(event->element.qp, "ibv_ack_async_event");
    if (++qp.async_acked > qp.async_got) die("ibv_ack_async_event: more acknowledged than got");
  } else if (is_cq_event(event->event_type)) {
    Cq& cq = w.cqs.check(event->element.cq, "ibv_ack_async_event");
    if (++cq.async_acked > cq.async_got) die("ibv_ack_async_event: more acknowledged than got");
  }
}

}  // extern "C"
