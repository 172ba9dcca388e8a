#include <algorithm>
#include <array>
#include <filesystem>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/ring.h>

#include "group_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

std::size_t open_eventfds() {
  std::size_t found = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (!error && target.string().find("[eventfd]") != std::string::npos) ++found;
  }
  return found;
}

UringFeatures kernel_features() {
  auto ring = UringBackend::create({});
  REQUIRE(ring);
  return (*ring)->features();
}

struct CountingTask : HostTask {
  std::atomic<std::uint64_t>* counter = nullptr;
  std::uint64_t number = 0;
  std::uint64_t* last = nullptr;
  std::atomic<std::uint64_t>* misplaced = nullptr;
};

/// Keeps a reactor's loop busy, off its sources, until released.
struct Blocker : HostTask {
  Blocker() {
    run = [](HostTask& task, Reactor&) {
      auto& self = static_cast<Blocker&>(task);
      self.entered.store(true);
      while (!self.release.load()) std::this_thread::yield();
      self.left.store(true);
    };
  }
  std::atomic<bool> entered{false};
  std::atomic<bool> release{false};
  std::atomic<bool> left{false};
};

void exchange_messages(const ReactorGroupOptions& options, std::uint64_t count) {
  auto group = start_group(options);
  Sequence there;
  Sequence back;
  send_bursts(*group, core(0), core(1), there, count, 300, microseconds(200));
  send_bursts(*group, core(1), core(0), back, count, 300, microseconds(200));
  CHECK(eventually([&] { return there.next >= count && back.next >= count; }));
  std::uint64_t answers = 0;
  CHECK(group->run(
      core(0),
      [&answers] {
        for (std::uint64_t i = 0; i < 200; ++i) {
          const auto answer = Reactor::current()->mailbox()->call(
              core(1), [i](Reactor&) { return i; }, patience());
          if (answer && *answer == i) ++answers;
        }
      },
      kPatience));
  stop_group(*group);
  CHECK(there.next == count);
  CHECK(back.next == count);
  CHECK(there.misplaced == 0);
  CHECK(back.misplaced == 0);
  CHECK(answers == 200);
}

}  // namespace

TEST_CASE("reactor/group: each reactor turns on its own thread, pinned to its own CPU") {
  auto group = start_group(group_options(1));
  REQUIRE(group->cpus().size() == 1);
  int cpu = -1;
  std::uint16_t id = 99;
  CHECK(group->run(
      core(0),
      [&] {
        CHECK(this_fiber::exists());
        cpu = ::sched_getcpu();
        id = Reactor::current()->id().value;
      },
      kPatience));
  CHECK(cpu == static_cast<int>(group->cpus()[0]));
  CHECK(id == 0);
  stop_group(*group);
}

TEST_CASE("reactor/group: more reactors than CPUs are refused with the remedy, or share CPUs when told to") {
  const auto usable = static_cast<std::uint32_t>(usable_cpus().size());
  if (usable >= 256) return;
  ReactorGroupOptions options;
  options.reactors = usable + 1;
  const auto refused = ReactorGroup::start(options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == ReactorErrc::bad_cpu_set);
  CHECK(refused.error().message().find("fewer reactors") != std::string::npos);
  CHECK(refused.error().message().find("overprovisioned") != std::string::npos);

  options.overprovisioned = true;
  options.reactor.prepared_fibers = 2;
  auto shared = start_group(options);
  CHECK(shared->cpus().empty());
  stop_group(*shared);

  options.cpus = {usable_cpus().front()};
  auto pinned = start_group(options);
  CHECK(pinned->cpus() == std::vector<std::uint32_t>(usable + 1, usable_cpus().front()));
  stop_group(*pinned);

  options.cpus = {99'999};
  const auto unknown = ReactorGroup::start(options);
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error() == ReactorErrc::bad_cpu_set);
}

TEST_CASE("reactor/group: options out of range are refused") {
  const auto start_with = [](auto change) {
    ReactorGroupOptions options = group_options(1);
    change(options);
    return ReactorGroup::start(options).has_value();
  };
  CHECK_FALSE(start_with([](auto& options) { options.reactors = 0; }));
  CHECK_FALSE(start_with([](auto& options) { options.reactors = 257; }));
  CHECK_FALSE(start_with([](auto& options) { options.mailbox.lane_slots = 6; }));
  CHECK_FALSE(start_with([](auto& options) { options.mailbox.lane_slots = 2; }));
  CHECK_FALSE(start_with([](auto& options) { options.ring_entries = 4; }));
  CHECK_FALSE(start_with([](auto& options) { options.reactor.max_fibers = 0; }));
  CHECK(start_with([](auto&) {}));
}

