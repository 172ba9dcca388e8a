#include "sim_command.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <sstream>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <tidelock/engine/version.h>
#include <tidelock/reactor/cpu_set.h>

#include "exit_code.h"
#include "plan_file.h"
#include "say.h"
#include "shrink.h"
#include "sim_report.h"
#include "stop_signals.h"

namespace tidelock::tools {
namespace {

constexpr std::size_t kTraceLines = 400;
constexpr auto kSimProgressEvery = std::chrono::seconds(1);
using WallClock = std::chrono::steady_clock;

std::string all_kinds() {
  std::string text;
  for (std::size_t i = 0; i < sim::kFaultKinds; ++i) {
    text += (i > 0 ? ", " : "") + std::string(sim::name_of(static_cast<sim::FaultKind>(i)));
  }
  return text;
}

/// Errors:   EINVAL, with what there is
Result<sim::FaultMask> parse_faults(const std::string& list, sim::WorldKind world) {
  sim::FaultMask mask{};
  if (list == "all") return sim::all_faults();
  if (list == "none") return mask;
  if (list.empty()) return Error::from_errno(EINVAL, "--faults: nothing is named: give none for no fault");
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    sim::FaultKind kind{};
    if (!sim::kind_of(name, kind)) {
      return Error::from_errno(
          EINVAL, fmt::format("--faults: there is no fault \"{}\": give all, none, or some of {}", name,
                              all_kinds()));
    }
    if (!sim::befalls(world, kind))
      return Error::from_errno(
          EINVAL, fmt::format("--faults: the world {} has no \"{}\"", sim::name_of(world), name));
    mask[static_cast<std::size_t>(kind)] = true;
  }
  return mask;
}

/// On a terminal, once a second.
class SimProgress {
 public:
  SimProgress(const SimCommandOptions& options, WallClock::time_point began)
      : seeds_(options.seeds), began_(began), shows_(!options.json && ::isatty(STDERR_FILENO) != 0) {}
  ~SimProgress() {
    if (shown_) say("\r\033[K");
  }
  SimProgress(const SimProgress&) = delete;
  SimProgress& operator=(const SimProgress&) = delete;

  void show(const sim::JobTotals& totals) {
    const auto now = WallClock::now();
    if (!shows_ || now < next_) return;
    next_ = now + kSimProgressEvery;
    shown_ = true;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - began_).count();
    say(fmt::format("\r\033[K[sim] {} of {} seeds, {} failed, {} s", totals.seeds(), seeds_,
                    totals.failed.size(), seconds));
  }

 private:
  std::uint64_t seeds_;
  WallClock::time_point began_;
  WallClock::time_point next_{};
  bool shows_;
  bool shown_ = false;
};

/// Runs one seed in a worker, so that one that crashes is a failure like others.
sim::JobTotals run_one(const sim::RunOptions& run, bool twice) {
  sim::JobOptions jobs;
  jobs.first = run.seed;
  jobs.shared_trace = run.shared_trace;
  jobs.stopped = [] { return stop_asked().load(std::memory_order_relaxed); };
  jobs.run = [&run, twice](std::uint64_t) { return twice ? sim::run_seed_twice(run) : sim::run_seed(run); };
  return sim::run_jobs(jobs);
}

/// Cuts the faults of a seed that failed. Returns what it says of that.
Result<std::string> cut_faults(const std::string& path, const sim::RunOptions& run, bool twice,
                               const sim::JobTotals& totals) {
  if (totals.failed.empty()) return std::string("shrink: nothing failed, nothing is written\n");
  sim::PlanFile file;
  file.world = run.world;
  file.seed = run.seed;
  file.checker = totals.failed.begin()->second.front().checker;
  sim::ShrinkOptions shrink;
  shrink.plan = sim::plan_of(run);
  const sim::Shape shape = run.load.of(sim::draw_shape(run.world, sim::Streams(run.seed)));
  shrink.clients = shape.clients;
  shrink.calls = shape.calls;
  shrink.fails = [&](const std::vector<sim::Fault>& plan, const sim::LessLoad& load) {
    sim::RunOptions fewer = run;
    fewer.plan = plan;
    if (load.clients != 0) fewer.load.clients = load.clients;
    if (load.calls != 0) fewer.load.calls = load.calls;
    fewer.trace_lines = 0;
    fewer.shared_trace = nullptr;
    const sim::JobTotals again = run_one(fewer, twice);
    if (again.failed.empty()) return false;
    const auto& failures = again.failed.begin()->second;
    return std::any_of(failures.begin(), failures.end(),
                       [&](const sim::Failure& failure) { return failure.checker == file.checker; });
  };
  const sim::Shrunk shrunk = sim::shrink(shrink);
  file.plan = shrunk.plan;
  file.load = run.load;
  if (shrunk.load.clients != 0) file.load.clients = shrunk.load.clients;
  if (shrunk.load.calls != 0) file.load.calls = shrunk.load.calls;
  TL_TRY(sim::write_plan(path, file));
  const sim::Shape left = file.load.of(shape);
  return fmt::format(
      "shrink: {} faults of {}, {} clients of {}, {} calls of {} are enough for {}{}, {} runs: {}\n",
      shrunk.plan.size(), shrink.plan.size(), left.clients, shape.clients, left.calls, shape.calls,
      file.checker, shrunk.least ? "" : " (perhaps fewer)", shrunk.runs, path);
}

int exit_status(const sim::JobTotals& totals) {
  if (!totals.failed.empty() || totals.too_little()) return kExitFailed;
  if (totals.broke_off) return kExitUsage;
  if (!totals.interrupted) return kExitOk;
  return interrupted_status();
}

}  // namespace

