// What the operator of a node gets to know: rejected requests, attempts that came to nothing, calls that do
// not return, and ways that rdma_cm chose and that are not this node's.
#include <functional>
#include <string>
#include <vector>

#include "fault_rig.h"
#include "hostile_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// The notices of one side, while this lives.
struct Notices {
  explicit Notices(RdmaSide& of) : side(of) {
    side.core().on_notice([this](const std::string& about, const std::string& text) {
      abouts.push_back(about);
      texts.push_back(text);
    });
  }
  ~Notices() { side.core().on_notice(nullptr); }
  Notices(const Notices&) = delete;
  Notices& operator=(const Notices&) = delete;

  RdmaSide& side;
  std::vector<std::string> abouts, texts;
};

/// One notice, with all these parts.
void check_one(const Notices& notices, const std::vector<std::string>& parts) {
  REQUIRE(notices.texts.size() == 1);
  for (const auto& part : parts) {
    CAPTURE(part);
    CHECK_MESSAGE(has(notices.texts[0], part), notices.texts[0]);
  }
}

ActiveTerms terms_with(FaultRig& rig, const std::function<void(ConnectRequest&)>& change) {
  auto terms = rig.default_active();
  change(terms.request);
  return terms;
}

void connect_until_it_ends(FaultRig& rig, const ActiveTerms& terms) {
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
}

}  // namespace

TEST_CASE("rdma/operator: each rejected request is told once, with the peer, the reason and both values") {
  struct Case {
    std::vector<std::string> parts;
    std::function<void(ConnectRequest&)> change;
  };
  const std::vector<Case> cases{
      {{"shard count", "this side has 2, the peer 3"}, [](auto& r) { r.shard_count = 3; }},
      {{"epoch", "this side has 3, the peer 4"},
       [](auto& r) {
         r.epoch = {4, 1};
       }},
      {{"versions 9 to 9", "1 to 1"}, [](auto& r) { r.version_min = r.version_max = 9; }},
      {{"no request of tidelock's", "shard"}, [](auto& r) { r.shard = {2}; }},
  };
  for (const Case& c : cases) {
    FaultRig rig;
    const Notices notices(rig.passive);
    connect_until_it_ends(rig, terms_with(rig, c.change));
    auto parts = c.parts;
    parts.insert(parts.end(), {"rejected", "10.0.0.2"});
    check_one(notices, parts);
  }
}

TEST_CASE("rdma/operator: an older attempt and a number that is in use are told, too") {
  FaultRig rig;
  rig.establish();
  {
    const Notices notices(rig.passive);
    RawPeer peer(rig, "fake1");
    peer.request = rig.default_active().request;
    peer.request.mtu_bytes = 4096;
    peer.request.data_slots = 64;
    peer.request.control_slots = 16;
    peer.connect(encoded(peer.request));
    peer.await(RDMA_CM_EVENT_REJECTED);
    check_one(notices, {"10.0.0.2", "older", "this side has 1, the peer 1"});
  }
  {
    const Notices notices(rig.passive);
    RawPeer peer(rig, "fake1");
    peer.request.shard = {1};
    peer.request.node = 2;
    peer.connect(encoded(peer.request));
    peer.await(RDMA_CM_EVENT_REJECTED);
    check_one(notices, {"10.0.0.2", "another process of node 2"});
  }
}

TEST_CASE("rdma/operator: so is a core that is full") {
  RdmaOptions one;
  one.connections_max = 1;
  FaultRig full(one, RdmaOptions{});
  full.establish();
  const Notices notices(full.passive);
  auto terms = terms_with(full, [](auto& r) { r.shard = {0}; });
  RdmaConnection* const first = full.connected;
  connect_until_it_ends(full, terms);
  check_one(notices, {"10.0.0.2", "all 1 connection slots"});
  first->abandon();
}

