/// The raw limit of whatever crosses two cores: one cache line that bounces between two pinned threads.
/// Thread:   the benchmark's
#pragma once

#include <benchmark/benchmark.h>

namespace tidelock::bench {

/// One item is one round trip: this side writes the line, the other answers in it.
void cache_line_round_trip(benchmark::State& state);

}  // namespace tidelock::bench
