// Names of states, events and statuses.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define TL_NAME(enumerator) \
  case enumerator:          \
    return #enumerator

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    TL_NAME(IBV_WC_SUCCESS);
    TL_NAME(IBV_WC_LOC_LEN_ERR);
    TL_NAME(IBV_WC_LOC_QP_OP_ERR);
    TL_NAME(IBV_WC_LOC_PROT_ERR);
    TL_NAME(IBV_WC_WR_FLUSH_ERR);
    TL_NAME(IBV_WC_BAD_RESP_ERR);
    TL_NAME(IBV_WC_LOC_ACCESS_ERR);
    TL_NAME(IBV_WC_REM_INV_REQ_ERR);
    TL_NAME(IBV_WC_REM_ACCESS_ERR);
    TL_NAME(IBV_WC_REM_OP_ERR);
    TL_NAME(IBV_WC_RETRY_EXC_ERR);
    TL_NAME(IBV_WC_RNR_RETRY_EXC_ERR);
    TL_NAME(IBV_WC_REM_ABORT_ERR);
    TL_NAME(IBV_WC_FATAL_ERR);
    TL_NAME(IBV_WC_RESP_TIMEOUT_ERR);
    TL_NAME(IBV_WC_GENERAL_ERR);
    default:
      return "unknown";
  }
}

const char* ibv_port_state_str(ibv_port_state state) {
  switch (state) {
    TL_NAME(IBV_PORT_NOP);
    TL_NAME(IBV_PORT_DOWN);
    TL_NAME(IBV_PORT_INIT);
    TL_NAME(IBV_PORT_ARMED);
    TL_NAME(IBV_PORT_ACTIVE);
    TL_NAME(IBV_PORT_ACTIVE_DEFER);
    default:
      return "invalid state";
  }
}

const char* ibv_node_type_str(ibv_node_type type) {
  switch (type) {
    TL_NAME(IBV_NODE_CA);
    TL_NAME(IBV_NODE_SWITCH);
    TL_NAME(IBV_NODE_ROUTER);
    TL_NAME(IBV_NODE_RNIC);
    default:
      return "unknown";
  }
}

const char* ibv_event_type_str(ibv_event_type type) {
  switch (type) {
    TL_NAME(IBV_EVENT_CQ_ERR);
    TL_NAME(IBV_EVENT_QP_FATAL);
    TL_NAME(IBV_EVENT_QP_REQ_ERR);
    TL_NAME(IBV_EVENT_QP_ACCESS_ERR);
    TL_NAME(IBV_EVENT_COMM_EST);
    TL_NAME(IBV_EVENT_SQ_DRAINED);
    TL_NAME(IBV_EVENT_DEVICE_FATAL);
    TL_NAME(IBV_EVENT_PORT_ACTIVE);
    TL_NAME(IBV_EVENT_PORT_ERR);
    TL_NAME(IBV_EVENT_LID_CHANGE);
    TL_NAME(IBV_EVENT_PKEY_CHANGE);
    TL_NAME(IBV_EVENT_QP_LAST_WQE_REACHED);
    TL_NAME(IBV_EVENT_GID_CHANGE);
    default:
      return "unknown";
  }
}

const char* rdma_event_str(rdma_cm_event_type event) {
  switch (event) {
    TL_NAME(RDMA_CM_EVENT_ADDR_RESOLVED);
    TL_NAME(RDMA_CM_EVENT_ADDR_ERROR);
    TL_NAME(RDMA_CM_EVENT_ROUTE_RESOLVED);
    TL_NAME(RDMA_CM_EVENT_ROUTE_ERROR);
    TL_NAME(RDMA_CM_EVENT_CONNECT_REQUEST);
    TL_NAME(RDMA_CM_EVENT_CONNECT_RESPONSE);
    TL_NAME(RDMA_CM_EVENT_CONNECT_ERROR);
    TL_NAME(RDMA_CM_EVENT_UNREACHABLE);
    TL_NAME(RDMA_CM_EVENT_REJECTED);
    TL_NAME(RDMA_CM_EVENT_ESTABLISHED);
    TL_NAME(RDMA_CM_EVENT_DISCONNECTED);
    TL_NAME(RDMA_CM_EVENT_DEVICE_REMOVAL);
    TL_NAME(RDMA_CM_EVENT_MULTICAST_JOIN);
    TL_NAME(RDMA_CM_EVENT_MULTICAST_ERROR);
    TL_NAME(RDMA_CM_EVENT_ADDR_CHANGE);
    TL_NAME(RDMA_CM_EVENT_TIMEWAIT_EXIT);
    default:
      return "unknown event";
  }
}

}  // extern "C"
