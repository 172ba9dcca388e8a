// `tidelock sim` as a user runs it.
#include <chrono>
#include <filesystem>
#include <signal.h>
#include <string>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include "has.h"
#include "program.h"
#include "sanitized.h"

using namespace std::chrono_literals;
using tidelock::test::has;
using tidelock::test::kSanitized;
using tidelock::test::kTidelock;
using tidelock::test::kTidelockPlanted;
using tidelock::test::Program;
using tidelock::test::run_program;

namespace {

/// What stands in a line after `label`.
std::string after(const std::string& text, const std::string& label) {
  const auto at = text.find(label);
  if (at == std::string::npos) return {};
  const auto from = at + label.size();
  return text.substr(from, text.find('\n', from) - from);
}

}  // namespace

TEST_CASE("process/sim: seeds pass; one seed prints its trace hash, the same every time") {
  const auto many = run_program(kTidelock, {"sim", "--seeds", "20", "--jobs", "2"});
  CHECK(many.exit_status == 0);
  CHECK(has(many.out, "sim: 20 seeds, 20 passed, 0 failed"));
  CHECK(has(many.out, "notify_before_data"));
  CHECK_FALSE(has(many.out, "trace hash"));
  const auto one = run_program(kTidelock, {"sim", "--seed", "7"});
  const auto again = run_program(kTidelock, {"sim", "--seed", "7", "--trace"});
  CHECK(one.exit_status == 0);
  CHECK(after(one.out, "trace hash ").size() == 16);
  CHECK(after(one.out, "trace hash ") == after(again.out, "trace hash "));
  CHECK(has(again.out, " turn\n"));
  const auto json = run_program(kTidelock, {"sim", "--seed", "7", "--json"}).json();
  REQUIRE(json.is_object());
  CHECK(json["trace_hash"] == after(one.out, "trace hash "));
  CHECK(json["passed"] == 1);
  CHECK(json["failed"].empty());
  CHECK(run_program(kTidelock, {"sim", "--seed", "7", "--seeds", "5", "--twice"}).exit_status == 0);
}

TEST_CASE("process/sim: the planted incident fails, and the printed command replays it") {
  const auto found = run_program(kTidelockPlanted, {"sim", "--seeds", "500", "--jobs", "1"});
  CHECK(found.exit_status == 1);
  CHECK(has(found.out, ": no_older_read at "));
  const std::string replay = after(found.out, "replay: tidelock sim --world streams --seed ");
  const std::string seed = replay.substr(0, replay.find(' '));
  REQUIRE_FALSE(seed.empty());
  const auto again = run_program(kTidelockPlanted, {"sim", "--world", "streams", "--seed", seed, "--trace"});
  CHECK(again.exit_status == 1);
  CHECK(after(again.out, "seed " + seed + ": no_older_read") ==
        after(found.out, "seed " + seed + ": no_older_read"));
  CHECK(has(again.out, " FAILED "));
  CHECK(run_program(kTidelock, {"sim", "--seed", seed}).exit_status == 0);
}

TEST_CASE("process/sim: a failing seed is cut to a plan, and the plan fails, too") {
  const std::string path =
      std::filesystem::temp_directory_path() / ("tidelock-plan-" + std::to_string(::getpid()));
  std::filesystem::remove(path);  // of an earlier process with this number
  const auto passes = run_program(kTidelock, {"sim", "--seed", "1", "--shrink", path});
  CHECK(passes.exit_status == 0);
  CHECK_FALSE(std::filesystem::exists(path));
  const auto found = run_program(kTidelockPlanted, {"sim", "--seed", "1", "--shrink", path});
  CHECK(found.exit_status == 1);
  REQUIRE(std::filesystem::exists(path));
  const auto again = run_program(kTidelockPlanted, {"sim", "--plan", path});
  CHECK(again.exit_status == 1);
  CHECK(has(again.out, "seed 1: no_older_read"));
  CHECK(has(again.out, "replay: tidelock sim --plan " + path));
  CHECK(run_program(kTidelock, {"sim", "--plan", path}).exit_status == 0);
  CHECK(run_program(kTidelock, {"sim", "--plan", path + ".none"}).exit_status == 2);
  CHECK(run_program(kTidelock, {"sim", "--plan", path, "--seed", "3"}).exit_status == 2);
  std::filesystem::remove(path);
}

TEST_CASE("process/sim: Ctrl-C ends it with what was found until then, and no worker is left") {
  Program::Setup terminal;
  terminal.terminal = true;
  Program program(kTidelock, {"sim", "--seeds", "100000000", "--jobs", "2"}, terminal);
  REQUIRE(program.wait_for_error_text(" seeds, 0 failed", 120s));
  const auto workers = program.children();
  CHECK(workers.size() == 2);
  program.signal(SIGINT);
  const auto result = program.finish(120s);
  CHECK(result.exit_status == 130);
  CHECK(has(result.out, " (interrupted)"));
  CHECK(has(result.out, " 0 failed"));
  for (const pid_t worker : workers) CHECK(::kill(worker, 0) != 0);
}

TEST_CASE("process/sim: a signal that comes twice at once, to its workers, too, is one") {
  Program::Setup terminal;
  terminal.terminal = true;
  Program program(kTidelock, {"sim", "--seeds", "100000000", "--jobs", "2", "--keep-going"}, terminal);
  REQUIRE(program.wait_for_error_text(" seeds, 0 failed", 120s));
  const auto workers = program.children();
  for (const pid_t worker : workers) ::kill(worker, SIGTERM);
  program.signal(SIGTERM);
  program.signal(SIGTERM);
  const auto result = program.finish(120s);
  CHECK(result.exit_status == 143);
  CHECK(has(result.out, " 0 failed"));  // a worker that had ended would have failed its seed
  CHECK(has(result.out, " (interrupted)"));
}

// Not under sanitizers: UBSan's check of an object's type looks with a pipe of its own whether memory is
// readable.
TEST_CASE("process/sim: without a pipe for each worker it ends there, with what was found until then" *
          doctest::skip(kSanitized)) {
  Program::Setup setup;
  setup.before_exec = [] {
    ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);  // what whoever runs the tests has left open
    const rlimit few{5, 5};                      // the streams and one pipe
    ::setrlimit(RLIMIT_NOFILE, &few);
  };
  const auto result = run_program(kTidelock, {"sim", "--seeds", "1000000", "--jobs", "4"}, setup);
  CHECK(result.exit_status == 2);
  CHECK(has(result.err, "raise the limit of open files"));
  CHECK(has(result.out, " 0 failed"));
}

TEST_CASE("process/sim: wrong flags are refused with what is right") {
  const auto unknown = run_program(kTidelock, {"sim", "--faults", "cut,gravity"});
  CHECK(unknown.exit_status == 2);
  CHECK(has(unknown.err, "there is no fault \"gravity\""));
  CHECK(has(unknown.err, "half_open"));
  CHECK(has(run_program(kTidelock, {"sim", "--faults", ""}).err, "give none for no fault"));
  CHECK(run_program(kTidelock, {"sim", "--faults", ""}).exit_status == 2);
  CHECK(run_program(kTidelock, {"sim", "--seeds", "0"}).exit_status == 2);
  CHECK(run_program(kTidelock, {"sim", "--seeds", "3", "--trace"}).exit_status == 2);
  CHECK(run_program(kTidelock, {"sim", "--world", "moon"}).exit_status == 2);
  const auto help = run_program(kTidelock, {"sim", "--help"});
  CHECK(help.exit_status == 0);
  CHECK(has(help.out, "Faults: delay, cut"));
}
