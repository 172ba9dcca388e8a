// A connection's faults on real verbs: writes that are not allowed, queue pairs in the error state, links
// that are cut.
#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <unistd.h>

#include <sys/wait.h>

#include "device_rig.h"
#include "lab.h"
#include "qp_tap.h"
#include "raw_peer.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr std::array<std::byte, 80> kHeader{std::byte{5}};

/// One batch, to where the connection is flushed; false: no credit, or over.
bool publish(DeviceRig& rig, std::size_t bytes) {
  const Bytes range = Bytes(rig.log).first(bytes);
  if (!rig.accepted->publish(kHeader, std::span(&range, 1))) return false;
  rig.accepted->flush();
  return true;
}

/// What has arrived goes, so that credits return.
void take_all(DeviceRig& rig) {
  while (rig.connected->receive()) rig.connected->release();
  rig.connected->flush();
}

/// False: it ended before it was ready.
bool attempt(DeviceRig& rig, std::uint32_t generation) {
  auto terms = rig.default_active();
  terms.request.generation = {generation};
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return rig.both_ready() || !rig.active_error.empty(); }));
  return rig.active_error.empty();
}

/// A batch of these bytes arrives whole.
void check_batch(DeviceRig& rig, std::uint32_t filling) {
  std::fill(rig.log.begin(), rig.log.begin() + 5000, std::byte{static_cast<unsigned char>(filling)});
  REQUIRE(publish(rig, 5000));
  REQUIRE(rig.run_until([&] { return rig.connected->batch_waiting(); }));
  const auto batch = rig.connected->receive();
  REQUIRE(batch);
  CHECK(batch->size() == kHeader.size() + 5000);
  CHECK(std::memcmp(batch->data(), kHeader.data(), kHeader.size()) == 0);
  CHECK(std::memcmp(batch->data() + kHeader.size(), rig.log.data(), 5000) == 0);
  rig.connected->release();
}

/// A new connection, and a batch that arrives whole. A link that has just come back may lose the first
/// attempts' packets, so that they end by their deadline.
void check_works(DeviceRig& rig, std::uint32_t generation, int attempts = 1) {
  while (!attempt(rig, generation)) {
    if (--attempts == 0) FAIL(rig.active_error, " / ", rig.passive_error);
    ++generation;
  }
  REQUIRE(rig.accepted->attach(rig.log));
  check_batch(rig, generation);
}

/// Lets both ends go and tries again.
void check_again(DeviceRig& rig, std::uint32_t generation, int attempts = 1) {
  rig.abandon_all();
  REQUIRE(rig.run_until([&] { return rig.passive.core().idle() && rig.active.core().idle(); }));
  check_works(rig, generation, attempts);
}

bool says(const Error& error, const char* part) { return error.message().find(part) != std::string::npos; }

bool both_ended(const DeviceRig& rig) { return rig.accepted->ended() && rig.connected->ended(); }

