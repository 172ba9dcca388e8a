// Each state has its deadline, whatever rdma_cm says late, twice or never; and calls that do not return.
#include <filesystem>
#include <string>
#include <vector>

#include "fault_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

void lose(rdma_cm_event_type event) {
  fake::CmFault fault;
  fault.event = event;
  fake::add_cm_fault(fault);
}

std::size_t open_descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Everybody lets go, also of what the passive side accepts only now; nothing is left.
std::function<bool()> gone(FaultRig& rig) {
  return [&rig] {
    rig.abandon_all();
    return rig.passive.core().idle() && rig.active.core().idle();
  };
}

/// Until the active side's `number`-th job is given to its control thread, and has not begun.
bool run_until_job(FaultRig& rig, int number) {
  for (int i = 0; i < 5000; ++i) {
    rig.RdmaRig::turn();
    rig.passive_calls.step();
    if (rig.active_calls.waiting() == 0) continue;
    if (--number == 0) return true;
    rig.active_calls.step();
  }
  return false;
}

}  // namespace

TEST_CASE("rdma/connection: an event that never comes ends its state by the deadline, and not before") {
  struct Lost {
    rdma_cm_event_type event;
    const char* state;
    Duration deadline;
  };
  const RdmaOptions options;
  for (const Lost& lost : {Lost{RDMA_CM_EVENT_ADDR_RESOLVED, "resolving", options.resolving_deadline},
                           Lost{RDMA_CM_EVENT_ROUTE_RESOLVED, "resolving", options.resolving_deadline},
                           Lost{RDMA_CM_EVENT_CONNECT_REQUEST, "connecting", options.connecting_deadline},
                           Lost{RDMA_CM_EVENT_CONNECT_RESPONSE, "connecting", options.connecting_deadline}}) {
    CAPTURE(std::string(lost.state));
    FaultRig rig;
    lose(lost.event);
    rig.connect();
    const Duration almost{lost.deadline.ns - milliseconds(20).ns};
    CHECK_FALSE(rig.pass_until([&] { return !rig.active_error.empty(); }, almost));
    REQUIRE(rig.pass_until([&] { return !rig.active_error.empty(); }, milliseconds(100)));
    CHECK(rig.active_code == make_error_code(RdmaErrc::state_deadline));
    CHECK(has(rig.active_error, std::string("stayed ") + lost.state));
    CHECK(has(rig.active_error, "idle +0 us"));
    // Expect: the passive side, where it came to know of the attempt, is told or has its own deadline
    CHECK(rig.pass_until([&] { return rig.passive.core().idle() && rig.active.core().idle(); }, seconds(7)));
  }
}

TEST_CASE("rdma/connection: ESTABLISHED late, lost or twice changes nothing") {
  for (const auto action : {fake::CmAction::lose, fake::CmAction::delay, fake::CmAction::duplicate}) {
    CAPTURE(static_cast<int>(action));
    FaultRig rig;
    fake::CmFault fault;
    fault.event = RDMA_CM_EVENT_ESTABLISHED;
    fault.action = action;
    fault.steps = 3000;
    fake::add_cm_fault(fault);
    rig.establish();
    rig.exchange(20);
    fake::step(3000);
    rig.settle();
    rig.exchange(20);
  }
}

TEST_CASE("rdma/connection: a second CONNECT_RESPONSE or ROUTE_RESOLVED is ignored") {
  for (const auto event : {RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_ROUTE_RESOLVED}) {
    FaultRig rig;
    fake::CmFault fault;
    fault.event = event;
    fault.action = fake::CmAction::duplicate;
    fake::add_cm_fault(fault);
    rig.establish();
    rig.exchange(20);
  }
}

TEST_CASE("rdma/connection: what rdma_cm says after both are ready: late news is ignored, an end is an end") {
  struct News {
    rdma_cm_event_type event;
    bool ends;
  };
  for (const News& news :
       {News{RDMA_CM_EVENT_ADDR_RESOLVED, false}, News{RDMA_CM_EVENT_ROUTE_RESOLVED, false},
        News{RDMA_CM_EVENT_CONNECT_RESPONSE, false}, News{RDMA_CM_EVENT_ESTABLISHED, false},
        News{RDMA_CM_EVENT_TIMEWAIT_EXIT, false}, News{RDMA_CM_EVENT_REJECTED, false},
        News{RDMA_CM_EVENT_UNREACHABLE, false}, News{RDMA_CM_EVENT_CONNECT_ERROR, false},
        News{RDMA_CM_EVENT_DISCONNECTED, true}, News{RDMA_CM_EVENT_DEVICE_REMOVAL, true}}) {
    for (const bool active : {true, false}) {
      CAPTURE(std::string(rdma_event_str(news.event)));
      CAPTURE(active);
      FaultRig rig;
      rig.establish();
      CmEvent event;
      event.kind = news.event;
      event.status = 28;
      (active ? rig.connected : rig.accepted)->on_cm(event);
      if (news.ends) {
        CHECK(rig.run_until([&] { return rig.connected->torn_down() && rig.accepted->torn_down(); }));
        CHECK((active ? rig.connected : rig.accepted)->state() == ConnectionState::failed);
      } else {
        rig.exchange(5);
      }
    }
  }
}

