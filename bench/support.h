/// What the benchmark programs share: where they run, what they say about the machine, how they fail.
/// Thread:   any
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include <benchmark/benchmark.h>

#include <tidelock/base/check.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/reactor_group.h>

namespace tidelock::bench {

/// No measurement waits longer than this for anything.
inline constexpr Duration kPatience = seconds(600);

/// The CPUs of the two sides, on distinct physical cores if there are any. `shared`: this process may use one
/// CPU only, so both sides are on it and nobody may spin.
struct CpuPair {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  bool shared = false;
};
CpuPair cpu_pair();

/// Which CPUs a two-sided benchmark used, for its label.
std::string describe(const CpuPair& cpus);

/// One step of waiting for the other side. It reads again at once where the other side has a core of its own:
/// a pause instruction would cost more than the cache line does.
inline void wait_step(const CpuPair& cpus) {
  if (cpus.shared) std::this_thread::yield();
}

/// Runs `closure` on a thread pinned to `cpu`, and waits for it. The main thread itself is never pinned: its
/// threads would inherit that, and a ReactorGroup would see a machine of one CPU.
template <class F>
void on_cpu(std::uint32_t cpu, F&& closure) {
  std::thread([&] {
    const Status pinned = pin_this_thread(cpu);
    TL_ASSERT(pinned.has_value(), "a CPU of usable_cpus() refused a thread");
    closure();
  }).join();
}

/// A thread pinned to `cpu` until the end of the scope; `closure` must have been told to end by then.
class PinnedThread {
 public:
  template <class F>
  PinnedThread(std::uint32_t cpu, F closure)
      : thread_([cpu, closure = std::move(closure)]() mutable {
          const Status pinned = pin_this_thread(cpu);
          TL_ASSERT(pinned.has_value(), "a CPU of usable_cpus() refused a thread");
          closure();
        }) {}
  ~PinnedThread() { thread_.join(); }
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  std::thread thread_;
};

/// Options of a group with one reactor on each CPU of the pair.
ReactorGroupOptions pair_options(const CpuPair& cpus);

/// True if `result` is an error; the benchmark then shows that instead of a figure, and should return.
template <class T>
[[nodiscard]] bool skipped(benchmark::State& state, const Result<T>& result) {
  if (result) return false;
  state.SkipWithError(result.error().message().c_str());
  return true;
}

/// A well-mixed 64-bit value for each `x` (the finaliser of splitmix64), for keys and random order.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Program {
  const char* link = "none";  ///< what joins two nodes in it: "shm" or "none"
  bool needs_io_uring = true;
};
/// The rest of main(): the context lines, Google Benchmark's flags, the run.
/// Returns the exit status; 77 if this machine cannot run the program, with the reason on stderr.
int run(int argc, char** argv, const Program& program);

}  // namespace tidelock::bench