CLI::App* add_sim_command(CLI::App& app, SimCommandOptions& options) {
  CLI::App* command = app.add_subcommand(
      "sim", "Run production's code on simulated nodes, links and clocks, under faults, from seeds");
  command->description(
      "Runs the reactor, its fibers and the replication streams of a primary and its replicas, or whole "
      "groups of "
      "nodes,\n"
      "the very code that production runs, on one thread under virtual time. Nodes, clocks, links and "
      "clients are simulated; a "
      "plan of\n"
      "faults is drawn from the seed. Checkers look on: no reader that was notified sees an older state, "
      "logs agree,\n"
      "an acknowledgement is true, what clients saw has an order, all nodes end alike, nothing is left "
      "behind.\n"
      "One seed gives the same course and the same trace hash every time.\n"
      "Exit status: 0; 1 a seed failed; 2 wrong flags; 130 interrupted, with what was found until then.");
  command->footer(
      "Try: tidelock sim --seeds 200                     two hundred seeds, a worker a CPU\n"
      "     tidelock sim --seed 7 --trace                one seed, with its last events\n"
      "     tidelock sim --seeds 50 --faults cut,pause   only these faults\n"
      "Faults: " +
      all_kinds());
  command
      ->add_option(
          "--world", options.world,
          "What is simulated: streams (one shard, a primary, 1 to 3 replicas) or groups (2 to 5 equal "
          "nodes that keep one history)")
      ->check(CLI::IsMember({"streams", "groups"}))
      ->capture_default_str();
  command->add_option("--seed", options.seed, "The first seed")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 60))
      ->capture_default_str();
  auto* seeds = command->add_option("--seeds", options.seeds, "How many seeds")
                    ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
                    ->capture_default_str();
  command->add_option("--jobs", options.jobs, "Worker processes (default: one a usable CPU)")
      ->check(CLI::Range(1, 1'024));
  command->add_option("--faults", options.faults, "all, none, or a list of kinds")->capture_default_str();
  command
      ->add_flag("--trace", options.trace,
                 fmt::format("Print the last {} events, up to the first failure; for one seed", kTraceLines))
      ->excludes(seeds);
  command
      ->add_option("--plan", options.plan, "A file that names the seed and its faults, as --shrink writes it")
      ->excludes("--seed")
      ->excludes(seeds)
      ->excludes("--faults");
  command
      ->add_option("--shrink", options.shrink,
                   "If the seed fails: cut its faults and its load down to what it takes, into this file")
      ->excludes(seeds);
  command->add_flag("--keep-going", options.keep_going, "Go on after a seed that failed");
  command->add_flag("--twice", options.twice,
                    "Run each seed twice, with other contents in fresh memory: the trace must be the same");
  command->add_flag("--json", options.json, "Print one JSON object instead of lines");
  return command;
}

int sim_command(const SimCommandOptions& options, const ApplyPolicy* planted) {
  sim::WorldKind world{};
  static_cast<void>(sim::world_of(options.world, world));
  const auto faults = parse_faults(options.faults, world);
  if (!faults) return fail("sim", faults.error());
  std::optional<sim::PlanFile> plan;
  if (!options.plan.empty()) {
    auto read = sim::read_plan(options.plan);
    if (!read) return fail("sim", read.error());
    plan = *std::move(read);
  }
  stop_on_signals();
  const auto began = WallClock::now();
  sim::SimReport report;
  report.version = kVersion;
  report.world = plan ? plan->world : world;
  report.first_seed = plan ? plan->seed : options.seed;
  report.plan = options.plan;
  report.seeds = options.seeds;
  report.faults = options.faults;
  report.twice = options.twice;
  const auto usable = std::max<std::size_t>(usable_cpus().size(), 1);
  report.jobs = options.jobs != 0 ? options.jobs : static_cast<std::uint32_t>(usable);
  report.jobs = static_cast<std::uint32_t>(std::min<std::uint64_t>(report.jobs, options.seeds));
  if (!options.json && !print_or_complain("sim", preamble(report))) return kExitUsage;

  SimProgress progress(options, began);
  sim::JobOptions jobs;
  jobs.first = report.first_seed;
  jobs.seeds = options.seeds;
  jobs.jobs = report.jobs;
  jobs.keep_going = options.keep_going;
  jobs.stopped = [] { return stop_asked().load(std::memory_order_relaxed); };
  jobs.progress = [&progress](const sim::JobTotals& totals) { progress.show(totals); };
  const auto shared_trace = options.trace ? sim::SharedTrace::create(kTraceLines) : nullptr;
  jobs.shared_trace = shared_trace.get();
  sim::RunOptions run;
  run.world = report.world;
  run.seed = report.first_seed;
  run.faults = *faults;
  if (plan) {
    run.plan = plan->plan;
    run.load = plan->load;
  }
  run.planted.apply = planted;
  run.trace_lines = options.trace ? kTraceLines : 0;
  run.shared_trace = shared_trace.get();
  jobs.run = [&](std::uint64_t seed) {
    run.seed = seed;
    return options.twice ? sim::run_seed_twice(run) : sim::run_seed(run);
  };
  report.totals = run_jobs(jobs);
  report.wall_ns = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(WallClock::now() - began).count());
  const std::string text = options.json ? to_json(report).dump(2) + "\n" : results(report);
  const bool printed = print_or_complain("sim", text);
  if (!options.shrink.empty() && !report.totals.interrupted) {
    const auto said = cut_faults(options.shrink, run, options.twice, report.totals);
    if (!said) return fail("sim", said.error());
    say(*said);
  }
  if (report.totals.broke_off) fail("sim", *report.totals.broke_off);
  return printed ? exit_status(report.totals) : kExitUsage;
}

}  // namespace tidelock::tools
