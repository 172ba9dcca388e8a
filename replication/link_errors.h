/// What a failed send means for its link.
#pragma once

#include <tidelock/base/result.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/link.h>

namespace tidelock {

/// link_closed is no reason of its own: the link has a better one, and says it once what it holds was
/// received.
inline void close_unless_passing(Link& link, const Error& error) {
  if (error != ReplicationErrc::link_full && error != ReplicationErrc::link_closed)
    link.close(error.message());
}

}  // namespace tidelock
