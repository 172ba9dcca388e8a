/// Who is at the other end of an rdma_cm id, for people.
/// Thread:   any
#pragma once

#include <string>

#include <rdma/rdma_cma.h>

namespace tidelock {

/// Its IPv4 address, or "?". Asks nobody: rdma_cm has left it in the id.
std::string peer_address_of(rdma_cm_id* id);

}  // namespace tidelock
