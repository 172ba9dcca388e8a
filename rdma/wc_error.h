/// What a failed completion means.
/// Thread:   any
#pragma once

#include <string>

#include <infiniband/verbs.h>

namespace tidelock {

/// One line: the status by verbs' name, its likely cause, and what to look at.
std::string describe_wc_status(ibv_wc_status status, unsigned vendor_error);

}  // namespace tidelock
