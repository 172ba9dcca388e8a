/// The errors of rdma/.
#pragma once

#include <system_error>

namespace tidelock {

enum class RdmaErrc {
  no_device = 1,      ///< no RDMA device, or none of that name or address; the detail lists what there is
  port_down,          ///< the device's port is not active; the detail names the command
  no_gid,             ///< no RoCEv2 GID for the address
  memlock_too_low,    ///< RLIMIT_MEMLOCK does not allow the registration; the detail names both numbers
  device_too_small,   ///< the device's limits are below what a connection takes
  unreachable,        ///< address or route could not be resolved
  rejected,           ///< the peer rejected the request; the detail names the reason and both values
  refused,            ///< the peer answered the hello with a refusal
  state_deadline,     ///< a state lasted longer than its deadline; the detail lists the last transitions
  closed,             ///< closed by this side
  peer_closed,        ///< closed by the peer
  peer_lost,          ///< the peer's process or its device is gone
  protocol,           ///< the peer broke the rules; the detail says which
  completion_failed,  ///< a work request failed; the detail gives the status and what it means
  post_failed,        ///< verbs refused a work request
  device_failed,      ///< an asynchronous event: the device, port, CQ or QP failed
  queue_pair_failed,  ///< this side's queue pair fell into the error state, which ending a peer does not do
  too_large,          ///< more bytes or more pieces than one batch can have
  no_credit,          ///< no credit or ring space now; retry after progress
  busy,               ///< all connection slots of the core are in use
};

std::error_code make_error_code(RdmaErrc code);

}  // namespace tidelock

template <>
struct std::is_error_code_enum<tidelock::RdmaErrc> : std::true_type {};
