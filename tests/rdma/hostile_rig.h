/// A peer that speaks by raw verbs, so that it can break every rule, against a real side of a FakeRig; and a
/// pair of good connections on the same cores, which must not notice.
/// Thread:   one
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fake/meeting.h"
#include "fake_rig.h"
#include "message.h"

namespace tidelock::test {

using Message = std::vector<std::byte>;

inline Message encoded(const ConnectRequest& request) {
  Message bytes(kConnectRequestBytes);
  encode_request(request, std::span<std::byte, kConnectRequestBytes>(bytes));
  return bytes;
}
inline Message encoded(const ConnectReply& reply) {
  Message bytes(kConnectReplyBytes);
  encode_reply(reply, std::span<std::byte, kConnectReplyBytes>(bytes));
  return bytes;
}

class RawPeer {
 public:
  static constexpr std::uint16_t kPort = 7999;  ///< where a passive one listens
  static constexpr std::size_t kRingBytes = kRingBytesMin;

  /// On fake1 to connect to the rig's passive side, on fake0 to be connected to by its active one.
  RawPeer(FakeRig& rig, const std::string& device)
      : rig_(rig), side_(device, {256, kReceives, 4, 64, 4096}), memory_(kRingBytes * 2) {
    mr_ = ibv_reg_mr(side_.pd, memory_.data(), memory_.size(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    REQUIRE(mr_ != nullptr);
    request.shard_count = 2;
    request.mtu_bytes = 4096;
    request.node = 3;
    request.generation = {1};
    request.incarnation = 55;
    request.data_slots = 64;
    request.control_slots = 16;
    reply.shard = {1};
    reply.mtu_bytes = 4096;
    reply.node = 1;
    reply.generation = {41};
    reply.data_slots = 64;
    reply.control_slots = 16;
    reply.ring_bytes = kRingBytes;
  }
  ~RawPeer() {
    for (rdma_cm_id* each : {id_, listener_}) {
      if (each != nullptr) rdma_destroy_id(each);
    }
    ibv_dereg_mr(mr_);
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void turn() {
    rig_.turn();
    for (auto& event : channel_.take_all()) events_.push_back(std::move(event));
    for (const ibv_wc& wc : side_.poll()) {
      if (wc.status != IBV_WC_SUCCESS) {
        failures.push_back(wc.status);
      } else if ((wc.opcode & IBV_WC_RECV) != 0) {
        const std::byte* at = memory_.data() + kReceivesAt + wc.wr_id * kReceiveBytes;
        if (wc.opcode == IBV_WC_RECV) heard.emplace_back(at, at + wc.byte_len);
        if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) written.push_back(wc.byte_len);
        post_receive(wc.wr_id);
      }
    }
  }
  bool run_until(const std::function<bool()>& done) {
    for (int i = 0; i < 2000 && !done(); ++i) turn();
    return done();
  }
  /// Turns while virtual time passes.
  bool pass_until(const std::function<bool()>& done, Duration at_most) {
    for (const Instant end = rig_.clock.now() + at_most; !done() && rig_.clock.now() < end;) {
      for (int i = 0; i < 8; ++i) turn();
      rig_.clock.advance(milliseconds(5));
    }
    return done();
  }

  // ---- as the active side -----------------------------------------------------------------------------
  void connect(Bytes private_data, std::uint16_t port = FakeRig::kPort) {
    REQUIRE(rdma_create_id(channel_.handle, &id_, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in source = fake::address_of("10.0.0.2", 0), target = fake::address_of("10.0.0.1", port);
    REQUIRE(rdma_resolve_addr(id_, reinterpret_cast<sockaddr*>(&source), reinterpret_cast<sockaddr*>(&target),
                              1000) == 0);
    await(RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(id_, 1000) == 0);
    await(RDMA_CM_EVENT_ROUTE_RESOLVED);
    prepare();
    rdma_conn_param param = parameters(private_data);
    REQUIRE(rdma_connect(id_, &param) == 0);
  }
  /// Connected as far as rdma_cm goes; nothing said on the queue pair.
  void join() {
    connect(encoded(request));
    const auto event = await(RDMA_CM_EVENT_CONNECT_RESPONSE);
    const auto answer = decode_reply(std::as_bytes(std::span(event.private_data)));
    REQUIRE(answer);
    reply = *answer;
    generation = reply.generation;
    move(IBV_QPS_RTR);
    move(IBV_QPS_RTS);
    REQUIRE(rdma_establish(id_) == 0);
  }
  /// The right hello; `offer` may be changed before.
  [[nodiscard]] Message hello() const {
    Message payload(kRingOfferBytes + kGreetingBytes);
    encode_offer(offer, std::span<std::byte, kRingOfferBytes>(payload.data(), kRingOfferBytes));
    return message(MessageKind::hello, payload);
  }
  void greet() {
    join();
    offer_ring();
    send(hello());
    REQUIRE(run_until([&] { return !heard.empty(); }));
  }
  void offer_ring() { offer = {reinterpret_cast<std::uint64_t>(memory_.data()), kRingBytes, mr_->rkey}; }

  // ---- as the passive side ----------------------------------------------------------------------------
  void listen() {
    REQUIRE(rdma_create_id(channel_.handle, &listener_, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in here = fake::address_of("10.0.0.1", kPort);
    REQUIRE(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&here)) == 0);
    REQUIRE(rdma_listen(listener_, 0) == 0);
  }
  /// The rig's active side asks.
  void be_asked() {
    listen();
    auto terms = rig_.default_active();
    terms.port = kPort;
    rig_.connect(terms);
    id_ = await(RDMA_CM_EVENT_CONNECT_REQUEST).id;
  }
  void accept(Bytes private_data) {
    prepare();
    move(IBV_QPS_RTR);
    move(IBV_QPS_RTS);
    rdma_conn_param param = parameters(private_data);
    REQUIRE(rdma_accept(id_, &param) == 0);
  }
  void reject(Bytes private_data) {
    REQUIRE(rdma_reject(id_, private_data.data(), static_cast<std::uint8_t>(private_data.size())) == 0);
  }
  /// Up to the hello of the active side.
  void be_greeted() {
    be_asked();
    generation = reply.generation;
    accept(encoded(reply));
    REQUIRE(run_until([&] { return !heard.empty(); }));
    const auto offered = decode_offer(Bytes(heard.at(0)).subspan(kMessageHeaderBytes), kRingBytes);
    REQUIRE(offered);
    offer = *offered;
  }
  void answer() {
    be_greeted();
    send(message(MessageKind::hello_ack, Message(kGreetingBytes)));
    REQUIRE(run_until([&] { return rig_.connected != nullptr; }));
  }

  // ---- what is said -----------------------------------------------------------------------------------
  [[nodiscard]] Message message(MessageKind kind, Bytes payload = {}) const {
    MessageHeader header;
    header.kind = kind;
    header.payload_bytes = static_cast<std::uint16_t>(payload.size());
    header.generation = generation;
    header.batches_released = batches_released;
    header.controls_consumed = controls_consumed;
    Message bytes(kMessageHeaderBytes + payload.size());
    encode_message(header, std::span<std::byte, kMessageHeaderBytes>(bytes.data(), kMessageHeaderBytes));
    std::copy(payload.begin(), payload.end(), bytes.begin() + kMessageHeaderBytes);
    return bytes;
  }
  void send(Bytes bytes) {
    std::byte* at = memory_.data() + kSendsAt + (sent_++ % 64) * 512;
    std::copy(bytes.begin(), bytes.end(), at);
    post(IBV_WR_SEND, at, bytes.size(), 0, 0);
  }
  void send_control() { send(message(MessageKind::control, Message(kControlBytes))); }
  /// A batch into the ring that the peer offered.
  void write(std::uint64_t offset, std::size_t bytes, std::uint32_t imm) {
    post(IBV_WR_RDMA_WRITE_WITH_IMM, memory_.data(), bytes, offer.address + offset, imm);
  }

  fake::Event await(rdma_cm_event_type type) {
    const auto its = [type](const fake::Event& event) { return event.type == type; };
    REQUIRE(run_until([&] { return std::any_of(events_.begin(), events_.end(), its); }));
    const auto found = std::find_if(events_.begin(), events_.end(), its);
    const fake::Event event = *found;
    events_.erase(found);
    return event;
  }
  [[nodiscard]] ibv_qp* queue_pair() const { return side_.qp; }
  [[nodiscard]] rdma_cm_id* id() const { return id_; }

  ConnectRequest request;
  ConnectReply reply;
  RingOffer offer;
  Generation generation{};
  std::uint64_t batches_released = 0, controls_consumed = 0;
  std::vector<Message> heard;
  std::vector<std::uint32_t> written;  ///< sizes of batches that came
  std::vector<ibv_wc_status> failures;

 private:
  static constexpr std::uint32_t kReceives = 256;
  static constexpr std::size_t kReceivesAt = kRingBytes;
  static constexpr std::size_t kSendsAt = kReceivesAt + kReceives * kReceiveBytes;

  void prepare() {
    move(IBV_QPS_INIT);
    for (std::uint32_t i = 0; i < kReceives; ++i) post_receive(i);
  }
  void move(ibv_qp_state state) {
    ibv_qp_attr attributes{};
    int mask = 0;
    attributes.qp_state = state;
    REQUIRE(rdma_init_qp_attr(id_, &attributes, &mask) == 0);
    if (state == IBV_QPS_INIT) {
      attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
      mask |= IBV_QP_ACCESS_FLAGS;
    }
    REQUIRE(ibv_modify_qp(side_.qp, &attributes, mask & 0x1fffff) == 0);
  }
  void post_receive(std::uint64_t number) {
    ibv_sge piece{reinterpret_cast<std::uint64_t>(memory_.data()) + kReceivesAt + number * kReceiveBytes,
                  kReceiveBytes, mr_->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = number;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    REQUIRE(ibv_post_recv(side_.qp, &wr, &bad) == 0);
  }
  void post(ibv_wr_opcode opcode, const std::byte* from, std::size_t bytes, std::uint64_t to,
            std::uint32_t imm) {
    ibv_sge piece{reinterpret_cast<std::uint64_t>(from), static_cast<std::uint32_t>(bytes), mr_->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &piece;
    wr.num_sge = bytes == 0 ? 0 : 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htobe32(imm);
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = offer.rkey;
    REQUIRE(ibv_post_send(side_.qp, &wr, &bad) == 0);
  }
  [[nodiscard]] rdma_conn_param parameters(Bytes private_data) const {
    rdma_conn_param param{};
    param.private_data = private_data.data();
    param.private_data_len = static_cast<std::uint8_t>(private_data.size());
    param.retry_count = 6;
    param.rnr_retry_count = 7;
    param.qp_num = side_.qp->qp_num;
    return param;
  }

  FakeRig& rig_;
  fake::Side side_;
  fake::EventChannel channel_;
  std::vector<std::byte> memory_;  ///< a ring, receives, what is sent
  ibv_mr* mr_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  std::vector<fake::Event> events_;
  std::uint64_t sent_ = 0;
};

/// A pair of connections on the cores of a rig that works as long as nobody harms it.
class Bystanders {
 public:
  explicit Bystanders(FakeRig& rig) : rig_(rig) {
    rig.establish();
    passive_ = std::exchange(rig.accepted, nullptr);
    active_ = std::exchange(rig.connected, nullptr);
    rig.connecting = nullptr;
    REQUIRE(passive_->attach(rig.log));
  }
  ~Bystanders() {
    passive_->abandon();
    active_->abandon();
  }
  Bystanders(const Bystanders&) = delete;
  Bystanders& operator=(const Bystanders&) = delete;

  /// A batch and a control frame make their ways.
  void check_unharmed() {
    REQUIRE(passive_->ready());
    REQUIRE(active_->ready());
    const Bytes range = Bytes(rig_.log).first(640);
    const std::array<std::byte, 80> header{};
    const std::array<std::byte, kControlFrameSize> frame{};
    REQUIRE(passive_->publish(header, std::span(&range, 1)));
    REQUIRE(active_->send_control(frame));
    passive_->flush();
    active_->flush();
    REQUIRE(rig_.run_until([&] { return active_->batch_waiting() && passive_->control_waiting(); }));
    CHECK(active_->receive()->size() == header.size() + range.size());
    active_->release();
    passive_->receive_control();
  }

 private:
  FakeRig& rig_;
  RdmaConnection* passive_ = nullptr;
  RdmaConnection* active_ = nullptr;
};

}  // namespace tidelock::test
