// What a core owns: set-up, its connections, and the channels of rdma_cm and the device.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <tidelock/base/check.h>
#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>

#include "core_verbs.h"
#include "gid.h"
#include "peer_address.h"

namespace tidelock {
namespace {

constexpr int kEventsAtOnce = 64;  ///< of one channel, before the loop goes on

Status make_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return Error::from_errno(errno, "cannot make an event channel non-blocking");
  }
  return {};
}

Error bad_option(const char* what) { return Error::from_errno(EINVAL, std::string("RdmaOptions::") + what); }

}  // namespace

Status RdmaOptions::validate() const {
  if (connections_max < 1 || connections_max > 1024) return bad_option("connections_max: 1 to 1,024");
  if (data_slots < kDataSlotsMin || data_slots > kDataSlotsMax) return bad_option("data_slots: 4 to 256");
  if (control_slots < kControlSlotsMin || control_slots > kControlSlotsMax) {
    return bad_option("control_slots: 4 to 256");
  }
  if (gather < 2 || gather > 32) return bad_option("gather: 2 to 32");
  if (retry_count > 6) return bad_option("retry_count: at most 6, since 7 can mean for ever");
  if (ack_timeout < 1 || ack_timeout > 31) return bad_option("ack_timeout: 1 to 31, 0 would mean for ever");
  if (rnr_retry > 7 || min_rnr_timer > 31) return bad_option("rnr_retry or min_rnr_timer");
  return {};
}

// ---- set-up ---------------------------------------------------------------------------------------------

RdmaCore::RdmaCore(const RdmaPlace& place, const RdmaOptions& options, std::shared_ptr<BlockingCalls> calls)
    : place_(place),
      options_(options),
      calls_(std::move(calls)),
      verbs_(std::make_unique<Verbs>()),
      slots_(options.connections_max) {}

Result<std::unique_ptr<RdmaCore>> RdmaCore::create(const RdmaPlace& place, const RdmaOptions& options,
                                                   std::shared_ptr<BlockingCalls> calls) {
  TL_TRY(options.validate());
  std::unique_ptr<RdmaCore> core(new RdmaCore(place, options, std::move(calls)));
  TL_TRY(core->open());
  return core;
}

namespace {

Result<RdmaHandle<ibv_context>> open_device(const std::string& name) {
  int count = 0;
  ibv_device** list = ::ibv_get_device_list(&count);
  RdmaHandle<ibv_context> context;
  int failed = 0;
  for (int i = 0; i < count && context == nullptr; ++i) {
    if (name != ::ibv_get_device_name(list[i])) continue;
    context.reset(::ibv_open_device(list[i]));
    failed = context ? 0 : errno;
  }
  if (list != nullptr) ::ibv_free_device_list(list);
  if (context) return context;
  if (failed != 0) return verbs_error(failed, "cannot open RDMA device " + name);
  return Error(RdmaErrc::no_device, "RDMA device " + name + " is not there any more");
}

}  // namespace

