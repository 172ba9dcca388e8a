// Connecting on real verbs: nobody there, peers that are silent or hostile, and a thousand times.
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>

#include "device_rig.h"
#include "lab.h"
#include "raw_peer.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

RdmaOptions impatient() {
  RdmaOptions options = patient();
  options.greeting_deadline = seconds(1);
  return options;
}

RawPeer raw_peer(DeviceRig& rig) {
  return RawPeer(rig.active.core().place().address, rig.passive.core().place().address, DeviceRig::kPort);
}

ConnectRequest good_request(DeviceRig& rig) {
  ConnectRequest request = rig.default_active().request;
  request.mtu_bytes = 1024;
  request.data_slots = 64;
  request.control_slots = 16;
  return request;
}

CmEvent next_event(DeviceRig& rig, RawPeer& peer) {
  std::optional<CmEvent> event;
  REQUIRE(rig.run_until([&] { return (event = peer.next_event()).has_value(); }));
  return *event;
}

/// The reply to a good request.
ConnectReply established(DeviceRig& rig, RawPeer& peer) {
  peer.connect(good_request(rig));
  const CmEvent event = next_event(rig, peer);
  REQUIRE(event.kind == RDMA_CM_EVENT_ESTABLISHED);
  const auto reply = decode_reply(Bytes(event.private_data).first(event.bytes));
  REQUIRE(reply);
  return *reply;
}

/// What the passive side says no with.
ConnectReject rejected(DeviceRig& rig, RawPeer& peer) {
  const CmEvent event = next_event(rig, peer);
  REQUIRE(event.kind == RDMA_CM_EVENT_REJECTED);
  const auto reject = decode_reject(Bytes(event.private_data).first(event.bytes));
  REQUIRE(reject);
  return *reject;
}

/// The active side's attempt ends like this.
void check_ends(DeviceRig& rig, const ActiveTerms& terms, RdmaErrc code, const char* text) {
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
  CHECK(rig.active_code == make_error_code(code));
  CHECK_MESSAGE(rig.active_error.find(text) != std::string::npos, rig.active_error);
  REQUIRE(rig.run_until([&] { return rig.active.core().idle(); }));
}

void check_still_serves(DeviceRig& rig) {
  // Several times, as a rig may be impatient.
  auto terms = rig.default_active();
  for (terms.request.generation = {100}; terms.request.generation.value < 110;
       ++terms.request.generation.value) {
    rig.connect(terms);
    REQUIRE(rig.run_until([&] { return rig.both_ready() || !rig.active_error.empty(); }));
    if (rig.both_ready()) return;
  }
  FAIL(rig.active_error, " / ", rig.passive_error);
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

}  // namespace

TEST_CASE("rdma/connect: nobody listens: unreachable, and the text names the place") {
  DeviceRig rig;
  auto terms = rig.default_active();
  terms.port = 9;
  check_ends(rig, terms, RdmaErrc::unreachable, (terms.address + ":9").c_str());
  if (!in_lab("know an address that nobody has")) return;
  terms = rig.default_active();
  terms.address = "10.0.0.99";
  check_ends(rig, terms, RdmaErrc::unreachable, "10.0.0.99");
  check_still_serves(rig);
}

TEST_CASE("rdma/connect: what does not fit is rejected by name, with both values") {
  DeviceRig rig;
  auto terms = rig.default_active();
  terms.request.shard_count = 3;
  check_ends(rig, terms, RdmaErrc::rejected, "the peer has 2, this side 3");
  terms = rig.default_active();
  terms.request.epoch = {4, 1};
  check_ends(rig, terms, RdmaErrc::rejected, "the peer serves 3, this side has seen 4");
  terms = rig.default_active();
  terms.request.version_min = terms.request.version_max = 9;
  check_ends(rig, terms, RdmaErrc::rejected, "this side 9 to 9");

  terms = rig.default_active();
  terms.request.generation = {7};
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  rig.abandon_all();
  terms.request.generation = {6};
  check_ends(rig, terms, RdmaErrc::rejected, "the peer has taken attempt 7, this is the older attempt 6");
  check_still_serves(rig);
}

