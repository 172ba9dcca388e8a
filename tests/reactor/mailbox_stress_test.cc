// Ten million messages between two cores that park after every burst, over both ways to wake a parked one:
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

constexpr std::uint64_t kBurstMax = 2'000;
constexpr std::uint64_t kWakeups = 20;

/// What only a sleep and its end leave behind.
void check_parking(const ReactorGroup& group, CoreId id, const Sequence& received, bool by_event) {
  const ParkStats& stats = group.park_stats(id);
  std::printf(
      "reactor %u: %llu parks, %llu ended by a wakeup, %llu back-stops, %llu lost\n", unsigned{id.value},
      static_cast<unsigned long long>(stats.parks), static_cast<unsigned long long>(stats.wakeups_received),
      static_cast<unsigned long long>(stats.back_stops), static_cast<unsigned long long>(stats.lost_wakeups));
  CHECK(stats.parks >= received.rests);
  CHECK(stats.wakeups_received >= kWakeups);
  if (by_event) {
    CHECK(stats.event_writes > 0);
  } else {
    // Hosts may have no other way: what this test and stop() hand in, and what MSG_RING refused.
    const std::uint64_t of_hosts = stats.host_wakeups + stats.wakeups_failed + 1;
    CHECK(stats.event_writes <= (group.wake_fd(id) >= 0 ? of_hosts : 0));
  }
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
  send_bursts(*group, core(0), core(1), there, each, kBurstMax, microseconds(100), true);
  send_bursts(*group, core(1), core(0), back, each, kBurstMax, microseconds(100), true);
  const std::uint64_t bursts = each / kBurstMax;  // at least
  for (const Sequence* sequence : {&there, &back}) {
    CHECK(eventually(
        [&] { return sequence->next.load(std::memory_order_acquire) >= each && sequence->rests >= bursts; }));
  }
  // With the traffic over, each has nothing to wake for but the other's message.
  std::atomic<int> woken{0};
  for (std::size_t target = 0; target < 2; ++target) {
    CHECK(group->run(
        core(1 - target),
        [&group, &woken, target] { woken += wake_often(*group, core(target), kWakeups) ? 1 : 0; },
        kPatience * 2));
  }
  CHECK(woken == 2);
  stop_group(*group);
  CHECK(there.next == each);
  CHECK(back.next == each);
  CHECK(there.misplaced == 0);
  CHECK(back.misplaced == 0);
  check_parking(*group, core(1), there, wake == WakeCarrier::eventfd);
  check_parking(*group, core(0), back, wake == WakeCarrier::eventfd);
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
