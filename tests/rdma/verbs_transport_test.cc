// The transport on the fake provider: what keeps a peer out reaches the engine's event log, and closing waits
// for no attempt.
#include "verbs_transport.h"

#include <memory>
#include <string>
#include <vector>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>

#include "events.h"
#include "fake/fake_verbs.h"
#include "job.h"
#include "shard.h"
#include "verbs_engine.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

const VerbsPlaces kPlaces{"10.0.0.1", "10.0.0.2", "fake0", "fake1"};

/// A transport with what an engine gives it, and no engine.
struct Grounds {
  explicit Grounds(const Options& chosen) : options(chosen) {
    ReactorGroupOptions of_group;
    of_group.reactors = options.shards;
    of_group.overprovisioned = true;
    of_group.pin = false;
    auto started = ReactorGroup::start(of_group);
    if (!started) FAIL(started.error().message());
    group = *std::move(started);
    shards.resize(1);
    REQUIRE(run_job(
        *group, {0},
        [this](Reactor& reactor) -> Status {
          TL_TRY(shards[0], Shard::create(reactor, options, ShardConfig{{0}, {7}, 7, {1, options.node}}));
          return {};
        },
        kPatience));
    auto made = make_verbs_transport(options, *group, shards, events);
    if (!made) FAIL(made.error().message());
    transport = *std::move(made);
  }
  ~Grounds() {
    CHECK(run_job(
        *group, {0},
        [this](Reactor&) -> Status {
          shards[0]->shut();
          shards[0]->destroy();
          return {};
        },
        kPatience));
    transport.reset();
    CHECK(group->stop(kPatience));
  }
  Grounds(const Grounds&) = delete;
  Grounds& operator=(const Grounds&) = delete;

  const Options options;
  EventLog events;
  std::unique_ptr<ReactorGroup> group;
  std::vector<std::unique_ptr<Shard>> shards;
  std::unique_ptr<Transport> transport;
};

Hello hello_of_replica() {
  Hello hello;
  hello.role = NodeRole::replica;
  hello.node = 2;
  hello.shard_count = 1;
  return hello;
}

}  // namespace

TEST_CASE(
    "engine/verbs_transport: interrupt() ends an attempt that waits for an answer, and those that follow") {
  fake::reset();
  {
    Grounds grounds(verbs_replica(kPlaces, 1));
    // Nobody answers. From within the attempt, so that it is under way for certain.
    fake::set_call_hook([&](const std::string& name) {
      if (name == "rdma_resolve_addr") grounds.transport->interrupt();
    });
    fake::CmFault lost;
    lost.event = RDMA_CM_EVENT_ADDR_RESOLVED;
    fake::add_cm_fault(lost);
    for (int i = 0; i < 2; ++i) {
      const auto connected = grounds.transport->connect("10.0.0.1:7471", hello_of_replica(), kPatience);
      REQUIRE_FALSE(connected);
      CHECK_MESSAGE(connected.error() == ReactorErrc::closed, connected.error().message());
    }
    fake::set_call_hook(nullptr);
  }
  CHECK(fake::live_objects().total() == 0);
}

TEST_CASE(
    "engine/verbs_transport: what keeps a peer out is in the primary's event log, and no flood of it is") {
  fake::reset();
  {
    auto primary = open(verbs_primary(kPlaces, 1));
    {
      Grounds grounds(verbs_replica(kPlaces, 1));
      Hello other = hello_of_replica();
      other.shard_count = 3;
      for (int i = 0; i < 40; ++i) CHECK_FALSE(grounds.transport->connect("10.0.0.1:7471", other, kPatience));
    }
    CHECK(has_event(*primary, "rejected a request from 10.0.0.2: shard count: this side has 1, the peer 3"));
    // Expect: told at 1, 2, 4, 8, 16 and 32 times
    CHECK(eventually([&] { return has_event(*primary, "(32 times such)"); }));
    CHECK(primary->stats().events.size() == 6);
    REQUIRE(primary->close(kPatience));
  }
  CHECK(fake::live_objects().total() == 0);
}

TEST_CASE("engine/verbs_transport: a hello that is none is refused, and in the primary's event log") {
  fake::reset();
  {
    auto primary = open(verbs_primary(kPlaces, 1));
    {
      Grounds grounds(verbs_replica(kPlaces, 1));
      Hello none = hello_of_replica();
      none.role = static_cast<NodeRole>(99);
      const auto connected = grounds.transport->connect("10.0.0.1:7471", none, kPatience);
      REQUIRE_FALSE(connected);
      CHECK_MESSAGE(connected.error() == ReplicationErrc::refused, connected.error().message());
    }
    CHECK(has_event(*primary, "refused verbs fake0 10.0.0.1 <- 10.0.0.2"));
    REQUIRE(primary->close(kPatience));
  }
  CHECK(fake::live_objects().total() == 0);
}
