/// What the fake keeps: the objects behind the verbs handles, the wire, and the helpers that its files share.
/// Thread:   everything but die() and EventFd needs World::mutex
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cm.h"
#include "fake_verbs.h"
#include "registry.h"

namespace tidelock::fake {

struct Context;

struct Device : ibv_device {
  DeviceConfig config;
  Modes modes;
  bool down = false;                    ///< PORT_ERR, DEVICE_FATAL, removal
  std::unique_ptr<Context> cm_context;  ///< librdmacm's own, behind rdma_cm_id::verbs
};

struct AsyncEvent {
  ibv_async_event event{};
  std::uint64_t qp = 0, cq = 0;  ///< serial of the object that it is about
};

struct Context : ibv_context {
  std::uint64_t serial = 0;
  Device* its_device = nullptr;
  std::uint32_t users = 0;
  std::deque<AsyncEvent> events;
  EventFd event_fd;
};

struct Pd : ibv_pd {
  std::uint64_t serial = 0;
  std::uint32_t users = 0;
};

struct Mr : ibv_mr {
  std::uint64_t serial = 0;
  std::uint64_t iova = 0;
  unsigned access = 0;
};

struct Channel : ibv_comp_channel {
  std::uint64_t serial = 0;
  std::deque<std::uint64_t> cqs;  ///< one entry an event
  EventFd event_fd;
};

struct Cqe {
  ibv_wc wc{};
  std::uint64_t qp = 0;  ///< serial
  bool send = false;
  std::uint64_t index = 0;  ///< of the WR in its queue
  bool solicited = false;
};

enum class Armed { no, solicited, any };

struct Cq : ibv_cq {
  std::uint64_t serial = 0;
  std::deque<Cqe> entries;
  Armed armed = Armed::no;
  bool dead = false;
  std::uint32_t users = 0;
  std::uint64_t events_got = 0, events_acked = 0, async_got = 0, async_acked = 0;
};

struct SendWqe {
  std::uint64_t seq = 0, index = 0, posted_tick = 0, wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool signaled = false, solicited = false, is_inline = false;
  __be32 imm = 0;
  std::uint64_t remote_addr = 0;
  std::uint32_t rkey = 0;
  std::vector<ibv_sge> sges;
  std::vector<std::uint8_t> inline_data;
  std::uint32_t attempts = 0, rnr_attempts = 0;
  std::uint64_t next_attempt_tick = 0;
};

struct RecvWqe {
  std::uint64_t index = 0, wr_id = 0;
  std::vector<ibv_sge> sges;
};

struct Qp : ibv_qp {
  std::uint64_t serial = 0;
  Device* its_device = nullptr;
  ibv_qp_init_attr init{};
  ibv_qp_attr attr{};  ///< attr.qp_state is the state of now; ibv_qp::state is what ibv_modify_qp() last set
  Device* peer_device = nullptr;  ///< behind attr.ah_attr
  bool silent = false;            ///< killed or fatal: nothing in, nothing out, no completions
  std::deque<SendWqe> sq;
  std::deque<RecvWqe> rq;
  std::uint64_t sends = 0, sends_retired = 0, recvs = 0, recvs_retired = 0;
  std::uint32_t next_psn = 0, expected_psn = 0;
  std::uint64_t blocked_tick = 0;                    ///< its head was tried in this step
  std::uint64_t send_cqe_due = 0, recv_cqe_due = 0;  ///< late completions stay in order
  std::uint32_t delay_steps = 0;
  bool flush_scheduled = false;
  QpStats stats;
  std::uint64_t async_got = 0, async_acked = 0;
  std::atomic<bool> posting{false};
};

struct Timed {
  std::uint64_t due = 0;  ///< step in which it is done
  std::function<void()> run;
};

struct Failure {
  int error = 0;
  std::uint32_t skip = 0, times = 0;
};

struct World {
  World();
  std::mutex mutex;
  std::vector<std::unique_ptr<Device>> devices;
  Registry<Context, ibv_context> contexts{"ibv_context"};
  Registry<Pd, ibv_pd> pds{"ibv_pd"};
  Registry<Mr, ibv_mr> mrs{"ibv_mr"};
  Registry<Channel, ibv_comp_channel> channels{"ibv_comp_channel"};
  Registry<Cq, ibv_cq> cqs{"ibv_cq"};
  Registry<Qp, ibv_qp> qps{"ibv_qp"};
  Registry<CmChannel, rdma_event_channel> cm_channels{"rdma_event_channel"};
  Registry<CmId, rdma_cm_id> ids{"rdma_cm_id"};
  Registry<CmUserEvent, rdma_cm_event> cm_events{"rdma_cm_event"};
  std::map<std::uint64_t, std::unique_ptr<Conn>> conns;
  std::map<std::uint32_t, std::uint64_t> qp_by_number;
  std::map<std::uint32_t, std::uint64_t> mr_by_lkey, mr_by_rkey;

