#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <signal.h>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include <tidelock/reactor/cpu_set.h>

#include "program.h"

using namespace std::chrono_literals;
using tidelock::test::kTidelock;
using tidelock::test::Program;
using tidelock::test::TemporaryFile;

namespace {

constexpr const char* kStrace = "/usr/bin/strace";
constexpr std::uint64_t kOps = 40'000;

/// strace -c: "% time  seconds  usecs/call  calls  [errors]  syscall", one a line.
std::uint64_t total_calls(const std::string& summary) {
  std::istringstream lines(summary);
  std::uint64_t calls = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("total") == std::string::npos) continue;
    std::istringstream fields(line);
    double percent = 0, seconds = 0, each = 0;
    fields >> percent >> seconds >> each >> calls;
  }
  return calls;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// strace -c of a process until the run has made `ops` more operations, as its progress shows.
std::string summary_over(Program& program, pid_t pid, std::uint64_t ops) {
  const TemporaryFile summary("");
  Program strace(kStrace, {"-c", "-f", "-o", summary.path(), "-p", std::to_string(pid)});
  REQUIRE(strace.wait_for_error_text("attached", 120s));
  const std::uint64_t before = program.wait_for_ops(1, 120s);
  CHECK(program.wait_for_ops(before + ops, 300s) >= before + ops);
  strace.signal(SIGINT);
  strace.finish(60s);
  return read_file(summary.path());
}

}  // namespace

TEST_CASE("a busy time makes no system call per operation on either side, and uses no eventfd") {
  if (::access(kStrace, X_OK) != 0) {
    MESSAGE("skipped: strace is not installed");
    return;
  }
  if (tidelock::usable_cpus().size() < 2) {
    MESSAGE("skipped: with one CPU nothing spins, so every message pays for a wakeup");
    return;
  }
  Program::Setup setup;
  setup.terminal = true;
  Program program(kTidelock, {"run", "--json", "--duration", "3600", "--shards", "1"}, setup);
  REQUIRE(program.wait_for_ops(1, 120s) > 0);
  std::map<std::string, std::uint64_t> calls;
  for (const char* role : {"primary", "replica"}) {
    CAPTURE(role);
    const auto pid = program.node(role);
    REQUIRE(pid.has_value());
    const std::string text = summary_over(program, *pid, kOps);
    INFO(text);
    REQUIRE(text.find("total") != std::string::npos);
    CHECK(text.find("eventfd") == std::string::npos);
    calls[role] = total_calls(text);
    CHECK(calls[role] > 0);
    // eventfds would also show as open descriptors.
    const TemporaryFile listing("");
    const std::string command =
        "ls -l /proc/" + std::to_string(*pid) + "/fd | grep -c eventfd > " + listing.path();
    (void)std::system(command.c_str());
    CHECK(read_file(listing.path()) == "0\n");
  }
  program.signal(SIGINT);
  const auto result = program.finish(120s);
  CHECK(result.exit_status == 130);
  const auto report = result.json();
  REQUIRE(report.is_object());
  std::uint64_t parks = 0;
  for (const char* role : {"primary", "replica"}) parks += report[role][0]["parks"].get<std::uint64_t>();
  // Timers and the progress messages remain, and some calls for each park and for the wakeup that ends it. A
  // busy machine makes the reactors park often; that is no call an operation, either.
  const std::uint64_t explained = kOps / 10 + 8 * parks;
  CAPTURE(parks);
  if (explained >= kOps)
    MESSAGE("this machine is busy: so many parks that one call an operation would not show");
  for (const auto& [role, count] : calls) {
    CAPTURE(role);
    CHECK(count <= explained);
  }
}