TEST_CASE("rdma/connection: DISCONNECTED in any state ends the attempt, and the other side hears of it") {
  for (const auto state : {ConnectionState::resolving, ConnectionState::connecting,
                           ConnectionState::local_ready, ConnectionState::ready, ConnectionState::draining}) {
    CAPTURE(std::string(to_string(state)));
    FaultRig rig;
    rig.connect();
    RdmaConnection& connection = *rig.connecting;
    const auto until = state == ConnectionState::draining ? ConnectionState::ready : state;
    REQUIRE(rig.run_until([&] { return connection.state() == until; }));
    if (state == ConnectionState::draining) connection.close("going");
    CmEvent event;
    event.kind = RDMA_CM_EVENT_DISCONNECTED;
    connection.on_cm(event);
    const bool was_ready = until == ConnectionState::ready;
    if (!was_ready) {
      REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
      CHECK(rig.active_code == make_error_code(RdmaErrc::peer_lost));
    } else {
      CHECK(connection.error() ==
            (state == ConnectionState::draining ? RdmaErrc::closed : RdmaErrc::peer_lost));
    }
    CHECK(rig.pass_until(gone(rig), seconds(7)));
  }
}

TEST_CASE(
    "rdma/connection: a verb that does not return: the state ends by its deadline, the teardown waits for "
    "it") {
  for (const int job : {1, 2, 3, 4, 5}) {  // id, route, queue pair, connect, establish
    CAPTURE(job);
    RdmaOptions impatient;
    impatient.resolving_deadline = impatient.connecting_deadline = milliseconds(300);
    FaultRig rig({}, impatient);
    rig.connect();
    RdmaConnection& stuck = *rig.connecting;
    REQUIRE(run_until_job(rig, job));
    rig.active_calls.held = true;
    REQUIRE(rig.pass_until([&] { return !rig.active_error.empty(); }, seconds(1)));
    CHECK(rig.active_code == make_error_code(RdmaErrc::state_deadline));
    CHECK(has(rig.active_error, "resolving"));
    CHECK_FALSE(rig.pass_until([&] { return rig.active.core().idle(); }, seconds(1)));
    CHECK(stuck.state() == ConnectionState::draining);
    CHECK_FALSE(stuck.torn_down());
    rig.active_calls.held = false;
    CHECK(rig.pass_until([&] { return rig.active.core().idle(); }, seconds(3)));
  }
}

TEST_CASE("rdma/connection: close, abandon and fail while a verb does not return take effect when it does") {
  for (const int how : {0, 1, 2}) {
    for (const auto state : {ConnectionState::resolving, ConnectionState::connecting,
                             ConnectionState::local_ready, ConnectionState::ready}) {
      CAPTURE(how);
      CAPTURE(std::string(to_string(state)));
      FaultRig rig;
      rig.connect();
      RdmaConnection& connection = *rig.connecting;
      REQUIRE(rig.run_until([&] { return connection.state() == state; }));
      rig.active_calls.held = true;
      if (how == 0) connection.close("by the owner");
      if (how == 1) connection.abandon();
      if (how == 2) connection.fail(Error(RdmaErrc::device_failed, "by the test"));
      CHECK(connection.ended());
      CHECK(connection.error() == (how == 2 ? RdmaErrc::device_failed : RdmaErrc::closed));
      CHECK(connection.state() == ConnectionState::draining);
      connection.close("again");
      connection.fail(Error(RdmaErrc::protocol, "later"));
      CHECK(connection.error() == (how == 2 ? RdmaErrc::device_failed : RdmaErrc::closed));
      CHECK_FALSE(rig.pass_until([&] { return rig.active.core().idle(); }, milliseconds(700)));
      rig.active_calls.held = false;
      rig.abandon_all();
      CHECK(rig.pass_until([&] { return rig.active.core().idle(); }, seconds(3)));
    }
  }
}

TEST_CASE("rdma/connection: a thousand connects and disconnects leave no object and no descriptor") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::uint32_t kTimes = 150;
#else
  constexpr std::uint32_t kTimes = 1000;
#endif
  FaultRig rig;
  rig.settle();
  const std::size_t objects = fake::live_objects().total();
  const std::size_t descriptors = open_descriptors();
  for (std::uint32_t i = 1; i <= kTimes; ++i) {
    rig.connect(attempt(rig, i));
    // Some get up, some are let go on their way.
    const bool whole = i % 4 != 0;
    for (std::uint32_t turn = 0; turn < i % 40; ++turn) rig.turn();
    if (whole) REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
    REQUIRE(rig.pass_until(gone(rig), seconds(7)));
  }
  rig.settle();
  CHECK(fake::live_objects().total() == objects);
  CHECK(open_descriptors() == descriptors);
  CHECK(rig.active.core().counters().connections_made == kTimes);
}

