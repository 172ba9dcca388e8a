// What a connection does when what it stands on breaks: the device, the wire, the peer's queue pair, the
// peer's process. Each within bounded virtual time, with its reason, and a new attempt works.
#include <string>
#include <vector>

#include "fault_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// Both let go; a later generation of the same node and shard becomes ready and works.
void connect_anew(FaultRig& rig, std::uint32_t generation) {
  rig.abandon_all();
  REQUIRE(rig.pass_until([&] { return rig.passive.core().idle() && rig.active.core().idle(); }, seconds(5)));
  rig.connect(attempt(rig, generation));
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  rig.exchange(10);
}

/// Nothing of the active side is left standing; the passive one hears of it through rdma_cm.
void check_device_failed(FaultRig& rig, const char* word) {
  REQUIRE(rig.run_until([&] { return rig.connected->ended(); }));
  CHECK(rig.connected->error() == RdmaErrc::device_failed);
  CHECK(has(rig.connected->error(), word));
  CHECK(has(rig.connected->error(), "fake1"));
  CHECK(rig.pass_until([&] { return rig.connected->torn_down(); }, seconds(2)));
  CHECK(rig.connected->state() == ConnectionState::failed);
}

}  // namespace

TEST_CASE("rdma/core: a fatal event of a queue pair ends its connection, though no completion comes") {
  FaultRig rig;
  rig.establish();
  fake::raise_qp_event(FaultRig::active_number(), IBV_EVENT_QP_FATAL);
  check_device_failed(rig, ibv_event_type_str(IBV_EVENT_QP_FATAL));
  CHECK(rig.run_until([&] { return rig.accepted->ended(); }));
  connect_anew(rig, 2);
}

TEST_CASE("rdma/core: request and access errors of a queue pair end its connection, and only that one") {
  for (const auto event : {IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_PATH_MIG_ERR}) {
    FaultRig rig;
    rig.establish();
    RdmaConnection* const other = rig.connected;
    RdmaConnection* const its_peer = rig.accepted;
    auto terms = attempt(rig, 1);
    terms.request.shard = {0};
    rig.accepted = nullptr;
    rig.connect(terms);
    REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
    fake::raise_qp_event(FaultRig::active_number(), event);
    check_device_failed(rig, ibv_event_type_str(event));
    CHECK(other->ready());
    other->abandon();
    its_peer->abandon();
  }
}

TEST_CASE("rdma/core: a completion queue that failed ends every connection of its core") {
  FaultRig rig;
  ibv_cq* queue = nullptr;
  fake::set_post_hook([&](ibv_qp* qp) {
    if (std::string(ibv_get_device_name(qp->context->device)) == "fake1") queue = qp->send_cq;
  });
  rig.establish();
  REQUIRE(queue != nullptr);
  fake::raise_cq_event(queue, IBV_EVENT_CQ_ERR);
  check_device_failed(rig, ibv_event_type_str(IBV_EVENT_CQ_ERR));
  CHECK(rig.run_until([&] { return rig.accepted->ended(); }));
}

TEST_CASE(
    "rdma/core: a device that failed, a port that went, a device that was removed end every connection") {
  for (const int what : {0, 1, 2}) {
    CAPTURE(what);
    FaultRig rig;
    rig.establish();
    const ibv_event_type event = what == 1 ? IBV_EVENT_PORT_ERR : IBV_EVENT_DEVICE_FATAL;
    if (what == 2) {
      fake::remove_device("fake1");
      REQUIRE(rig.run_until([&] { return rig.connected->ended(); }));
      CHECK(rig.connected->error() == RdmaErrc::device_failed);
      CHECK(rig.pass_until([&] { return rig.connected->torn_down(); }, seconds(2)));
    } else {
      fake::raise_event("fake1", event);
      check_device_failed(rig, ibv_event_type_str(event));
    }
  }
}