  bool held = false;
  std::uint64_t tick = 0, seq = 0, serial = 0;
  std::map<std::uint64_t, Timed> timed;          ///< by seq
  std::map<std::uint64_t, std::uint64_t> heads;  ///< seq of a queue pair's first WR -> its serial

  std::set<std::pair<const Device*, const Device*>> cuts;  ///< ordered pairs
  std::map<Call, Failure> failures;
  std::vector<PostFailure> post_failures;
  std::vector<CmFault> cm_faults;
  std::function<void(ibv_qp*)> post_hook;
  std::function<void(const std::string&)> call_hook;
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;
  struct Corruption {
    std::size_t k = 0;
    std::uint32_t qp_num = 0;
  };
  std::vector<Corruption> corruptions;
  std::uint32_t next_qp_num = 0x11, last_destroyed_qp_num = 0;
  std::uint16_t next_port = 49152;
};

World& world();
using Lock = std::unique_lock<std::mutex>;

// World.
Device* find_device(World& w, const std::string& name);
Device& need_device(World& w, const std::string& name);
Device* device_by_gid(World& w, const ibv_gid& gid);
std::vector<Gid> gids_of(const Device& device);
bool reaches(const World& w, const Device& from, const Device& to);
/// errno if the call is to fail now, else 0.
int failure_of(World& w, Call call);
void tell_call(const char* name);
std::unique_ptr<Context> make_context(World& w, Device& device);
Device& device_of(ibv_context* context);

// The wire.
void after(World& w, std::uint64_t steps, std::function<void()> run);
void pump(World& w);  ///< a step, unless held
void run_tick(World& w);
bool run_candidate(World& w);
void update_head(World& w, Qp& qp);
/// Runs the head of the queue pair's send queue; false if it must wait.
bool run_head(World& w, Qp& qp);
/// For the calls that get events: a step, and more of them if the descriptor blocks. False: nothing, and it
/// does not block. The lock is given up while it waits.
bool wait_until(World& w, Lock& lock, const EventFd& event_fd, const std::function<bool()>& done);

// Queue pairs.
Qp* qp_by_number(World& w, std::uint32_t qp_num);
void fail_qp(World& w, Qp& qp);  ///< to ERR, and its WRs are flushed with the next step
void schedule_flush(World& w, Qp& qp);
void drop_work(World& w, Qp& qp);  ///< forgets its WRs
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);

// Memory: the bytes of a key's range, or null if the key does not allow it.
std::uint8_t* local_bytes(World& w, const Qp& qp, const ibv_sge& sge, bool to_write);
std::uint8_t* remote_bytes(World& w, const Qp& responder, std::uint32_t rkey, std::uint64_t addr,
                           std::size_t length);

// Completions.
void complete_send(World& w, Qp& qp, const SendWqe& wqe, ibv_wc_status status, std::uint32_t bytes);
void complete_recv(World& w, Qp& qp, const RecvWqe& wqe, ibv_wc wc, bool solicited);
void purge_cqes(World& w, const Qp& qp);
int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
int req_notify_cq(ibv_cq* cq, int solicited_only);

// Events.
void raise_async(World& w, Context& context, const AsyncEvent& event);
void raise_on_qp(World& w, Qp& qp, ibv_event_type type);
void raise_on_cq(World& w, Cq& cq, ibv_event_type type);
void forget_async(Context& context, std::uint64_t qp, std::uint64_t cq);

}  // namespace tidelock::fake
