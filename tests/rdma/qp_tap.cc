#include "qp_tap.h"

#include <array>
#include <cstdint>
#include <dlfcn.h>
#include <mutex>

#include <doctest/doctest.h>
#include <infiniband/verbs.h>

namespace {

std::mutex mutex;
std::array<ibv_qp*, 2> last{};  // under mutex

}  // namespace

extern "C" ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  using Create = ibv_qp* (*)(ibv_pd*, ibv_qp_init_attr*);
  static const auto create = reinterpret_cast<Create>(::dlvsym(RTLD_NEXT, "ibv_create_qp", "IBVERBS_1.1"));
  ibv_qp* const pair = create(pd, attributes);
  if (pair != nullptr) {
    const std::lock_guard lock(mutex);
    last = {pair, last[0]};
  }
  return pair;
}

namespace tidelock::test {

ibv_qp* queue_pair_made(std::size_t back) {
  const std::lock_guard lock(mutex);
  return last.at(back);
}

void fence(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
  REQUIRE(::ibv_modify_qp(pair, &attributes, IBV_QP_ACCESS_FLAGS) == 0);
}

void move_to_error(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  REQUIRE(::ibv_modify_qp(pair, &attributes, IBV_QP_STATE) == 0);
}

}  // namespace tidelock::test
