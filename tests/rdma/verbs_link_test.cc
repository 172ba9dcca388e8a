// The verbs link on the fake provider.
#include "fake_rig.h"
#include "link_fixture.h"
#include "verbs_engine.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_CASE("rdma/link: the verbs link keeps the rules of all links") {
  testing::check_link_conformance([] { return std::make_unique<VerbsFixture<FakeRig>>(); });
}

TEST_CASE("rdma/link: engines replicate over it, and close") {
  fake::reset();
  for (const std::uint32_t shards : {1U, 2U}) {
    CAPTURE(shards);
    check_verbs_engines({"10.0.0.1", "10.0.0.2", "fake0", "fake1"}, shards);
    CHECK(fake::live_objects().total() == 0);
  }
}
