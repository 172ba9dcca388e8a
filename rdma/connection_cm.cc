// A connection's way up: what rdma_cm says, and what is done about it.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <arpa/inet.h>

#include <tidelock/base/check.h>
#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>

#include "core_verbs.h"
#include "gid.h"
#include "peer_address.h"
#include "queue_pair.h"

namespace tidelock {
namespace {

/// Of address and route each; both together stay below the deadline of `resolving`, so that rdma_cm's reason
/// comes first.
constexpr int kResolveTimeoutMs = 900;
constexpr std::size_t kDeferredMax = 16;

/// rdma_init_qp_attr fills bits 21 to 24 of the mask, which are the kernel's own (RoCE) and which
/// ibv_modify_qp refuses.
constexpr int kUserMask = ~(0xf << 21);

/// Of the steps that an id can take only as long as the peer's half of the exchange stands: the passive
/// side's after the request, the active side's after the reply. There EINVAL means that rdma_cm was told that
/// the peer went, and its event comes later than this. Elsewhere EINVAL is what it says.
Error cm_error_of_peer(const char* what) {
  if (errno == EINVAL)
    return Error(RdmaErrc::peer_lost, std::string(what) + ": rdma_cm has given up the connection");
  return Error::from_errno(errno, what);
}

Error cm_error(const char* what) { return Error::from_errno(errno, what); }

Status fill_address(const std::string& text, std::uint16_t port, sockaddr_in& address) {
  address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, text.c_str(), &address.sin_addr) == 1) return {};
  return Error(RdmaErrc::unreachable, "\"" + text + "\" is no IPv4 address");
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  return static_cast<ibv_mtu>(std::bit_width(bytes) - 8);  // 256 is 1, 4096 is 5
}

}  // namespace

std::string peer_address_of(rdma_cm_id* id) {
  const sockaddr* address = ::rdma_get_peer_addr(id);
  std::array<char, INET_ADDRSTRLEN> text{};
  if (address == nullptr || address->sa_family != AF_INET) return "?";
  const auto* inet = reinterpret_cast<const sockaddr_in*>(address);
  return ::inet_ntop(AF_INET, &inet->sin_addr, text.data(), text.size()) != nullptr ? text.data() : "?";
}

// ---- active ---------------------------------------------------------------------------------------------

void RdmaConnection::start_active(const ActiveTerms& terms, ConnectionCallbacks callbacks) {
  active_ = true;
  terms_ = terms;
  peer_ = terms.address;
  terms_.request.mtu_bytes = static_cast<std::uint16_t>(core_.place().mtu_bytes);
  terms_.request.data_slots = core_.options().data_slots;
  terms_.request.control_slots = core_.options().control_slots;
  request_ = terms_.request;
  callbacks_ = std::move(callbacks);
  set(ConnectionState::resolving, terms_.address, core_.options().resolving_deadline);
  job(
      "rdma_create_id", [this] { return make_id(terms_); }, [] {});
}

Status RdmaConnection::make_id(const ActiveTerms& terms) {
  if (::rdma_create_id(core_.channel(), &id_, reinterpret_cast<void*>(tag()), RDMA_PS_TCP) != 0) {
    id_ = nullptr;
    return cm_error("rdma_create_id");
  }
  sockaddr_in source{};
  sockaddr_in target{};
  TL_TRY(fill_address(core_.place().address, 0, source));
  TL_TRY(fill_address(terms.address, terms.port, target));
  core_.calling("rdma_resolve_addr");
  // The source is named: with two devices in one machine the route alone would choose another.
  if (::rdma_resolve_addr(id_, reinterpret_cast<sockaddr*>(&source), reinterpret_cast<sockaddr*>(&target),
                          kResolveTimeoutMs) != 0) {
    return Error(RdmaErrc::unreachable, "cannot resolve " + terms.address + " from " + core_.place().address +
                                            ": " + std::strerror(errno));
  }
  return {};
}

void RdmaConnection::on_address() {
  if (id_->verbs == nullptr || core_.place().device != ::ibv_get_device_name(id_->verbs->device)) {
    return fail(
        Error(RdmaErrc::unreachable,
              terms_.address + " is not reached through " + core_.place().device +
                  " but through another device; name that one (Options::device) or bind its address"));
  }
  job(
      "rdma_resolve_route",
      [id = id_]() -> Status {
        if (::rdma_resolve_route(id, kResolveTimeoutMs) != 0) return cm_error("rdma_resolve_route");
        return {};
      },
      [] {});
}

