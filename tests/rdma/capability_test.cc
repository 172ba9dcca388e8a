// What a connection makes of what its devices and the limits of its process allow.
#include <string>

#include <sys/resource.h>

#include "fault_rig.h"
#include "has.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// RLIMIT_MEMLOCK's soft limit, for a while.
class MemlockLimit {
 public:
  explicit MemlockLimit(rlim_t bytes) {
    REQUIRE(::getrlimit(RLIMIT_MEMLOCK, &before_) == 0);
    const rlimit now{bytes, before_.rlim_max};
    set_ = ::setrlimit(RLIMIT_MEMLOCK, &now) == 0;
  }
  ~MemlockLimit() { ::setrlimit(RLIMIT_MEMLOCK, &before_); }
  MemlockLimit(const MemlockLimit&) = delete;
  MemlockLimit& operator=(const MemlockLimit&) = delete;
  [[nodiscard]] bool set() const { return set_; }

 private:
  rlimit before_{};
  bool set_ = false;
};

}  // namespace

TEST_CASE(
    "rdma/connection: both ends take the lesser MTU of their devices, and the timer that they were given") {
  RdmaOptions options;
  options.min_rnr_timer = 9;
  FaultRig rig(options, options, FaultRig::default_terms(), [](fake::DeviceConfig& device) {
    if (device.name == "fake1") device.active_mtu = IBV_MTU_1024;
  });
  rig.establish();
  for (const std::uint32_t number : {FaultRig::passive_number(), FaultRig::active_number()}) {
    const ibv_qp_attr attributes = fake::qp_stats(number).attributes;
    CHECK(attributes.path_mtu == IBV_MTU_1024);
    // rdma_cm leaves 0, the longest wait of all.
    CHECK(attributes.min_rnr_timer == 9);
  }
  rig.exchange(10);
}

TEST_CASE("rdma/connection: as much goes inline as the device takes, which only asking tells") {
  for (const auto& [cap, expected] :
       {std::pair{300U, 256U}, {256U, 256U}, {100U, 64U}, {63U, 0U}, {0U, 0U}}) {
    CAPTURE(cap);
    FaultRig rig({}, {}, FaultRig::default_terms(),
                 [cap = cap](fake::DeviceConfig& device) { device.max_inline = cap; });
    rig.establish();
    CHECK(rig.accepted->inline_bytes() == expected);
    CHECK(rig.connected->inline_bytes() == expected);
    // The fake refuses what is inline beyond the cap.
    rig.exchange(100);
    CHECK((fake::qp_stats(FaultRig::active_number()).sends_inline > 0) ==
          (expected >= 96));  // a control frame in its message
  }
}

TEST_CASE("rdma/core: memory that cannot be locked is an error that names the limit and the remedy") {
  FakeRig rig;
  std::vector<std::byte> more(1 << 16);
  const auto refused = [&] {
    fake::fail_call(fake::Call::reg_mr, ENOMEM);
    return rig.active.core().register_memory(more).error();
  };
  {
    const MemlockLimit limit(64 << 10);
    if (!limit.set()) {
      MESSAGE("skipped: the hard limit of locked memory is lower");
      return;
    }
    const Error error = refused();
    CHECK(error == RdmaErrc::memlock_too_low);
    CHECK_MESSAGE(has(error.message(), "at most 64 KiB may be locked"), error.message());
    CHECK_MESSAGE(has(error.message(), "ulimit -l unlimited"), error.message());
  }
  // Without a limit it is no reason.
  const MemlockLimit none(RLIM_INFINITY);
  if (!none.set()) return;
  CHECK(refused().code() == std::errc::not_enough_memory);
}
