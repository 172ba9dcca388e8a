// A peer that breaks the rules on the way up: in private data, or before both have said hello. Each is told
// or ends with the cause, and nobody else on the core notices.
#include <string>
#include <utility>
#include <vector>

#include "has.h"
#include "hostile_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// The error's own text and a word of its cause.
void check_error(const std::string& error, RdmaErrc code, const char* word) {
  CAPTURE(error);
  CHECK(has(error, make_error_code(code).message()));
  CHECK(has(error, word));
}

std::uint64_t live(RdmaSide& side) { return side.core().counters().connections_live.load(); }
std::uint64_t made(RdmaSide& side) { return side.core().counters().connections_made.load(); }

}  // namespace

TEST_CASE("rdma/listener: a request that does not fit is rejected with its reason and both values") {
  struct Case {
    const char* what;
    RejectReason reason;
    std::uint64_t ours, theirs;
    std::function<void(ConnectRequest&)> change;
  };
  const std::vector<Case> cases{
      {"newer versions", RejectReason::version, 0x1'0001, 0x2'0003,
       [](auto& r) { r.version_min = 2, r.version_max = 3; }},
      {"older versions", RejectReason::version, 0x1'0001, 0,
       [](auto& r) { r.version_min = r.version_max = 0; }},
      {"shard count", RejectReason::shard_count, 2, 4, [](auto& r) { r.shard_count = 4; }},
      {"epoch", RejectReason::epoch, 3, 4,
       [](auto& r) {
         r.epoch = {4, 1};
       }},
      {"epoch's node", RejectReason::epoch, 3, 3,
       [](auto& r) {
         r.epoch = {3, 2};
       }},
      {"a shard beyond", RejectReason::malformed, 0, 0, [](auto& r) { r.shard = {2}; }},
      {"no shards", RejectReason::malformed, 0, 0, [](auto& r) { r.shard_count = 0; }},
      {"slots", RejectReason::malformed, 0, 0, [](auto& r) { r.data_slots = 3; }},
      {"MTU", RejectReason::malformed, 0, 0, [](auto& r) { r.mtu_bytes = 1500; }},
  };
  FakeRig rig;
  Bystanders others(rig);
  for (const Case& c : cases) {
    CAPTURE(std::string(c.what));
    RawPeer peer(rig, "fake1");
    c.change(peer.request);
    peer.connect(encoded(peer.request));
    const auto event = peer.await(RDMA_CM_EVENT_REJECTED);
    const auto reject = decode_reject(std::as_bytes(std::span(event.private_data)));
    REQUIRE(reject);
    CHECK(reject->reason == c.reason);
    CHECK(reject->ours == c.ours);
    CHECK(reject->theirs == c.theirs);
  }
  CHECK(made(rig.passive) == 1);
  others.check_unharmed();
}

TEST_CASE("rdma/listener: private data that is no request is rejected as malformed") {
  FakeRig rig;
  Bystanders others(rig);
  const Message good = encoded(RawPeer(rig, "fake1").request);
  std::vector<Message> bad{{},
                           Message(good.begin(), good.end() - 1),
                           Message(good.begin(), good.begin() + 8),
                           Message(56),
                           Message(56, std::byte{0xff})};
  Message longer = good;  // it says that it is longer than what fits
  store(longer.data() + 8, std::uint16_t{60});
  bad.push_back(longer);
  Random random(7);
  for (int i = 0; i < 50; ++i) {
    Message noise(random.below(57));
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random.below(256));
    bad.push_back(noise);
  }
  for (const Message& bytes : bad) {
    RawPeer peer(rig, "fake1");
    peer.connect(bytes);
    const auto event = peer.await(RDMA_CM_EVENT_REJECTED);
    const auto reject = decode_reject(std::as_bytes(std::span(event.private_data)));
    REQUIRE(reject);
    CHECK(reject->reason == RejectReason::malformed);
  }
  CHECK(made(rig.passive) == 1);
  others.check_unharmed();
}

