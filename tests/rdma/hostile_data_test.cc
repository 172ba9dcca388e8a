// A peer that breaks the rules once both have said hello: credits, batches, greetings out of place.
#include <string>
#include <vector>

#include "hostile_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

struct Case {
  RdmaErrc code;
  const char* word;
  std::function<void(RawPeer&, RdmaConnection&)> act;
};

/// The connection ends with that error and is torn down; others of its core work on.
void check_ended(FakeRig& rig, RawPeer& peer, RdmaConnection& victim, const Case& c) {
  REQUIRE(peer.run_until([&] { return victim.ended(); }));
  const std::string error = victim.error().message();
  CAPTURE(error);
  CHECK(victim.error() == c.code);
  CHECK(error.find(c.word) != std::string::npos);
  CHECK(victim.state() == ConnectionState::draining);
  CHECK(peer.pass_until([&] { return victim.torn_down(); }, seconds(2)));
  CHECK(victim.state() ==
        (c.code == RdmaErrc::peer_closed ? ConnectionState::closed : ConnectionState::failed));
  rig.abandon_all();
}

/// The rig's side sends a batch, so that there is something to credit.
void publish_one(RawPeer& peer, RdmaConnection& victim, FakeRig& rig) {
  REQUIRE(victim.attach(rig.log));
  const Bytes range = Bytes(rig.log).first(64);
  REQUIRE(victim.publish(std::array<std::byte, 80>{}, std::span(&range, 1)));
  victim.flush();
  REQUIRE(peer.run_until([&] { return !peer.written.empty(); }));
}

constexpr std::size_t kQuarter = RawPeer::kRingBytes / 4;

}  // namespace

TEST_CASE("rdma/connection: what an active peer may not say to a ready passive side is named") {
  FakeRig rig;
  const std::vector<Case> cases{
      {RdmaErrc::protocol, "not due", [](RawPeer& p, RdmaConnection&) { p.send(p.hello()); }},
      {RdmaErrc::protocol, "more control frames",
       [](RawPeer& p, RdmaConnection&) {
         for (int i = 0; i < 17; ++i) p.send_control();
       }},
      {RdmaErrc::protocol, "released batches",
       [&rig](RawPeer& p, RdmaConnection& victim) {
         publish_one(p, victim, rig);
         p.batches_released = 2;
         p.send_control();
       }},
      {RdmaErrc::protocol, "released batches",
       [&rig](RawPeer& p, RdmaConnection& victim) {
         publish_one(p, victim, rig);
         p.batches_released = 1;
         p.send(p.message(MessageKind::credit));
         p.batches_released = 0;  // back
         p.send(p.message(MessageKind::credit));
       }},
      {RdmaErrc::protocol, "consumed control frames",
       [](RawPeer& p, RdmaConnection&) {
         p.controls_consumed = ~std::uint64_t{0};
         p.send(p.message(MessageKind::credit));
       }},
      {RdmaErrc::protocol, "consumed control frames",
       [](RawPeer& p, RdmaConnection& victim) {
         REQUIRE(victim.send_control(std::array<std::byte, kControlFrameSize>{}));
         victim.flush();
         REQUIRE(p.run_until([&] { return p.heard.size() == 2; }));
         p.controls_consumed = 1;
         p.send(p.message(MessageKind::credit));
         p.controls_consumed = 0;
         p.send(p.message(MessageKind::credit));
       }},
      {RdmaErrc::protocol, "unknown kind",
       [](RawPeer& p, RdmaConnection&) { p.send(p.message(static_cast<MessageKind>(200), Message(64))); }},
      {RdmaErrc::protocol, "length that its kind does not have",
       [](RawPeer& p, RdmaConnection&) { p.send(p.message(MessageKind::control, Message(63))); }},
      {RdmaErrc::protocol, "magic", [](RawPeer& p, RdmaConnection&) { p.send(Message(96)); }},
      {RdmaErrc::protocol, "too few bytes", [](RawPeer& p, RdmaConnection&) { p.send({}); }},
      {RdmaErrc::completion_failed, "longer than the receive",
       [](RawPeer& p, RdmaConnection&) { p.send(Message(kReceiveBytes + 1)); }},
      {RdmaErrc::peer_closed, "fake0",
       [](RawPeer& p, RdmaConnection&) { p.send(p.message(MessageKind::close)); }},
      {RdmaErrc::queue_pair_failed, "refused what the peer asked",
       [](RawPeer& p, RdmaConnection&) { p.write(0, 64, 1); }},
  };
  Bystanders others(rig);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    RawPeer peer(rig, "fake1");
    peer.request.generation = {static_cast<std::uint32_t>(i) + 1};
    peer.greet();
    RdmaConnection& victim = *rig.accepted;
    cases[i].act(peer, victim);
    check_ended(rig, peer, victim, cases[i]);
  }
  others.check_unharmed();
}

