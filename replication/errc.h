/// The errors of replication/.
#pragma once

#include <system_error>

namespace tidelock {

enum class ReplicationErrc {
  link_full = 1,    ///< no credit or ring space now; retry after progress
  link_empty,       ///< nothing received yet
  link_closed,      ///< this link is closed for good; its close_reason() says why
  bad_magic,        ///< not a frame of this protocol
  bad_version,      ///< no wire version in common
  bad_crc,          ///< bytes were damaged, or are not what they claim
  bad_length,       ///< a length that contradicts the frame or the limits
  bad_kind,         ///< an unknown kind of entry
  wrong_context,    ///< another history, shard or generation
  gap,              ///< an LSN or sequence that does not follow the last
  old_epoch,        ///< an epoch below the one in force
  too_large,        ///< key, value or entry beyond its limit
  log_full,         ///< a replica has not yet taken what the log holds; wait or retry
  refused,          ///< the peer refused the connection; the detail names both values
  no_replica,       ///< fewer replicas are connected than the write or `c` asks for: nothing was written
  outcome_unknown,  ///< written here; the acknowledgement did not come by the deadline
  peer_busy,        ///< the peer takes no link now; retry later
  malformed,        ///< a handshake that breaks the rules
  not_primary,      ///< this node of a group does not lead (any more): nothing was written
  history_lost,     ///< what was asked for is not in this history any more, as far as this node can tell
};

std::error_code make_error_code(ReplicationErrc code);

}  // namespace tidelock

template <>
struct std::is_error_code_enum<tidelock::ReplicationErrc> : std::true_type {};
