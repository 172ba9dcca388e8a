// Ten million messages between two cores that park whenever they can, over both ways to wake a parked one:
// none lost, none reordered, no wakeup lost. TIDELOCK_STRESS_MESSAGES sets another number.
#include <cstdio>
#include <cstdlib>

#include <doctest/doctest.h>

#include "group_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

std::uint64_t messages() {
  if (const char* text = std::getenv("TIDELOCK_STRESS_MESSAGES")) return std::strtoull(text, nullptr, 10);
  return kSanitized ? 500'000 : 10'000'000;
}

void stress(WakeCarrier wake) {
  ReactorGroupOptions options = group_options(2);
  options.wake = wake;
  options.spin = microseconds(2);
  options.back_stop = seconds(2);
  auto group = start_group(options);
  const std::uint64_t each = messages() / 2;
  Sequence there;
  Sequence back;
  send_bursts(*group, core(0), core(1), there, each, 2'000, microseconds(100));
  send_bursts(*group, core(1), core(0), back, each, 2'000, microseconds(100));
  CHECK(eventually([&] {
    return there.next.load(std::memory_order_acquire) >= each &&
           back.next.load(std::memory_order_acquire) >= each;
  }));
  stop_group(*group);
  CHECK(there.next == each);
  CHECK(back.next == each);
  CHECK(there.misplaced == 0);
  CHECK(back.misplaced == 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const ParkStats& stats = group->park_stats(core(i));
    std::printf("reactor %zu: %llu parks, %llu ended by a wakeup, %llu back-stops, %llu lost\n", i,
                static_cast<unsigned long long>(stats.parks),
                static_cast<unsigned long long>(stats.wakeups_received),
                static_cast<unsigned long long>(stats.back_stops),
                static_cast<unsigned long long>(stats.lost_wakeups));
    CHECK(stats.parks > 20);
    CHECK(stats.wakeups_received > 0);
    CHECK((stats.event_writes > 0) == (group->wake_fd(core(i)) >= 0 && wake == WakeCarrier::eventfd));
  }
}

}  // namespace

TEST_CASE("reactor/mailbox: 10 million messages with parking on, woken by MSG_RING, none lost or reordered") {
  const auto probe = ReactorGroup::start([] {
    ReactorGroupOptions options = group_options(1);
    options.wake = WakeCarrier::msg_ring;
    return options;
  }());
  if (!probe) {
    MESSAGE("skipped: " << probe.error().message());
    return;
  }
  stress(WakeCarrier::msg_ring);
}

TEST_CASE("reactor/mailbox: 10 million messages with parking on, woken by eventfd, none lost or reordered") {
  stress(WakeCarrier::eventfd);
}