TEST_CASE("rdma/connection: what a passive peer may not do to a ready active side is named") {
  const std::vector<Case> cases{
      {RdmaErrc::protocol, "next sequence", [](RawPeer& p, RdmaConnection&) { p.write(0, 64, 2); }},
      {RdmaErrc::protocol, "next sequence", [](RawPeer& p, RdmaConnection&) { p.write(0, 64, 0); }},
      {RdmaErrc::protocol, "next sequence",
       [](RawPeer& p, RdmaConnection&) {
         p.write(0, 64, 1);
         p.write(64, 64, 1);
       }},
      {RdmaErrc::protocol, "size that no batch can have",
       [](RawPeer& p, RdmaConnection&) { p.write(0, 0, 1); }},
      {RdmaErrc::protocol, "size that no batch can have",
       [](RawPeer& p, RdmaConnection&) { p.write(0, kQuarter + 1, 1); }},
      {RdmaErrc::protocol, "not released",
       [](RawPeer& p, RdmaConnection&) {
         for (std::uint32_t i = 0; i < 4; ++i) p.write(i * kQuarter, kQuarter, i + 1);
         p.write(0, 64, 5);
       }},
      {RdmaErrc::protocol, "more batches",
       [](RawPeer& p, RdmaConnection&) {
         for (std::uint32_t i = 0; i < 65; ++i) p.write(i * 64, 64, i + 1);
       }},
      {RdmaErrc::protocol, "more control frames",
       [](RawPeer& p, RdmaConnection&) {
         for (int i = 0; i < 17; ++i) p.send_control();
       }},
      {RdmaErrc::protocol, "released batches",
       [](RawPeer& p, RdmaConnection&) {
         p.batches_released = 1;  // of the side that sends none
         p.send(p.message(MessageKind::credit));
       }},
      {RdmaErrc::protocol, "not due",
       [](RawPeer& p, RdmaConnection&) {
         p.send(p.message(MessageKind::hello_ack, Message(kGreetingBytes)));
       }},
      {RdmaErrc::protocol, "not due",
       [](RawPeer& p, RdmaConnection&) { p.send(p.message(MessageKind::refuse, Message(kGreetingBytes))); }},
      {RdmaErrc::protocol, "checksum",
       [](RawPeer& p, RdmaConnection&) {
         Message bytes = p.message(MessageKind::credit);
         bytes[24] ^= std::byte{1};
         p.send(bytes);
       }},
      {RdmaErrc::queue_pair_failed, "refused what the peer asked",
       [](RawPeer& p, RdmaConnection&) { p.write(RawPeer::kRingBytes - 32, 64, 1); }},
      {RdmaErrc::peer_lost, "disconnected", [](RawPeer& p, RdmaConnection&) { rdma_disconnect(p.id()); }},
  };
  FakeRig rig;
  Bystanders others(rig);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    RawPeer peer(rig, "fake0");
    peer.answer();
    RdmaConnection& victim = *rig.connected;
    cases[i].act(peer, victim);
    check_ended(rig, peer, victim, cases[i]);
  }
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a batch for which the peer's ring has no key is reported with what it means") {
  struct Wrong {
    ibv_wc_status status;
    std::function<void(RawPeer&)> change;
  };
  const std::vector<Wrong> cases{
      {IBV_WC_REM_ACCESS_ERR, [](RawPeer& p) { p.offer.rkey += 77; }},
      {IBV_WC_REM_ACCESS_ERR, [](RawPeer& p) { p.offer.address += std::uint64_t{1} << 40; }},
      {IBV_WC_REM_INV_REQ_ERR,
       [](RawPeer& p) {
         ibv_qp_attr attributes{};
         attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
         REQUIRE(ibv_modify_qp(p.queue_pair(), &attributes, IBV_QP_ACCESS_FLAGS) == 0);
       }},
  };
  FakeRig rig;
  Bystanders others(rig);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    RawPeer peer(rig, "fake1");
    peer.request.generation = {static_cast<std::uint32_t>(i) + 1};
    peer.join();
    peer.offer_ring();
    cases[i].change(peer);
    peer.send(peer.hello());
    REQUIRE(peer.run_until([&] { return rig.accepted != nullptr && rig.accepted->ready(); }));
    RdmaConnection& victim = *rig.accepted;
    REQUIRE(victim.attach(rig.log));
    const Bytes range = Bytes(rig.log).first(64);
    REQUIRE(victim.publish(std::array<std::byte, 80>{}, std::span(&range, 1)));
    victim.flush();
    REQUIRE(peer.run_until([&] { return victim.ended(); }));
    const std::string error = victim.error().message();
    CAPTURE(error);
    CHECK(error.find(ibv_wc_status_str(cases[i].status)) != std::string::npos);
    check_ended(rig, peer, victim, {RdmaErrc::completion_failed, "does not allow the write", nullptr});
  }
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a peer that returns no credit stops what is sent, and loses nothing") {
  FakeRig rig;
  RawPeer peer(rig, "fake1");
  peer.greet();
  RdmaConnection& victim = *rig.accepted;
  REQUIRE(victim.attach(rig.log));
  const Bytes range = Bytes(rig.log).first(64);
  std::uint64_t published = 0;
  for (int i = 0; i < 200; ++i) {
    if (victim.publish(std::array<std::byte, 80>{}, std::span(&range, 1))) ++published;
    victim.flush();
    for (int turn = 0; turn < 4; ++turn) peer.turn();
  }
  CHECK(published == peer.reply.data_slots);
  CHECK(victim.publish({}, std::span(&range, 1)).error() == RdmaErrc::no_credit);
  CHECK(victim.ready());
  CHECK(peer.written.size() == published);
  peer.batches_released = published;
  peer.send(peer.message(MessageKind::credit));
  REQUIRE(peer.run_until([&] { return victim.room_came(); }));
  CHECK(victim.publish(std::array<std::byte, 80>{}, std::span(&range, 1)));
}
