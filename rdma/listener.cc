#include <algorithm>
#include <cerrno>
#include <utility>

#include <arpa/inet.h>

#include <tidelock/rdma/errc.h>
#include <tidelock/rdma/listener.h>

#include "handles.h"

namespace tidelock {
namespace {

constexpr int kBacklog = 64;
/// Nodes times shards whose newest attempt is remembered; a hostile peer could name any number of nodes.
constexpr std::size_t kAttemptsMax = 4096;

std::uint64_t range(std::uint16_t least, std::uint16_t most) { return std::uint64_t{least} << 16 | most; }

}  // namespace

RdmaListener::RdmaListener(RdmaCore& core, const PassiveTerms& terms, Route route, Callbacks callbacks)
    : core_(core), terms_(terms), route_(std::move(route)), callbacks_(std::move(callbacks)) {}

Result<std::unique_ptr<RdmaListener>> RdmaListener::open(RdmaCore& core, const std::string& address,
                                                         std::uint16_t port, const PassiveTerms& terms,
                                                         Route route, Callbacks callbacks) {
  std::unique_ptr<RdmaListener> listener(
      new RdmaListener(core, terms, std::move(route), std::move(callbacks)));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1) {
    return Error::from_errno(EINVAL, "cannot listen at \"" + address + "\": no IPv4 address");
  }
  const std::string where = address + ":" + std::to_string(port);
  if (::rdma_create_id(core.channel(), &listener->id_, nullptr, RDMA_PS_TCP) != 0) {
    listener->id_ = nullptr;
    return Error::from_errno(errno, "cannot listen at " + where);
  }
  if (::rdma_bind_addr(listener->id_, reinterpret_cast<sockaddr*>(&at)) != 0) {
    const int failed = errno;
    return Error::from_errno(
        failed, "cannot listen at " + where +
                    (failed == EADDRINUSE ? ": somebody listens there; choose another port"
                                          : ": is it an address of " + core.place().device + "?"));
  }
  if (::rdma_listen(listener->id_, kBacklog) != 0) {
    return Error::from_errno(errno, "cannot listen at " + where);
  }
  listener->port_ = ntohs(::rdma_get_src_port(listener->id_));
  return listener;
}

RdmaListener::~RdmaListener() { RdmaHandle<rdma_cm_id>{id_}.reset(); }

void RdmaListener::start(std::function<void(const Error&)> lost) {
  lost_ = std::move(lost);
  core_.on_foreign_event([this](const CmEvent& event) { on_event(event); });
}

/// Requests that come from now on are told to try later, until the id is destroyed.
void RdmaListener::stop() {
  core_.on_foreign_event([core = &core_](const CmEvent& event) {
    if (event.kind == RDMA_CM_EVENT_CONNECT_REQUEST) core->reject(event.id, {RejectReason::busy, 0, 0});
  });
}

void RdmaListener::on_event(const CmEvent& event) {
  if (event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL && event.id == id_ && lost_) {
    lost_(Error(
        RdmaErrc::device_failed,
        core_.place().device + " was removed: no replica can connect until this node is started again"));
  }
  if (event.kind != RDMA_CM_EVENT_CONNECT_REQUEST) return;
  const auto request = decode_request(Bytes(event.private_data).first(event.bytes));
  if (const auto rejected = judge(request)) {
    return core_.reject(event.id, *rejected, request ? "" : request.error().message());
  }
  RdmaCore* core = route_(request->shard);
  if (core == nullptr) return core_.reject(event.id, {RejectReason::busy, 0, 0});
  ConnectReply reply;
  reply.shard = request->shard;
  reply.version = std::min(request->version_max, kRdmaVersionMax);
  reply.node = terms_.node;
  reply.generation = {++generation_};
  reply.epoch = terms_.epoch;
  reply.ring_bytes = terms_.ring_bytes;
  core->post([core, id = event.id, request = *request, reply, make = callbacks_] {
    core->accept(id, request, reply, make(request.shard));
  });
}

std::unique_ptr<ConnectReject> RdmaListener::judge(const Result<ConnectRequest>& request) {
  const auto no = [](RejectReason reason, std::uint64_t ours, std::uint64_t theirs) {
    return std::make_unique<ConnectReject>(ConnectReject{reason, ours, theirs});
  };
  if (!request) return no(RejectReason::malformed, 0, 0);
  if (request->version_min > kRdmaVersionMax || request->version_max < kRdmaVersionMin) {
    return no(RejectReason::version, range(kRdmaVersionMin, kRdmaVersionMax),
              range(request->version_min, request->version_max));
  }
  if (request->shard_count != terms_.shard_count) {
    return no(RejectReason::shard_count, terms_.shard_count, request->shard_count);
  }
  if (request->epoch > terms_.epoch) {
    return no(RejectReason::epoch, terms_.epoch.counter, request->epoch.counter);
  }
  const std::pair key{request->node, request->shard.value};
  if (newest_.size() >= kAttemptsMax && !newest_.contains(key)) newest_.erase(newest_.begin());
  Attempt& newest = newest_[key];
  if (newest.incarnation == request->incarnation && request->generation <= newest.generation) {
    return no(RejectReason::generation, newest.generation.value, request->generation.value);
  }
  newest = {request->incarnation, request->generation};
  return nullptr;
}

}  // namespace tidelock
