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
struct Running {
  explicit Running(const std::string& seconds, const std::string& ack = "applied")
      : program(kTidelock,
                {"run", "--json", "--duration", seconds, "--shards", "1", "--timeout", "2", "--ack", ack}) {
    std::this_thread::sleep_for(2s);
  }
  pid_t node(const std::string& role) const {
    const auto pid = program.node(role);
    REQUIRE(pid.has_value());
    return *pid;
  }
  Program program;
};

}  // namespace

TEST_CASE("kill -9 of the replica: the primary goes on, says so, and waiters end by their deadline") {
  Running run("6");
  ::kill(run.node("replica"), SIGKILL);
  const auto result = run.program.finish(60s);
  INFO(result.err);
  CHECK(result.exit_status == 1);
  const auto report = result.json();
  REQUIRE(report.is_object());
  // The primary ran to its end and counted what was refused or unknown.
  CHECK(report["seconds"] >= 5.5);
  CHECK(report["failed"] > 0);
  CHECK(report["reads"] > 0);
  CHECK(result.err.find("the replica process ended by signal 9") != std::string::npos);
  CHECK(result.err.find("primary: ") != std::string::npos);
}

TEST_CASE("kill -9 of the replica with ack local: writes go on at the primary alone") {
  Running run("5", "local");
  ::kill(run.node("replica"), SIGKILL);
  const auto result = run.program.finish(60s);
  INFO(result.err);
  CHECK(result.exit_status == 1);
  const auto report = result.json();
  REQUIRE(report.is_object());
  CHECK(report["failed"] == 0);
  CHECK(report["writes"] > 0);
}

TEST_CASE("kill -9 of the primary: the replica says so and goes on serving reads") {
  Running run("30");
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

TEST_CASE("a replica that is stopped for a moment and resumed loses nothing") {
  Running run("4");
  const pid_t replica = run.node("replica");
  ::kill(replica, SIGSTOP);
  std::this_thread::sleep_for(700ms);
  ::kill(replica, SIGCONT);
  const auto result = run.program.finish(60s);
  INFO(result.err);
  CHECK(result.exit_status == 0);
  CHECK(result.json()["stale"] == 0);
}

TEST_CASE("a replica that stays stopped is dropped; the primary goes on and the run ends") {
  Running run("7");
  const pid_t replica = run.node("replica");
  ::kill(replica, SIGSTOP);
  std::this_thread::sleep_for(6s);
  ::kill(replica, SIGCONT);
  const auto result = run.program.finish(90s);
  INFO(result.err);
  CHECK((result.exit_status == 1 || result.exit_status == 0));
  const auto report = result.json();
  REQUIRE(report.is_object());
  CHECK(report["stale"] == 0);
  CHECK(report["failed"] > 0);
  CHECK(report["seconds"] >= 6.5);
  CHECK(result.err.find("primary: ") != std::string::npos);
}

TEST_CASE("a primary that is stopped for a moment and resumed loses nothing") {
  Running run("4");
  const pid_t primary = run.node("primary");
  ::kill(primary, SIGSTOP);
  std::this_thread::sleep_for(700ms);
  ::kill(primary, SIGCONT);
  const auto result = run.program.finish(60s);
  INFO(result.err);
  CHECK(result.exit_status == 0);
  CHECK(result.json()["stale"] == 0);
}
