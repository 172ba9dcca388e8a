#include <chrono>
#include <cstdlib>
#include <fstream>
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

}  // namespace

TEST_CASE("a busy second makes no system call per operation on either side, and uses no eventfd") {
  if (::access("/usr/bin/strace", X_OK) != 0) {
    MESSAGE("skipped: strace is not installed");
    return;
  }
  if (tidelock::usable_cpus().size() < 2) {
    MESSAGE("skipped: with one CPU nothing spins, so every message pays for a wakeup");
    return;
  }
  Program program(kTidelock, {"run", "--json", "--duration", "4", "--shards", "1"});
  std::this_thread::sleep_for(1500ms);
  for (const char* role : {"primary", "replica"}) {
    CAPTURE(role);
    const auto pid = program.node(role);
    REQUIRE(pid.has_value());
    const TemporaryFile summary("");
    const std::string command =
        "timeout -s INT 1 strace -c -f -o " + summary.path() + " -p " + std::to_string(*pid) + " 2>/dev/null";
    (void)std::system(command.c_str());
    const std::string text = read_file(summary.path());
    INFO(text);
    REQUIRE(text.find("total") != std::string::npos);
    CHECK(text.find("eventfd") == std::string::npos);
    CHECK(total_calls(text) > 0);
    // Timers, the progress messages and now and then a park remain. A run makes far more than 10,000
    // operations a second, so one call an operation would be seen.
    CHECK(total_calls(text) < 5'000);
    // eventfds would also show as open descriptors.
    const std::string listing =
        "ls -l /proc/" + std::to_string(*pid) + "/fd | grep -c eventfd > " + summary.path();
    (void)std::system(listing.c_str());
    CHECK(read_file(summary.path()) == "0\n");
  }
  const auto result = program.finish(60s);
  CHECK(result.exit_status == 0);
  CHECK(result.json()["ops"] > 40'000);
}