TEST_CASE("reactor/group: every carrier and every way to wake brings all messages in order") {
  const std::uint64_t count = kSanitized ? 8'000 : 200'000;
  const UringFeatures features = kernel_features();
  for (const Carrier carrier : {Carrier::shared_memory, Carrier::msg_ring, Carrier::eventfd}) {
    for (const WakeCarrier wake : {WakeCarrier::automatic, WakeCarrier::eventfd}) {
      if (carrier == Carrier::msg_ring && !features.msg_ring) continue;
      CAPTURE(static_cast<int>(carrier));
      CAPTURE(static_cast<int>(wake));
      ReactorGroupOptions options = group_options(2);
      options.mailbox.carrier = carrier;
      options.wake = wake;
      // Announced lanes cost a system call a flush.
      exchange_messages(options, carrier == Carrier::shared_memory ? count : count / 10);
    }
  }
}

TEST_CASE("reactor/group: a parked reactor is woken, not found by its back-stop") {
  for (const WakeCarrier wake : {WakeCarrier::automatic, WakeCarrier::eventfd}) {
    ReactorGroupOptions options = group_options(2);
    options.wake = wake;
    options.spin = Duration{0};
    options.back_stop = seconds(3'600);
    auto group = start_group(options);
    std::uint64_t answers = 0;
    CHECK(group->run(
        core(0),
        [&answers, &target = group->park_stats(core(1))] {
          std::uint64_t parks = target.parks;
          for (std::uint64_t i = 0; i < 300; ++i) {
            if (i % 10 == 9 && !await_park(target, parks)) return;
            parks = target.parks;
            const auto answer = Reactor::current()->mailbox()->call_in_fiber(
                core(1),
                [i](Reactor&) {
                  if (i % 16 == 0) this_fiber::sleep_for(microseconds(300));
                  return i;
                },
                patience());
            if (answer && *answer == i) ++answers;
          }
        },
        kPatience));
    CHECK(answers == 300);
    CHECK(group->park_stats(core(1)).parks > 0);
    CHECK(group->park_stats(core(0)).wakeups_sent > 0);
    CHECK(group->park_stats(core(1)).wakeups_received > 0);
    stop_group(*group);
  }
}

TEST_CASE("reactor/group: where MSG_RING does everything there is no eventfd") {
  const UringFeatures features = kernel_features();
  if (!features.msg_ring || !features.host_msg_ring) {
    MESSAGE("skipped: the kernel lacks IORING_REGISTER_SEND_MSG_RING (Linux 6.13)");
    return;
  }
  const std::size_t before = open_eventfds();
  auto group = start_group(group_options(2));
  CHECK(group->wake_fd(core(0)) == -1);
  const ParkStats& stats = group->park_stats(core(1));
  std::uint64_t ran = 0;
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t parks = stats.parks;
    CHECK(group->run(
        core(1), [&ran] { ++ran; }, kPatience));
    CHECK(eventually([&] { return stats.parks != parks; }));
  }
  CHECK(ran == 20);
  CHECK(woken_by_host(*group, core(1)));
  CHECK(open_eventfds() == before);
  stop_group(*group);
}

