// The control functions of fake_verbs.h.
#include <algorithm>

#include "world.h"

namespace tidelock::fake {

namespace {

void need_no_objects(World& w, const char* call) {
  const std::size_t others =
      w.contexts.size() + w.pds.size() + w.mrs.size() + w.channels.size() + w.cqs.size();
  const std::size_t cm = w.cm_channels.size() + w.ids.size() + w.cm_events.size();
  if (others + w.qps.size() + cm == 0) return;
  die("%s: still there: %zu contexts, %zu pds, %zu mrs, %zu comp channels, %zu cqs, %zu qps, %zu event "
      "channels, "
      "%zu ids, %zu unacknowledged CM events",
      call, w.contexts.size(), w.pds.size(), w.mrs.size(), w.channels.size(), w.cqs.size(), w.qps.size(),
      w.cm_channels.size(), w.ids.size(), w.cm_events.size());
}

void make_devices(World& w, const std::vector<DeviceConfig>& configs) {
  w.devices.clear();
  w.conns.clear();
  w.timed.clear();
  w.heads.clear();
  w.cuts.clear();
  for (const DeviceConfig& config : configs) {
    auto device = std::make_unique<Device>();
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    const std::string uverbs = "uverbs" + std::to_string(w.devices.size());
    config.name.copy(device->name, sizeof(device->name) - 1);
    uverbs.copy(device->dev_name, sizeof(device->dev_name) - 1);
    device->config = config;
    device->cm_context = make_context(w, *device);
    w.devices.push_back(std::move(device));
  }
}

std::vector<DeviceConfig> default_devices() {
  DeviceConfig first, second;
  first.name = "fake0";
  first.ipv4 = "10.0.0.1";
  second.name = "fake1";
  second.ipv4 = "10.0.0.2";
  return {first, second};
}

}  // namespace

World::World() { make_devices(*this, default_devices()); }

void reset() {
  World& w = world();
  const Lock lock(w.mutex);
  need_no_objects(w, "reset");
  make_devices(w, default_devices());
  w.held = false;
  w.failures.clear();
  w.post_failures.clear();
  w.cm_faults.clear();
  w.post_hook = nullptr;
  w.call_hook = nullptr;
  w.fork_status = IBV_FORK_UNNEEDED;
  w.corruptions.clear();
  w.next_port = 49152;
  w.last_destroyed_qp_num = 0;
}

void set_devices(const std::vector<DeviceConfig>& devices) {
  World& w = world();
  const Lock lock(w.mutex);
  need_no_objects(w, "set_devices");
  make_devices(w, devices);
}

DeviceConfig device_config(const std::string& device) {
  World& w = world();
  const Lock lock(w.mutex);
  return need_device(w, device).config;
}

void change_device(const std::string& device, const DeviceConfig& config) {
  World& w = world();
  const Lock lock(w.mutex);
  DeviceConfig& now = need_device(w, device).config;
  const DeviceConfig before = now;
  now = config;
  now.name = before.name;
  now.ipv4 = before.ipv4;
}

void set_modes(const Modes& modes) {
  World& w = world();
  const Lock lock(w.mutex);
  for (auto& device : w.devices) device->modes = modes;
}

void set_modes(const std::string& device, const Modes& modes) {
  World& w = world();
  const Lock lock(w.mutex);
  need_device(w, device).modes = modes;
}

Modes modes(const std::string& device) {
  World& w = world();
  const Lock lock(w.mutex);
  return need_device(w, device).modes;
}

void hold() {
  World& w = world();
  const Lock lock(w.mutex);
  w.held = true;
}

void go() {
  World& w = world();
  const Lock lock(w.mutex);
  w.held = false;
  run_tick(w);
}

void step(std::uint32_t n) {
  World& w = world();
  const Lock lock(w.mutex);
  for (std::uint32_t i = 0; i < n; ++i) run_tick(w);
}

bool run_one() {
  World& w = world();
  const Lock lock(w.mutex);
  if (run_candidate(w)) return true;
  ++w.tick;
  return run_candidate(w);
}

namespace {

std::size_t pending_count(World& w) {
  std::size_t count = w.timed.size();
  for (const auto& [seq, serial] : w.heads) count += w.qps.find(serial)->sq.size();
  return count;
}

}  // namespace

std::size_t pending() {
  World& w = world();
  const Lock lock(w.mutex);
  return pending_count(w);
}

void run_until_idle(std::uint32_t steps_max) {
  World& w = world();
  const Lock lock(w.mutex);
  for (std::uint32_t i = 0; i < steps_max && pending_count(w) > 0; ++i) run_tick(w);
}

void cut(const std::string& device_a, const std::string& device_b) {
  World& w = world();
  const Lock lock(w.mutex);
  const Device* a = &need_device(w, device_a);
  const Device* b = &need_device(w, device_b);
  w.cuts.insert({a, b});
  w.cuts.insert({b, a});
}

void heal(const std::string& device_a, const std::string& device_b) {
  World& w = world();
  const Lock lock(w.mutex);
  const Device* a = &need_device(w, device_a);
  const Device* b = &need_device(w, device_b);
  w.cuts.erase({a, b});
  w.cuts.erase({b, a});
  pump(w);
}

void corrupt_next_write(std::size_t k, std::uint32_t qp_num) {
  World& w = world();
  const Lock lock(w.mutex);
  w.corruptions.push_back({k, qp_num});
}

void fail_call(Call call, int error, std::uint32_t skip, std::uint32_t times) {
  World& w = world();
  const Lock lock(w.mutex);
  if (times == 0)
    w.failures.erase(call);
  else
    w.failures[call] = {error, skip, times};
}

void fail_post_send(const PostFailure& failure) {
  World& w = world();
  const Lock lock(w.mutex);
  w.post_failures.push_back(failure);
}

void add_cm_fault(const CmFault& fault) {
  World& w = world();
  const Lock lock(w.mutex);
  w.cm_faults.push_back(fault);
}

void set_post_hook(std::function<void(ibv_qp*)> hook) {
  World& w = world();
  const Lock lock(w.mutex);
  w.post_hook = std::move(hook);
}

void set_call_hook(std::function<void(const std::string&)> hook) {
  World& w = world();
  const Lock lock(w.mutex);
  w.call_hook = std::move(hook);
}

void set_fork_status(ibv_fork_status status) {
  World& w = world();
  const Lock lock(w.mutex);
  w.fork_status = status;
}

void tell_call(const char* name) {
  World& w = world();
  Lock lock(w.mutex);
  const auto hook = w.call_hook;
  lock.unlock();
  if (hook) hook(name);
}

LiveObjects live_objects() {
  World& w = world();
  const Lock lock(w.mutex);
  LiveObjects live;
  live.contexts = w.contexts.size();
  live.pds = w.pds.size();
  live.comp_channels = w.channels.size();
  live.cqs = w.cqs.size();
  live.mrs = w.mrs.size();
  live.qps = w.qps.size();
  live.event_channels = w.cm_channels.size();
  live.ids = w.ids.size();
  return live;
}

}  // namespace tidelock::fake
