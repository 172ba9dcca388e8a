/// Whether a device still has an address, and whether rdma_cm's choice is that address.
/// Thread:   a control thread (asks the kernel)
#pragma once

#include <string>

#include <infiniband/verbs.h>

#include <tidelock/rdma/device.h>

namespace tidelock {

/// True if any GID of the place's port is its address, or if the table cannot be read.
bool has_address(ibv_context* context, const RdmaPlace& place);

/// Whether the port and GID by which `route` leaves are the place's. rdma_cm chooses them after the kernel's
/// routes and its own default RoCE mode, and knows nothing of our choice.
/// Errors:   unreachable names both, and the remedy
Status check_route(ibv_context* context, const RdmaPlace& place, const ibv_ah_attr& route,
                   const std::string& peer);

}  // namespace tidelock