TEST_CASE("rdma/listener: an older attempt of the same process is rejected, one of a new process is taken") {
  FakeRig rig;
  Bystanders others(rig);
  rig.answer = nullptr;
  RawPeer first(rig, "fake1");
  first.request.generation = {5};
  first.join();
  for (const std::uint32_t generation : {4U, 5U}) {
    RawPeer late(rig, "fake1");
    late.request.generation = {generation};
    late.connect(encoded(late.request));
    const auto event = late.await(RDMA_CM_EVENT_REJECTED);
    const auto reject = decode_reject(std::as_bytes(std::span(event.private_data)));
    REQUIRE(reject);
    CHECK(reject->reason == RejectReason::generation);
    CHECK(reject->ours == 5);
    CHECK(reject->theirs == generation);
  }
  RawPeer reborn(rig, "fake1");
  reborn.request.generation = {1};
  reborn.request.incarnation = 56;
  reborn.join();
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a reply that is none ends the active side with what is wrong with it") {
  struct Case {
    const char* word;
    std::function<Message(RawPeer&)> reply;
  };
  const auto changed = [](auto change) {
    return [change](RawPeer& peer) {
      change(peer.reply);
      return encoded(peer.reply);
    };
  };
  const auto damaged = [](std::size_t at) {
    return [at](RawPeer& peer) {
      Message bytes = encoded(peer.reply);
      bytes[at] ^= std::byte{1};
      return bytes;
    };
  };
  const std::vector<Case> cases{
      {"magic", [](RawPeer&) { return Message{}; }},
      {"checksum",
       [](RawPeer& peer) {
         Message whole = encoded(peer.reply);
         whole.resize(8);
         return whole;
       }},
      {"magic", [](RawPeer& peer) { return encoded(peer.request); }},
      {"magic", damaged(0)},
      {"length", damaged(6)},
      {"checksum", damaged(30)},
      {"version", changed([](auto& r) { r.version = 2; })},
      {"shard 0", changed([](auto& r) { r.shard = {0}; })},
      {"MTU", changed([](auto& r) { r.mtu_bytes = 9000; })},
      {"slots", changed([](auto& r) { r.control_slots = 0; })},
      {"ring size", changed([](auto& r) { r.ring_bytes = kRingBytesMin + 1; })},
      {"ring size", changed([](auto& r) { r.ring_bytes = kRingBytesMax * 2; })},
  };
  FakeRig rig;
  Bystanders others(rig);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    RawPeer peer(rig, "fake0");
    peer.be_asked();
    peer.accept(cases[i].reply(peer));
    REQUIRE(peer.run_until([&] { return !rig.active_error.empty(); }));
    check_error(rig.active_error, RdmaErrc::protocol, cases[i].word);
    CHECK(peer.pass_until([&] { return live(rig.active) == 1; }, seconds(2)));
  }
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a reject is told with its reason; one that is none is nobody listening") {
  struct Case {
    RejectReason reason;
    const char* word;
  };
  FakeRig rig;
  Bystanders others(rig);
  for (const Case& c :
       {Case{RejectReason::version, "versions"}, Case{RejectReason::epoch, "epoch"},
        Case{RejectReason::busy, "try again"}, Case{static_cast<RejectReason>(77), "reason 77"}}) {
    RawPeer peer(rig, "fake0");
    peer.be_asked();
    Message bytes(kConnectRejectBytes);
    encode_reject({c.reason, 1, 2}, std::span<std::byte, kConnectRejectBytes>(bytes));
    peer.reject(bytes);
    REQUIRE(peer.run_until([&] { return !rig.active_error.empty(); }));
    check_error(rig.active_error, RdmaErrc::rejected, c.word);
  }
  for (const Message& bytes : {Message{}, Message(32, std::byte{0x55}), Message(100, std::byte{1})}) {
    RawPeer peer(rig, "fake0");
    peer.be_asked();
    peer.reject(bytes);
    REQUIRE(peer.run_until([&] { return !rig.active_error.empty(); }));
    check_error(rig.active_error, RdmaErrc::unreachable, "10.0.0.1:7999");
  }
  others.check_unharmed();
}

TEST_CASE("rdma/connection: an active peer that connects and says nothing ends by the deadline") {
  FakeRig rig;
  Bystanders others(rig);
  RawPeer peer(rig, "fake1");
  peer.join();
  const Instant from = rig.clock.now();
  REQUIRE(peer.pass_until([&] { return !rig.passive_error.empty(); }, seconds(30)));
  CHECK((rig.clock.now() - from).ns >= seconds(4).ns);
  check_error(rig.passive_error, RdmaErrc::state_deadline, "local_ready");
  CHECK(peer.pass_until([&] { return live(rig.passive) == 1; }, seconds(2)));
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a passive peer that accepts and says nothing ends by the deadline") {
  FakeRig rig;
  Bystanders others(rig);
  RawPeer peer(rig, "fake0");
  peer.be_greeted();
  REQUIRE(peer.pass_until([&] { return !rig.active_error.empty(); }, seconds(30)));
  check_error(rig.active_error, RdmaErrc::state_deadline, "local_ready");
  CHECK(peer.pass_until([&] { return live(rig.active) == 1; }, seconds(2)));
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a passive peer that never answers the request ends by the deadline") {
  FakeRig rig;
  Bystanders others(rig);
  RawPeer peer(rig, "fake0");
  peer.be_asked();
  REQUIRE(peer.pass_until([&] { return !rig.active_error.empty(); }, seconds(30)));
  check_error(rig.active_error, RdmaErrc::state_deadline, "connecting");
  CHECK(peer.pass_until([&] { return live(rig.active) == 1; }, seconds(2)));
  others.check_unharmed();
}

