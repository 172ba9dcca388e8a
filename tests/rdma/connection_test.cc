// A connection's way up and its way out, on the fake provider in virtual time.
#include <cstring>

#include "fake_rig.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_CASE("rdma/connection: both sides are ready after a hello and its answer, and not before") {
  FakeRig rig;
  rig.answer = nullptr;
  rig.connect();
  REQUIRE(rig.run_until([&] { return rig.accepted != nullptr; }));
  rig.settle();
  // Expect: the queue pairs are in RTS, rdma_cm says established, and still nobody is ready
  CHECK(rig.accepted->state() == ConnectionState::local_ready);
  CHECK(rig.connecting->state() == ConnectionState::local_ready);
  CHECK(rig.heard_hello.at(0) == std::byte{1});
  Greeting ack{};
  ack[0] = std::byte{7};
  rig.accepted->accept(ack);
  CHECK(rig.accepted->ready());
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  CHECK(rig.heard_ack.at(0) == std::byte{7});
  CHECK(rig.connected->generation() == rig.accepted->generation());
}

TEST_CASE("rdma/connection: a batch and a control frame each way arrive whole, and their credits return") {
  FakeRig rig;
  rig.establish();
  REQUIRE(rig.accepted->attach(rig.log));
  std::array<std::byte, 80> header{};
  header[0] = std::byte{5};
  std::fill(rig.log.begin(), rig.log.begin() + 1000, std::byte{9});
  std::uint64_t received = 0;
  for (int round = 0; round < 1000; ++round) {
    const Bytes range = Bytes(rig.log).first(static_cast<std::size_t>(round) + 1);
    REQUIRE(rig.accepted->publish(header, std::span(&range, 1)));
    std::array<std::byte, 64> frame{};
    std::memcpy(frame.data(), &round, sizeof round);
    REQUIRE(rig.connected->send_control(frame));
    REQUIRE(rig.accepted->send_control(frame));
    rig.accepted->flush();
    rig.connected->flush();
    REQUIRE(rig.run_until([&] { return rig.connected->batch_waiting() && rig.accepted->control_waiting(); }));
    const auto batch = rig.connected->receive();
    REQUIRE(batch);
    CHECK(batch->size() == header.size() + range.size());
    CHECK((*batch)[0] == std::byte{5});
    CHECK(batch->back() == std::byte{9});
    rig.connected->release();
    ++received;
    int value = -1;
    std::memcpy(&value, rig.accepted->receive_control()->data(), sizeof value);
    CHECK(value == round);
    REQUIRE(rig.run_until([&] { return rig.connected->control_waiting(); }));
    rig.connected->receive_control();
  }
  rig.settle();
  CHECK(rig.accepted->batches_completed() == received);
}

TEST_CASE("rdma/connection: a close by either side is seen by the other after what was sent before") {
  FakeRig rig;
  rig.establish();
  REQUIRE(rig.accepted->attach(rig.log));
  const Bytes range = Bytes(rig.log).first(64);
  std::array<std::byte, 80> header{};
  for (int i = 0; i < 3; ++i) REQUIRE(rig.accepted->publish(header, std::span(&range, 1)));
  rig.accepted->close("shutting down");
  CHECK_FALSE(rig.accepted->publish(header, std::span(&range, 1)));
  REQUIRE(rig.run_until([&] { return rig.connected->ended(); }));
  CHECK(rig.connected->error() == RdmaErrc::peer_closed);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rig.connected->receive());
    rig.connected->release();
  }
  CHECK_FALSE(rig.connected->receive());
  REQUIRE(rig.run_until([&] { return rig.accepted->torn_down() && rig.connected->torn_down(); }));
  CHECK(rig.accepted->state() == ConnectionState::closed);
  CHECK(rig.connected->state() == ConnectionState::closed);
}

TEST_CASE("rdma/connection: nobody listens: unreachable, at once") {
  FakeRig rig;
  auto terms = rig.default_active();
  terms.port = 9;
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
  CHECK(rig.active_code == make_error_code(RdmaErrc::unreachable));
  CHECK(rig.active_error.find("10.0.0.1:9") != std::string::npos);
}

TEST_CASE(
    "rdma/connection: a peer that says nothing ends by its deadline, and the error lists the transitions") {
  RdmaOptions impatient;
  impatient.greeting_deadline = seconds(1);
  FakeRig rig({}, impatient);
  rig.answer = nullptr;  // never answers the hello
  rig.connect();
  REQUIRE(rig.pass_until([&] { return !rig.active_error.empty(); }, seconds(30)));
  CHECK(rig.active_code == make_error_code(RdmaErrc::state_deadline));
  for (const char* state : {"resolving", "connecting", "local_ready"}) {
    CHECK(rig.active_error.find(state) != std::string::npos);
  }
  CHECK(rig.pass_until([&] { return !rig.passive_error.empty(); }, seconds(30)));
}
