// The verbs link on the fake provider.
#include "fake_rig.h"
#include "link_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_CASE("rdma/link: the verbs link keeps the rules of all links") {
  testing::check_link_conformance([] { return std::make_unique<VerbsFixture<FakeRig>>(); });
}