TEST_CASE("rdma/listener: an attempt that arrives after a younger one of the same process is rejected") {
  FaultRig rig;
  fake::CmFault fault;
  fault.event = RDMA_CM_EVENT_CONNECT_REQUEST;
  fault.action = fake::CmAction::delay;
  fault.steps = 20'000;
  fake::add_cm_fault(fault);
  std::string older_error;
  const auto older =
      rig.active.core().connect(attempt(rig, 1), {[](RdmaConnection&, Bytes) { FAIL("accepted"); },
                                                  [&](RdmaConnection& connection, Bytes) {
                                                    older_error = connection.error().message();
                                                    connection.abandon();
                                                  }});
  REQUIRE(older);
  REQUIRE(rig.run_until([&] { return (*older)->state() == ConnectionState::connecting; }));
  rig.settle();
  rig.connect(attempt(rig, 2));
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  fake::step(20'000);
  REQUIRE(rig.run_until([&] { return !older_error.empty(); }));
  CHECK(has(older_error, "has taken attempt 2"));
  CHECK(rig.both_ready());
  rig.exchange(5);
}

TEST_CASE("rdma/core: a peer that is back retires its old connection once it says hello, not before") {
  FaultRig rig;
  rig.establish();
  RdmaConnection& old_passive = *rig.accepted;
  RdmaConnection& old_active = *rig.connected;
  rig.accepted = nullptr;
  rig.connect(attempt(rig, 2));
  REQUIRE(rig.run_until([&] { return rig.connecting->state() == ConnectionState::connecting; }));
  CHECK(old_passive.ready());
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  CHECK(&old_passive != rig.accepted);
  REQUIRE(old_passive.ended());
  CHECK(has(old_passive.error(), "newer connection"));
  CHECK(rig.run_until([&] { return old_passive.torn_down() && old_active.torn_down(); }));
  CHECK(old_active.error() == RdmaErrc::peer_closed);
  old_passive.abandon();
  old_active.abandon();
  rig.exchange(5);
}

TEST_CASE(
    "rdma/core: another process by the same number is told so while the first answers, and taken after") {
  FaultRig rig;
  rig.establish();
  RdmaConnection& old_passive = *rig.accepted;
  RdmaConnection& old_active = *rig.connected;
  rig.connect(attempt(rig, 1, 100));
  REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
  CHECK(rig.active_code == make_error_code(RdmaErrc::rejected));
  CHECK(has(rig.active_error, "another node with number 2"));
  CHECK(old_passive.ready());
  CHECK(old_active.ready());
  // The first goes without a word; its successor is taken once that is noticed.
  old_active.fail(Error(RdmaErrc::closed, "by the test"));
  REQUIRE(rig.run_until([&] { return old_passive.ended(); }));
  old_active.abandon();
  old_passive.abandon();
  rig.accepted = nullptr;
  rig.connect(attempt(rig, 2, 100));
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  rig.exchange(5);
}

TEST_CASE("rdma/core: with all connection slots in use a peer is told to try later, and later finds one") {
  RdmaOptions one;
  one.connections_max = 1;
  FaultRig rig(one, RdmaOptions{});
  rig.establish();
  RdmaConnection* const first_passive = std::exchange(rig.accepted, nullptr);
  RdmaConnection* const first_active = rig.connected;
  auto terms = attempt(rig, 1);
  terms.request.shard = {0};
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return !rig.active_error.empty(); }));
  CHECK(rig.active_code == make_error_code(RdmaErrc::rejected));
  CHECK(has(rig.active_error, "try again later"));
  CHECK(first_passive->ready());
  CHECK(first_active->ready());
  first_passive->abandon();
  first_active->abandon();
  REQUIRE(rig.pass_until([&] { return rig.passive.core().idle(); }, seconds(3)));
  terms.request.generation = {2};
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  rig.exchange(5);
}

TEST_CASE("rdma/core: connect() with all slots in use says busy") {
  RdmaOptions one;
  one.connections_max = 1;
  FaultRig rig(RdmaOptions{}, one);
  rig.establish();
  const auto second = rig.active.core().connect(attempt(rig, 2), {});
  REQUIRE_FALSE(second);
  CHECK(second.error() == RdmaErrc::busy);
  rig.abandon_all();
  REQUIRE(rig.pass_until([&] { return rig.active.core().idle(); }, seconds(3)));
  rig.connect(attempt(rig, 2));
  CHECK(rig.run_until([&] { return rig.both_ready(); }));
}