TEST_CASE(
    "rdma/operator: an attempt that the passive side sees fail is told once, with peer, state and reason") {
  SUBCASE("a peer that says nothing") {
    FaultRig rig;
    const Notices notices(rig.passive);
    RawPeer peer(rig, "fake1");
    peer.join();
    REQUIRE(peer.pass_until([&] { return !rig.passive_error.empty(); }, seconds(6)));
    check_one(notices,
              {"node 3", "10.0.0.2", "shard 0", "ended while local_ready", "stayed local_ready too long"});
  }
  SUBCASE("a peer that breaks the protocol") {
    FaultRig rig;
    const Notices notices(rig.passive);
    RawPeer peer(rig, "fake1");
    peer.join();
    peer.send(Message(96));
    REQUIRE(peer.run_until([&] { return !rig.passive_error.empty(); }));
    check_one(notices, {"node 3", "10.0.0.2", "ended while local_ready", "magic"});
  }
  SUBCASE("a peer that goes") {
    FaultRig rig;
    const Notices notices(rig.passive);
    RawPeer peer(rig, "fake1");
    peer.join();
    rdma_disconnect(peer.id());
    REQUIRE(peer.run_until([&] { return !rig.passive_error.empty(); }));
    check_one(notices, {"node 3", "10.0.0.2", "ended while local_ready", "disconnected"});
  }
  SUBCASE("this side's own fault") {
    FaultRig rig;
    const Notices notices(rig.passive);
    fake::fail_call(fake::Call::create_qp, ENOMEM, 1, 16);  // the active side's comes first
    rig.connect();
    REQUIRE(rig.run_until([&] { return !rig.passive_error.empty(); }));
    check_one(notices, {"node 2", "10.0.0.2", "ended while connecting", "cannot make a queue pair"});
  }
  SUBCASE("a newer attempt of the same peer") {
    FaultRig rig;
    const Notices notices(rig.passive);
    RawPeer silent(rig, "fake1");
    silent.join();
    RawPeer newer(rig, "fake1");
    newer.request.generation = {2};
    newer.join();
    check_one(notices, {"node 3", "10.0.0.2", "ended while local_ready", "a newer attempt came"});
  }
}

TEST_CASE(
    "rdma/operator: what its owner closes, refuses or lets go, and what was ready, is its owner's to tell") {
  FaultRig rig;
  const Notices notices(rig.passive);
  rig.answer = [&](RdmaConnection& connection) {
    connection.refuse(Greeting{});
    connection.abandon();
    rig.accepted = nullptr;
  };
  connect_until_it_ends(rig, rig.default_active());
  rig.answer = [](RdmaConnection& connection) { connection.accept(Greeting{}); };
  rig.connect(terms_with(rig, [](auto& r) { r.generation = {2}; }));
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  rig.connected->fail(Error(RdmaErrc::device_failed, "by the test"));
  REQUIRE(rig.run_until([&] { return rig.accepted->ended(); }));
  for (const auto& text : notices.texts) FAIL_CHECK(text);
}

TEST_CASE(
    "rdma/operator: a call that does not return is told once, by name and with its time, and not before") {
  struct Case {
    const char* verb;
    int job;  ///< of the active side's teardown, from 1
  };
  for (const Case& c : {Case{"ibv_modify_qp", 1}, Case{"ibv_destroy_qp", 2}}) {
    CAPTURE(std::string(c.verb));
    FaultRig rig;
    rig.establish();
    const Notices notices(rig.active);
    rig.connected->fail(Error(RdmaErrc::device_failed, "by the test"));
    for (int jobs = 0; jobs < c.job;) {
      rig.RdmaRig::turn();
      rig.passive_calls.step();
      if (rig.active_calls.waiting() == 0) continue;
      if (++jobs < c.job) rig.active_calls.step();
    }
    rig.active_calls.held = true;
    CHECK_FALSE(rig.pass_until([&] { return !notices.texts.empty(); }, milliseconds(4990)));
    REQUIRE(rig.pass_until([&] { return !notices.texts.empty(); }, milliseconds(100)));
    // Expect: one, however long it takes
    rig.pass_until([] { return false; }, seconds(6));
    check_one(notices, {c.verb, "fake1", "has not returned for 50"});
    CHECK_FALSE(rig.connected->torn_down());
    // And none once it has returned.
    rig.active_calls.held = false;
    REQUIRE(rig.pass_until([&] { return rig.connected->torn_down(); }, seconds(3)));
    rig.pass_until([] { return false; }, seconds(6));
    CHECK(notices.texts.size() == 1);
  }
}

TEST_CASE("rdma/operator: within each call on the control thread its core knows which it is") {
  FaultRig rig;
  std::vector<std::string> seen;
  fake::set_call_hook([&](const std::string& name) {
    seen.push_back(name);
    const char* passive = rig.passive.core().call_under_way();
    const char* active = rig.active.core().call_under_way();
    const bool known = (passive != nullptr && name == passive) || (active != nullptr && name == active);
    CHECK_MESSAGE(known, name, " in ", passive != nullptr ? passive : "none", " and ",
                  active != nullptr ? active : "none");
  });
  rig.establish();
  rig.exchange(5);
  rig.abandon_all();
  REQUIRE(rig.pass_until([&] { return rig.passive.core().idle() && rig.active.core().idle(); }, seconds(5)));
  rig.connect(terms_with(rig, [](auto& r) { r.shard_count = 3; }));
  REQUIRE(rig.run_until([&] { return !rig.active_error.empty() && rig.passive.core().idle(); }));
  REQUIRE(rig.pass_until([&] { return rig.active.core().idle(); }, seconds(3)));
  fake::set_call_hook(nullptr);
  for (const char* name :
       {"rdma_create_id", "rdma_resolve_addr", "rdma_resolve_route", "ibv_create_qp", "rdma_init_qp_attr",
        "ibv_modify_qp", "rdma_connect", "ibv_reg_mr", "ibv_query_gid_ex", "rdma_establish",
        "rdma_migrate_id", "rdma_accept", "rdma_disconnect", "ibv_destroy_qp", "ibv_dereg_mr",
        "rdma_destroy_id", "rdma_reject"}) {
    CHECK_MESSAGE(std::count(seen.begin(), seen.end(), name) > 0, name);
  }
}

