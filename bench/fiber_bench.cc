// What a fiber costs: a yield, a spawn with its join. The raw limit is Boost.Context's own jump.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include <boost/context/detail/fcontext.hpp>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>

#include "one_core.h"
#include "support.h"

// ThreadSanitizer aborts when a stack is left without telling it, which is what a bare jump does.
#if defined(__SANITIZE_THREAD__)
#define TIDELOCK_BENCH_BARE_JUMPS 0
#else
#define TIDELOCK_BENCH_BARE_JUMPS 1
#endif

namespace tidelock::bench {
namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

// ---- tidelock -------------------------------------------------------------------------------------------

/// One item is one yield of one fiber. Among several, a yield is one switch, from fiber to fiber. A lone
/// fiber is its own successor, so it only goes through the queue and, every 16 yields, through the loop.
void yield(benchmark::State& state) {
  const auto fibers = static_cast<std::size_t>(state.range(0));
  on_cpu(cpu_pair().first, [&] {
    auto core = OneCore::create();
    if (skipped(state, core)) return;
    const Status ran = (*core)->run([&] {
      bool stop = false;
      std::vector<JoinHandle<void>> others;
      for (std::size_t i = 1; i < fibers; ++i) {
        auto other = Reactor::current()->spawn("other", [&stop] {
          while (!stop) this_fiber::yield();
        });
        TL_ASSERT(other.has_value(), "there are 1,024 fibers");
        others.push_back(*std::move(other));
      }
      for (auto _ : state) this_fiber::yield();
      stop = true;
      for (auto& other : others) TL_ASSERT(other.join(Instant::never()).has_value(), "nobody cancels it");
    });
    if (skipped(state, ran)) return;
  });
  state.SetItemsProcessed(state.iterations() * state.range(0));
  if (fibers == 1) state.SetLabel("alone: one switch to the loop in 16 yields");
}

/// The deadline is a real one, as in every public wait, so a timer is armed and disarmed.
void spawn_join(benchmark::State& state) {
  on_cpu(cpu_pair().first, [&] {
    auto core = OneCore::create();
    if (skipped(state, core)) return;
    const Status ran = (*core)->run([&] {
      Reactor& reactor = *Reactor::current();
      for (auto _ : state) {
        auto child = reactor.spawn("child", [] {});
        if (!child || !child->join(reactor.now() + kPatience)) {
          state.SkipWithError("a child could not be spawned or joined");
          break;
        }
      }
    });
    if (skipped(state, ran)) return;
  });
  state.SetItemsProcessed(state.iterations());
}

// ---- the raw limit --------------------------------------------------------------------------------------

#if TIDELOCK_BENCH_BARE_JUMPS
constexpr std::size_t kStackBytes = 64 * 1024;

using StackMemory = std::unique_ptr<std::byte[]>;

/// `number` keeps the tops of several stacks out of each other's cache sets.
fcontext_t context_on(const StackMemory& stack, void (*entry)(transfer_t), std::size_t number = 0) {
  const std::size_t bytes = kStackBytes - number * 4 * kCacheLineBytes;
  return make_fcontext(stack.get() + bytes, bytes, entry);
}

/// Contexts that jump in a circle; number 0 is the benchmark's thread.
struct Circle {
  explicit Circle(std::size_t size) : contexts(size), stacks(size) {
    for (std::size_t i = 1; i < size; ++i) {
      stacks[i] = StackMemory(new std::byte[kStackBytes]());
      contexts[i] = context_on(stacks[i], &Circle::entry, i);
    }
  }
  /// To the next one; returns when the previous one has jumped here.
  void jump_from(std::size_t self) {
    const std::size_t next = self + 1 == contexts.size() ? 0 : self + 1;
    arrived_at = next;
    const transfer_t from = jump_fcontext(contexts[next], this);
    contexts[self == 0 ? contexts.size() - 1 : self - 1] = from.fctx;
  }
  static void entry(transfer_t from) {
    auto& circle = *static_cast<Circle*>(from.data);
    const std::size_t self = circle.arrived_at;
    circle.contexts[self - 1] = from.fctx;
    while (true) circle.jump_from(self);
  }

  std::vector<fcontext_t> contexts;
  std::vector<StackMemory> stacks;
  std::size_t arrived_at = 0;
};

/// One item is one jump. A circle of one has nowhere to jump to, so it counts the two jumps of a pair. All
/// its contexts have the same sticky flags in MXCSR, or each jump would load another value, at many times the
/// cost: the thread has inherited those that the library's doubles have set, and new contexts start with the
/// thread's.
void raw_jump(benchmark::State& state) {
  const std::size_t size = std::max<std::size_t>(2, static_cast<std::size_t>(state.range(0)));
  on_cpu(cpu_pair().first, [&] {
    Circle circle(size);
    for (auto _ : state) circle.jump_from(0);
  });
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(size));
}

/// One item is a context made on a stack that is there already, entered, and left.
void raw_make_and_jump_pair(benchmark::State& state) {
  on_cpu(cpu_pair().first, [&] {
    const StackMemory stack(new std::byte[kStackBytes]());
    for (auto _ : state) {
      const fcontext_t made = context_on(stack, [](transfer_t from) { jump_fcontext(from.fctx, nullptr); });
      benchmark::DoNotOptimize(jump_fcontext(made, nullptr));
    }
  });
  state.SetItemsProcessed(state.iterations());
}
#endif

// ---- what a user would pick instead ---------------------------------------------------------------------

void std_thread(benchmark::State& state) {
  on_cpu(cpu_pair().first, [&] {
    for (auto _ : state) std::thread([] {}).join();
  });
  state.SetItemsProcessed(state.iterations());
}

void register_all() {
  using benchmark::RegisterBenchmark;
  RegisterBenchmark("yield/tidelock", yield)->ArgName("fibers")->Arg(1)->Arg(2)->Arg(16)->UseRealTime();
  RegisterBenchmark("spawn_join/tidelock", spawn_join)->UseRealTime();
#if TIDELOCK_BENCH_BARE_JUMPS
  RegisterBenchmark("yield/raw_jump", raw_jump)->ArgName("fibers")->Arg(1)->Arg(2)->Arg(16)->UseRealTime();
  RegisterBenchmark("spawn_join/raw_make_and_jump_pair", raw_make_and_jump_pair)->UseRealTime();
#endif
  RegisterBenchmark("spawn_join/std_thread", std_thread)->UseRealTime();
}

}  // namespace
}  // namespace tidelock::bench

int main(int argc, char** argv) {
  tidelock::bench::register_all();
  return tidelock::bench::run(argc, argv, {.link = "none", .needs_io_uring = true});
}
