// `tidelock doctor` on the machine that runs this, as it is and with things taken away.
#include <cerrno>
#include <sched.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>

#include "program.h"

using tidelock::test::kTidelock;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::refuse_io_uring;
using tidelock::test::run_program;

namespace {

/// What --json must hold whatever the machine is, its exit status included.
nlohmann::json check_report(const ProgramResult& result) {
  INFO(result.out);
  INFO(result.err);
  const auto report = result.json();
  REQUIRE(report.is_object());
  std::size_t sum = 0;
  for (const char* name : {"ok", "warnings", "errors", "unknown"}) sum += report.at(name).get<std::size_t>();
  CHECK(sum == report.at("checks").size());
  CHECK(sum > 20);
  for (const auto& check : report.at("checks")) {
    for (const char* name : {"name", "status", "value", "why", "fix"}) REQUIRE(check.at(name).is_string());
    CHECK(check.at("value") != "");
    CHECK(check.at("why") != "");
    const bool to_mend = check.at("status") == "warning" || check.at("status") == "error";
    CHECK((check.at("fix") != "") == to_mend);
  }
  for (const char* name : {"host", "kernel", "command"}) CHECK(report.at(name) != "");
  const int expected = report.at("errors") > 0 ? 2 : report.at("ok") == sum ? 0 : 1;
  CHECK(result.exit_status == expected);
  return report;
}

std::string status_of(const nlohmann::json& report, const std::string& name) {
  for (const auto& check : report.at("checks")) {
    if (check.at("name") == name) return check.at("status");
  }
  return "no check " + name;
}

const std::vector<std::string> kOneShard{"doctor", "--json", "--shards", "1"};

}  // namespace

TEST_CASE("doctor: a report of this machine, which can run the engine as these tests do") {
  const auto report = check_report(run_program(kTidelock, kOneShard));
  CHECK(report["command"] == "tidelock doctor --json --shards 1");
  for (const char* name : {"io_uring", "memlock limit", "open files limit"}) {
    CAPTURE(name);
    CHECK(status_of(report, name) == "ok");
  }
  for (const char* name : {"kernel", "io_uring MSG_RING", "transparent huge pages", "vm.max_map_count",
                           "cpus", "clocksource", "rdma devices", "rdma_cm"})
    CHECK_MESSAGE(status_of(report, name).find("no check") == std::string::npos, name);
}

TEST_CASE("doctor: the text has a line for each check, and the sum") {
  const auto report = check_report(run_program(kTidelock, kOneShard));
  const auto result = run_program(kTidelock, {"doctor", "--shards", "1"});
  for (const auto& check : report["checks"])
    CHECK_MESSAGE(result.out.find(check["name"].get<std::string>()) != std::string::npos, check["name"]);
  for (const char* text : {" unknown\n", "host: ", "kernel: ", "command: tidelock doctor --shards 1"})
    CHECK_MESSAGE(result.out.find(text) != std::string::npos, text);
  CHECK(result.err.empty());
}

TEST_CASE("doctor: a memlock limit of 64 KiB is too low for verbs") {
  Program::Setup setup;
  setup.before_exec = [] {
    const rlimit limit{64 << 10, 64 << 10};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
    (void)::setuid(65534);  // root may lock what it likes
  };
  const auto result = run_program(kTidelock, {"doctor", "--json", "--shards", "1", "--link", "verbs"}, setup);
  const auto report = check_report(result);
  CHECK(result.exit_status == 2);
  CHECK(status_of(report, "memlock limit") == "error");
}

TEST_CASE("doctor: io_uring blocked by seccomp") {
  for (const int errno_value : {EPERM, ENOSYS}) {
    Program::Setup setup;
    setup.before_exec = [errno_value] { refuse_io_uring(errno_value); };
    const auto result = run_program(kTidelock, kOneShard, setup);
    const auto report = check_report(result);
    CHECK(result.exit_status == 2);
    CHECK(status_of(report, "io_uring") == "error");
    CHECK(status_of(report, "io_uring MSG_RING") == "unknown");
  }
}

TEST_CASE("doctor: more shards than CPUs, and wrong flags") {
  Program::Setup setup;
  setup.before_exec = [] {
    cpu_set_t usable;
    ::sched_getaffinity(0, sizeof usable, &usable);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &usable)) ++cpu;
    CPU_ZERO(&usable);
    CPU_SET(cpu, &usable);
    ::sched_setaffinity(0, sizeof usable, &usable);
  };
  const auto result = run_program(kTidelock, {"doctor", "--json", "--shards", "2"}, setup);
  CHECK(status_of(check_report(result), "cpus") == "error");
  CHECK(result.exit_status == 2);
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--link", "tcp"},
                                                {"--shards", "0"},
                                                {"--log-bytes", "1"},
                                                {"--frobnicate"}}) {
    std::vector<std::string> arguments{"doctor"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const auto refused = run_program(kTidelock, arguments);
    CHECK(refused.exit_status == 2);
    CHECK(refused.out.empty());
    CHECK(refused.err.find("tidelock doctor --help") != std::string::npos);
  }
  const auto help = run_program(kTidelock, {"doctor", "--help"});
  CHECK(help.exit_status == 0);
  for (const char* text : {"--json", "--link", "--shards", "Exit status"})
    CHECK_MESSAGE(help.out.find(text) != std::string::npos, text);
}

TEST_CASE("doctor: a full disk for the output") {
  Program::Setup setup;
  setup.out_path = "/dev/full";
  const auto result = run_program(kTidelock, kOneShard, setup);
  CHECK(result.exit_status == 2);
  CHECK(result.err.find("No space left") != std::string::npos);
}
