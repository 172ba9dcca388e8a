/// Whether a device still has an address.
/// Thread:   a control thread (asks the kernel)
#pragma once

#include <infiniband/verbs.h>

#include <tidelock/rdma/device.h>

namespace tidelock {

/// True if any GID of the place's port is its address, or if the table cannot be read.
bool has_address(ibv_context* context, const RdmaPlace& place);

}  // namespace tidelock