Status RdmaCore::open() {
  Verbs& verbs = *verbs_;
  QueuePairShape& shape = verbs.shape;
  shape.data_slots = options_.data_slots;
  shape.control_slots = options_.control_slots;
  shape.inline_bytes = options_.inline_bytes;
  shape.gather = options_.gather;
  TL_TRY(verbs.context, open_device(place_.device));
  TL_TRY(make_nonblocking(verbs.context->async_fd));

  ibv_device_attr device{};
  if (const int failed = ::ibv_query_device(verbs.context.get(), &device); failed != 0) {
    return Error::from_errno(failed, "cannot query RDMA device " + place_.device);
  }
  // Room for every completion that every connection can have, so that the CQ cannot overrun.
  const std::uint32_t entries = std::uint32_t{options_.connections_max} * shape.depth() * 2;
  if (static_cast<std::uint32_t>(device.max_cqe) < entries ||
      static_cast<std::uint32_t>(device.max_qp_wr) < shape.depth() ||
      static_cast<std::uint32_t>(device.max_sge) < shape.gather) {
    return Error(RdmaErrc::device_too_small,
                 place_.device + " has CQs of " + std::to_string(device.max_cqe) + " entries, queues of " +
                     std::to_string(device.max_qp_wr) + " and " + std::to_string(device.max_sge) +
                     " pieces a request; " + std::to_string(options_.connections_max) + " connections take " +
                     std::to_string(entries) + ", " + std::to_string(shape.depth()) + " and " +
                     std::to_string(shape.gather));
  }
  verbs.pd.reset(::ibv_alloc_pd(verbs.context.get()));
  if (!verbs.pd) return verbs_error(errno, "cannot make a protection domain");
  verbs.completion_channel.reset(::ibv_create_comp_channel(verbs.context.get()));
  if (!verbs.completion_channel) return verbs_error(errno, "cannot make a completion channel");
  TL_TRY(make_nonblocking(verbs.completion_channel->fd));
  verbs.cq.reset(::ibv_create_cq(
      verbs.context.get(), static_cast<int>(entries), nullptr, verbs.completion_channel.get(),
      static_cast<int>(options_.completion_vector) % std::max(1, verbs.context->num_comp_vectors)));
  if (!verbs.cq) return verbs_error(errno, "cannot make a completion queue");
  TL_TRY(verbs.arena, PageMemory::map(shape.arena_bytes() * options_.connections_max));
  TL_TRY(verbs.arena_mr,
         tidelock::register_memory(verbs.pd.get(), verbs.arena->bytes(), IBV_ACCESS_LOCAL_WRITE));
  verbs.cm_channel.reset(::rdma_create_event_channel());
  if (!verbs.cm_channel) {
    return Error::from_errno(errno,
                             "cannot talk to rdma_cm: `modprobe rdma_ucm`, and see /dev/infiniband/rdma_cm");
  }
  TL_TRY(make_nonblocking(verbs.cm_channel->fd));
  TL_TRY(keep_device_open());
  post_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (post_fd_ < 0) return Error::from_errno(errno, "cannot make an eventfd");
  return {};
}

RdmaCore::~RdmaCore() {
  TL_ASSERT(live_ == 0, "a core ends after its connections");
  TL_ASSERT(reactor_ == nullptr, "detach() comes before the end of a core");
  if (post_fd_ >= 0) ::close(post_fd_);
}

Status RdmaCore::register_memory(MutableBytes memory) {
  TL_TRY(auto mr, tidelock::register_memory(verbs_->pd.get(), memory, IBV_ACCESS_LOCAL_WRITE));
  verbs_->registered.push_back(std::move(mr));
  return {};
}

Result<std::uint32_t> RdmaCore::local_key(Bytes memory) const {
  for (const auto& mr : verbs_->registered) {
    const auto* start = static_cast<const std::byte*>(mr->addr);
    if (memory.data() >= start && memory.data() + memory.size() <= start + mr->length) return mr->lkey;
  }
  return Error::from_errno(EINVAL, "memory that was not registered with the core");
}

MutableBytes RdmaCore::arena_of(std::uint16_t slot) const {
  const std::size_t bytes = verbs_->shape.arena_bytes();
  return verbs_->arena->bytes().subspan(slot * bytes, bytes);
}

rdma_event_channel* RdmaCore::channel() const { return verbs_->cm_channel.get(); }

// ---- on and off the reactor -----------------------------------------------------------------------------

