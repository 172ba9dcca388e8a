// The verbs link on real verbs: a device, or soft-RoCE in the lab.
#include "device_rig.h"
#include "link_fixture.h"
#include "verbs_engine.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_CASE("rdma/link: the verbs link keeps the rules of all links, on a device") {
  testing::check_link_conformance([] { return std::make_unique<VerbsFixture<DeviceRig>>(); });
}

TEST_CASE("rdma/link: engines replicate over it, and close, on a device") {
  const auto primary = choose_rdma_place({passive_device(), ""});
  const auto replica = choose_rdma_place({active_device(), ""});
  REQUIRE((primary && replica));
  for (const std::uint32_t shards : {1U, 2U}) {
    CAPTURE(shards);
    check_verbs_engines({primary->address, replica->address, primary->device, replica->device}, shards);
  }
}
