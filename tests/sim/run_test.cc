// Whole runs of the world `streams`, and many of them in worker processes.
#include "run.h"

#include <csignal>
#include <cstdlib>
#include <malloc.h>
#include <string>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <tidelock/reactor/random.h>

#include "has.h"
#include "sim_report.h"
#include "trace.h"

using namespace tidelock;
using namespace tidelock::sim;
using tidelock::test::has;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 40;
#else
constexpr std::uint64_t kSeeds = 200;
#endif
constexpr std::uint64_t kSeedsToFind = 500;

/// The incident: what a replica says it has applied, its readers see only some turns later.
class AcknowledgesEarly final : public ApplyPolicy {
 public:
  [[nodiscard]] std::uint32_t turns_acknowledged_early() const override { return 1; }
};

RunResult run_with(std::uint64_t seed, const ApplyPolicy* planted = nullptr) {
  RunOptions options;
  options.seed = seed;
  options.planted.apply = planted;
  return run_seed(options);
}

const Failure* failure_of(const RunResult& result, const std::string& checker) {
  for (const Failure& failure : result.failures) {
    if (failure.checker == checker) return &failure;
  }
  return nullptr;
}

RunResult passes(std::uint64_t seed) {
  RunResult result;
  result.seed = seed;
  result.events = 10;
  result.counts.injected(FaultKind::cut);
  result.trace_hash = seed * 3;
  return result;
}

}  // namespace

TEST_CASE("sim/run: one seed, one trace, whatever the heap holds; another seed, another") {
  for (std::uint64_t seed = 31; seed <= 36; ++seed) {
    const RunResult first = run_with(seed);
    ::mallopt(M_PERTURB, 0xa5);
    const RunResult again = run_with(seed);
    ::mallopt(M_PERTURB, 0);
    const RunResult other = run_with(seed + 1'000);
    CHECK(first.trace_hash == again.trace_hash);
    CHECK(first.events == again.events);
    CHECK(first.simulated_ns == again.simulated_ns);
    CHECK(first.trace_hash != other.trace_hash);
  }
}

TEST_CASE(
    "sim/run: two runs of a seed are held against each other, and the first event that differs is named") {
  RunOptions options;
  for (options.seed = 41; options.seed <= 43; ++options.seed) CHECK(run_seed_twice(options).failures.empty());
  RunResult first;
  first.hashes = {1, 2, 3, 4};
  first.trace_hash = 5;
  first.events = 4;
  RunResult again = first;
  CHECK_FALSE(compare_runs(first, again));
  // 1: event 2 went another way. Expect: it is named
  again.hashes = {1, 2, 7, 8};
  again.trace_hash = 9;
  const auto other = compare_runs(first, again);
  REQUIRE(other);
  CHECK(other->checker == "deterministic");
  CHECK(other->event == 2);
  // 2: only the last one did
  again.hashes = first.hashes;
  CHECK(compare_runs(first, again)->event == 4);
  // 3: it ended sooner
  again.hashes = {1, 2};
  CHECK(compare_runs(first, again)->event == 2);
}

TEST_CASE("sim/run: production's code passes under all faults, and each of them took effect") {
  FaultCounts counts;
  std::uint64_t undecided = 0;
  std::uint64_t excused = 0;
  CallCounts calls;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    CAPTURE(seed);
    const RunResult result = run_with(seed);
    for (const Failure& failure : result.failures) FAIL_CHECK(failure.checker << ": " << failure.text);
    undecided += result.undecided;
    excused += result.behind_log > 0 ? 1 : 0;
    calls.add(result.calls);
    for (std::size_t i = 0; i < kStreamFaultKinds; ++i) {
      counts.of[i].injected += result.counts.of[i].injected;
      counts.of[i].hit += result.counts.of[i].hit;
    }
  }
  CHECK(undecided == 0);
  CHECK(excused * 5 <= kSeeds);
  // A load that was mostly refused, or that nobody looked at, would prove little.
  CHECK(calls.ok > 100 * kSeeds);
  CHECK(calls.ok > 2 * (calls.not_done + calls.unknown));
  CHECK(calls.unknown > 0);
  CHECK(calls.replica_reads > 100 * kSeeds);
  CHECK(calls.receipt_reads > 50 * kSeeds);
  for (std::size_t i = 0; i < kStreamFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    CAPTURE(name_of(kind));
    CHECK(counts[kind].injected > 0);
    CHECK(counts[kind].hit > 0);
  }
}

