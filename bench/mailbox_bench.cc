// A message between two cores and back, for each carrier, with the target spinning or parked; and how many
// messages a second go one way. The raw limit is a cache line; beside it Boost.Lockfree's spsc_queue.
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include <boost/lockfree/policies.hpp>
#include <boost/lockfree/spsc_queue.hpp>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/reactor/sync.h>

#include "cache_line.h"
#include "support.h"

namespace tidelock::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr CoreId kSource{0};
constexpr CoreId kTarget{1};
/// Messages of one throughput round, and round trips of one ping-pong between handlers.
constexpr std::int64_t kRound = 4096;
constexpr std::int64_t kPingPongs = 64;

/// Starts a pair of reactors and runs `body(group)` in a fiber of the first.
template <class F>
void on_pair(benchmark::State& state, const ReactorGroupOptions& options, F&& body) {
  auto group = ReactorGroup::start(options);
  if (skipped(state, group)) return;
  const auto closure = [&] { body(**group); };
  if (skipped(state, (*group)->run(kSource, closure, kPatience))) return;
  if (skipped(state, (*group)->stop(seconds(10)))) return;
}

ReactorGroupOptions options_for(Carrier carrier, const CpuPair& cpus) {
  ReactorGroupOptions options = pair_options(cpus);
  options.mailbox.carrier = carrier;
  return options;
}

/// One call: there, its closure run on the target's loop, and back, with this fiber suspended meanwhile.
bool call_once() {
  Reactor& reactor = *Reactor::current();
  const auto reply = reactor.mailbox()->call(
      kTarget, [](Reactor& target) { return target.id().value; }, reactor.now() + kPatience);
  return reply.has_value() && *reply == kTarget.value;
}

// ---- round trips ----------------------------------------------------------------------------------------

void call_spinning(benchmark::State& state, Carrier carrier) {
  const CpuPair cpus = cpu_pair();
  on_pair(state, options_for(carrier, cpus), [&](ReactorGroup&) {
    for (auto _ : state) {
      if (!call_once()) state.SkipWithError("a call failed");
    }
  });
  state.SetItemsProcessed(state.iterations());
  state.SetLabel(describe(cpus));
}

/// Returns once the target has gone to sleep again: a park more than `parks`, and a little for the system
/// call. False if it has not within 100 ms.
bool await_park(ReactorGroup& group, std::uint64_t parks) {
  const auto start = SteadyClock::now();
  while (group.park_stats(kTarget).parks.load(std::memory_order_acquire) == parks) {
    if (SteadyClock::now() - start > std::chrono::milliseconds(100)) return false;
    this_fiber::yield();
  }
  const auto parked = SteadyClock::now();
  while (SteadyClock::now() - parked < std::chrono::microseconds(30)) this_fiber::yield();
  return true;
}

/// Keeps its reactor awake at the cost of one call a turn: a fiber that yields would make each turn longer.
class Wakeful final : public PollSource {
 public:
  std::uint32_t poll(std::uint32_t) override { return 1; }
  [[nodiscard]] bool has_work() const override { return true; }
};

/// The target sleeps in the kernel when the message leaves, and the source spins for the reply (it parks too
/// where both share a CPU). Only the call is timed, not the wait for the target to fall asleep.
void call_parked(benchmark::State& state, Carrier carrier) {
  const CpuPair cpus = cpu_pair();
  ReactorGroupOptions options = options_for(carrier, cpus);
  options.spin = nanoseconds(0);
  std::uint64_t awake = 0;
  on_pair(state, options, [&](ReactorGroup& group) {
    Reactor& source = *Reactor::current();
    Wakeful wakeful;
    if (!cpus.shared) source.add_source(wakeful);
    for (auto _ : state) {
      const std::uint64_t parks = group.park_stats(kTarget).parks.load(std::memory_order_acquire);
      const auto start = SteadyClock::now();
      if (!call_once()) state.SkipWithError("a call failed");
      state.SetIterationTime(std::chrono::duration<double>(SteadyClock::now() - start).count());
      if (!await_park(group, parks)) ++awake;
    }
    if (!cpus.shared) source.remove_source(wakeful);
  });
  state.SetItemsProcessed(state.iterations());
  state.counters["not_parked"] = static_cast<double>(awake);
  state.SetLabel(describe(cpus));
}

/// Handlers that send to each other: the lane and the loops alone, no fiber.
struct PingPong {
  std::int64_t left = 0;
  Condition done;

  static void send(Reactor& from, CoreId to, MessageHandler handler, PingPong* self) {
    TL_ASSERT(from.mailbox()->try_send(to, handler, &self, sizeof self).has_value(),
              "one message is under way");
  }
  static void there(Reactor& target, CoreId from, std::byte* payload) {
    send(target, from, &PingPong::back, load<PingPong*>(payload));
  }
  static void back(Reactor& source, CoreId from, std::byte* payload) {
    auto* const self = load<PingPong*>(payload);
    if (--self->left == 0) return self->done.notify_one();
    send(source, from, &PingPong::there, self);
  }
};

void handlers(benchmark::State& state) {
  const CpuPair cpus = cpu_pair();
  on_pair(state, options_for(Carrier::shared_memory, cpus), [&](ReactorGroup&) {
    PingPong ping_pong;
    Reactor& reactor = *Reactor::current();
    for (auto _ : state) {
      ping_pong.left = kPingPongs;
      PingPong::send(reactor, kTarget, &PingPong::there, &ping_pong);
      const Status done =
          ping_pong.done.wait_until([&] { return ping_pong.left == 0; }, reactor.now() + kPatience);
      if (!done) state.SkipWithError("a message was lost");
    }
  });
  state.SetItemsProcessed(state.iterations() * kPingPongs);
  state.SetLabel(describe(cpus));
}