TEST_CASE(
    "rdma/connect: random private data of any length is rejected as malformed, and nothing is left of it") {
  DeviceRig rig;
  std::minstd_rand random(7);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{31}, kConnectRequestBytes, std::size_t{56}}) {
    CAPTURE(bytes);
    std::array<std::byte, 56> noise{};
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    RawPeer peer = raw_peer(rig);
    peer.connect(Bytes(noise).first(bytes));
    CHECK(rejected(rig, peer).reason == RejectReason::malformed);
  }
  {
    RawPeer peer = raw_peer(rig);
    ConnectRequest request = good_request(rig);
    request.shard = {2};  // of two
    peer.connect(request);
    CHECK(rejected(rig, peer).reason == RejectReason::malformed);
  }
  CHECK(rig.accepted == nullptr);
  check_still_serves(rig);
}

TEST_CASE("rdma/connect: a peer that connects and says nothing ends by its deadline") {
  DeviceRig rig(impatient());
  RawPeer peer = raw_peer(rig);
  established(rig, peer);
  REQUIRE(rig.run_until([&] { return !rig.passive_error.empty(); }));
  CHECK_MESSAGE(rig.passive_error.find("stayed local_ready too long") != std::string::npos,
                rig.passive_error);
  // Expect: the peer is told
  CHECK(next_event(rig, peer).kind == RDMA_CM_EVENT_DISCONNECTED);
  check_still_serves(rig);
}

TEST_CASE("rdma/connect: data before the hello, and a hello that is none, break the rules") {
  const std::array<std::byte, kControlBytes> frame{};
  const std::array<std::byte, kRingOfferBytes + kGreetingBytes> nothing{};
  const MessageKind kinds[] = {MessageKind::control, MessageKind::credit, MessageKind::hello,
                               MessageKind::hello_ack};
  for (const MessageKind kind : kinds) {
    CAPTURE(static_cast<int>(kind));
    DeviceRig rig;
    RawPeer peer = raw_peer(rig);
    const Generation generation = established(rig, peer).generation;
    Bytes payload = kind == MessageKind::control ? Bytes(frame) : Bytes();
    if (kind == MessageKind::hello) payload = nothing;  // which offers no ring
    if (kind == MessageKind::hello_ack) payload = Bytes(nothing).first(kGreetingBytes);
    peer.send({kind, 0, generation, 0, 0}, payload);
    REQUIRE(rig.run_until([&] { return !rig.passive_error.empty(); }));
    CHECK_MESSAGE(rig.passive_error.find("the peer broke the protocol") != std::string::npos,
                  rig.passive_error);
    CHECK(rig.accepted == nullptr);
  }
}

TEST_CASE("rdma/connect: a hello of another link's generation breaks the rules") {
  DeviceRig rig;
  RawPeer peer = raw_peer(rig);
  const Generation generation = established(rig, peer).generation;
  peer.send_hello({generation.value + 1}, peer.ring());
  REQUIRE(rig.run_until([&] { return !rig.passive_error.empty(); }));
  CHECK_MESSAGE(rig.passive_error.find("generation") != std::string::npos, rig.passive_error);
  check_still_serves(rig);
}

TEST_CASE("rdma/connect: a peer that writes where it has no ring is cut off") {
  DeviceRig rig;
  RawPeer peer = raw_peer(rig);
  established(rig, peer);
  peer.write_nothing();
  REQUIRE(rig.run_until([&] { return !rig.passive_error.empty(); }));
  MESSAGE(rig.passive_error);
  check_still_serves(rig);
}

TEST_CASE("rdma/connect: many connections, one after the other, leave nothing behind") {
  const char* asked = std::getenv("TIDELOCK_TEST_CONNECTIONS");
  const std::uint32_t count = asked != nullptr ? static_cast<std::uint32_t>(std::atoi(asked)) : 250;
  DeviceRig rig;
  std::size_t files = 0;
  for (std::uint32_t i = 1; i <= count; ++i) {
    CAPTURE(i);
    auto terms = rig.default_active();
    terms.request.generation = {i};
    rig.connect(terms);
    if (!rig.run_until([&] { return rig.both_ready() || !rig.active_error.empty(); }) || !rig.both_ready())
      FAIL(rig.active_error, " / ", rig.passive_error);
    // Either side is the first to go.
    if (i % 2 == 0) std::exchange(rig.accepted, nullptr)->abandon();
    rig.abandon_all();
    REQUIRE(rig.run_until([&] { return rig.passive.core().idle() && rig.active.core().idle(); }));
    if (i == 1) files = open_files();
  }
  MESSAGE(count, " connections");
  CHECK(open_files() == files);
  CHECK(rig.active.core().counters().connections_made == count);
  CHECK(rig.passive.core().counters().connections_live == 0);
}