TEST_CASE("rdma/core: a port that came back serves new connections") {
  FaultRig rig;
  rig.establish();
  fake::raise_event("fake1", IBV_EVENT_PORT_ERR);
  check_device_failed(rig, ibv_event_type_str(IBV_EVENT_PORT_ERR));
  fake::raise_event("fake1", IBV_EVENT_PORT_ACTIVE);
  connect_anew(rig, 2);
}

TEST_CASE("rdma/core: a GID table that changed elsewhere harms nobody; an address that is gone ends all") {
  FaultRig rig;
  rig.establish();
  fake::DeviceConfig config = fake::device_config("fake1");
  config.gids = {fake::link_local_gid(2), fake::mapped_gid("10.0.0.2"), fake::mapped_gid("10.7.7.7")};
  fake::change_device("fake1", config);
  fake::raise_event("fake1", IBV_EVENT_GID_CHANGE);
  rig.settle();
  CHECK(rig.active.core().counters().async_events == 1);
  CHECK(rig.both_ready());
  rig.exchange(5);

  config.gids = {fake::link_local_gid(2), fake::mapped_gid("10.7.7.7")};
  fake::change_device("fake1", config);
  fake::raise_event("fake1", IBV_EVENT_GID_CHANGE);
  check_device_failed(rig, "no longer has address 10.0.0.2");
}

TEST_CASE("rdma/core: events that mean no harm do none") {
  FaultRig rig;
  rig.establish();
  for (const auto event :
       {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_PATH_MIG}) {
    fake::raise_qp_event(FaultRig::active_number(), event);
  }
  for (const auto event :
       {IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER}) {
    fake::raise_event("fake1", event);
  }
  rig.settle();
  CHECK(rig.active.core().counters().async_events == 8);
  rig.exchange(5);
}

TEST_CASE(
    "rdma/connection: a wire cut in mid batch is reported by both ends; after it heals a new one works") {
  FaultRig rig;
  rig.establish();
  rig.exchange(5);
  for (int i = 0; i < 3; ++i) rig.publish();
  fake::cut("fake0", "fake1");
  rig.accepted->flush();
  REQUIRE(rig.connected->send_control(kFrame));  // as a heartbeat would
  rig.connected->flush();
  const Instant from = rig.clock.now();
  REQUIRE(
      rig.pass_until([&] { return rig.accepted->torn_down() && rig.connected->torn_down(); }, seconds(3)));
  CHECK((rig.clock.now() - from).ns < seconds(3).ns);
  for (const RdmaConnection* end : {rig.accepted, rig.connected}) {
    CHECK(end->error() == RdmaErrc::completion_failed);
    CHECK(has(end->error(), ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)));
    CHECK(has(end->error(), "the peer did not answer"));
  }
  CHECK_FALSE(rig.connected->receive());
  fake::heal("fake0", "fake1");
  connect_anew(rig, 2);
}

TEST_CASE("rdma/connection: a wire cut on the way up ends the attempt by its deadline or before") {
  for (const auto state :
       {ConnectionState::resolving, ConnectionState::connecting, ConnectionState::local_ready}) {
    CAPTURE(std::string(to_string(state)));
    FaultRig rig;
    rig.connect();
    REQUIRE(rig.run_until([&] { return rig.connecting->state() == state; }));
    fake::cut("fake0", "fake1");
    REQUIRE(rig.pass_until([&] { return !rig.active_error.empty(); }, seconds(10)));
    // Expect: the passive side, if it heard of the attempt, ends too
    const auto rest = [&] { return rig.passive.core().idle() || rig.accepted != nullptr; };
    REQUIRE(rig.pass_until(rest, seconds(10)));
    fake::heal("fake0", "fake1");
    connect_anew(rig, 2);
  }
}

