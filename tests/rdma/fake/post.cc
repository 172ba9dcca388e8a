// Posting: what a provider checks at once, and the ways in which providers differ there.
#include <algorithm>
#include <cerrno>

#include "world.h"

namespace tidelock::fake {

namespace {

/// Verbs are thread-safe, but who posts to one queue pair from two threads at once cannot know the order.
class PostingFlag {
 public:
  explicit PostingFlag(Qp& qp) : flag_(qp.posting) {
    if (flag_.exchange(true)) die("two threads post to one queue pair at once");
  }
  ~PostingFlag() { flag_ = false; }
  PostingFlag(const PostingFlag&) = delete;
  PostingFlag& operator=(const PostingFlag&) = delete;

 private:
  std::atomic<bool>& flag_;
};

bool known(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

std::size_t total_bytes(const ibv_sge* list, int count) {
  std::size_t total = 0;
  for (int i = 0; i < count; ++i) total += list[i].length;
  return total;
}

int check_send(const Qp& qp, const ibv_send_wr& wr) {
  if (!known(wr.opcode)) return EINVAL;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge) return EINVAL;
  if ((wr.send_flags & IBV_SEND_INLINE) && total_bytes(wr.sg_list, wr.num_sge) > qp.init.cap.max_inline_data)
    return EINVAL;
  return qp.sends - qp.sends_retired >= qp.init.cap.max_send_wr ? ENOMEM : 0;
}

void take_send(World& w, Qp& qp, const ibv_send_wr& wr) {
  SendWqe wqe;
  wqe.seq = ++w.seq;
  wqe.index = qp.sends++;
  wqe.posted_tick = w.tick;
  wqe.wr_id = wr.wr_id;
  wqe.opcode = wr.opcode;
  wqe.signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp.init.sq_sig_all != 0;
  wqe.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  wqe.is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  wqe.imm = wr.imm_data;
  wqe.remote_addr = wr.wr.rdma.remote_addr;
  wqe.rkey = wr.wr.rdma.rkey;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(sge.addr);
    if (wqe.is_inline)
      wqe.inline_data.insert(wqe.inline_data.end(), bytes, bytes + sge.length);
    else
      wqe.sges.push_back(sge);
  }
  QpStats& stats = qp.stats;
  ++stats.sends_posted;
  if (wqe.signaled) ++stats.sends_signaled;
  if (wqe.is_inline) ++stats.sends_inline;
  stats.sq_in_use_max =
      std::max(stats.sq_in_use_max, static_cast<std::uint32_t>(qp.sends - qp.sends_retired));
  qp.sq.push_back(std::move(wqe));
}

/// Takes WRs up to `count` of them. Returns 0, or the errno of the one that *bad_wr then names.
int take_chain(World& w, Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr, int count) {
  int error = 0;
  for (; wr != nullptr && count > 0 && error == 0; --count) {
    error = check_send(qp, *wr);
    *bad_wr = wr;
    if (error != 0) break;
    take_send(w, qp, *wr);
    wr = wr->next;
  }
  if (qp.attr.qp_state == IBV_QPS_ERR) schedule_flush(w, qp);
  update_head(w, qp);
  return error;
}

constexpr int kWholeChain = 1 << 30;

int post_before_rts(World& w, Qp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  *bad_wr = wr;
  switch (qp.its_device->modes.post_before_rts) {
    case PostBeforeRts::positive_errno:
      return ENOMEM;
    case PostBeforeRts::negative_errno:
      return -EINVAL;
    case PostBeforeRts::dropped:
      return 0;
    case PostBeforeRts::deferred:
      return take_chain(w, qp, wr, bad_wr, kWholeChain);
    case PostBeforeRts::rxe:
      take_chain(w, qp, wr, bad_wr, kWholeChain);
      *bad_wr = nullptr;
      return EINVAL;
  }
  return EINVAL;
}

/// The planted failure that is for this call, if there is one.
bool planted(World& w, const Qp& qp, PostFailure& failure) {
  bool found = false;
  for (PostFailure& candidate : w.post_failures) {
    if (candidate.qp_num != 0 && candidate.qp_num != qp.qp_num) continue;
    if (--candidate.call == 0 && !found) {
      failure = candidate;
      found = true;
    }
  }
  std::erase_if(w.post_failures, [](const PostFailure& candidate) { return candidate.call == 0; });
  return found;
}

int fail_as_planted(World& w, Qp& qp, const PostFailure& failure, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  *bad_wr = nullptr;
  if (failure.bad_index < 0) return failure.error;
  ibv_send_wr* taken_bad = nullptr;
  take_chain(w, qp, wr, &taken_bad, failure.bad_index);
  for (int i = 0; i < failure.bad_index && wr != nullptr; ++i) wr = wr->next;
  *bad_wr = wr;
  return failure.error;
}

}  // namespace

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  World& w = world();
  Lock lock(w.mutex);
  Qp& qp = w.qps.check(handle, "ibv_post_send");
  const std::function<void(ibv_qp*)> hook = w.post_hook;
  lock.unlock();
  const PostingFlag posting(qp);
  if (hook) hook(handle);
  lock.lock();
  ++qp.stats.post_send_calls;
  PostFailure failure;
  if (planted(w, qp, failure)) return fail_as_planted(w, qp, failure, wr, bad_wr);
  const ibv_qp_state state = qp.attr.qp_state;
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR)
    return post_before_rts(w, qp, wr, bad_wr);
  return take_chain(w, qp, wr, bad_wr, kWholeChain);
}

int post_recv(ibv_qp* handle, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  World& w = world();
  Lock lock(w.mutex);
  Qp& qp = w.qps.check(handle, "ibv_post_recv");
  lock.unlock();
  const PostingFlag posting(qp);
  lock.lock();
  for (; wr != nullptr; wr = wr->next) {
    *bad_wr = wr;
    if (qp.attr.qp_state == IBV_QPS_RESET) return EINVAL;
    if (wr->num_sge < 0 || static_cast<std::uint32_t>(wr->num_sge) > qp.init.cap.max_recv_sge) return EINVAL;
    if (qp.recvs - qp.recvs_retired >= qp.init.cap.max_recv_wr) {
      if (qp.its_device->modes.rq_overrun_aborts)
        die("overrun of a receive queue of %u entries", qp.init.cap.max_recv_wr);
      return ENOMEM;
    }
    RecvWqe wqe;
    wqe.index = qp.recvs++;
    wqe.wr_id = wr->wr_id;
    wqe.sges.assign(wr->sg_list, wr->sg_list + wr->num_sge);
    qp.rq.push_back(std::move(wqe));
    ++qp.stats.recvs_posted;
  }
  if (qp.attr.qp_state == IBV_QPS_ERR) schedule_flush(w, qp);
  return 0;
}

}  // namespace tidelock::fake
