// Protection domains, memory regions, completion channels and completion queues: making and ending them.
#include <cerrno>

#include "world.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace tidelock::fake {

namespace {

bool covers(const Mr& mr, std::uint64_t addr, std::size_t length) {
  return addr >= mr.iova && length <= mr.length && addr - mr.iova <= mr.length - length;
}

std::uint8_t* at(const Mr& mr, std::uint64_t addr) {
  return static_cast<std::uint8_t*>(mr.addr) + (addr - mr.iova);
}

Mr* find_mr(World& w, const std::map<std::uint32_t, std::uint64_t>& keys, std::uint32_t key) {
  const auto found = keys.find(key);
  return found == keys.end() ? nullptr : w.mrs.find(found->second);
}

ibv_mr* register_memory(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access) {
  World& w = world();
  const Lock lock(w.mutex);
  Pd& domain = w.pds.check(pd, "ibv_reg_mr");
  errno = failure_of(w, Call::reg_mr);
  const bool remote = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if (errno == 0 && remote && (access & IBV_ACCESS_LOCAL_WRITE) == 0) errno = EINVAL;  // ibv_reg_mr(3)
  if (errno != 0) return nullptr;
  auto mr = std::make_unique<Mr>();
  mr->serial = ++w.serial;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = addr;
  mr->length = length;
  mr->handle = static_cast<std::uint32_t>(mr->serial);
  // Two different keys, and none twice: who mixes them up, or keeps an old one, is refused.
  mr->lkey = mr->handle << 8 | 0x1;
  mr->rkey = mr->handle << 8 | 0x2;
  mr->iova = iova;
  mr->access = access;
  ++domain.users;
  w.mr_by_lkey[mr->lkey] = w.mr_by_rkey[mr->rkey] = mr->serial;
  return &w.mrs.add(std::move(mr));
}

}  // namespace

std::uint8_t* local_bytes(World& w, const Qp& qp, const ibv_sge& sge, bool to_write) {
  const Mr* mr = find_mr(w, w.mr_by_lkey, sge.lkey);
  if (mr == nullptr || mr->pd != qp.pd || !covers(*mr, sge.addr, sge.length)) return nullptr;
  if (to_write && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0) return nullptr;
  return at(*mr, sge.addr);
}

std::uint8_t* remote_bytes(World& w, const Qp& responder, std::uint32_t rkey, std::uint64_t addr,
                           std::size_t length) {
  const Mr* mr = find_mr(w, w.mr_by_rkey, rkey);
  if (mr == nullptr || mr->pd != responder.pd || !covers(*mr, addr, length)) return nullptr;
  if ((mr->access & IBV_ACCESS_REMOTE_WRITE) == 0) return nullptr;
  return at(*mr, addr);
}

}  // namespace tidelock::fake

using namespace tidelock::fake;  // NOLINT: this file defines global functions

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  World& w = world();
  const Lock lock(w.mutex);
  Context& owner = w.contexts.check(context, "ibv_alloc_pd");
  errno = failure_of(w, Call::alloc_pd);
  if (errno != 0) return nullptr;
  auto pd = std::make_unique<Pd>();
  pd->serial = ++w.serial;
  pd->context = context;
  pd->handle = static_cast<std::uint32_t>(pd->serial);
  ++owner.users;
  return &w.pds.add(std::move(pd));
}

int ibv_dealloc_pd(ibv_pd* pd) {
  World& w = world();
  const Lock lock(w.mutex);
  Pd& freed = w.pds.check(pd, "ibv_dealloc_pd");
  if (freed.users != 0) return EBUSY;
  --static_cast<Context*>(freed.context)->users;
  w.pds.remove(freed);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, std::size_t length, int access) {
  tell_call("ibv_reg_mr");
  return register_memory(pd, addr, length, reinterpret_cast<std::uint64_t>(addr),
                         static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, int access) {
  return register_memory(pd, addr, length, iova, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access) {
  tell_call("ibv_reg_mr");  // whose inline wrapper comes here
  return register_memory(pd, addr, length, iova, access);
}

int ibv_dereg_mr(ibv_mr* mr) {
  tell_call("ibv_dereg_mr");
  World& w = world();
  const Lock lock(w.mutex);
  Mr& gone = w.mrs.check(mr, "ibv_dereg_mr");
  --static_cast<Pd*>(gone.pd)->users;
  w.mr_by_lkey.erase(gone.lkey);
  w.mr_by_rkey.erase(gone.rkey);
  w.mrs.remove(gone);
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  World& w = world();
  const Lock lock(w.mutex);
  Context& owner = w.contexts.check(context, "ibv_create_comp_channel");
  errno = failure_of(w, Call::create_comp_channel);
  if (errno != 0) return nullptr;
  auto channel = std::make_unique<Channel>();
  channel->serial = ++w.serial;
  channel->context = context;
  channel->fd = channel->event_fd.fd();
  ++owner.users;
  return &w.channels.add(std::move(channel));
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  World& w = world();
  const Lock lock(w.mutex);
  Channel& gone = w.channels.check(channel, "ibv_destroy_comp_channel");
  if (gone.refcnt != 0) return EBUSY;
  --static_cast<Context*>(gone.context)->users;
  w.channels.remove(gone);
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
  World& w = world();
  const Lock lock(w.mutex);
  Context& owner = w.contexts.check(context, "ibv_create_cq");
  errno = failure_of(w, Call::create_cq);
  if (cqe < 1 || cqe > device_of(context).config.max_cqe || comp_vector != 0) errno = EINVAL;
  if (errno != 0) return nullptr;
  auto cq = std::make_unique<Cq>();
  cq->serial = ++w.serial;
  cq->context = context;
  cq->cq_context = cq_context;
  cq->channel = channel;
  cq->handle = static_cast<std::uint32_t>(cq->serial);
  cq->cqe = cqe;
  if (channel != nullptr) ++w.channels.check(channel, "ibv_create_cq").refcnt;
  ++owner.users;
  return &w.cqs.add(std::move(cq));
}

int ibv_destroy_cq(ibv_cq* cq) {
  World& w = world();
  const Lock lock(w.mutex);
  Cq& gone = w.cqs.check(cq, "ibv_destroy_cq");
  if (gone.users != 0) return EBUSY;
  if (gone.events_got != gone.events_acked || gone.async_got != gone.async_acked)
    die("ibv_destroy_cq would block: %llu events of the CQ are not acknowledged",
        static_cast<unsigned long long>(gone.events_got - gone.events_acked + gone.async_got -
                                        gone.async_acked));
  if (gone.channel != nullptr) {
    Channel& channel = *static_cast<Channel*>(gone.channel);
    --channel.refcnt;
    if (std::erase(channel.cqs, gone.serial) > 0 && channel.cqs.empty()) channel.event_fd.clear();
  }
  Context& owner = *static_cast<Context*>(gone.context);
  forget_async(owner, 0, gone.serial);
  --owner.users;
  w.cqs.remove(gone);
  return 0;
}

}  // extern "C"
