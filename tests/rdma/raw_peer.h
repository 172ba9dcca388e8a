/// A peer in the test's own hands: rdma_cm and verbs, and no rules but those of the test. It is the active
/// side.
/// Thread:   one
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <tidelock/base/bytes.h>
#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/private_data.h>

#include "message.h"

namespace tidelock::test {

class RawPeer {
 public:
  static constexpr std::size_t kBufferBytes = 256;
  static constexpr int kReceives = 64;

  /// Resolves, which takes nothing of the peer, and makes a queue pair. `ring_bytes` are registered for the
  /// peer to write to.
  RawPeer(const std::string& source, const std::string& target, std::uint16_t port,
          std::size_t ring_bytes = kRingBytesMin)
      : memory_(ring_bytes + kBufferBytes * (kReceives + 1)), ring_bytes_(ring_bytes) {
    channel_ = ::rdma_create_event_channel();
    REQUIRE(channel_ != nullptr);
    REQUIRE(::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) == 0);
    REQUIRE(::rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in from = address(source, 0);
    sockaddr_in to = address(target, port);
    REQUIRE(::rdma_resolve_addr(id_, reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&to),
                                30'000) == 0);
    await(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(::rdma_resolve_route(id_, 30'000) == 0);
    await(RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_queue_pair();
  }
  ~RawPeer() {
    ::rdma_destroy_qp(id_);
    ::rdma_destroy_id(id_);
    ::ibv_destroy_cq(cq_);
    ::ibv_dereg_mr(mr_);
    ::ibv_dealloc_pd(pd_);
    ::rdma_destroy_event_channel(channel_);
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void connect(Bytes private_data) {
    rdma_conn_param parameters{};
    parameters.private_data = private_data.data();
    parameters.private_data_len = static_cast<std::uint8_t>(private_data.size());
    parameters.retry_count = 6;
    parameters.rnr_retry_count = 7;
    REQUIRE(::rdma_connect(id_, &parameters) == 0);
  }
  void connect(const ConnectRequest& request) {
    std::array<std::byte, kConnectRequestBytes> bytes{};
    encode_request(request, bytes);
    connect(Bytes(bytes));
  }

  /// Does not wait. On ESTABLISHED librdmacm has moved the queue pair to RTS.
  std::optional<CmEvent> next_event() {
    rdma_cm_event* event = nullptr;
    if (::rdma_get_cm_event(channel_, &event) != 0) return std::nullopt;
    CmEvent copy;
    copy.kind = event->event;
    copy.status = event->status;
    if ((event->event == RDMA_CM_EVENT_ESTABLISHED || event->event == RDMA_CM_EVENT_REJECTED) &&
        event->param.conn.private_data != nullptr) {
      copy.bytes = event->param.conn.private_data_len;
      std::memcpy(copy.private_data.data(), event->param.conn.private_data, copy.bytes);
    }
    ::rdma_ack_cm_event(event);
    return copy;
  }

  /// A message with a right header, unless the test has made it wrong.
  void send(MessageHeader header, Bytes payload) {
    std::byte* at = memory_.data() + ring_bytes_;
    header.payload_bytes = static_cast<std::uint16_t>(payload.size());
    encode_message(header, std::span<std::byte, kMessageHeaderBytes>(at, kMessageHeaderBytes));
    std::memcpy(at + kMessageHeaderBytes, payload.data(), payload.size());
    post(IBV_WR_SEND, kMessageHeaderBytes + payload.size());
  }
  void send_hello(Generation generation, const RingOffer& ring) {
    std::array<std::byte, kRingOfferBytes + kGreetingBytes> payload{};
    encode_offer(ring, std::span<std::byte, kRingOfferBytes>(payload.data(), kRingOfferBytes));
    send({MessageKind::hello, 0, generation, 0, 0}, payload);
  }
  /// WRITE_WITH_IMM of no bytes, which needs no key.
  void write_nothing() { post(IBV_WR_RDMA_WRITE_WITH_IMM, 0); }

  [[nodiscard]] RingOffer ring() const {
    return {reinterpret_cast<std::uint64_t>(memory_.data()), ring_bytes_, mr_->rkey};
  }
  /// All completions so far that were not successful.
  std::vector<ibv_wc_status> failures() {
    std::vector<ibv_wc_status> found;
    ibv_wc completion{};
    while (::ibv_poll_cq(cq_, 1, &completion) > 0) {
      if (completion.status != IBV_WC_SUCCESS) found.push_back(completion.status);
    }
    return found;
  }

 private:
  static sockaddr_in address(const std::string& text, std::uint16_t port) {
    sockaddr_in made{};
    made.sin_family = AF_INET;
    made.sin_port = htons(port);
    REQUIRE(::inet_pton(AF_INET, text.c_str(), &made.sin_addr) == 1);
    return made;
  }
  void await(rdma_cm_event_type kind) {
    pollfd wait{channel_->fd, POLLIN, 0};
    REQUIRE(::poll(&wait, 1, 60'000) == 1);
    const auto event = next_event();
    REQUIRE(event.has_value());
    REQUIRE(event->kind == kind);
  }
  void make_queue_pair() {
    pd_ = ::ibv_alloc_pd(id_->verbs);
    REQUIRE(pd_ != nullptr);
    cq_ = ::ibv_create_cq(id_->verbs, 2 * kReceives, nullptr, nullptr, 0);
    REQUIRE(cq_ != nullptr);
    mr_ = ::ibv_reg_mr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    REQUIRE(mr_ != nullptr);
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq_;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {kReceives, kReceives, 1, 1, 0};
    REQUIRE(::rdma_create_qp(id_, pd_, &wanted) == 0);
    for (int i = 0; i < kReceives; ++i) {
      ibv_sge piece = piece_at(ring_bytes_ + kBufferBytes * static_cast<std::size_t>(i + 1), kBufferBytes);
      ibv_recv_wr request{};
      request.sg_list = &piece;
      request.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      REQUIRE(::ibv_post_recv(id_->qp, &request, &bad) == 0);
    }
  }
  [[nodiscard]] ibv_sge piece_at(std::size_t offset, std::size_t bytes) const {
    return {reinterpret_cast<std::uint64_t>(memory_.data() + offset), static_cast<std::uint32_t>(bytes),
            mr_->lkey};
  }
  void post(ibv_wr_opcode opcode, std::size_t bytes) {
    ibv_sge piece = piece_at(ring_bytes_, bytes);
    ibv_send_wr request{};
    request.sg_list = &piece;
    request.num_sge = bytes == 0 ? 0 : 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    REQUIRE(::ibv_post_send(id_->qp, &request, &bad) == 0);
  }

  std::vector<std::byte> memory_;  ///< the ring, what is sent, and a buffer for each receive
  std::size_t ring_bytes_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
};

}  // namespace tidelock::test
