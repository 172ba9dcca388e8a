/// RDMA devices, as the verbs link would find them. What verbs says is apart from what is made of it, so that
/// tests can say it in their place.
/// Thread:   any that may block (opening a device asks the kernel)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor_check.h"
#include "doctor_files.h"

namespace tidelock::tools {

struct RdmaPortFacts {
  std::uint32_t number = 1;
  std::string state;  ///< ibv_port_state_str(3)
  bool active = false;
  std::string link_layer;
  std::uint32_t mtu_bytes = 0;
  /// The first RoCEv2 GID that is an IPv4 address; none: the verbs link cannot use the port.
  std::optional<std::uint32_t> gid_index;
  std::string address;
  std::string netdev;  ///< of a GID; empty: unknown
};

struct RdmaDeviceFacts {
  std::string name;
  std::string error;  ///< why it could not be asked
  std::uint64_t max_qp_wr = 0;
  std::uint64_t max_sge = 0;
  std::uint64_t max_cqe = 0;
  std::optional<std::uint32_t> max_inline;  ///< no attribute says it: found by making queue pairs
  std::vector<RdmaPortFacts> ports;
};

struct RdmaFacts {
  std::string list_error;  ///< of ibv_get_device_list(3)
  std::vector<RdmaDeviceFacts> devices;
  std::string cm_error;  ///< of rdma_create_event_channel(3); empty: it works
};

/// Asks libibverbs and librdmacm.
RdmaFacts probe_rdma();

Checks check_rdma(const SystemFiles& files, const RdmaFacts& facts, const DoctorNeeds& needs);

}  // namespace tidelock::tools
