/// Ownership of rdma-core objects: unique_ptr with one functor, an overload a type. Declare members in
/// creation order. A destroy that fails means that something still uses the object: a lifetime bug, so it
/// aborts.
/// Thread:   destroying blocks: the control thread, or any while nothing turns
#pragma once

#include <memory>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <tidelock/base/check.h>

namespace tidelock {

struct DestroyRdma {
  void operator()(ibv_context* context) const {
    TL_ASSERT(::ibv_close_device(context) == 0, "ibv_close_device");
  }
  void operator()(ibv_pd* pd) const { TL_ASSERT(::ibv_dealloc_pd(pd) == 0, "a PD with objects in it"); }
  void operator()(ibv_mr* mr) const { TL_ASSERT(::ibv_dereg_mr(mr) == 0, "an MR in use"); }
  void operator()(ibv_comp_channel* channel) const {
    TL_ASSERT(::ibv_destroy_comp_channel(channel) == 0, "a completion channel in use");
  }
  void operator()(ibv_cq* cq) const { TL_ASSERT(::ibv_destroy_cq(cq) == 0, "a CQ with queue pairs"); }
  void operator()(ibv_qp* qp) const { TL_ASSERT(::ibv_destroy_qp(qp) == 0, "ibv_destroy_qp"); }
  void operator()(rdma_cm_id* id) const { TL_ASSERT(::rdma_destroy_id(id) == 0, "rdma_destroy_id"); }
  void operator()(rdma_event_channel* channel) const { ::rdma_destroy_event_channel(channel); }
};

template <class T>
using RdmaHandle = std::unique_ptr<T, DestroyRdma>;

}  // namespace tidelock
