// Cutting a plan down to the faults that it takes, plans as text, and the failures that are kept.
#include "shrink.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "has.h"
#include "plan_file.h"
#include "planted_bugs.h"
#include "run.h"

using namespace tidelock;
using namespace tidelock::sim;
using tidelock::test::has;

namespace {

std::vector<Fault> faults_by_hand(std::uint64_t count) {
  std::vector<Fault> plan;
  for (std::uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.number = i;
    fault.at = Instant{} + milliseconds(static_cast<std::int64_t>(i));
    fault.kind = static_cast<FaultKind>(i % kStreamFaultKinds);
    fault.length = milliseconds(64);
    fault.detail = i * 7;
    plan.push_back(fault);
  }
  return plan;
}

bool holds_all(const std::vector<Fault>& plan, const std::vector<std::uint64_t>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [&](std::uint64_t number) {
    return std::any_of(plan.begin(), plan.end(), [&](const Fault& fault) { return fault.number == number; });
  });
}

bool fails_by(const std::string& checker, std::uint64_t seed, const std::vector<Fault>& plan,
              const Planted& planted, const LessLoad& load = {}) {
  RunOptions options;
  options.seed = seed;
  options.plan = plan;
  options.load = load;
  options.planted = planted;
  const auto failures = run_seed(options).failures;
  return std::any_of(failures.begin(), failures.end(),
                     [&](const Failure& failure) { return failure.checker == checker; });
}

}  // namespace

TEST_CASE("sim/shrink: what is left is exactly what it takes, as short as it may be") {
  for (const std::vector<std::uint64_t>& needed :
       {std::vector<std::uint64_t>{}, {0}, {99}, {3, 4}, {0, 50, 99}, {10, 30, 31, 77, 78, 79}}) {
    ShrinkOptions options;
    options.plan = faults_by_hand(100);
    options.fails = [&](const std::vector<Fault>& plan, const LessLoad&) {
      return holds_all(plan, needed) && std::all_of(plan.begin(), plan.end(), [](const Fault& fault) {
               return fault.number != 50 || fault.length >= milliseconds(10);
             });
    };
    const Shrunk shrunk = shrink(options);
    CHECK(shrunk.least);
    CHECK(shrunk.plan.size() == needed.size());
    CHECK(holds_all(shrunk.plan, needed));
    CHECK(shrunk.runs <= options.runs_max);
    for (const Fault& fault : shrunk.plan) {
      CHECK(fault.length <= (fault.number == 50 ? milliseconds(16) : microseconds(2)));
      CHECK(fault.detail == fault.number * 7);
    }
  }
}

TEST_CASE("sim/shrink: when its runs are used up it says so, and what is left still fails") {
  ShrinkOptions options;
  options.plan = faults_by_hand(100);
  options.runs_max = 20;
  options.fails = [](const std::vector<Fault>& plan, const LessLoad&) {
    return holds_all(plan, {1, 20, 40, 60, 80});
  };
  const Shrunk shrunk = shrink(options);
  CHECK_FALSE(shrunk.least);
  CHECK(shrunk.runs == 20);
  CHECK(options.fails(shrunk.plan, {}));
}

TEST_CASE("sim/shrink: of the load no more is left than it takes, after the faults") {
  ShrinkOptions options;
  options.plan = faults_by_hand(20);
  options.clients = 8;
  options.calls = 500;
  bool whole_plan = false;
  options.fails = [&](const std::vector<Fault>& plan, const LessLoad& load) {
    whole_plan = whole_plan || (plan.size() > 1 && (load.clients != 0 || load.calls != 0));
    return holds_all(plan, {7}) && (load.calls == 0 || load.calls >= 90) &&
           (load.clients == 0 || load.clients >= 3);
  };
  const Shrunk shrunk = shrink(options);
  CHECK(shrunk.plan.size() == 1);
  CHECK(shrunk.load.calls >= 90);
  CHECK(shrunk.load.calls < 103);
  CHECK(shrunk.load.clients == 3);
  CHECK_FALSE(whole_plan);
  // All of it is needed. Expect: nothing is said of it
  options.fails = [](const std::vector<Fault>&, const LessLoad& load) {
    return load.clients == 0 && load.calls == 0;
  };
  CHECK(shrink(options).load.calls == 0);
  CHECK(shrink(options).load.clients == 0);
}