TEST_CASE("rdma/connection: what an active peer may not say before its hello, or as its hello, is named") {
  struct Case {
    const char* word;
    std::function<void(RawPeer&)> act;
  };
  const std::vector<Case> cases{
      {"before both had said hello", [](RawPeer& p) { p.send_control(); }},
      {"before both had said hello", [](RawPeer& p) { p.send(p.message(MessageKind::credit)); }},
      {"not due", [](RawPeer& p) { p.send(p.message(MessageKind::hello_ack, Message(kGreetingBytes))); }},
      {"not due", [](RawPeer& p) { p.send(p.message(MessageKind::refuse, Message(kGreetingBytes))); }},
      {"unknown kind", [](RawPeer& p) { p.send(p.message(static_cast<MessageKind>(0))); }},
      {"unknown kind", [](RawPeer& p) { p.send(p.message(static_cast<MessageKind>(7), Message(64))); }},
      {"too few bytes", [](RawPeer& p) { p.send(Message(kMessageHeaderBytes - 1)); }},
      {"too few bytes", [](RawPeer& p) { p.send({}); }},
      {"magic", [](RawPeer& p) { p.send(Message(200, std::byte{3})); }},
      {"generation",
       [](RawPeer& p) {
         ++p.generation.value;
         p.send(p.hello());
       }},
      {"checksum",
       [](RawPeer& p) {
         Message bytes = p.hello();
         bytes[16] ^= std::byte{1};
         p.send(bytes);
       }},
      {"ring of 131072 bytes",
       [](RawPeer& p) {
         p.offer.ring_bytes = 131072;
         p.send(p.hello());
       }},
      {"address space",
       [](RawPeer& p) {
         p.offer.address = ~std::uint64_t{0} - 100;
         p.send(p.hello());
       }},
      {"reserved",
       [](RawPeer& p) {
         Message bytes = p.hello();
         bytes[kMessageHeaderBytes + 25] = std::byte{1};
         p.send(bytes);
       }},
      {"wrong length",
       [](RawPeer& p) {
         Message bytes = p.hello();
         bytes.resize(bytes.size() - 1);
         p.send(bytes);
       }},
      {"length that its kind does not have",
       [](RawPeer& p) { p.send(p.message(MessageKind::hello, Message(kGreetingBytes))); }},
      {"released batches",
       [](RawPeer& p) {
         p.batches_released = 1;
         p.send(p.hello());
       }},
      {"consumed control frames",
       [](RawPeer& p) {
         p.controls_consumed = 1;
         p.send(p.hello());
       }},
  };
  FakeRig rig;
  Bystanders others(rig);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    RawPeer peer(rig, "fake1");
    peer.request.generation = {static_cast<std::uint32_t>(i) + 1};
    rig.passive_error.clear();
    peer.join();
    peer.offer_ring();
    cases[i].act(peer);
    REQUIRE(peer.run_until([&] { return !rig.passive_error.empty(); }));
    check_error(rig.passive_error, RdmaErrc::protocol, cases[i].word);
    CHECK(peer.pass_until([&] { return live(rig.passive) == 1; }, seconds(2)));
  }
  others.check_unharmed();
}

TEST_CASE("rdma/connection: a batch to the side that takes none ends the connection, and writes nothing") {
  FakeRig rig;
  Bystanders others(rig);
  RawPeer peer(rig, "fake1");
  peer.join();
  peer.offer = {reinterpret_cast<std::uint64_t>(rig.log.data()), rig.log.size(), 1};
  peer.write(0, 64, 1);
  REQUIRE(peer.run_until([&] { return !rig.passive_error.empty() && !peer.failures.empty(); }));
  CHECK(peer.failures.at(0) == IBV_WC_REM_INV_REQ_ERR);
  check_error(rig.passive_error, RdmaErrc::queue_pair_failed, "refused what the peer asked");
  CHECK(peer.pass_until([&] { return live(rig.passive) == 1; }, seconds(2)));
  others.check_unharmed();
}

TEST_CASE("rdma/connection: what a passive peer may not say before its answer, or as it, is named") {
  struct Case {
    const char* word;
    std::function<void(RawPeer&)> act;
  };
  const std::vector<Case> cases{
      {"before both had said hello", [](RawPeer& p) { p.send_control(); }},
      {"before both had said hello", [](RawPeer& p) { p.send(p.message(MessageKind::credit)); }},
      {"before both had said hello", [](RawPeer& p) { p.write(0, 64, 1); }},
      {"not due", [](RawPeer& p) { p.send(p.hello()); }},
      {"unknown kind", [](RawPeer& p) { p.send(p.message(static_cast<MessageKind>(99))); }},
      {"generation",
       [](RawPeer& p) {
         --p.generation.value;
         p.send(p.message(MessageKind::hello_ack, Message(kGreetingBytes)));
       }},
      {"length that its kind does not have",
       [](RawPeer& p) { p.send(p.message(MessageKind::hello_ack, Message(kGreetingBytes - 8))); }},
      {"consumed control frames",
       [](RawPeer& p) {
         p.controls_consumed = 3;
         p.send(p.message(MessageKind::hello_ack, Message(kGreetingBytes)));
       }},
  };
  FakeRig rig;
  Bystanders others(rig);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    RawPeer peer(rig, "fake0");
    peer.be_greeted();
    cases[i].act(peer);
    REQUIRE(peer.run_until([&] { return !rig.active_error.empty(); }));
    check_error(rig.active_error, RdmaErrc::protocol, cases[i].word);
    CHECK(peer.pass_until([&] { return live(rig.active) == 1; }, seconds(2)));
  }
  others.check_unharmed();
}