TEST_CASE("sim/run: without faults nothing is injected, and all goes well") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    RunOptions options;
    options.seed = seed;
    options.faults = {};
    const RunResult result = run_seed(options);
    CHECK(result.failures.empty());
    for (const auto& count : result.counts.of) CHECK(count.injected + count.hit == 0);
  }
}

TEST_CASE("sim/run: the incident is found: a reader that was notified sees an older state") {
  const AcknowledgesEarly planted;
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; found == 0 && seed <= kSeedsToFind; ++seed) {
    if (failure_of(run_with(seed, &planted), "no_older_read") != nullptr) found = seed;
  }
  REQUIRE(found > 0);
  MESSAGE("found with seed " << found);
  // Expect: the seed replays it, event for event, with what led to it; and without the fault it passes.
  const RunResult once = run_with(found, &planted);
  RunOptions traced;
  traced.seed = found;
  traced.planted.apply = &planted;
  traced.trace_lines = 50;
  const RunResult again = run_seed(traced);
  const Failure* const first = failure_of(once, "no_older_read");
  const Failure* const second = failure_of(again, "no_older_read");
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  CHECK(first->event == second->event);
  CHECK(first->at == second->at);
  CHECK(first->text == second->text);
  CHECK(once.trace_hash == again.trace_hash);
  REQUIRE_FALSE(again.trace.empty());
  CHECK(has(again.trace.back(), "FAILED " + again.failures[0].checker));
  CHECK(run_with(found).failures.empty());
}

TEST_CASE("sim/jobs: all seeds are run, once each, by any number of workers") {
  for (const std::uint32_t jobs : {1U, 3U, 20U}) {
    JobOptions options;
    options.first = 5;
    options.seeds = 17;
    options.jobs = jobs;
    options.run = passes;
    const auto totals = run_jobs(options);
    CHECK_FALSE(totals.broke_off);
    CHECK(totals.passed == 17);
    CHECK(totals.seeds() == 17);
    CHECK(totals.events == 170);
    CHECK(totals.counts[FaultKind::cut].injected == 17);
    CHECK(totals.seeds_with[static_cast<std::size_t>(FaultKind::cut)] == 17);
    CHECK(totals.seeds_with[static_cast<std::size_t>(FaultKind::kill)] == 0);
  }
}

TEST_CASE("sim/jobs: a seed that dies, ends its worker or falls silent fails, and the others go on") {
  JobOptions options;
  options.seeds = 12;
  options.jobs = 2;
  options.keep_going = true;
  options.silence = std::chrono::seconds(5);
  options.run = [](std::uint64_t seed) {
    if (seed == 3) ::raise(SIGKILL);
    if (seed == 6) ::_exit(9);
    while (seed == 8) ::pause();
    RunResult result = passes(seed);
    if (seed == 10) result.failures.push_back({"checker", Instant{5}, 7, "what was \"wrong\"\nand how"});
    return result;
  };
  const auto totals = run_jobs(options);
  CHECK(totals.passed == 8);
  REQUIRE(totals.failed.size() == 4);
  CHECK(has(totals.failed.at(3)[0].text, "signal 9"));
  CHECK(totals.failed.at(3)[0].checker == "crash");
  CHECK(has(totals.failed.at(6)[0].text, "status 9"));
  CHECK(has(totals.failed.at(8)[0].text, "no answer"));
  CHECK(totals.failed.at(10)[0].text == "what was \"wrong\"\nand how");
  CHECK(totals.failed.at(10)[0].event == 7);

  // The first one ends it, unless it is told to go on.
  options.keep_going = false;
  options.jobs = 1;
  const auto ended = run_jobs(options);
  CHECK(ended.passed == 2);
  CHECK(ended.failed.size() == 1);
  // Whoever asks for the end gets what is known until then.
  options.stopped = [] { return true; };
  const auto stopped = run_jobs(options);
  CHECK(stopped.interrupted);
}