Status RdmaCore::start(Reactor& reactor) {
  TL_ASSERT(reactor_ == nullptr, "a core is started once");
  reactor_ = &reactor;
  reactor.add_source(*this);
  TL_TRY(post_watch_.start(
      reactor, post_fd_, POLLIN,
      [](void* core, std::uint32_t) {
        std::uint64_t count = 0;
        static_cast<void>(!::read(static_cast<RdmaCore*>(core)->post_fd_, &count, sizeof count));
        static_cast<RdmaCore*>(core)->run_posted();
      },
      this));
  TL_TRY(cm_watch_.start(
      reactor, verbs_->cm_channel->fd, POLLIN,
      [](void* core, std::uint32_t) { static_cast<RdmaCore*>(core)->drain_cm(); }, this));
  TL_TRY(completion_watch_.start(
      reactor, verbs_->completion_channel->fd, POLLIN,
      [](void* core, std::uint32_t) { static_cast<RdmaCore*>(core)->drain_completion_channel(); }, this));
  TL_TRY(async_watch_.start(
      reactor, verbs_->context->async_fd, POLLIN,
      [](void* core, std::uint32_t) { static_cast<RdmaCore*>(core)->drain_async(); }, this));
  return {};
}

/// librdmacm opens a device when the first id needs it and lets it go with the last, both inside the reading
/// of events, where it blocks. An id that is bound for as long as the core lives keeps that off the reactor.
Status RdmaCore::keep_device_open() {
  Verbs& verbs = *verbs_;
  rdma_cm_id* id = nullptr;
  if (::rdma_create_id(verbs.cm_channel.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return Error::from_errno(errno, "rdma_create_id");
  }
  verbs.keeper.reset(id);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  if (::inet_pton(AF_INET, place_.address.c_str(), &at.sin_addr) != 1 ||
      ::rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&at)) != 0) {
    return Error::from_errno(errno, "rdma_cm cannot use address " + place_.address + " of " + place_.device);
  }
  return {};
}

void RdmaCore::detach() {
  if (reactor_ == nullptr) return;
  TL_ASSERT(live_ == 0, "connections end before their core leaves the reactor");
  post_watch_.stop();
  cm_watch_.stop();
  completion_watch_.stop();
  async_watch_.stop();
  // A CQ is destroyed only after all of its events were acknowledged.
  drain_completion_channel();
  watchdog_.disarm();
  reactor_->remove_source(*this);
  reactor_ = nullptr;
}

void RdmaCore::close_all(const std::string& reason) {
  for (const Slot& slot : slots_) {
    if (slot.connection) slot.connection->close(reason);
  }
}

void RdmaCore::fail_all(const Error& error) {
  for (const Slot& slot : slots_) {
    if (slot.connection) slot.connection->fail(error);
  }
}

// ---- connections ----------------------------------------------------------------------------------------

Result<RdmaConnection*> RdmaCore::make_connection() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.connection) continue;
    ++slot.generation;
    slot.connection = std::make_unique<RdmaConnection>(*this, static_cast<std::uint16_t>(i), slot.generation);
    ++live_;
    counters_.connections_made.fetch_add(1, std::memory_order_relaxed);
    counters_.connections_live.store(live_, std::memory_order_relaxed);
    return slot.connection.get();
  }
  return Error(RdmaErrc::busy,
               "all " + std::to_string(slots_.size()) + " connection slots of this core are in use");
}

Result<RdmaConnection*> RdmaCore::connect(const ActiveTerms& terms, ConnectionCallbacks callbacks) {
  if (dead_) return *dead_;
  TL_TRY(RdmaConnection * connection, make_connection());
  connection->start_active(terms, std::move(callbacks));
  return connection;
}

void RdmaCore::accept(rdma_cm_id* id, const ConnectRequest& request, const ConnectReply& reply,
                      ConnectionCallbacks callbacks) {
  // Another process by the same number, while the one that we know still answers: either two nodes were given
  // one number, or the peer was restarted and its old queue pair will be noticed dead soon. Both may ask
  // again.
  for (const Slot& slot : slots_) {
    if (slot.connection && slot.connection->serves(request) && slot.connection->ready() &&
        slot.connection->request().incarnation != request.incarnation) {
      return reject(id, {RejectReason::node_in_use, request.node, request.node});
    }
  }
  // An attempt that it gave up for this one keeps a slot until its deadline: it is over.
  for (const Slot& slot : slots_) {
    if (slot.connection && slot.connection->serves(request) && !slot.connection->ready()) {
      slot.connection->retire("a newer attempt came");
    }
  }
  const auto made = make_connection();
  if (!made || dead_) return reject(id, {RejectReason::busy, options_.connections_max, 0});
  (*made)->start_passive(id, request, reply, std::move(callbacks));
}

