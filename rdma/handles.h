/// Ownership of rdma-core objects: unique_ptr with one functor, an overload a type. Declare members in
/// creation order. A destroy that fails with EBUSY or EINVAL means that something still uses the object: a
/// lifetime bug, so it aborts. A device that was removed answers EIO or ENODEV: what it had is gone, and the
/// rest is left to the end of the process.
/// Thread:   destroying blocks: the control thread, or any while nothing turns
#pragma once

#include <cerrno>
#include <memory>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <tidelock/base/check.h>

namespace tidelock {

namespace detail {

inline void check_destroyed(int result, const char* what) {
  // Some return an errno value, some -1 with errno.
  const int failed = result == -1 ? errno : (result < 0 ? -result : result);
  TL_ASSERT(failed == 0 || failed == EIO || failed == ENODEV, what);
}

}  // namespace detail

struct DestroyRdma {
  void operator()(ibv_context* context) const {
    detail::check_destroyed(::ibv_close_device(context), "ibv_close_device");
  }
  // What a removed device's objects held is still counted as in use here, so EBUSY proves nothing.
  void operator()(ibv_pd* pd) const { static_cast<void>(::ibv_dealloc_pd(pd)); }
  void operator()(ibv_mr* mr) const { detail::check_destroyed(::ibv_dereg_mr(mr), "an MR in use"); }
  void operator()(ibv_comp_channel* channel) const { static_cast<void>(::ibv_destroy_comp_channel(channel)); }
  void operator()(ibv_cq* cq) const {
    detail::check_destroyed(::ibv_destroy_cq(cq), "a CQ with queue pairs");
  }
  void operator()(ibv_qp* qp) const { detail::check_destroyed(::ibv_destroy_qp(qp), "ibv_destroy_qp"); }
  void operator()(rdma_cm_id* id) const { detail::check_destroyed(::rdma_destroy_id(id), "rdma_destroy_id"); }
  void operator()(rdma_event_channel* channel) const { ::rdma_destroy_event_channel(channel); }
};

template <class T>
using RdmaHandle = std::unique_ptr<T, DestroyRdma>;

}  // namespace tidelock