TEST_CASE("sim/jobs: a worker that crashes leaves its last events") {
  const auto shared = SharedTrace::create(3);
  REQUIRE(shared != nullptr);
  JobOptions options;
  options.first = 9;
  options.shared_trace = shared.get();
  options.run = [&](std::uint64_t seed) {
    Trace trace(10);
    trace.share(shared.get());
    for (int i = 1; i <= 5; ++i) trace.note([i] { return "event " + std::to_string(i); });
    trace.note([] { return std::string(2 * SharedTrace::kLineBytes, 'x'); });
    ::raise(SIGKILL);
    return passes(seed);
  };
  const auto totals = run_jobs(options);
  REQUIRE(totals.failed.count(9) == 1);
  CHECK(totals.failed.at(9)[0].checker == "crash");
  CHECK(totals.trace ==
        std::vector<std::string>{"event 4", "event 5", std::string(SharedTrace::kLineBytes, 'x')});
}

TEST_CASE("sim/jobs: time in which all of it is stopped is no worker's silence") {
  const pid_t group = ::fork();
  REQUIRE(group >= 0);
  if (group == 0) {
    ::setpgid(0, 0);
    JobOptions options;
    options.seeds = 2;
    options.silence = std::chrono::seconds(4);
    options.run = [](std::uint64_t seed) {
      for (int i = 0; i < 10; ++i) ::usleep(50'000);
      return passes(seed);
    };
    ::_exit(run_jobs(options).passed == 2 ? 0 : 1);
  }
  ::setpgid(group, group);
  ::usleep(200'000);
  ::kill(-group, SIGSTOP);
  ::usleep(6'000'000);
  ::kill(-group, SIGCONT);
  int status = 0;
  REQUIRE(::waitpid(group, &status, 0) == group);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("sim/jobs: seeds that passed are no pass if too many of them were left unjudged") {
  JobTotals totals;
  totals.passed = 1'000;
  totals.undecided = 10;
  totals.excused = 200;
  CHECK_FALSE(totals.too_little());
  totals.excused = 201;
  REQUIRE(totals.too_little());
  CHECK(has(*totals.too_little(), "201 of 1000 seeds excused"));
  totals.excused = 0;
  totals.undecided = 11;
  REQUIRE(totals.too_little());
  CHECK(has(*totals.too_little(), "11 of 1000 seeds undecided"));
  // Of a few seeds a share says nothing.
  totals.passed = 99;
  CHECK_FALSE(totals.too_little());
}

TEST_CASE("sim/report: names each failure, the command that replays it, the faults and the totals") {
  SimReport report;
  report.version = "9.8.7";
  report.first_seed = 100;
  report.seeds = 2'000;
  report.jobs = 2;
  report.faults = "cut,pause";
  report.wall_ns = 151'000'000'000;
  report.totals.passed = 1'999;
  report.totals.events = 96'100'000;
  report.totals.simulated_ns = 120'240'000'000'000;
  report.totals.failed[1743] = {{"no_older_read", Instant{41'203'718'442}, 28'113, "an old state"}};
  report.totals.counts.injected(FaultKind::cut);
  CHECK(preamble(report) ==
        "tidelock sim: world streams, seeds 100 to 2099, 2 jobs, faults cut,pause, tidelock 9.8.7\n");
  const std::string text = results(report);
  report.twice = true;
  CHECK(has(results(report), " --seed 1743 --faults cut,pause --twice --trace\n"));
  report.twice = false;
  report.plan = "some.plan";
  CHECK(has(results(report), "  replay: tidelock sim --plan some.plan --trace\n"));
  report.plan.clear();
  CHECK(has(text, "seed 1743: no_older_read at 41.203718442 s, event 28113: an old state\n"));
  CHECK(has(text, "  replay: tidelock sim --world streams --seed 1743 --faults cut,pause --trace\n"));
  CHECK(has(text,
            "sim: 2000 seeds, 1999 passed, 1 failed, 0 undecided, 0 excused, 96.1 M events, 33.4 h simulated "
            "in 151.0 s\n"));
  CHECK_FALSE(has(text, "trace hash"));
  const auto json = to_json(report);
  CHECK(json["failed"][0]["seed"] == 1743);
  CHECK(json["failed"][0]["at_ns"] == 41'203'718'442);
  CHECK(json["faults"].size() == kStreamFaultKinds);
  CHECK_FALSE(json.contains("trace_hash"));

  report.seeds = 1;
  report.totals = {};
  report.totals.passed = 1;
  report.totals.trace_hash = 0x5f1c;
  CHECK(has(results(report), "\ntrace hash 0000000000005f1c\n"));
  CHECK(to_json(report)["trace_hash"] == "0000000000005f1c");
}
