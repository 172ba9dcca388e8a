// Control functions that hurt queue pairs and devices, and those that look at queue pairs.
#include "world.h"

namespace tidelock::fake {

namespace {

Qp& need_qp(World& w, std::uint32_t qp_num) {
  Qp* qp = qp_by_number(w, qp_num);
  if (qp == nullptr) die("no queue pair %#x", qp_num);
  return *qp;
}

/// Nothing in, nothing out, and no completion ever.
void silence(World& w, Qp& qp) {
  qp.silent = true;
  qp.attr.qp_state = IBV_QPS_ERR;
  update_head(w, qp);
}

void stop_device(World& w, Device& device) {
  device.down = true;
  for (auto& [serial, qp] : w.qps)
    if (qp->its_device == &device) silence(w, *qp);
}

void raise_on_device(World& w, Device& device, ibv_event_type type) {
  AsyncEvent event;
  event.event.event_type = type;
  event.event.element.port_num = 1;
  for (auto& [serial, context] : w.contexts)
    if (context->its_device == &device) raise_async(w, *context, event);
}

}  // namespace

void delay_qp(std::uint32_t qp_num, std::uint32_t steps) {
  World& w = world();
  const Lock lock(w.mutex);
  need_qp(w, qp_num).delay_steps = steps;
}

void kill_qp(std::uint32_t qp_num) {
  World& w = world();
  const Lock lock(w.mutex);
  fail_qp(w, need_qp(w, qp_num));
  pump(w);
}

void kill_device_users(const std::string& device) {
  World& w = world();
  const Lock lock(w.mutex);
  Device& dead = need_device(w, device);
  for (auto& [serial, qp] : w.qps) {
    if (qp->its_device != &dead) continue;
    silence(w, *qp);
    w.qp_by_number.erase(qp->qp_num);
  }
  std::vector<std::uint64_t> halves;  // hanging up a listener erases others
  for (auto& [serial, conn] : w.conns)
    if (conn->device == &dead) halves.push_back(serial);
  for (const std::uint64_t serial : halves) {
    Conn* conn = find_conn(w, serial);
    if (conn == nullptr) continue;
    hang_up(w, *conn);
    purge_events(w, serial);
    conn->silent = true;
  }
  pump(w);
}

void raise_qp_event(std::uint32_t qp_num, ibv_event_type event) {
  World& w = world();
  const Lock lock(w.mutex);
  Qp& qp = need_qp(w, qp_num);
  if (event == IBV_EVENT_QP_FATAL) silence(w, qp);
  raise_on_qp(w, qp, event);
}

void raise_cq_event(ibv_cq* cq, ibv_event_type event) {
  World& w = world();
  const Lock lock(w.mutex);
  Cq& target = w.cqs.check(cq, "raise_cq_event");
  if (event == IBV_EVENT_CQ_ERR) target.dead = true;
  raise_on_cq(w, target, event);
}

void raise_event(const std::string& device, ibv_event_type event) {
  World& w = world();
  const Lock lock(w.mutex);
  Device& target = need_device(w, device);
  if (event == IBV_EVENT_DEVICE_FATAL) stop_device(w, target);
  if (event == IBV_EVENT_PORT_ERR) target.config.port_state = IBV_PORT_DOWN;
  if (event == IBV_EVENT_PORT_ACTIVE) target.config.port_state = IBV_PORT_ACTIVE;
  raise_on_device(w, target, event);
  pump(w);
}

void remove_device(const std::string& device) {
  World& w = world();
  const Lock lock(w.mutex);
  Device& target = need_device(w, device);
  stop_device(w, target);
  raise_on_device(w, target, IBV_EVENT_DEVICE_FATAL);
  for (auto& [serial, conn] : w.conns)
    if (conn->device == &target && conn->id != 0) emit(w, *conn, RDMA_CM_EVENT_DEVICE_REMOVAL);
  pump(w);
}

std::vector<std::uint32_t> qp_numbers(const std::string& device) {
  World& w = world();
  const Lock lock(w.mutex);
  const Device& target = need_device(w, device);
  std::vector<std::uint32_t> numbers;
  for (auto& [serial, qp] : w.qps)
    if (qp->its_device == &target) numbers.push_back(qp->qp_num);
  return numbers;
}

QpStats qp_stats(std::uint32_t qp_num) {
  World& w = world();
  const Lock lock(w.mutex);
  for (auto& [serial, qp] : w.qps) {
    if (qp->qp_num != qp_num) continue;
    QpStats stats = qp->stats;
    stats.state = qp->attr.qp_state;
    stats.attributes = qp->attr;
    stats.sq_in_use = static_cast<std::uint32_t>(qp->sends - qp->sends_retired);
    stats.rq_in_use = static_cast<std::uint32_t>(qp->recvs - qp->recvs_retired);
    return stats;
  }
  return {};
}

}  // namespace tidelock::fake
