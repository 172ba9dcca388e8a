/// RDMA devices, their ports and GIDs, and the choice of one.
/// Thread:   any that may block (opening a device asks the kernel)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/base/result.h>

namespace tidelock {

struct RdmaGid {
  std::uint32_t index = 0;
  bool roce_v2 = false;
  std::string ipv4;             ///< of an IPv4-mapped GID; empty: another kind
  std::uint32_t interface = 0;  ///< the network interface's index; 0: none
};

struct RdmaPort {
  std::uint8_t number = 1;
  bool active = false;
  std::string state;       ///< verbs' word: "active", "down", ...
  std::string link_layer;  ///< "Ethernet", "InfiniBand"
  std::uint32_t mtu_bytes = 0;
  std::vector<RdmaGid> gids;
};

struct RdmaDevice {
  std::string name;
  std::string firmware;
  std::uint32_t queue_pair_entries_max = 0;  ///< max_qp_wr
  std::uint32_t gather_max = 0;              ///< max_sge
  std::uint32_t completion_entries_max = 0;  ///< max_cqe
  std::vector<RdmaPort> ports;
};

/// The devices of this machine that can be opened; an empty list if there are none.
/// Errors:   errno values and the name, if there are devices and none can be opened
Result<std::vector<RdmaDevice>> list_rdma_devices();

/// By name, by the IPv4 address of one of its GIDs, or both; neither: the first that is usable.
struct RdmaChoice {
  std::string device;
  std::string address;
};

/// A usable device, port and GID: the port is active, the GID is RoCEv2 and IPv4-mapped. Never index 0 by
/// default: it is link-local, and fails on the way to RTR.
struct RdmaPlace {
  std::string device;
  std::uint8_t port = 1;
  std::uint32_t gid_index = 0;
  std::string address;
  std::uint32_t mtu_bytes = 0;
};

/// Errors:   no_device lists what there is; port_down and no_gid name the command that mends it
Result<RdmaPlace> choose_rdma_place(const RdmaChoice& choice);
/// The same among devices that were listed before.
Result<RdmaPlace> choose_rdma_place(const std::vector<RdmaDevice>& devices, const RdmaChoice& choice);

}  // namespace tidelock