TEST_CASE("sim/shrink: of a seed that fails a few faults are left, none of them for nothing") {
  const ReleasesOnAck bug{};
  Planted planted;
  planted.ack = &bug;
  // A seed that passes with the bug if it has no faults.
  RunOptions run;
  run.planted = planted;
  const auto needs_faults = [&](std::uint64_t seed) {
    run.seed = seed;
    return fails_by("link_contract", seed, plan_of(run), planted) &&
           !fails_by("link_contract", seed, {}, planted);
  };
  std::uint64_t seed = 1;
  while (seed <= 100 && !needs_faults(seed)) ++seed;
  REQUIRE(seed <= 100);
  ShrinkOptions options;
  options.plan = plan_of(run);
  options.fails = [&](const std::vector<Fault>& plan, const LessLoad&) {
    return fails_by("link_contract", seed, plan, planted);
  };
  const Shrunk shrunk = shrink(options);
  MESSAGE("seed " << seed << ": " << shrunk.plan.size() << " of " << options.plan.size() << " faults, "
                  << shrunk.runs << " runs");
  CHECK(options.fails(shrunk.plan, {}));
  CHECK(shrunk.plan.size() < options.plan.size());
  if (shrunk.least) {
    for (std::size_t i = 0; i < shrunk.plan.size(); ++i) {
      std::vector<Fault> rest = shrunk.plan;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK_FALSE(options.fails(rest, {}));
    }
  }
  CHECK_FALSE(fails_by("link_contract", seed, shrunk.plan, {}));
}

TEST_CASE("sim/plan_file: what was written is read, and what contradicts itself is refused with its line") {
  PlanFile file;
  file.seed = 17;
  file.checker = "acked";
  file.load = {3, 40};
  RunOptions options;
  options.seed = 17;
  file.plan = plan_of(options);
  REQUIRE_FALSE(file.plan.empty());
  const std::string text = plan_text(file);
  const auto read = parse_plan(text + "\n# why\n");
  REQUIRE(read);
  CHECK(read->seed == 17);
  CHECK(read->checker == "acked");
  CHECK(read->planted.empty());
  CHECK(read->load.clients == 3);
  CHECK(read->load.calls == 40);
  CHECK(plan_text(*read) == text);
  const std::string head = "tidelock sim plan 1\n";
  for (const auto& each : std::vector<std::pair<std::string, std::string>>{
           {"", "no seed"},
           {"seed 1\n", "line 1"},
           {head, "no seed"},
           {head + "seed\n", "line 2"},
           {head + "seed x\n", "line 2"},
           {head + "seed 1\nworld moon\n", "moon"},
           {head + "seed 1\ncalls 0\n", "line 3"},
           {head + "seed 1\nclients x\n", "line 3"},
           {head + "seed 1\nfault 1 5 cut 0 7\n", "line 3"},
           {head + "seed 1\nfault 1 5 cute 0 7 9\n", "cute"},
           {head + "seed 1\nfault 1 -5 cut 0 7 9\n", "a time"},
           {head + "seed 1\nfault 1 5 cut 0 9000000000000000000 9\n", "a time"},
           {head + "seed 1\nfault 1 5 cut 3 7 9\n", "replica 3"},
           {head + "seed 1\nnonsense\n", "line 3"}}) {
    CAPTURE(each.first);
    const auto refused = parse_plan(each.first);
    REQUIRE_FALSE(refused);
    CHECK(has(refused.error().message(), each.second));
  }
  CHECK_FALSE(read_plan("/nonexistent/plan"));
}

TEST_CASE("sim/kept: what once failed does not fail any more, and what a planted bug needs still finds it") {
  std::size_t files = 0;
  for (const auto& each : std::filesystem::directory_iterator(TIDELOCK_SIM_KEPT)) {
    if (each.path().extension() != ".plan") continue;
    CAPTURE(each.path().string());
    ++files;
    const auto kept = read_plan(each.path().string());
    REQUIRE(kept);
    RunOptions options;
    options.world = kept->world;
    options.seed = kept->seed;
    options.plan = kept->plan;
    options.load = kept->load;
    for (const Failure& failure : run_seed(options).failures)
      FAIL_CHECK(failure.checker << ": " << failure.text);
    if (kept->planted.empty()) continue;
    const auto planted = planted_bug(kept->planted);
    REQUIRE(planted);
    CHECK(fails_by(kept->checker, kept->seed, kept->plan, *planted, kept->load));
  }
  CHECK(files >= 3);
}
