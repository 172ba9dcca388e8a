#include <chrono>
#include <signal.h>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "program.h"

using namespace std::chrono_literals;
using tidelock::test::kTidelock;
using tidelock::test::Program;

namespace {

/// A run that goes on long enough to be disturbed, and is well into its load.
struct LoadedRun {
  explicit LoadedRun(const std::string& seconds, const std::string& ack = "applied",
                     const std::string& timeout = "2")
      : program(kTidelock,
                {"run", "--json", "--duration", seconds, "--shards", "1", "--timeout", timeout, "--ack", ack},
                on_a_terminal()) {
    REQUIRE(program.wait_for_ops(1, 120s) > 0);
  }
  static Program::Setup on_a_terminal() {
    Program::Setup setup;
    setup.terminal = true;
    return setup;
  }
  pid_t node(const std::string& role) const {
    const auto pid = program.node(role);
    REQUIRE(pid.has_value());
    return *pid;
  }
  Program program;
};

/// A link lives through less than three seconds of silence. Where the machine made the moment longer than
/// meant, the run proves nothing, and another is made.
void check_brief_stop(const std::string& role) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    LoadedRun run("4", "applied", "60");
    const pid_t node = run.node(role);
    const auto stopped = std::chrono::steady_clock::now();
    ::kill(node, SIGSTOP);
    std::this_thread::sleep_for(700ms);
    ::kill(node, SIGCONT);
    const bool brief = std::chrono::steady_clock::now() - stopped < 1500ms;
    const auto result = run.program.finish(180s);
    if (!brief) continue;
    INFO(result.err);
    CHECK(result.exit_status == 0);
    CHECK(result.json()["stale"] == 0);
    return;
  }
  FAIL("this machine never comes back within a second and a half");
}

}  // namespace

TEST_CASE("kill -9 of the replica: the primary goes on, says so, and waiters end by their deadline") {
  LoadedRun run("8");
  ::kill(run.node("replica"), SIGKILL);
  const auto result = run.program.finish(120s);
  INFO(result.err);
  CHECK(result.exit_status == 1);
  const auto report = result.json();
  REQUIRE(report.is_object());
  // The primary ran to its end and counted what was refused or unknown.
  CHECK(report["seconds"] >= 7.5);
  CHECK(report["failed"] > 0);
  CHECK(report["reads"] > 0);
  CHECK(result.err.find("the replica process ended by signal 9") != std::string::npos);
  CHECK(result.err.find("primary: ") != std::string::npos);
}

TEST_CASE("kill -9 of the replica with ack local: writes go on at the primary alone") {
  LoadedRun run("5", "local");
  ::kill(run.node("replica"), SIGKILL);
  const auto result = run.program.finish(120s);
  INFO(result.err);
  CHECK(result.exit_status == 1);
  const auto report = result.json();
  REQUIRE(report.is_object());
  CHECK(report["failed"] == 0);
  CHECK(report["writes"] > 0);
}

TEST_CASE("kill -9 of the primary: the replica says so and goes on serving reads") {
  LoadedRun run("30");
  ::kill(run.node("primary"), SIGKILL);
  const auto result = run.program.finish(90s);
  INFO(result.err);
  CHECK(result.exit_status == 1);
  const auto report = result.json();
  REQUIRE(report.is_object());
  // The replica came to its end in good order: it read, and made its digest.
  CHECK(report["checked"] > 0);
  CHECK(report["stale"] == 0);
  CHECK(report["shards"][0]["replica_digest"] != "");
  CHECK(result.err.find("the primary process ended by signal 9") != std::string::npos);
  CHECK(result.err.find("replica: ") != std::string::npos);
}

TEST_CASE("a replica that is stopped for a moment and resumed loses nothing") { check_brief_stop("replica"); }

TEST_CASE("a replica that stays stopped is dropped; the primary goes on and the run ends") {
  LoadedRun run("15");
  const pid_t replica = run.node("replica");
  ::kill(replica, SIGSTOP);
  CHECK(run.program.wait_for_error_text("primary: ", 120s));
  ::kill(replica, SIGCONT);
  const auto result = run.program.finish(90s);
  INFO(result.err);
  CHECK((result.exit_status == 1 || result.exit_status == 0));
  const auto report = result.json();
  REQUIRE(report.is_object());
  CHECK(report["stale"] == 0);
  CHECK(report["failed"] > 0);
  CHECK(report["seconds"] >= 14.5);
  CHECK(result.err.find("primary: ") != std::string::npos);
}

TEST_CASE("a primary that is stopped for a moment and resumed loses nothing") { check_brief_stop("primary"); }
