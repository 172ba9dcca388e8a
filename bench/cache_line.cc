#include "cache_line.h"

#include <atomic>
#include <cstdint>

#include <tidelock/base/bytes.h>

#include "support.h"

namespace tidelock::bench {

void cache_line_round_trip(benchmark::State& state) {
  constexpr std::uint64_t kStop = ~0ULL;
  struct alignas(2 * kCacheLineBytes) Line {  // two lines: the prefetcher fetches them in pairs
    std::atomic<std::uint64_t> word{0};
  };
  const CpuPair cpus = cpu_pair();
  Line line;
  {
    // Odd values are questions, and the even one that follows is the answer.
    const PinnedThread partner(cpus.second, [&line, cpus] {
      for (std::uint64_t answer = 2;; answer += 2) {
        std::uint64_t seen = 0;
        while ((seen = line.word.load(std::memory_order_acquire)) != answer - 1) {
          if (seen == kStop) return;
          wait_step(cpus);
        }
        line.word.store(answer, std::memory_order_release);
      }
    });
    on_cpu(cpus.first, [&] {
      std::uint64_t question = 1;
      for (auto _ : state) {
        line.word.store(question, std::memory_order_release);
        while (line.word.load(std::memory_order_acquire) != question + 1) wait_step(cpus);
        question += 2;
      }
      line.word.store(kStop, std::memory_order_release);
    });
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel(describe(cpus));
}

}  // namespace tidelock::bench
