/// For tests that run a ReactorGroup: options that suit the machine, and work that outlives no group.
/// Thread:   any
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include <doctest/doctest.h>

#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/reactor_group.h>

#include "core_id.h"
#include "sanitized.h"

namespace tidelock::test {

/// Generous: the machine may be busy.
inline constexpr Duration kPatience = seconds(120);

inline ReactorGroupOptions group_options(std::uint32_t reactors) {
  ReactorGroupOptions options;
  options.reactors = reactors;
  options.overprovisioned = usable_cpus().size() < reactors;
  options.spin = microseconds(20);
  options.seed = 1;
  options.reactor.prepared_fibers = 4;
  return options;
}

inline std::unique_ptr<ReactorGroup> start_group(const ReactorGroupOptions& options) {
  auto group = ReactorGroup::start(options);
  REQUIRE_MESSAGE(group, (group ? "" : group.error().message()));
  return *std::move(group);
}

inline void stop_group(ReactorGroup& group) {
  const Status stopped = group.stop(kPatience);
  CHECK_MESSAGE(stopped, (stopped ? "" : stopped.error().message()));
  for (std::uint32_t i = 0; i < group.size(); ++i) CHECK(group.park_stats(core(i)).lost_wakeups == 0);
}

inline Instant patience() { return Reactor::current()->clock().now() + kPatience; }

template <class Predicate>
bool eventually(Predicate&& predicate) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.ns);
  while (!predicate()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

/// In a fiber: waits until the reactor of `stats` has gone to sleep once more. The naps grow, so that this
/// reactor comes to rest meanwhile, too, however slow the machine is: whoever waits here may itself be waited
/// for.
inline bool await_park(const ParkStats& stats, std::uint64_t parks_before) {
  const Instant until = patience();
  for (Duration nap = microseconds(20); stats.parks == parks_before;
       nap = std::min(nap * 2, milliseconds(10))) {
    if (Reactor::current()->clock().now() > until) return false;
    if (this_fiber::sleep_for(nap) == Wakeup::cancelled) return false;
  }
  return true;
}

/// In a fiber: sends to a reactor that has nothing else to do, each time after it went to sleep, until so
/// many of its sleeps were ended by a wakeup. Only a sleep that its back-stop ended takes another message.
inline bool wake_often(ReactorGroup& group, CoreId target, std::uint64_t wakeups) {
  const ParkStats& stats = group.park_stats(target);
  const Instant until = patience();
  while (stats.wakeups_received < wakeups) {
    const std::uint64_t parks = stats.parks;
    const auto answer = Reactor::current()->mailbox()->call(
        target, [](Reactor&) { return 1; }, patience());
    if (!answer || !await_park(stats, parks) || Reactor::current()->clock().now() > until) return false;
  }
  return true;
}

/// From a thread that is no reactor: the same until its work has ended a sleep.
inline bool woken_by_host(ReactorGroup& group, CoreId target) {
  const ParkStats& stats = group.park_stats(target);
  return eventually([&] {
    const std::uint64_t parks = stats.parks;
    CHECK(group.run(
        target, [] {}, kPatience));
    CHECK(eventually([&] { return stats.parks != parks; }));
    return stats.host_wakeups > 0;
  });
}

/// Expects 0, 1, 2, ... One writer: the loop of the reactor that receives.
struct Sequence {
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> misplaced{0};
  std::atomic<std::uint64_t> rests{
      0};  ///< whole bursts after which the receiver slept; written by the sender
  void take(std::uint64_t number) {
    const std::uint64_t expected = next.load(std::memory_order_relaxed);
    if (number != expected) misplaced.fetch_add(1, std::memory_order_relaxed);
    next.store(expected + 1, std::memory_order_release);
  }
};

/// Sends `count` numbers from a fiber of `from` in bursts, with pauses between them in which both may park.
/// `rest`: no burst begins before the receiver has parked since the last one began.
inline void send_bursts(ReactorGroup& group, CoreId from, CoreId to, Sequence& sequence, std::uint64_t count,
                        std::uint64_t burst_max, Duration pause_max, bool rest = false) {
  const ParkStats& stats = group.park_stats(to);
  const Status started = group.run(
      from,
      [to, &sequence, &stats, count, burst_max, pause_max, rest] {
        const auto body = [to, &sequence, &stats, count, burst_max, pause_max, rest] {
          Reactor& reactor = *Reactor::current();
          std::uint64_t left = 1;
          std::uint64_t parks = stats.parks;
          for (std::uint64_t i = 0; i < count; ++i) {
            Sequence* target = &sequence;
            const Status sent = reactor.mailbox()->post(
                to, [target, i](Reactor&) { target->take(i); }, patience());
            if (!sent) return;  // the count will tell
            if (--left != 0) continue;
            if (rest) {
              if (!await_park(stats, parks)) return;
              ++sequence.rests;
              parks = stats.parks;
            }
            left = 1 + reactor.random().below(burst_max);
            const auto range = static_cast<std::uint64_t>(pause_max.ns + 1);
            this_fiber::sleep_for(nanoseconds(static_cast<std::int64_t>(reactor.random().below(range))));
          }
        };
        CHECK(Reactor::current()->spawn_detached("bursts", body));
      },
      kPatience);
  CHECK(started);
}

}  // namespace tidelock::test
