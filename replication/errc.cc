#include <string>

#include <tidelock/replication/errc.h>

namespace tidelock {
namespace {

class ReplicationCategory final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "tidelock.replication"; }
  [[nodiscard]] std::string message(int value) const override {
    switch (static_cast<ReplicationErrc>(value)) {
      case ReplicationErrc::link_full:
        return "the link has no room now; retry after progress";
      case ReplicationErrc::link_empty:
        return "nothing was received yet";
      case ReplicationErrc::link_closed:
        return "the link is closed";
      case ReplicationErrc::bad_magic:
        return "not a frame of this protocol";
      case ReplicationErrc::bad_version:
        return "no wire version in common; upgrade the older node";
      case ReplicationErrc::bad_crc:
        return "the checksum (CRC) does not match; the bytes were damaged";
      case ReplicationErrc::bad_length:
        return "a length contradicts the frame or the limits";
      case ReplicationErrc::bad_kind:
        return "an unknown kind of entry";
      case ReplicationErrc::wrong_context:
        return "the frame belongs to another history, shard or generation";
      case ReplicationErrc::gap:
        return "an LSN or sequence does not follow the last one";
      case ReplicationErrc::old_epoch:
        return "the epoch lies below the one in force";
      case ReplicationErrc::too_large:
        return "key, value or entry is beyond its limit";
      case ReplicationErrc::log_full:
        return "a replica has not yet taken what the log holds; wait and retry";
      case ReplicationErrc::refused:
        return "the peer refused the connection";
      case ReplicationErrc::no_replica:
        return "too few replicas are connected; nothing was written";
      case ReplicationErrc::outcome_unknown:
        return "written here, but not acknowledged by the deadline; read it back to learn the outcome";
      case ReplicationErrc::peer_busy:
        return "the peer takes no link now; retry later";
      case ReplicationErrc::malformed:
        return "a message that breaks the rules of the protocol";
      case ReplicationErrc::not_primary:
        return "this node does not lead; nothing was written, ask the group's primary";
      case ReplicationErrc::history_lost:
        return "the entry is not, or not known to be, in the history that this node follows; write it again";
    }
    return "unknown error " + std::to_string(value);
  }
};

}  // namespace

std::error_code make_error_code(ReplicationErrc code) {
  static const ReplicationCategory category;
  return {static_cast<int>(code), category};
}

}  // namespace tidelock