/// Both have something to send, over and over, as links with heartbeats have, until both have ended.
void talk_until_both_end(DeviceRig& rig) {
  const std::array<std::byte, kControlFrameSize> frame{};
  const bool ended = rig.run_until([&] {
    if (!rig.accepted->ended()) publish(rig, 60'000);
    if (!rig.connected->ended()) {
      take_all(rig);
      if (!rig.connected->ended() && rig.connected->send_control(frame)) rig.connected->flush();
    }
    while (rig.accepted->receive_control()) {
    }
    return both_ended(rig);
  });
  REQUIRE(ended);
}

/// The passive side and a raw peer whose hello offers `ring`.
void greet_raw(DeviceRig& rig, RawPeer& peer, const RingOffer& ring) {
  ConnectRequest request = rig.default_active().request;
  request.mtu_bytes = 1024;
  request.data_slots = 64;
  request.control_slots = 16;
  peer.connect(request);
  Generation generation{};
  REQUIRE(rig.run_until([&] {
    const auto event = peer.next_event();
    if (!event) return false;
    REQUIRE(event->kind == RDMA_CM_EVENT_ESTABLISHED);
    const auto reply = decode_reply(Bytes(event->private_data).first(event->bytes));
    REQUIRE(reply);
    generation = reply->generation;
    return true;
  }));
  peer.send_hello(generation, ring);
  REQUIRE(rig.run_until([&] { return rig.accepted != nullptr && rig.accepted->ready(); }));
  REQUIRE(rig.accepted->attach(rig.log));
}

/// Writes batches of 60,000 bytes until that is not allowed.
void write_until_refused(DeviceRig& rig) {
  REQUIRE(rig.run_until([&] {
    if (!rig.accepted->ended()) publish(rig, 60'000);
    return rig.accepted->ended();
  }));
  CHECK(rig.accepted->error() == RdmaErrc::completion_failed);
  CHECK_MESSAGE(says(rig.accepted->error(), "the peer does not allow the write"),
                rig.accepted->error().message());
}

}  // namespace

TEST_CASE("rdma/faults: a fenced writer is told that it is, and both ends fail") {
  DeviceRig rig;
  check_works(rig, 1);
  fence(active_queue_pair());
  REQUIRE(publish(rig, 5000));
  REQUIRE(rig.run_until([&] { return both_ended(rig); }));
  CHECK(rig.accepted->error() == RdmaErrc::completion_failed);
  CHECK_MESSAGE(says(rig.accepted->error(), "the peer does not allow the write"),
                rig.accepted->error().message());
  MESSAGE("the fenced end: ", rig.connected->error().message());
  // Expect: not a byte of the batch is given to the owner
  CHECK_FALSE(rig.connected->batch_waiting());
  check_again(rig, 2);
}

TEST_CASE("rdma/faults: a write with a wrong key fails, and says why") {
  DeviceRig rig;
  RawPeer peer(rig.active.core().place().address, rig.passive.core().place().address, DeviceRig::kPort);
  RingOffer ring = peer.ring();
  ring.rkey ^= 0x5a;
  greet_raw(rig, peer, ring);
  write_until_refused(rig);
  check_again(rig, 2);
}

TEST_CASE("rdma/faults: a write past the peer's registered ring fails, and says why") {
  DeviceRig rig;
  constexpr std::size_t kHalf = kRingBytesMin / 2;
  // Behind it lie the peer's buffers, registered with the same key: 16 KiB. The next page is nobody's.
  RawPeer peer(rig.active.core().place().address, rig.passive.core().place().address, DeviceRig::kPort,
               kHalf);
  RingOffer ring = peer.ring();
  ring.ring_bytes = kRingBytesMin;
  greet_raw(rig, peer, ring);
  write_until_refused(rig);
  check_again(rig, 2);
}

TEST_CASE("rdma/faults: while a child of this process lives, what is sent is what is in memory now") {
  // Otherwise the pages are kept from children (fork_test.cc), and pages that they share are nobody's
  // business.
  if (ibv_is_fork_initialized() != IBV_FORK_UNNEEDED) return;
  DeviceRig rig;
  check_works(rig, 1);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  for (std::uint32_t filling = 2; filling < 6; ++filling) check_batch(rig, filling);
  ::kill(child, SIGKILL);
  CHECK(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("rdma/faults: a queue pair in the error state ends both ends") {
  for (const bool of_passive : {false, true}) {
    CAPTURE(of_passive);
    DeviceRig rig;
    check_works(rig, 1);
    move_to_error(of_passive ? passive_queue_pair() : active_queue_pair());
    talk_until_both_end(rig);
    MESSAGE("passive: ", rig.accepted->error().message());
    MESSAGE("active: ", rig.connected->error().message());
    check_again(rig, 2);
  }
}

TEST_CASE(
    "rdma/faults: a link that is cut amid batches ends both ends, and once it heals a new connection works") {
  if (!in_lab("cut links")) return;
  DeviceRig rig({}, {});  // attempts whose packets are lost end soon
  check_works(rig, 1, 10);
  {
    const LabLink link("heal");
    std::thread cut([] { lab_link("cut"); });
    talk_until_both_end(rig);
    cut.join();
    // The first to notice says goodbye, which may still get through where only one way is cut yet.
    for (const auto* connection : {rig.accepted, rig.connected}) {
      const Error& error = connection->error();
      CHECK_MESSAGE((says(error, "the peer did not answer") || error == RdmaErrc::peer_lost),
                    error.message());
    }
    CHECK((says(rig.accepted->error(), "did not answer") || says(rig.connected->error(), "did not answer")));
  }
  check_again(rig, 12, 10);
}

TEST_CASE(
    "rdma/faults: a port that goes down ends both ends, idle or amid batches, and once it is up a new "
    "connection works") {
  if (!in_lab("take ports down")) return;
  for (const bool amid_batches : {false, true}) {
    CAPTURE(amid_batches);
    DeviceRig rig({}, {});  // attempts whose packets are lost end soon
    check_works(rig, 1, 10);
    {
      const LabLink link("up");
      std::thread cut([] { lab_link("down"); });
      if (amid_batches) {
        talk_until_both_end(rig);
      } else {
        REQUIRE(rig.run_until([&] { return both_ended(rig); }));
      }
      cut.join();
      // One port goes before the other: what the first end does then may still reach the second, or go
      // unanswered before the second port goes, too.
      for (const auto* connection : {rig.accepted, rig.connected}) {
        const Error& error = connection->error();
        CHECK_MESSAGE((error == RdmaErrc::device_failed || error == RdmaErrc::peer_closed ||
                       error == RdmaErrc::peer_lost || says(error, "did not answer")),
                      error.message());
      }
      CHECK((says(rig.accepted->error(), "port") || says(rig.connected->error(), "port")));
    }
    check_again(rig, 12, 10);
  }
}