void RdmaConnection::on_route() {
  set(ConnectionState::connecting, "route resolved", core_.options().connecting_deadline);
  job(
      "ibv_create_qp", [this] { return make_queue_pair(); },
      [this] {
        // Receives come before the request, so that the peer finds them whenever it speaks.
        if (const Status posted = pair_->post_all_receives(); !posted) return fail(posted.error());
        job(
            "rdma_connect",
            [this]() -> Status {
              std::array<std::byte, kConnectRequestBytes> bytes{};
              encode_request(request_, bytes);
              rdma_conn_param parameters{};
              parameters.private_data = bytes.data();
              parameters.private_data_len = static_cast<std::uint8_t>(bytes.size());
              parameters.retry_count = core_.options().retry_count;
              parameters.rnr_retry_count = core_.options().rnr_retry;
              parameters.qp_num = pair_->number();
              if (::rdma_connect(id_, &parameters) != 0) return cm_error("rdma_connect");
              connected_ = true;
              return {};
            },
            [] {});
      });
}

void RdmaConnection::on_reply(const CmEvent& event) {
  const auto reply = decode_reply(Bytes(event.private_data).first(event.bytes));
  if (!reply) return fail(reply.error());
  if (reply->shard != request_.shard) {
    return fail(
        Error(RdmaErrc::protocol, "the peer's reply is for shard " + std::to_string(reply->shard.value)));
  }
  reply_ = *reply;
  generation_ = reply_.generation;
  mtu_bytes_ = reply_.mtu_bytes;
  pair_->agree(generation_, reply_.data_slots, reply_.control_slots);
  job(
      "ibv_reg_mr", [this] { return establish(); }, [this] { local_ready(); });
}

Status RdmaConnection::establish() {
  TL_TRY(pair_->make_ring(reply_.ring_bytes));
  TL_TRY(move_to_rts());
  core_.calling("rdma_establish");
  if (::rdma_establish(id_) != 0) return cm_error_of_peer("rdma_establish");
  return {};
}

void RdmaConnection::on_reject(const CmEvent& event) {
  const auto reject = decode_reject(Bytes(event.private_data).first(event.bytes));
  if (reject) {
    rejected_ = *reject;
    return fail(Error(RdmaErrc::rejected, describe() + ": " + tidelock::describe(*reject)));
  }
  // Without our data it is rdma_cm's own: nobody listens there (8), or it still knows an older connection
  // (10).
  fail(Error(RdmaErrc::unreachable, "nobody takes this connection at " + terms_.address + ":" +
                                        std::to_string(terms_.port) + " (rdma_cm status " +
                                        std::to_string(event.status) + ")"));
}

void RdmaConnection::say_hello() {
  std::array<std::byte, kRingOfferBytes> offer{};
  encode_offer(pair_->offer(), offer);
  if (const Status staged = pair_->stage(MessageKind::hello, offer, terms_.greeting); !staged) {
    return fail(staged.error());
  }
  flush();
}

// ---- passive --------------------------------------------------------------------------------------------

void RdmaConnection::start_passive(rdma_cm_id* id, const ConnectRequest& request, const ConnectReply& reply,
                                   ConnectionCallbacks callbacks) {
  id_ = id;
  request_ = request;
  reply_ = reply;
  reply_.mtu_bytes =
      static_cast<std::uint16_t>(std::min<std::uint32_t>(core_.place().mtu_bytes, request.mtu_bytes));
  reply_.data_slots = core_.options().data_slots;
  reply_.control_slots = core_.options().control_slots;
  generation_ = reply.generation;
  mtu_bytes_ = reply_.mtu_bytes;
  peer_ = peer_address_of(id);
  callbacks_ = std::move(callbacks);
  set(ConnectionState::connecting, "asked by " + peer_, core_.options().connecting_deadline);
  job(
      "rdma_migrate_id",
      [this]() -> Status {
        if (::rdma_migrate_id(id_, core_.channel()) != 0) return cm_error("rdma_migrate_id");
        id_->context =
            reinterpret_cast<void*>(tag());  // of this core, so not while it stands on the listener's
        if (id_->verbs == nullptr || core_.place().device != ::ibv_get_device_name(id_->verbs->device)) {
          return Error(RdmaErrc::unreachable, "the request came through another device");
        }
        core_.calling("ibv_create_qp");
        return make_queue_pair();
      },
      [this] {
        pair_->agree(generation_, request_.data_slots, request_.control_slots);
        if (const Status posted = pair_->post_all_receives(); !posted) return fail(posted.error());
        job(
            "rdma_init_qp_attr",
            [this]() -> Status {
              TL_TRY(move_to_rts());
              core_.calling("rdma_accept");
              std::array<std::byte, kConnectReplyBytes> bytes{};
              encode_reply(reply_, bytes);
              rdma_conn_param parameters{};
              parameters.private_data = bytes.data();
              parameters.private_data_len = static_cast<std::uint8_t>(bytes.size());
              parameters.rnr_retry_count = core_.options().rnr_retry;
              parameters.qp_num = pair_->number();
              if (::rdma_accept(id_, &parameters) != 0) return cm_error_of_peer("rdma_accept");
              connected_ = true;
              return {};
            },
            [this] { local_ready(); });
      });
}