TEST_CASE("rdma/operator: a deadline names the call that the state waited in") {
  RdmaOptions impatient;
  impatient.resolving_deadline = milliseconds(300);
  FaultRig rig({}, impatient);
  rig.active_calls.held = true;
  rig.connect();
  REQUIRE(rig.pass_until([&] { return !rig.active_error.empty(); }, seconds(1)));
  CHECK_MESSAGE(has(rig.active_error, "in rdma_create_id"), rig.active_error);
}

// ---- the way that rdma_cm chooses -----------------------------------------------------------------------

TEST_CASE("rdma/operator: a way through a GID that is not the chosen one is refused, with the remedy") {
  struct Case {
    const char* what;
    int index;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases{
      {"link-local", 0, {"GID 0", "no IPv4 address", "ip route get"}},
      {"RoCEv1", 2, {"GID 2", "not RoCEv2", "default_roce_mode"}},
      {"another address", 3, {"GID 3", "10.7.7.7", "ip route get"}},
      {"none", 9, {"GID 9", "cannot be read"}},
  };
  for (const bool active : {true, false}) {
    const std::string device = active ? "fake1" : "fake0";
    const std::string own = active ? "10.0.0.2" : "10.0.0.1";
    for (const Case& c : cases) {
      CAPTURE(active);
      CAPTURE(std::string(c.what));
      FaultRig rig;
      fake::DeviceConfig config = fake::device_config(device);
      fake::Gid v1 = fake::mapped_gid(own);
      v1.type = IBV_GID_TYPE_ROCE_V1;
      config.gids = {fake::link_local_gid(7), fake::mapped_gid(own), v1, fake::mapped_gid("10.7.7.7")};
      config.cm_gid = c.index;
      fake::change_device(device, config);
      rig.connect();
      REQUIRE(rig.run_until([&] { return !(active ? rig.active_error : rig.passive_error).empty(); }));
      const std::string& error = active ? rig.active_error : rig.passive_error;
      CHECK_MESSAGE(has(error, device), error);
      for (const auto& part : c.parts) CHECK_MESSAGE(has(error, part), error);
      // The right one, wherever it stands.
      config.cm_gid = 1;
      fake::change_device(device, config);
      REQUIRE(
          rig.pass_until([&] { return rig.passive.core().idle() && rig.active.core().idle(); }, seconds(6)));
      rig.connect(terms_with(rig, [](auto& r) { r.generation = {2}; }));
      REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
    }
  }
}

// ---- what EINVAL means ----------------------------------------------------------------------------------

TEST_CASE(
    "rdma/operator: EINVAL means that the peer went only where the peer's half of the exchange counts") {
  struct Case {
    fake::Call call;
    std::uint32_t skip;
    bool active, lost;
  };
  using enum fake::Call;
  // rdma_init_qp_attr is called for INIT by the active side, for INIT, RTR, RTS by the passive one, then for
  // RTR and RTS by the active one.
  for (const Case& c :
       {Case{create_id, 0, true, false}, Case{resolve_route, 0, true, false}, Case{connect, 0, true, false},
        Case{init_qp_attr, 0, true, false}, Case{migrate_id, 0, false, false},
        Case{init_qp_attr, 1, false, true}, Case{init_qp_attr, 2, false, true},
        Case{init_qp_attr, 3, false, true}, Case{accept, 0, false, true}, Case{init_qp_attr, 4, true, true},
        Case{init_qp_attr, 5, true, true}, Case{establish, 0, true, true}}) {
    CAPTURE(static_cast<int>(c.call));
    CAPTURE(c.skip);
    FaultRig rig;
    fake::fail_call(c.call, EINVAL, c.skip);
    rig.connect();
    const std::string& error = c.active ? rig.active_error : rig.passive_error;
    REQUIRE(rig.run_until([&] { return !error.empty(); }));
    CHECK_MESSAGE(has(error, make_error_code(RdmaErrc::peer_lost).message()) == c.lost, error);
    if (!c.lost)
      CHECK_MESSAGE(has(error, std::make_error_code(std::errc::invalid_argument).message()), error);
  }
}