void RdmaCore::reject(rdma_cm_id* id, const ConnectReject& reason, const std::string& why) {
  const std::string peer = peer_address_of(id);
  notice("rejected " + peer + " " + std::to_string(static_cast<unsigned>(reason.reason)),
         "rejected a request from " + peer + ": " + describe_given(reason) + (why.empty() ? "" : ": " + why));
  offload(
      "rdma_reject",
      [this, id, reason] {
        std::array<std::byte, kConnectRejectBytes> bytes{};
        encode_reject(reason, bytes);
        // If it cannot be sent the peer learns by its own deadline.
        static_cast<void>(::rdma_reject(id, bytes.data(), static_cast<std::uint8_t>(bytes.size())));
        calling("rdma_destroy_id");
        RdmaHandle<rdma_cm_id>{id}.reset();
      },
      [] {});
}

void RdmaCore::retire_before(const RdmaConnection& newer) {
  for (const Slot& slot : slots_) {
    if (slot.connection && slot.connection.get() != &newer && slot.connection->serves(newer.request())) {
      slot.connection->retire("a newer connection of the same node and shard came");
    }
  }
}

RdmaConnection* RdmaCore::find(std::uint16_t slot, std::uint32_t generation) const {
  if (slot >= slots_.size() || slots_[slot].generation != generation) return nullptr;
  return slots_[slot].connection.get();
}

/// A connection's tag as rdma_cm and verbs keep it: slot above generation.
RdmaConnection* RdmaCore::find(std::uintptr_t tag) const {
  return find(static_cast<std::uint16_t>(tag >> 32), static_cast<std::uint32_t>(tag));
}

void RdmaCore::reap() {
  reap_ = false;
  for (Slot& slot : slots_) {
    if (!slot.connection || !slot.connection->torn_down() || !slot.connection->abandoned()) continue;
    slot.connection.reset();
    --live_;
    counters_.connections_live.store(live_, std::memory_order_relaxed);
  }
}

// ---- from other threads ---------------------------------------------------------------------------------

void RdmaCore::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
    any_posted_.store(true, std::memory_order_release);
  }
  const std::uint64_t one = 1;
  // EAGAIN: the counter is near its maximum, and any of what it counts wakes the core.
  static_cast<void>(!::write(post_fd_, &one, sizeof one));
}

void RdmaCore::offload(const char* verb, std::function<void()> work, std::function<void()> answer) {
  offloaded_.push_back(verb);
  if (offloaded_.size() == 1) watch_call();
  calls_->run([this, verb, work = std::move(work), answer = std::move(answer)] {
    calling(verb);
    work();
    calling(nullptr);
    post([this, answer] {
      call_returned();
      answer();
    });
  });
}

// ---- the watchdog of calls that block -------------------------------------------------------------------

RdmaCore::Watchdog::Watchdog(RdmaCore& core)
    : Timer([](Timer& timer) { static_cast<Watchdog&>(timer).owner.call_is_late(); }), owner(core) {}

/// They run one after the other, and are answered in that order: the next begins when one has returned.
void RdmaCore::watch_call() {
  call_begun_ = reactor_->now();
  reactor_->timers().arm(watchdog_, call_begun_ + options_.call_patience);
}

void RdmaCore::call_returned() {
  offloaded_.pop_front();
  watchdog_.disarm();
  if (!offloaded_.empty()) watch_call();
}

const char* RdmaCore::call_under_way() const {
  if (offloaded_.empty()) return nullptr;
  const char* verb = calling_.load(std::memory_order_relaxed);
  return verb != nullptr ? verb : offloaded_.front();
}