// ---- both -----------------------------------------------------------------------------------------------

void RdmaConnection::local_ready() {
  set(ConnectionState::local_ready, "", core_.options().greeting_deadline);
  if (active_) return say_hello();
  deliver_greeting();
}

Status RdmaConnection::make_queue_pair() {
  RdmaCore::Verbs& verbs = core_.verbs();
  QueuePair::Place place;
  place.pd = verbs.pd.get();
  place.cq = verbs.cq.get();
  place.arena = core_.arena_of(slot_);
  place.arena_lkey = verbs.arena_mr->lkey;
  place.slot = slot_;
  place.generation = slot_generation_;
  TL_TRY(pair_, QueuePair::create(place, verbs.shape));
  ibv_qp_attr attributes{};
  int mask = 0;
  attributes.qp_state = IBV_QPS_INIT;
  core_.calling("rdma_init_qp_attr");
  if (::rdma_init_qp_attr(id_, &attributes, &mask) != 0) {
    return active_ ? cm_error("rdma_init_qp_attr for INIT") : cm_error_of_peer("rdma_init_qp_attr for INIT");
  }
  // Only the side that receives batches is written to.
  attributes.qp_access_flags =
      active_ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;
  mask |= IBV_QP_ACCESS_FLAGS;
  core_.calling("ibv_modify_qp");
  return pair_->move_to(attributes, mask & kUserMask);
}

Status RdmaConnection::move_to_rts() {
  const RdmaOptions& options = core_.options();
  ibv_qp_attr attributes{};
  int mask = 0;
  attributes.qp_state = IBV_QPS_RTR;
  core_.calling("rdma_init_qp_attr");
  if (::rdma_init_qp_attr(id_, &attributes, &mask) != 0) return cm_error_of_peer("rdma_init_qp_attr for RTR");
  core_.calling("ibv_query_gid_ex");
  TL_TRY(check_route(core_.verbs().context.get(), core_.place(), attributes.ah_attr, peer_));
  attributes.path_mtu = std::min({attributes.path_mtu, mtu_of(core_.place().mtu_bytes), mtu_of(mtu_bytes_)});
  // rdma_cm leaves 0 here, which is the longest of all waits: 655 ms.
  attributes.min_rnr_timer = options.min_rnr_timer;
  mask |= IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MTU;
  core_.calling("ibv_modify_qp");
  TL_TRY(pair_->move_to(attributes, mask & kUserMask));

  attributes = {};
  mask = 0;
  attributes.qp_state = IBV_QPS_RTS;
  core_.calling("rdma_init_qp_attr");
  if (::rdma_init_qp_attr(id_, &attributes, &mask) != 0) return cm_error_of_peer("rdma_init_qp_attr for RTS");
  attributes.timeout = options.ack_timeout;
  attributes.retry_cnt = options.retry_count;
  attributes.rnr_retry = options.rnr_retry;
  mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  core_.calling("ibv_modify_qp");
  return pair_->move_to(attributes, mask & kUserMask);
}

void RdmaConnection::on_cm(const CmEvent& event) {
  if (ended()) return;
  if (busy_) {
    if (deferred_.size() >= kDeferredMax)
      return fail(Error(RdmaErrc::protocol, "rdma_cm floods the connection"));
    deferred_.push_back(event);
    return;
  }
  const auto failed = [&](const char* what) {
    fail(Error(RdmaErrc::unreachable, describe() + ": " + what + ": rdma_cm says " +
                                          ::rdma_event_str(static_cast<rdma_cm_event_type>(event.kind)) +
                                          ", status " + std::to_string(event.status)));
  };
  const bool resolving = active_ && state_ == ConnectionState::resolving;
  switch (event.kind) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (resolving) on_address();
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (resolving) on_route();
      return;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      // A second one belongs to an attempt that is over, or is none.
      if (active_ && state_ == ConnectionState::connecting && generation_ == Generation{}) on_reply(event);
      return;
    case RDMA_CM_EVENT_REJECTED:
      // From a peer that has said hello it is about something older.
      if (ready() || greeting_) return;
      return active_ ? on_reject(event) : failed("the peer gave up");
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      // Once the queue pair serves, HELLO decides: rdma_cm also says so when only its last message was lost.
      if (state_ != ConnectionState::resolving && state_ != ConnectionState::connecting) return;
      return failed("no connection");
    case RDMA_CM_EVENT_DISCONNECTED:
      return on_disconnect();
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return fail(Error(RdmaErrc::device_failed, core_.place().device + " was removed"));
    default:
      // ESTABLISHED says nothing that HELLO will not say better.
      return;
  }
}

void RdmaConnection::on_disconnect() {
  // What the peer sent before it went is in the CQ.
  core_.poll_completions(~0U);
  if (!ended())
    fail(Error(RdmaErrc::peer_lost, describe() + ": disconnected; the peer's process ended or let go"));
}

}  // namespace tidelock
