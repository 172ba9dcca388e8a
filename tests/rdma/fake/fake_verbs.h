/// A verbs provider for tests: it defines the symbols of libibverbs and librdmacm that rdma/ uses, so that a
/// program that links it runs rdma/'s own object code with no device. This header is the tests' handle on it;
/// README.md says what is modelled, and after which sources.
///
/// What network cards do is queued on one wire and done in steps, in the order in which it was asked for. A
/// step runs whenever anybody polls a completion queue, arms one, gets an event, modifies or destroys a queue
/// pair, or asks something of an rdma_cm id; a post alone moves nothing. hold() leaves the steps to step()
/// and run_one(). No clock and no thread of its own.
/// Thread:   any; one mutex over everything
/// Errors:   a programmer's fault (double destroy, overrun, wrong acknowledgement) prints and aborts
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

namespace tidelock::fake {

struct Gid {
  ibv_gid gid;
  ibv_gid_type type;
};

/// fe80::n and ::ffff:a.b.c.d, as RoCE v2 entries.
Gid link_local_gid(std::uint8_t n);
Gid mapped_gid(const std::string& ipv4);

struct DeviceConfig {
  std::string name;
  std::string ipv4;  ///< of the device's network interface
  ibv_port_state port_state = IBV_PORT_ACTIVE;
  ibv_mtu active_mtu = IBV_MTU_4096;
  std::vector<Gid> gids;  ///< none: link-local at 0, the IPv4-mapped RoCE v2 one at 1
  std::uint32_t max_inline = 256;
  int max_qp_wr = 16384;
  int max_sge = 16;
  int max_cqe = 1 << 20;
  int cm_gid = -1;  ///< index of the GID that rdma_cm chooses; -1: the RoCE v2 one of `ipv4`
};

/// What a post to a queue pair in RESET, INIT or RTR does.
enum class PostBeforeRts {
  positive_errno,  ///< ENOMEM, bad_wr is the WR
  negative_errno,  ///< -EINVAL, bad_wr is the WR
  dropped,         ///< 0, and nothing ever comes of it
  deferred,        ///< 0, done once the queue pair is in RTS
  rxe,             ///< EINVAL with bad_wr null, and yet done once the queue pair is in RTS
};

/// How a device misbehaves. Numbers that count down are the ones that say "the next".
struct Modes {
  PostBeforeRts post_before_rts = PostBeforeRts::positive_errno;
  bool flush_missing = false;  ///< a queue pair in ERR gives no WR_FLUSH_ERR completions
  std::uint32_t send_completion_delay_steps = 0;
  std::uint32_t recv_completion_delay_steps = 0;
  std::uint32_t lose_send_completions = 0;  ///< the next n successful ones never come
  std::uint32_t lose_recv_completions = 0;
  bool drop_zero_byte_sends = false;    ///< the sender sees success, the receiver nothing
  std::uint32_t rnr_attempts = 0;       ///< as receiver: the next n messages that need a receive meet none
  bool reuse_qp_numbers = false;        ///< a new queue pair gets the number of the last destroyed one
  std::uint32_t write_delay_steps = 0;  ///< RDMA writes start this long after the post
  std::uint32_t data_after_notification_steps =
      0;                                ///< a write's bytes are placed this long after it was done
  bool access_error_event = false;      ///< a responder that refuses also raises QP_ACCESS_ERR
  bool cqes_outlive_qp = false;         ///< destroying a queue pair leaves its completions polled later
  bool cq_overrun_aborts = true;        ///< else CQ_ERR, and the CQ is dead
  bool rq_overrun_aborts = true;        ///< else ENOMEM with bad_wr
  bool retry_seven_is_forever = false;  ///< as rxe does
  std::uint32_t retry_steps = 1;        ///< between two attempts to reach the peer
  std::uint32_t cm_timeout_steps = 8;   ///< until a CM message that does not arrive is given up
  std::uint32_t timewait_steps = 2;     ///< from DISCONNECTED to TIMEWAIT_EXIT
};

/// Forgets every configuration; devices fake0 (10.0.0.1) and fake1 (10.0.0.2) are back.
/// Errors:   aborts if an object of live_objects() is still there
void reset();
/// Replaces the devices; none is allowed. Errors: aborts if an object is still there.
void set_devices(const std::vector<DeviceConfig>& devices);
DeviceConfig device_config(const std::string& device);
/// Port state, MTU, GIDs and limits as of now; name and address stay. Raises no event: see raise_event().
void change_device(const std::string& device, const DeviceConfig& config);

void set_modes(const Modes& modes);  ///< of all devices
void set_modes(const std::string& device, const Modes& modes);
Modes modes(const std::string& device);

// The wire.
void hold();                     ///< from now on only step() and run_one() move the wire
void go();                       ///< undoes hold() and runs a step
void step(std::uint32_t n = 1);  ///< n steps, held or not
bool run_one();                  ///< one thing only; false if nothing could be done in this step
std::size_t pending();           ///< work requests, messages and late things that are not done yet
void run_until_idle(
    std::uint32_t steps_max = 100000);  ///< steps until pending() is 0 or nothing is left to wait for

/// Both directions between two devices; healed by heal(). A device may be cut from itself.
void cut(const std::string& device_a, const std::string& device_b);
void heal(const std::string& device_a, const std::string& device_b);

void delay_qp(std::uint32_t qp_num,
              std::uint32_t steps);  ///< each of its WRs starts that long after the post
/// Byte k of the next write (of that queue pair, if not 0) that is longer than k is inverted where it is
/// placed.
void corrupt_next_write(std::size_t k, std::uint32_t qp_num = 0);
void kill_qp(std::uint32_t qp_num);  ///< to ERR, as after a local failure: its work requests are flushed
/// The side dies as a process does: its queue pairs answer nothing any more, its ids' peers see a disconnect.
/// Its handles are still to be destroyed by the test.
void kill_device_users(const std::string& device);

/// An asynchronous event with no completion. QP_FATAL puts the queue pair into ERR with no flush; a CQ_ERR's
/// CQ gives nothing more; DEVICE_FATAL and PORT_ERR stop the device, PORT_ACTIVE undoes PORT_ERR.
void raise_qp_event(std::uint32_t qp_num, ibv_event_type event);
void raise_cq_event(ibv_cq* cq, ibv_event_type event);
void raise_event(const std::string& device, ibv_event_type event);
/// DEVICE_REMOVAL on every id that is bound to the device, DEVICE_FATAL on its contexts.
void remove_device(const std::string& device);

enum class Call {
  open_device,
  query_device,
  query_port,
  query_gid,
  alloc_pd,
  create_comp_channel,
  create_cq,
  reg_mr,
  create_qp,
  modify_qp,
  req_notify_cq,
  create_event_channel,
  create_id,
  bind_addr,
  listen,
  resolve_addr,
  resolve_route,
  connect,
  accept,
  reject,
  establish,
  disconnect,
  init_qp_attr,
  migrate_id,
  set_option,
};
/// After `skip` successful ones, `times` of these calls fail with `error`.
void fail_call(Call call, int error, std::uint32_t skip = 0, std::uint32_t times = 1);

/// The `call`-th post of sends from now (1 is the next), of that queue pair if not 0, returns `error` as it
/// is (negative too). The WRs of the chain before bad_index are taken; bad_wr is the one at bad_index, or
/// null if bad_index is negative (then none is taken).
struct PostFailure {
  std::uint32_t call = 1;
  int error = ENOMEM;
  int bad_index = 0;
  std::uint32_t qp_num = 0;
};
void fail_post_send(const PostFailure& failure);

enum class CmAction { lose, delay, duplicate, replace };
/// What happens to the next `times` CM events of a type that `device`'s ids (any, if empty) would get.
struct CmFault {
  rdma_cm_event_type event = RDMA_CM_EVENT_ESTABLISHED;
  CmAction action = CmAction::lose;
  std::uint32_t steps = 0;  ///< delay
  std::uint32_t times = 1;
  std::string device;
  rdma_cm_event_type replacement = RDMA_CM_EVENT_CONNECT_ERROR;
  int status = 0;  ///< of the replacement
};
void add_cm_fault(const CmFault& fault);

/// Called by every post of sends, outside the mutex and before anything is done: a test's chance to do
/// something in the middle of a post. None: nullptr.
void set_post_hook(std::function<void(ibv_qp*)> hook);

/// Called by name at the start of every call that makes, moves or ends something, outside the mutex.
/// None: nullptr.
void set_call_hook(std::function<void(const std::string&)> hook);

/// What ibv_is_fork_initialized() says; UNNEEDED after reset(), as newer kernels say.
void set_fork_status(ibv_fork_status status);

struct LiveObjects {
  std::size_t contexts = 0, pds = 0, comp_channels = 0, cqs = 0, mrs = 0, qps = 0, event_channels = 0,
              ids = 0;
  std::size_t total() const {
    return contexts + pds + comp_channels + cqs + mrs + qps + event_channels + ids;
  }
};
LiveObjects live_objects();

/// Queue pairs of a device in the order of their creation.
std::vector<std::uint32_t> qp_numbers(const std::string& device);
struct QpStats {
  ibv_qp_state state = IBV_QPS_UNKNOWN;  ///< UNKNOWN if there is no such queue pair
  ibv_qp_attr attributes{};              ///< as ibv_modify_qp() has set them
  std::uint64_t post_send_calls = 0;     ///< doorbells
  std::uint64_t sends_posted = 0;
  std::uint64_t sends_signaled = 0;
  std::uint64_t sends_inline = 0;
  std::uint64_t recvs_posted = 0;
  std::uint32_t sq_in_use = 0,
                sq_in_use_max = 0;  ///< slots: freed when a completion at or after the WR is polled
  std::uint32_t rq_in_use = 0;      ///< likewise
  std::uint64_t rnr_naks = 0;       ///< it met no receive so often
};
QpStats qp_stats(std::uint32_t qp_num);

}  // namespace tidelock::fake
