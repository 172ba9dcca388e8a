#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <arpa/inet.h>

#include <tidelock/rdma/device.h>
#include <tidelock/rdma/errc.h>

#include "gid.h"
#include "handles.h"
#include "memory.h"

namespace tidelock {
namespace {

constexpr std::size_t kGidsMax = 256;

struct FreeList {
  void operator()(ibv_device** list) const { ::ibv_free_device_list(list); }
};

std::uint32_t mtu_bytes_of(ibv_mtu mtu) { return mtu == 0 ? 0 : 128U << mtu; }

std::string ipv4_of(const ibv_gid& gid) {
  static constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (!std::equal(kMapped.begin(), kMapped.end(), gid.raw)) return {};
  std::array<char, INET_ADDRSTRLEN> text{};
  return ::inet_ntop(AF_INET, gid.raw + kMapped.size(), text.data(), text.size()) != nullptr ? text.data()
                                                                                             : "";
}

RdmaPort read_port(ibv_context* context, std::uint8_t number) {
  RdmaPort port;
  port.number = number;
  ibv_port_attr attributes{};
  if (ibv_query_port(context, number, &attributes) != 0) {
    port.state = "unreadable";
    return port;
  }
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.state = ::ibv_port_state_str(attributes.state);
  port.link_layer = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
  port.mtu_bytes = mtu_bytes_of(attributes.active_mtu);
  return port;
}

/// Empty if it cannot be read.
std::vector<ibv_gid_entry> gid_table(ibv_context* context) {
  std::vector<ibv_gid_entry> entries(kGidsMax);
  const ssize_t found = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  entries.resize(found > 0 ? static_cast<std::size_t>(found) : 0);
  return entries;
}

void read_gids(ibv_context* context, std::vector<RdmaPort>& ports) {
  for (const ibv_gid_entry& entry : gid_table(context)) {
    for (RdmaPort& port : ports) {
      if (port.number != entry.port_num) continue;
      port.gids.push_back(
          {entry.gid_index, entry.gid_type == IBV_GID_TYPE_ROCE_V2, ipv4_of(entry.gid), entry.ndev_ifindex});
    }
  }
}

Result<RdmaDevice> read_device(ibv_device* device) {
  const std::string name = ::ibv_get_device_name(device);
  const RdmaHandle<ibv_context> context(::ibv_open_device(device));
  if (context == nullptr) return Error::from_errno(errno, "cannot open RDMA device " + name);
  ibv_device_attr attributes{};
  if (const int failed = ::ibv_query_device(context.get(), &attributes); failed != 0) {
    return Error::from_errno(failed, "cannot query RDMA device " + name);
  }
  RdmaDevice read;
  read.name = name;
  read.firmware = attributes.fw_ver;
  read.queue_pair_entries_max = static_cast<std::uint32_t>(attributes.max_qp_wr);
  read.gather_max = static_cast<std::uint32_t>(attributes.max_sge);
  read.completion_entries_max = static_cast<std::uint32_t>(attributes.max_cqe);
  for (std::uint32_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    read.ports.push_back(read_port(context.get(), static_cast<std::uint8_t>(number)));
  }
  read_gids(context.get(), read.ports);
  return read;
}

std::string names_of(const std::vector<RdmaDevice>& devices) {
  std::string names;
  for (const auto& device : devices) {
    if (!names.empty()) names += ", ";
    names += device.name;
    for (const auto& port : device.ports) {
      for (const auto& gid : port.gids) {
        if (!gid.ipv4.empty() && gid.roce_v2) names += " (" + gid.ipv4 + ")";
      }
    }
  }
  return names;
}

Error none_such(const std::vector<RdmaDevice>& devices, const RdmaChoice& choice) {
  if (devices.empty()) {
    return Error(RdmaErrc::no_device,
                 "this machine has no RDMA device: load its driver, or make a software one with "
                 "`modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE`");
  }
  const std::string wanted = choice.device.empty() ? "address " + choice.address : "name " + choice.device;
  return Error(RdmaErrc::no_device, "no RDMA device with " + wanted + "; there is " + names_of(devices));
}

}  // namespace

Result<std::vector<RdmaDevice>> list_rdma_devices() {
  int count = 0;
  const std::unique_ptr<ibv_device*, FreeList> list(::ibv_get_device_list(&count));
  std::vector<RdmaDevice> devices;
  // ENOSYS: the kernel has no RDMA at all, which is no device.
  if (list == nullptr) {
    if (errno == ENOSYS || errno == ENOENT) return devices;
    return Error::from_errno(errno, "cannot list the RDMA devices");
  }
  std::optional<Error> failed;
  for (int i = 0; i < count; ++i) {
    auto device = read_device(list.get()[i]);
    // One that cannot be opened is no reason not to use another.
    if (device) {
      devices.push_back(*std::move(device));
    } else {
      failed = device.error();
    }
  }
  if (devices.empty() && failed) return *failed;
  return devices;
}

bool has_address(ibv_context* context, const RdmaPlace& place) {
  const auto table = gid_table(context);
  return table.empty() || std::any_of(table.begin(), table.end(), [&](const ibv_gid_entry& entry) {
           return entry.port_num == place.port && ipv4_of(entry.gid) == place.address;
         });
}

Status check_route(ibv_context* context, const RdmaPlace& place, const ibv_ah_attr& route,
                   const std::string& peer) {
  const std::string port = std::to_string(route.port_num);
  const std::string chosen =
      "for " + peer + " rdma_cm chose GID " + std::to_string(route.grh.sgid_index) + " of " + place.device;
  if (route.is_global == 0 || route.port_num != place.port) {
    return Error(RdmaErrc::unreachable,
                 chosen + ", port " + port + ", and this node uses port " + std::to_string(place.port) +
                     ": name the device or address of that port (Options::device, Options::local_address)");
  }
  ibv_gid_entry entry{};
  if (const int failed = ibv_query_gid_ex(context, route.port_num, route.grh.sgid_index, &entry, 0)) {
    return Error(RdmaErrc::unreachable, chosen + ", which cannot be read: " + std::strerror(failed) +
                                            "; `rdma link` and `ip addr` show whether " + place.address +
                                            " is still there");
  }
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) {
    const std::string mode = "/sys/kernel/config/rdma_cm/" + place.device;
    return Error(RdmaErrc::unreachable, chosen + ", which is not RoCEv2: `mkdir -p " + mode +
                                            "; echo 'RoCE v2' >" + mode + "/ports/" + port +
                                            "/default_roce_mode` makes rdma_cm choose one that is");
  }
  const std::string address = ipv4_of(entry.gid);
  if (address != place.address) {
    return Error(RdmaErrc::unreachable,
                 chosen + ", which is " + (address.empty() ? "no IPv4 address" : address) +
                     ", and this node uses " + place.address + ": `ip route get " + peer + " from " +
                     place.address + "` shows the way; name the address to use (Options::local_address)");
  }
  return {};
}

