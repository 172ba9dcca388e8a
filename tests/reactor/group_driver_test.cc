#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "group_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

enum ChildExit : int { kAsExpected = 0, kOtherError, kNoRemedy, kNotLimited, kNotPrepared };

/// In a forked child: a group of three where the system allows one more thread, or none.
[[noreturn]] void start_without_threads() {
  rlim_t limit = 1;
  if (::getuid() == 0) {
    // Root is not limited. A user that nobody else is has only this process to its name.
    constexpr uid_t kLonelyUser = 61'234;
    limit = 2;
    if (::setgid(kLonelyUser) != 0 || ::setuid(kLonelyUser) != 0) ::_exit(kNotPrepared);
  }
  const rlimit threads{limit, limit};
  if (::setrlimit(RLIMIT_NPROC, &threads) != 0) ::_exit(kNotPrepared);
  ReactorGroupOptions options = group_options(3);
  options.overprovisioned = true;
  const auto group = ReactorGroup::start(options);
  if (group) ::_exit(kNotLimited);
  if (group.error().code() != std::errc::resource_unavailable_try_again) ::_exit(kOtherError);
  ::_exit(group.error().message().find("ulimit -u") == std::string::npos ? kNoRemedy : kAsExpected);
}

}  // namespace

TEST_CASE("reactor/group: the stall detector lets a parked reactor sleep, and that sleep can be ended") {
  ReactorGroupOptions options = group_options(1);
  options.spin = Duration{0};
  options.back_stop = seconds(3'600);
  options.stall_signal = SIGRTMIN + 5;
  options.reactor.stall_threshold = milliseconds(5);
  auto group = start_group(options);
  for (int round = 0; round < 2; ++round) {
    CHECK(group->run(
        core(0), [] {}, kPatience));
    CHECK(eventually([&] {
      const std::uint64_t turns = group->reactor(core(0)).stats().turns;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // of many thresholds
      return group->reactor(core(0)).stats().turns == turns;
    }));
  }
  CHECK(group->park_stats(core(0)).back_stops == 0);
  stop_group(*group);
}

TEST_CASE("reactor/group: where the system allows no more threads, start() says so and leaves none behind") {
  if (kSanitized) {
    MESSAGE("skipped: a sanitizer's runtime has threads of its own");
    return;
  }
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) start_without_threads();
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE_MESSAGE(WIFEXITED(status), "ended by signal " << WTERMSIG(status));
  if (WEXITSTATUS(status) == kNotLimited || WEXITSTATUS(status) == kNotPrepared) {
    MESSAGE("skipped: this system does not limit the threads of a process (RLIMIT_NPROC)");
    return;
  }
  CHECK(WEXITSTATUS(status) == kAsExpected);
}
