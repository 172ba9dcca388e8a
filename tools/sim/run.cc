#include "run.h"

#include <algorithm>
#include <malloc.h>

#include <fmt/format.h>

#include "groups_world.h"
#include "streams_world.h"

namespace tidelock::sim {

std::vector<Fault> plan_of(const RunOptions& options) {
  if (options.plan) return *options.plan;
  const Streams streams(options.seed);
  const Shape shape = draw_shape(options.world, streams);
  return draw_plan(streams, options.faults, targets_of(options.world, shape), shape.faults_until,
                   kinds_of(options.world));
}

namespace {

template <class Simulated>
void run_in(World& world, const RunOptions& options, RunResult& result) {
  const Shape shape = options.load.of(draw_shape(options.world, Streams(options.seed)));
  Simulated simulated(world, shape, plan_of(options), options.planted);
  simulated.run();
  result.counts = simulated.counts();
  result.calls = simulated.calls();
  result.syncs = simulated.syncs();
  result.undecided = simulated.undecided();
  result.behind_log = simulated.behind_log();
  result.restarted = simulated.restarted();
}

}  // namespace

RunResult run_seed(const RunOptions& options) {
  World world(options.seed, options.trace_lines);
  world.trace().share(options.shared_trace);
  if (options.keep_hashes) world.trace().keep_hashes();
  RunResult result;
  result.seed = options.seed;
  if (options.world == WorldKind::groups) {
    run_in<GroupsWorld>(world, options, result);
  } else {
    run_in<StreamsWorld>(world, options, result);
  }
  result.failures = world.verdict().failures();
  result.trace_hash = world.trace().hash();
  result.events = world.events();
  result.simulated_ns = static_cast<std::uint64_t>(world.now().ns);
  result.hashes = world.trace().hashes();
  result.trace.assign(world.trace().lines().begin(), world.trace().lines().end());
  return result;
}

std::optional<Failure> compare_runs(const RunResult& first, const RunResult& again) {
  if (first.trace_hash == again.trace_hash && first.events == again.events) return std::nullopt;
  const auto [one, other] =
      std::mismatch(first.hashes.begin(), first.hashes.end(), again.hashes.begin(), again.hashes.end());
  // Before event n + 1 they differ: it was n that went another way.
  const auto event = static_cast<std::uint64_t>(one - first.hashes.begin());
  return Failure{
      "deterministic", Instant{}, event,
      fmt::format("a second run goes another way: trace hash {:016x} after {} events, the first {:016x} "
                  "after {}",
                  again.trace_hash, again.events, first.trace_hash, first.events)};
}

RunResult run_seed_twice(RunOptions options) {
  options.keep_hashes = true;
  RunResult first = run_seed(options);
  ::mallopt(M_PERTURB, 0xa5);
  const RunResult again = run_seed(options);
  ::mallopt(M_PERTURB, 0);
  if (auto differs = compare_runs(first, again)) first.failures.push_back(*std::move(differs));
  return first;
}

}  // namespace tidelock::sim