Result<RdmaPlace> choose_rdma_place(const RdmaChoice& choice) {
  TL_TRY(const auto devices, list_rdma_devices());
  return choose_rdma_place(devices, choice);
}

Result<RdmaPlace> choose_rdma_place(const std::vector<RdmaDevice>& devices, const RdmaChoice& choice) {
  const RdmaDevice* down = nullptr;
  const RdmaDevice* bare = nullptr;
  std::string down_state;
  for (const auto& device : devices) {
    if (!choice.device.empty() && device.name != choice.device) continue;
    for (const auto& port : device.ports) {
      for (const auto& gid : port.gids) {
        if (!gid.roce_v2 || gid.ipv4.empty()) continue;
        if (!choice.address.empty() && gid.ipv4 != choice.address) continue;
        if (port.active) return RdmaPlace{device.name, port.number, gid.index, gid.ipv4, port.mtu_bytes};
        down = &device;
        down_state = port.state;
      }
      if (!choice.address.empty()) continue;
      if (port.active) {
        bare = &device;
      } else if (down == nullptr) {
        down = &device;
        down_state = port.state;
      }
    }
  }
  if (down != nullptr) {
    return Error(
        RdmaErrc::port_down,
        "the port of RDMA device " + down->name + " is " + down_state +
            ": `ip link set INTERFACE up`, where `rdma link` shows the interface, and check the cable");
  }
  if (bare != nullptr) {
    return Error(
        RdmaErrc::no_gid,
        "RDMA device " + bare->name +
            " has no RoCEv2 GID of an IPv4 address: `ip addr add ADDRESS/24 dev INTERFACE`, where `rdma "
            "link` shows the interface");
  }
  return none_such(devices, choice);
}

}  // namespace tidelock
