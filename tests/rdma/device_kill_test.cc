// A peer's process that is killed, in each state of a connection: the survivor ends in bounded time.
#include <poll.h>
#include <string>

#include <rdma/rdma_cma.h>

#include "child_process.h"
#include "device_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr const char* kChild = "rdma/child: a side that is to be killed";
constexpr std::uint16_t kChildPort = DeviceRig::kPort + 1;

/// In the child: tells how far it has come, until it is killed.
struct Victim {
  explicit Victim(bool passive, bool silent)
      : side(world.clock, world.calls, passive ? passive_device() : active_device(), patient()) {
    side.start();
    if (passive) {
      listen(silent);
    } else {
      connect();
    }
  }

  void listen(bool silent) {
    RdmaCore& core = side.core();
    auto opened = RdmaListener::open(
        core, core.place().address, kChildPort, RdmaRig::default_terms(), [&core](ShardId) { return &core; },
        [this, silent](ShardId) {
          return ConnectionCallbacks{[this, silent](RdmaConnection& made, Bytes) {
                                       connection = &made;
                                       if (!silent) made.accept({});
                                     },
                                     nullptr};
        });
    REQUIRE(opened);
    listener = *std::move(opened);
    listener->start([](const Error&) {});
  }
  void connect() {
    ActiveTerms terms;
    terms.address = choose_rdma_place({passive_device(), ""})->address;
    terms.port = DeviceRig::kPort;
    terms.request.shard = {1};
    terms.request.shard_count = 2;
    terms.request.node = 2;
    terms.request.generation = {1};
    terms.request.incarnation = 99;
    auto made = side.core().connect(terms, {});
    REQUIRE(made);
    connection = *made;
  }

  DeviceWorld world;
  RdmaSide side;
  std::unique_ptr<RdmaListener> listener;
  RdmaConnection* connection = nullptr;
};

/// Turns until the parent is heard from; meanwhile it tells each state it comes to.
void run_victim(Victim& victim) {
  std::string told;
  for (;;) {
    victim.side.turn();
    const std::string state =
        victim.connection != nullptr ? to_string(victim.connection->state()) : "listening";
    if (state == told) continue;
    Parent::tell(told = state);
    if (victim.connection == nullptr || !victim.connection->ended()) continue;
    Parent::tell("ended: " + victim.connection->error().message());
  }
}

/// Turns, if that is asked for, until the child has said so.
void await(DeviceRig& rig, ChildProcess& child, const std::string& state, bool turn) {
  for (std::string heard; heard != state;) {
    if (turn) {
      REQUIRE(rig.run_until([&] { return !(heard = child.poll()).empty(); }));
    } else {
      heard = child.hear();
      REQUIRE_FALSE(heard.empty());
    }
    if (heard.starts_with("ended")) FAIL(heard);
  }
}

/// A request has come to the passive side, which has not looked at it.
void await_request(DeviceRig& rig) {
  pollfd wait{rig.passive.core().channel()->fd, POLLIN, 0};
  REQUIRE(::poll(&wait, 1, 60'000) == 1);
}

bool by_loss_or_deadline(const std::string& text) {
  for (const char* part : {"is gone", "too long", "unreachable", "did not answer", "nobody takes"}) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("rdma/child: a side that is to be killed" * doctest::skip(not_a_child())) {
  Parent parent;
  const std::string role = Parent::role();
  Victim victim(role.starts_with("passive"), role.find("silent") != std::string::npos);
  if (role.find("frozen") != std::string::npos) {
    Parent::tell("frozen");
    parent.hear();  // for ever: nobody says anything
  }
  run_victim(victim);
}

TEST_CASE("rdma/kill: an active peer that is killed ends the passive side, whatever state it was in") {
  for (const char* state : {"connecting", "local_ready", "ready"}) {
    CAPTURE(std::string(state));
    DeviceRig rig;
    const bool greeted = std::string(state) != "connecting";
    if (std::string(state) == "local_ready") rig.answer = nullptr;
    ChildProcess child(kChild, "active");
    // Expect of `connecting`: the request has been sent and nobody has looked at it yet
    await(rig, child, state, greeted);
    if (greeted) REQUIRE(rig.run_until([&] { return rig.accepted != nullptr; }));
    if (!greeted) await_request(rig);
    child.kill();
    if (std::string(state) == "ready") {
      REQUIRE(rig.run_until([&] { return rig.accepted->ended(); }));
      rig.passive_error = rig.accepted->error().message();
    }
    REQUIRE(rig.run_until([&] { return !rig.passive_error.empty(); }));
    MESSAGE(std::string(state), ": ", rig.passive_error);
    CHECK(by_loss_or_deadline(rig.passive_error));
    // Expect: the next one of that node is taken
    auto terms = rig.default_active();
    terms.request.incarnation = 100;
    rig.abandon_all();
    REQUIRE(rig.run_until([&] { return rig.passive.core().idle(); }));
    rig.answer = [](RdmaConnection& connection) { connection.accept({}); };
    rig.connect(terms);
    CHECK_MESSAGE(rig.run_until([&] { return rig.both_ready(); }), rig.active_error);
  }
}

TEST_CASE("rdma/kill: a passive peer that is killed ends the active side, whatever state it was in") {
  struct Case {
    const char* role;
    const char* child;
    ConnectionState ours;
  };
  for (const Case& one : {Case{"passive frozen", "frozen", ConnectionState::connecting},
                          Case{"passive silent", "local_ready", ConnectionState::local_ready},
                          Case{"passive", "ready", ConnectionState::ready}}) {
    CAPTURE(std::string(one.role));
    DeviceRig rig;
    ChildProcess child(kChild, one.role);
    await(rig, child, one.ours == ConnectionState::connecting ? "frozen" : "listening", false);
    auto terms = rig.default_active();
    terms.port = kChildPort;
    rig.connect(terms);
    REQUIRE(rig.run_until([&] { return rig.connecting == nullptr || rig.connecting->state() == one.ours; }));
    REQUIRE_MESSAGE(rig.connecting != nullptr, rig.active_error);
    child.kill();
    if (one.ours == ConnectionState::ready) {
      REQUIRE(rig.run_until([&] { return rig.connected->ended(); }));
      rig.active_error = rig.connected->error().message();
    } else {
      REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
    }
    MESSAGE(std::string(one.role), ": ", rig.active_error);
    CHECK(by_loss_or_deadline(rig.active_error));
  }
}
