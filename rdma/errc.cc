#include <string>

#include <tidelock/rdma/errc.h>

namespace tidelock {
namespace {

class RdmaCategory final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "tidelock.rdma"; }
  [[nodiscard]] std::string message(int value) const override {
    switch (static_cast<RdmaErrc>(value)) {
      case RdmaErrc::no_device:
        return "no such RDMA device";
      case RdmaErrc::port_down:
        return "the RDMA port is not active";
      case RdmaErrc::no_gid:
        return "no RoCEv2 GID";
      case RdmaErrc::memlock_too_low:
        return "the limit of locked memory is too low";
      case RdmaErrc::device_too_small:
        return "the device's limits are too low";
      case RdmaErrc::unreachable:
        return "the peer's address cannot be reached";
      case RdmaErrc::rejected:
        return "the peer rejected the connection";
      case RdmaErrc::refused:
        return "the peer refused the hello";
      case RdmaErrc::state_deadline:
        return "the connection did not get on in time";
      case RdmaErrc::closed:
        return "closed";
      case RdmaErrc::peer_closed:
        return "closed by the peer";
      case RdmaErrc::peer_lost:
        return "the peer is gone";
      case RdmaErrc::protocol:
        return "the peer broke the protocol";
      case RdmaErrc::completion_failed:
        return "a work request failed";
      case RdmaErrc::post_failed:
        return "verbs refused a work request";
      case RdmaErrc::device_failed:
        return "the device reports a failure";
      case RdmaErrc::queue_pair_failed:
        return "this side's queue pair went into the error state";
      case RdmaErrc::too_large:
        return "larger than one batch can be";
      case RdmaErrc::no_credit:
        return "no credit now; retry after progress";
      case RdmaErrc::busy:
        return "all connection slots are in use";
    }
    return "unknown error " + std::to_string(value);
  }
};

}  // namespace

std::error_code make_error_code(RdmaErrc code) {
  static const RdmaCategory category;
  return {static_cast<int>(code), category};
}

}  // namespace tidelock
