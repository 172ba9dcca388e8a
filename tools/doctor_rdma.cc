#include "doctor_rdma.h"

#include <algorithm>

#include <fmt/format.h>

namespace tidelock::tools {
namespace {

/// What one connection of the verbs link asks of a device, with its default shape.
constexpr std::uint64_t kQueueEntries = 84;
constexpr std::uint64_t kPieces = 4;

/// A network interface on which soft-RoCE could be put.
std::string some_netdev(const SystemFiles& files) {
  for (const std::string& name : files.names("sys/class/net")) {
    if (name != "lo" && files.exists("sys/class/net/" + name + "/address")) return shell_word(name, "NETDEV");
  }
  return "NETDEV";
}

bool has_uverbs(const SystemFiles& files) {
  const auto names = files.names("dev/infiniband");
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.rfind("uverbs", 0) == 0; });
}

Check check_devices(const SystemFiles& files, const RdmaFacts& facts, const DoctorNeeds& needs) {
  const char* const name = "rdma devices";
  const char* const why =
      "links between machines; nodes of one machine are linked by shared memory without any";
  if (!facts.devices.empty()) {
    std::string value;
    for (const auto& device : facts.devices) value += (value.empty() ? "" : ", ") + device.name;
    return good(name, value, why);
  }
  const bool in_kernel = !files.names("sys/class/infiniband").empty();
  std::string value = "none";
  if (!facts.list_error.empty()) value += ": " + facts.list_error;
  if (in_kernel && !has_uverbs(files)) {
    value += "; the kernel has one, but there is no /dev/infiniband/uverbs*";
    return {name, needs.if_verbs(), value, why,
            "sudo modprobe ib_uverbs  # in a container: docker run --device=/dev/infiniband ..."};
  }
  value += has_uverbs(files)
               ? "; /dev/infiniband is there: is the provider installed (ibverbs-providers)?"
               : "; no /dev/infiniband: hardware needs its driver (mlx5_ib, bnxt_re, irdma, ...)";
  return {name, needs.if_verbs(), value, why,
          has_uverbs(files)
              ? std::string("sudo apt-get install ibverbs-providers")
              : fmt::format("sudo modprobe rdma_rxe; sudo rdma link add rxe0 type rxe netdev {}  # soft-RoCE",
                            some_netdev(files))};
}

Check check_cm(const SystemFiles& files, const RdmaFacts& facts, const DoctorNeeds& needs) {
  const char* const name = "rdma_cm";
  const char* const why = "the verbs link finds its peers and connects by it";
  const bool node = files.exists("dev/infiniband/rdma_cm");
  if (node && facts.cm_error.empty())
    return good(name, "/dev/infiniband/rdma_cm, an event channel opens", why);
  const std::string value = !node ? "no /dev/infiniband/rdma_cm" : "no event channel: " + facts.cm_error;
  return {name, needs.if_verbs(), value, why, "sudo modprobe rdma_ucm"};
}

Check check_device(const RdmaDeviceFacts& device, const DoctorNeeds& needs) {
  const std::string name = "rdma " + device.name;
  const std::string why =
      fmt::format("a connection takes {} entries a queue and {} pieces a batch; small messages go inline",
                  kQueueEntries, kPieces);
  if (!device.error.empty())
    return {name, needs.if_verbs(), "cannot be opened: " + device.error, why,
            "ls -l /dev/infiniband  # write permission"};
  const std::string value =
      fmt::format("max_qp_wr {}, max_sge {}, max_cqe {}, max_inline {}", device.max_qp_wr, device.max_sge,
                  device.max_cqe, device.max_inline ? std::to_string(*device.max_inline) : "unknown");
  const bool enough = device.max_qp_wr >= kQueueEntries && device.max_sge >= kPieces &&
                      device.max_cqe >= 2 * kQueueEntries * needs.shards;
  if (!enough)
    return {name, needs.if_verbs(), value + ": too small", why, "ibv_devices  # choose another: --device"};
  if (!device.max_inline) return unknown(name, value, why);
  return good(name, value, why);
}

/// "up" and "unknown" (of virtual ones) carry traffic (operstates.rst).
bool netdev_down(const SystemFiles& files, const std::string& netdev) {
  if (netdev.empty() || netdev.find('/') != std::string::npos) return false;
  const auto state = files.line("sys/class/net/" + netdev + "/operstate");
  return state && *state != "up" && *state != "unknown";
}

Check check_port(const SystemFiles& files, const RdmaDeviceFacts& device, const RdmaPortFacts& port,
                 CheckStatus otherwise) {
  const std::string name = fmt::format("rdma {}/{}", device.name, port.number);
  const char* const why = "the verbs link takes an active port with an IPv4 address as its RoCEv2 GID";
  const bool down = netdev_down(files, port.netdev);
  const std::string netdev = shell_word(port.netdev, "NETDEV");
  std::string value =
      fmt::format("{}, {}, MTU {}", port.state.empty() ? "no answer" : port.state,
                  port.link_layer.empty() ? "no link layer" : port.link_layer, port.mtu_bytes);
  value += port.gid_index ? fmt::format(", GID {} {}", *port.gid_index, port.address)
                          : ", no RoCEv2 GID with an IPv4 address";
  if (!port.netdev.empty()) value += fmt::format(", {} {}", port.netdev, down ? "down" : "up");
  if (port.active && port.gid_index && !down) return good(name, value, why);
  if (!port.active || down)
    return {name, otherwise, value, why, fmt::format("sudo ip link set {} up", netdev)};
  return {name, otherwise, value, why, fmt::format("sudo ip address add ADDRESS/24 dev {}", netdev)};
}

bool usable(const SystemFiles& files, const RdmaPortFacts& port) {
  return port.active && port.gid_index.has_value() && !netdev_down(files, port.netdev);
}

}  // namespace

Checks check_rdma(const SystemFiles& files, const RdmaFacts& facts, const DoctorNeeds& needs) {
  Checks checks{check_devices(files, facts, needs), check_cm(files, facts, needs)};
  bool any = false;
  for (const auto& device : facts.devices) {
    for (const auto& port : device.ports) any = any || usable(files, port);
  }
  for (const auto& device : facts.devices) {
    checks.push_back(check_device(device, needs));
    for (const auto& port : device.ports)
      checks.push_back(check_port(files, device, port, any ? CheckStatus::warning : needs.if_verbs()));
  }
  return checks;
}

}  // namespace tidelock::tools