// ---- one way --------------------------------------------------------------------------------------------

/// A round of messages, as fast as the lane takes them, and a call that comes back after the last.
void post(benchmark::State& state, Carrier carrier) {
  const CpuPair cpus = cpu_pair();
  struct alignas(2 * kCacheLineBytes) Counter {
    std::int64_t value = 0;  // the target's
  } received;
  on_pair(state, options_for(carrier, cpus), [&](ReactorGroup&) {
    Reactor& reactor = *Reactor::current();
    for (auto _ : state) {
      bool sent = true;
      for (std::int64_t i = 0; i < kRound; ++i) {
        const auto count = [counter = &received](Reactor&) { ++counter->value; };
        sent = sent && reactor.mailbox()->post(kTarget, count, reactor.now() + kPatience).has_value();
      }
      if (!sent || !call_once()) state.SkipWithError("a message could not be sent");
    }
  });
  if (!state.error_occurred() && received.value < state.iterations() * kRound) {
    state.SkipWithError("messages were lost");
  }
  state.SetItemsProcessed(state.iterations() * kRound);
  state.SetLabel(describe(cpus));
}

// ---- the raw limit --------------------------------------------------------------------------------------

/// As many cache lines as there are messages in a round, each written by one side and read by the other, and
/// one line back after the last.
void raw_cache_lines(benchmark::State& state) {
  struct alignas(kCacheLineBytes) Line {
    std::atomic<std::int64_t> round{0};
  };
  const CpuPair cpus = cpu_pair();
  std::vector<Line> lines(kRound);
  alignas(2 * kCacheLineBytes) std::atomic<std::int64_t> finished{0};
  alignas(2 * kCacheLineBytes) std::atomic<bool> stop{false};
  {
    const PinnedThread reader(cpus.second, [&, cpus] {
      for (std::int64_t round = 1;; ++round) {
        for (Line& line : lines) {
          while (line.round.load(std::memory_order_acquire) != round) {
            if (stop.load(std::memory_order_relaxed)) return;
            wait_step(cpus);
          }
        }
        finished.store(round, std::memory_order_release);
      }
    });
    on_cpu(cpus.first, [&] {
      std::int64_t round = 0;
      for (auto _ : state) {
        ++round;
        for (Line& line : lines) line.round.store(round, std::memory_order_release);
        while (finished.load(std::memory_order_acquire) != round) wait_step(cpus);
      }
      stop.store(true);
    });
  }
  state.SetItemsProcessed(state.iterations() * kRound);
  state.SetLabel(describe(cpus));
}

// ---- what a user would pick instead ---------------------------------------------------------------------

/// The payload of a mailbox message and its handler.
struct Message {
  std::array<std::uint64_t, 6> words{};
};
using Queue = boost::lockfree::spsc_queue<Message, boost::lockfree::capacity<256>>;

struct QueuePair {
  Queue there;
  Queue back;
  std::atomic<bool> stop{false};
};

/// Answers the last message of each `every`.
void echo(QueuePair& queues, const CpuPair& cpus, std::int64_t every) {
  Message message;
  for (std::int64_t count = 1;; ++count) {
    while (!queues.there.pop(message)) {
      if (queues.stop.load(std::memory_order_relaxed)) return;
      wait_step(cpus);
    }
    if (count % every == 0) queues.back.push(message);
  }
}

void boost_queue(benchmark::State& state, std::int64_t batch) {
  const CpuPair cpus = cpu_pair();
  const auto queues = std::make_unique<QueuePair>();
  {
    const PinnedThread partner(cpus.second, [&, cpus] { echo(*queues, cpus, batch); });
    on_cpu(cpus.first, [&] {
      Message message;
      for (auto _ : state) {
        for (std::int64_t i = 0; i < batch; ++i) {
          while (!queues->there.push(message)) wait_step(cpus);
        }
        while (!queues->back.pop(message)) wait_step(cpus);
      }
      queues->stop.store(true);
    });
  }
  state.SetItemsProcessed(state.iterations() * batch);
  state.SetLabel(describe(cpus));
}

void register_all() {
  using benchmark::RegisterBenchmark;
  const std::vector<std::pair<std::string, Carrier>> carriers = {{"shared_memory", Carrier::shared_memory},
                                                                 {"msg_ring", Carrier::msg_ring},
                                                                 {"eventfd", Carrier::eventfd}};
  for (const auto& [name, carrier] : carriers) {
    RegisterBenchmark(("round_trip/tidelock_" + name + "/spinning").c_str(), call_spinning, carrier)
        ->UseRealTime();
    RegisterBenchmark(("round_trip/tidelock_" + name + "/parked").c_str(), call_parked, carrier)
        ->UseManualTime();
    RegisterBenchmark(("one_way/tidelock_" + name).c_str(), post, carrier)->UseRealTime();
  }
  RegisterBenchmark("round_trip/tidelock_handlers/spinning", handlers)->UseRealTime();
  RegisterBenchmark("round_trip/raw_cache_line", cache_line_round_trip)->UseRealTime();
  RegisterBenchmark("round_trip/boost_spsc_queue", boost_queue, 1)->UseRealTime();
  RegisterBenchmark("one_way/raw_cache_lines", raw_cache_lines)->UseRealTime();
  RegisterBenchmark("one_way/boost_spsc_queue", boost_queue, kRound)->UseRealTime();
}

}  // namespace
}  // namespace tidelock::bench

int main(int argc, char** argv) {
  tidelock::bench::register_all();
  return tidelock::bench::run(argc, argv, {.link = "none", .needs_io_uring = true});
}