TEST_CASE("reactor/group: without MSG_RING the eventfd wakes, and the notices say so") {
  ReactorGroupOptions options = group_options(2);
  options.allow_msg_ring = false;
  options.back_stop = seconds(3'600);
  exchange_messages(options, 5'000);
  auto group = start_group(options);
  CHECK(group->wake_fd(core(0)) >= 0);
  const auto& notices = group->notices();
  CHECK(std::any_of(notices.begin(), notices.end(),
                    [](const std::string& line) { return line.find("MSG_RING") != std::string::npos; }));
  stop_group(*group);

  options.wake = WakeCarrier::msg_ring;
  const auto refused = ReactorGroup::start(options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code() == std::errc::operation_not_supported);
}

TEST_CASE("reactor/group: a saturated eventfd loses nothing") {
  ReactorGroupOptions options = group_options(2);
  options.wake = WakeCarrier::eventfd;
  options.mailbox.carrier = Carrier::eventfd;
  options.back_stop = seconds(3'600);
  auto group = start_group(options);
  const ParkStats& stats = group->park_stats(core(1));

  // The target is kept from draining, and its counter is brought to the maximum: the next write is refused.
  Blocker blocker;
  CHECK(group->submit(core(1), blocker));
  REQUIRE(eventually([&] { return blocker.entered.load(); }));
  std::uint64_t fill = 0xfffffffffffffffeULL;
  while (fill != 0 && ::write(group->wake_fd(core(1)), &fill, sizeof fill) < 0) fill /= 2;
  for (fill = 1; ::write(group->wake_fd(core(1)), &fill, sizeof fill) > 0;) {
  }
  Sequence sequence;
  send_bursts(*group, core(0), core(1), sequence, 1'000, 50, microseconds(50));
  CHECK(eventually([&] { return stats.event_saturated > 0; }));
  CHECK(sequence.next == 0);
  blocker.release.store(true);
  CHECK(eventually([&] { return sequence.next == 1'000; }));
  CHECK(sequence.misplaced == 0);
  CHECK(stats.event_count_max >= 0xfffffffffffffff0ULL);

  // And asleep: the counter at its maximum is itself the wakeup.
  std::uint64_t answers = 0;
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fill = 0xfffffffffffffffeULL;
    if (::write(group->wake_fd(core(1)), &fill, sizeof fill) < 0) CHECK(errno == EAGAIN);
    CHECK(group->run(
        core(1), [&answers] { ++answers; }, kPatience));
  }
  CHECK(answers == 20);
  REQUIRE(eventually([&] { return blocker.left.load(); }));
  stop_group(*group);
}

TEST_CASE("reactor/group: host threads submit, each in its own order") {
  for (const WakeCarrier wake : {WakeCarrier::automatic, WakeCarrier::eventfd}) {
    ReactorGroupOptions options = group_options(1);
    options.wake = wake;
    options.spin = Duration{0};
    auto group = start_group(options);
    constexpr std::size_t kThreads = 4;
    constexpr std::size_t kTasks = 2'000;
    std::atomic<std::uint64_t> ran{0};
    std::atomic<std::uint64_t> misplaced{0};
    std::array<std::uint64_t, kThreads> last{};
    std::vector<std::vector<CountingTask>> tasks(kThreads);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      tasks[t].resize(kTasks);
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < kTasks; ++i) {
          CountingTask& task = tasks[t][i];
          task.counter = &ran;
          task.misplaced = &misplaced;
          task.last = &last[t];
          task.number = i + 1;
          task.run = [](HostTask& base, Reactor&) {
            auto& self = static_cast<CountingTask&>(base);
            if (*self.last + 1 != self.number) self.misplaced->fetch_add(1);
            *self.last = self.number;
            self.counter->fetch_add(1, std::memory_order_release);
          };
          if (!group->submit(core(0), task)) misplaced.fetch_add(1);
          if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(eventually([&] { return ran.load(std::memory_order_acquire) == kThreads * kTasks; }));
    CHECK(misplaced == 0);
    CHECK(woken_by_host(*group, core(0)));
    stop_group(*group);
  }
}

TEST_CASE("reactor/group: run() that times out leaves a closure that can still run") {
  auto group = start_group(group_options(1));
  auto ran = std::make_shared<std::atomic<bool>>(false);
  auto timed_out = std::make_shared<std::atomic<bool>>(false);
  const Status late = group->run(
      core(0),
      [ran, timed_out] {
        while (!*timed_out && this_fiber::sleep_for(milliseconds(1)) != Wakeup::cancelled) continue;
        ran->store(true);
      },
      milliseconds(1));
  timed_out->store(true);
  REQUIRE_FALSE(late);
  CHECK(late.error() == ReactorErrc::deadline_exceeded);
  CHECK(eventually([&] { return ran->load() || ran.use_count() == 1; }));
  stop_group(*group);
  CHECK(ran.use_count() == 1);
  const Status closed = group->run(
      core(0), [] {}, seconds(1));
  REQUIRE_FALSE(closed);
  CHECK(closed.error() == ReactorErrc::closed);
  HostTask task;
  CHECK(group->submit(core(0), task).error() == ReactorErrc::closed);
  CHECK(group->stop(seconds(1)));
}

TEST_CASE("reactor/group: a task that was accepted is run, even if the group stops") {
  for (int round = 0; round < (kSanitized ? 5 : 20); ++round) {
    auto group = start_group(group_options(1));
    std::atomic<std::uint64_t> ran{0};
    std::uint64_t accepted = 0;
    std::vector<CountingTask> tasks(100'000);
    std::atomic<bool> started{false};
    std::thread submitter([&] {
      for (CountingTask& task : tasks) {
        task.counter = &ran;
        task.run = [](HostTask& base, Reactor&) { static_cast<CountingTask&>(base).counter->fetch_add(1); };
        if (!group->submit(core(0), task)) break;
        ++accepted;
        started.store(true);
      }
    });
    CHECK(eventually([&] { return started.load(); }));
    stop_group(*group);
    submitter.join();
    CHECK(ran == accepted);
  }
}

TEST_CASE("reactor/group: stop() ends a busy group: sleeping fibers, calls under way, full lanes") {
  for (const Carrier carrier : {Carrier::shared_memory, Carrier::msg_ring, Carrier::eventfd}) {
    if (carrier == Carrier::msg_ring && !kernel_features().msg_ring) continue;
    ReactorGroupOptions options = group_options(2);
    options.mailbox = {.lane_slots = 4, .carrier = carrier};
    auto group = start_group(options);
    for (std::size_t self = 0; self < 2; ++self) {
      CHECK(group->run(
          core(self),
          [self] {
            Reactor& reactor = *Reactor::current();
            for (int i = 0; i < 40; ++i) {
              CHECK(reactor.spawn_detached("busy", [self, i] {
                Mailbox& mailbox = *Reactor::current()->mailbox();
                while (!this_fiber::cancelled()) {
                  const CoreId other = core(1 - self);
                  if (i % 4 == 0) this_fiber::sleep_for(seconds(3'600));
                  if (i % 4 == 1)
                    static_cast<void>(mailbox.post(
                        other, [](Reactor&) {}, patience()));
                  if (i % 4 == 2)
                    static_cast<void>(mailbox.call(
                        other, [](Reactor&) { return 1; }, patience()));
                  if (i % 4 == 3) {
                    static_cast<void>(mailbox.call_in_fiber(
                        other, [](Reactor&) { this_fiber::sleep_for(milliseconds(10)); }, patience()));
                  }
                }
              }));
            }
          },
          kPatience));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    stop_group(*group);
  }
}

TEST_CASE("reactor/group: stop() names the reactor that does not end, and may be called again") {
  auto group = start_group(group_options(1));
  Blocker blocker;
  CHECK(group->submit(core(0), blocker));
  REQUIRE(eventually([&] { return blocker.entered.load(); }));
  const Status late = group->stop(milliseconds(20));
  REQUIRE_FALSE(late);
  CHECK(late.error() == ReactorErrc::deadline_exceeded);
  CHECK(late.error().message().find("reactor 0") != std::string::npos);
  blocker.release.store(true);
  stop_group(*group);
}

TEST_CASE("reactor/group: two cores whose tiny lanes to each other are full do not deadlock") {
  ReactorGroupOptions options = group_options(2);
  options.mailbox.lane_slots = 4;
  auto group = start_group(options);
  constexpr int kFibers = 32;
  const int calls = kSanitized ? 30 : 200;
  std::atomic<int> answers{0};
  std::atomic<int> ended{0};
  for (std::size_t self = 0; self < 2; ++self) {
    CHECK(group->run(
        core(self),
        [&, self] {
          for (int i = 0; i < kFibers; ++i) {
            CHECK(Reactor::current()->spawn_detached("caller", [&, self] {
              Mailbox& mailbox = *Reactor::current()->mailbox();
              for (int n = 0; n < calls; ++n) {
                const bool posted = mailbox
                                        .post(
                                            core(1 - self), [](Reactor&) {}, patience())
                                        .has_value();
                const auto answer = mailbox.call(
                    core(1 - self), [n](Reactor&) { return n; }, patience());
                if (posted && answer && *answer == n) answers.fetch_add(1);
              }
              ended.fetch_add(1);
            }));
          }
        },
        kPatience));
  }
  CHECK(eventually([&] { return ended == 2 * kFibers; }));
  CHECK(answers == 2 * kFibers * calls);
  stop_group(*group);
}

TEST_CASE("reactor/group: twelve reactors that share the cores exchange messages in all directions") {
  ReactorGroupOptions options = group_options(12);
  options.overprovisioned = true;
  options.reactor.prepared_fibers = 2;
  options.mailbox.lane_slots = 16;
  auto group = start_group(options);
  const std::uint64_t count = kSanitized ? 50 : 400;
  std::vector<Sequence> sequences(12 * 12);
  for (std::size_t from = 0; from < 12; ++from) {
    for (std::size_t to = 0; to < 12; ++to) {
      send_bursts(*group, core(from), core(to), sequences[from * 12 + to], count, 40, microseconds(300));
    }
  }
  for (Sequence& sequence : sequences) {
    CHECK(eventually([&] { return sequence.next >= count; }));
    CHECK(sequence.misplaced == 0);
  }
  stop_group(*group);
  for (Sequence& sequence : sequences) CHECK(sequence.next == count);
}
