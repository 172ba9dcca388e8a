#include "wc_error.h"

namespace tidelock {
namespace {

/// Causes as ibv_poll_cq(3) and the InfiniBand specification (10.10.3) give them.
const char* cause(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer did not answer: its process ended, its link is down, or it has another MTU or GID";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer had no receive posted: a fault in its credits";
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer does not allow the write: it fenced this side, or the ring is gone";
    case IBV_WC_REM_OP_ERR:
      return "the peer's device could not do it";
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair went into the error state before";
    case IBV_WC_LOC_LEN_ERR:
      return "a message longer than the receive posted for it";
    case IBV_WC_LOC_PROT_ERR:
      return "memory that is not registered";
    case IBV_WC_LOC_QP_OP_ERR:
      return "a work request that the queue pair cannot do";
    case IBV_WC_LOC_ACCESS_ERR:
      return "the peer wrote where it may not";
    case IBV_WC_FATAL_ERR:
      return "the device failed";
    default:
      return "see ibv_poll_cq(3)";
  }
}

}  // namespace

std::string describe_wc_status(ibv_wc_status status, unsigned vendor_error) {
  std::string text = std::string(::ibv_wc_status_str(status)) + ": " + cause(status);
  if (vendor_error != 0) text += ", vendor error " + std::to_string(vendor_error);
  return text;
}

}  // namespace tidelock