/// Once a call: it is not armed again before the call has returned.
void RdmaCore::call_is_late() {
  const std::string verb = call_under_way();
  notice("late " + verb, verb + " on " + place_.device + " has not returned for " +
                             std::to_string((reactor_->now() - call_begun_).ns / 1'000'000) +
                             " ms; no connection of this core gets on or ends until it does (" +
                             std::to_string(offloaded_.size() - 1) + " calls wait)");
}

void RdmaCore::run_posted() {
  if (!any_posted_.load(std::memory_order_acquire)) return;
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
    any_posted_.store(false, std::memory_order_release);
  }
  for (const auto& piece : work) piece();
}

// ---- rdma_cm and async events ---------------------------------------------------------------------------

void RdmaCore::drain_cm() {
  for (int i = 0; i < kEventsAtOnce; ++i) {
    rdma_cm_event* event = nullptr;
    if (::rdma_get_cm_event(verbs_->cm_channel.get(), &event) != 0) return;
    if (i + 1 == kEventsAtOnce) post([this] { drain_cm(); });  // the descriptor will not tell again
    counters_.cm_events.fetch_add(1, std::memory_order_relaxed);
    CmEvent copy;
    copy.kind = event->event;
    copy.status = event->status;
    copy.id = event->id;
    // Only these bring connection parameters; the rest of the union is another's.
    switch (event->event) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
      case RDMA_CM_EVENT_CONNECT_RESPONSE:
      case RDMA_CM_EVENT_REJECTED:
      case RDMA_CM_EVENT_ESTABLISHED:
        if (event->param.conn.private_data != nullptr) {
          copy.bytes = event->param.conn.private_data_len;
          std::memcpy(copy.private_data.data(), event->param.conn.private_data, copy.bytes);
        }
        break;
      default:
        break;
    }
    const auto tag = reinterpret_cast<std::uintptr_t>(event->id->context);
    // Acknowledged first: rdma_destroy_id waits for it.
    ::rdma_ack_cm_event(event);
    if (RdmaConnection* connection = find(tag); connection != nullptr) {
      connection->on_cm(copy);
    } else if (foreign_) {
      foreign_(copy);
    } else if (copy.kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
      reject(copy.id, {RejectReason::busy, 0, 0});  // the listener is not yet, or no longer, at its door
    }
  }
}

void RdmaCore::drain_async() {
  for (int i = 0; i < kEventsAtOnce; ++i) {
    ibv_async_event event{};
    if (::ibv_get_async_event(verbs_->context.get(), &event) != 0) return;
    if (i + 1 == kEventsAtOnce) post([this] { drain_async(); });
    counters_.async_events.fetch_add(1, std::memory_order_relaxed);
    const std::string name = ::ibv_event_type_str(event.event_type);
    RdmaConnection* connection = nullptr;
    bool all = false;
    bool fatal = false;
    switch (event.event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_PATH_MIG_ERR:
        connection = find(reinterpret_cast<std::uintptr_t>(event.element.qp->qp_context));
        break;
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_DEVICE_FATAL:
        all = fatal = true;
        break;
      case IBV_EVENT_PORT_ERR:
      case IBV_EVENT_LID_CHANGE:
        all = event.element.port_num == place_.port;
        break;
      default:
        break;
    }
    const bool gids = event.event_type == IBV_EVENT_GID_CHANGE;
    ::ibv_ack_async_event(&event);
    const Error error(RdmaErrc::device_failed, place_.device + " reports: " + name);
    if (connection != nullptr) connection->fail(error);
    if (fatal) dead_ = error;
    if (all) fail_all(error);
    if (gids) check_gid();
  }
}

/// The table changed: only if our address is no longer in it do the connections end. If it cannot be read,
/// they are left to their own errors.
void RdmaCore::check_gid() {
  const auto gone = std::make_shared<bool>(false);
  offload(
      "ibv_query_gid_table",
      [gone, context = verbs_->context.get(), place = place_] { *gone = !has_address(context, place); },
      [this, gone] {
        if (*gone) {
          fail_all(
              Error(RdmaErrc::device_failed, place_.device + " no longer has address " + place_.address));
        }
      });
}

}  // namespace tidelock
