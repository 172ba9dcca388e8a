// What tidelock's io_uring backend costs above a bare liburing loop: batches of NOPs, submitted and
// completed.
#include <cstdint>
#include <liburing.h>

#include <tidelock/reactor/ring.h>

#include "support.h"

namespace tidelock::bench {
namespace {

constexpr unsigned kEntries = 256;

/// One item is one NOP. A batch is submitted with one flush and polled until it has completed.
void nop(benchmark::State& state) {
  struct Counter final : IoCompletion {
    void on_completion(std::int32_t, bool) override { ++completed; }
    std::int64_t completed = 0;
  };
  const std::int64_t batch = state.range(0);
  on_cpu(cpu_pair().first, [&] {
    auto ring = UringBackend::create({.entries = kEntries});
    if (skipped(state, ring)) return;
    Counter counter;
    for (auto _ : state) {
      const std::int64_t wanted = counter.completed + batch;
      for (std::int64_t i = 0; i < batch; ++i) {
        if (!(*ring)->submit({.kind = IoRequest::Kind::nop}, counter)) {
          state.SkipWithError("the backend refused a NOP");
          break;
        }
      }
      (*ring)->flush();
      while (counter.completed < wanted && !state.error_occurred()) (*ring)->poll(64);
    }
    while ((*ring)->in_flight() > 0) {
      (*ring)->flush();
      (*ring)->poll(64);
    }
  });
  state.SetItemsProcessed(state.iterations() * batch);
}

/// The same with nothing but liburing. `flags`: of io_uring_setup(2).
void raw_nop(benchmark::State& state, unsigned flags) {
  const std::int64_t batch = state.range(0);
  on_cpu(cpu_pair().first, [&] {
    io_uring ring{};
    if (const int result = io_uring_queue_init(kEntries, &ring, flags); result < 0) {
      return state.SkipWithError(("io_uring_queue_init: errno " + std::to_string(-result)).c_str());
    }
    for (auto _ : state) {
      for (std::int64_t i = 0; i < batch; ++i) io_uring_prep_nop(io_uring_get_sqe(&ring));
      io_uring_submit(&ring);
      for (std::int64_t completed = 0; completed < batch;) {
        unsigned head = 0;
        unsigned seen = 0;
        io_uring_cqe* cqe = nullptr;
        io_uring_for_each_cqe(&ring, head, cqe)++ seen;
        if (seen == 0) {
          // With COOP_TASKRUN and DEFER_TASKRUN a completion may wait for us to enter the kernel.
          io_uring_get_events(&ring);
          continue;
        }
        io_uring_cq_advance(&ring, seen);
        completed += seen;
      }
    }
    io_uring_queue_exit(&ring);
  });
  state.SetItemsProcessed(state.iterations() * batch);
}

void register_all() {
  constexpr unsigned kOurs =
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  const auto sizes = [](benchmark::internal::Benchmark* benchmark) {
    benchmark->ArgName("batch")->Arg(1)->Arg(8)->Arg(32)->Arg(128)->UseRealTime();
  };
  benchmark::RegisterBenchmark("nop/tidelock", nop)->Apply(sizes);
  benchmark::RegisterBenchmark("nop/raw_liburing", raw_nop, kOurs)->Apply(sizes);
  benchmark::RegisterBenchmark("nop/plain_liburing", raw_nop, 0U)->Apply(sizes);
  benchmark::RegisterBenchmark("nop/defer_liburing", raw_nop,
                               IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)
      ->Apply(sizes);
}

}  // namespace
}  // namespace tidelock::bench

int main(int argc, char** argv) {
  tidelock::bench::register_all();
  return tidelock::bench::run(argc, argv, {.link = "none", .needs_io_uring = true});
}