TEST_CASE("rdma/connection: a queue pair that falls into ERR ends both sides") {
  for (const bool active : {true, false}) {
    CAPTURE(active);
    FaultRig rig;
    rig.establish();
    RdmaConnection& fallen = active ? *rig.connected : *rig.accepted;
    RdmaConnection& other = active ? *rig.accepted : *rig.connected;
    fake::kill_qp(active ? FaultRig::active_number() : FaultRig::passive_number());
    REQUIRE(rig.run_until([&] { return fallen.torn_down() && other.torn_down(); }));
    CHECK(fallen.error() == RdmaErrc::queue_pair_failed);
    CHECK(has(fallen.error(), "not by a close of either side"));
    CHECK(other.error() == RdmaErrc::peer_lost);
    CHECK(has(other.error(), "disconnected"));
    connect_anew(rig, 2);
  }
}

TEST_CASE("rdma/connection: what a peer sent before its queue pair fell is received") {
  FaultRig rig;
  rig.establish();
  rig.attach();
  for (int i = 0; i < 3; ++i) rig.publish();
  rig.accepted->flush();
  fake::step(2);  // it has arrived; nobody has looked
  fake::kill_qp(FaultRig::active_number());
  REQUIRE(rig.run_until([&] { return rig.connected->torn_down(); }));
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rig.connected->receive());
    rig.connected->release();
  }
}

// ---- the peer's process dies ----------------------------------------------------------------------------

namespace {

/// The survivor's owner learns of it, lets go, and nothing is left of the connection on its core.
void check_survivor(FaultRig& rig, bool passive_survives) {
  RdmaSide& survivor = passive_survives ? rig.passive : rig.active;
  const auto over = [&] {
    RdmaConnection*& mine = passive_survives ? rig.accepted : rig.connected;
    if (mine != nullptr && mine->ended()) {
      CHECK((mine->error() == RdmaErrc::peer_lost || mine->error() == RdmaErrc::peer_closed ||
             mine->error() == RdmaErrc::completion_failed));
      mine->abandon();
      mine = nullptr;
      if (!passive_survives) rig.connecting = nullptr;
    }
    return survivor.core().idle();
  };
  CHECK(rig.only(passive_survives, over, seconds(12)));
}

}  // namespace

TEST_CASE("rdma/connection: an active process that dies in any state leaves nothing on the passive side") {
  for (const auto state : {ConnectionState::resolving, ConnectionState::connecting,
                           ConnectionState::local_ready, ConnectionState::ready, ConnectionState::draining}) {
    CAPTURE(std::string(to_string(state)));
    FaultRig rig;
    rig.connect();
    RdmaConnection& dying = *rig.connecting;
    const auto until = state == ConnectionState::draining ? ConnectionState::ready : state;
    REQUIRE(rig.run_until([&] { return dying.state() == until; }));
    if (state == ConnectionState::connecting) {
      REQUIRE(rig.run_until([&] { return rig.passive.core().counters().connections_made == 1; }));
    }
    if (state == ConnectionState::draining) {
      dying.close("going");
      CHECK(dying.state() == state);
    }
    fake::kill_device_users("fake1");
    check_survivor(rig, true);
  }
}

TEST_CASE("rdma/connection: a passive process that dies in any state leaves nothing on the active side") {
  for (const auto state : {ConnectionState::idle, ConnectionState::connecting, ConnectionState::local_ready,
                           ConnectionState::ready, ConnectionState::draining}) {
    CAPTURE(std::string(to_string(state)));
    FaultRig rig;
    if (state == ConnectionState::local_ready) rig.answer = nullptr;
    rig.connect();
    const auto reached = [&] {
      switch (state) {
        case ConnectionState::idle:
          return rig.connecting->state() == ConnectionState::connecting;
        case ConnectionState::connecting:
          return rig.passive.core().counters().connections_made == 1;
        case ConnectionState::local_ready:
          return rig.accepted != nullptr;
        default:
          return rig.both_ready();
      }
    };
    REQUIRE(rig.run_until(reached));
    if (state == ConnectionState::draining) rig.accepted->close("going");
    fake::kill_device_users("fake0");
    check_survivor(rig, false);
  }
}
