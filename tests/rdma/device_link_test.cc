// The verbs link on real verbs: a device, or soft-RoCE in the lab.
#include "device_rig.h"
#include "link_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_CASE("rdma/link: the verbs link keeps the rules of all links, on a device") {
  testing::check_link_conformance([] { return std::make_unique<VerbsFixture<DeviceRig>>(); });
}
