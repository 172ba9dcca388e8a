// A primary here and two replicas in processes of their own, one of which is stopped.
#include <cerrno>
#include <csignal>
#include <string>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <tidelock/engine/engine.h>

#include "engine/engine_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// A process with a replica that follows until it is killed.
class ReplicaProcess {
 public:
  ReplicaProcess(const std::string& path, std::uint32_t node) : pid_(::fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    Options options = replica_options(path);
    options.node = node;
    const auto replica = Engine::open(options);
    while (replica.has_value()) ::pause();
    ::_exit(1);
  }
  ReplicaProcess(const ReplicaProcess&) = delete;
  ReplicaProcess& operator=(const ReplicaProcess&) = delete;
  ~ReplicaProcess() {
    signal(SIGKILL);
    wait(0);
  }
  void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }
  /// Returns once it has stopped.
  void stop() const {
    signal(SIGSTOP);
    wait(WUNTRACED);
  }

 private:
  void wait(int options) const {
    while (::waitpid(pid_, nullptr, options) < 0 && errno == EINTR) {
    }
  }
  pid_t pid_;
};

Options counting_one(const std::string& path) {
  Options options = primary_options(path);
  options.c = 1;
  options.log_bytes = 64 << 10;
  return options;
}

/// More than a replica's ring and the log hold.
void write_much(Engine& primary) {
  const std::string value = pattern(4000, 1);
  for (int i = 0; i < 200; ++i)
    REQUIRE(primary.put("key" + std::to_string(i), value, {AckLevel::applied, kPatience}).has_value());
}

}  // namespace

TEST_SUITE_BEGIN("engine/processes");

TEST_CASE("a stopped process of two does not stop the primary with c = 1") {
  const std::string path = unique_path();
  // Before this process has threads of its own.
  const ReplicaProcess moving(path, 2);
  const ReplicaProcess stopped(path, 3);
  const auto primary = open(counting_one(path));
  REQUIRE(eventually([&] { return primary->link_count() == 2; }));
  stopped.stop();
  write_much(*primary);
  CHECK(primary->link_count() == 1);
  CHECK(has_event(*primary, "the log has no room for what the replica has not taken"));
  // Nobody is left who would do. Expect: writes wait, and the one who is stopped keeps its link meanwhile.
  moving.stop();
  CHECK(primary->put("key", "value", {AckLevel::applied, milliseconds(300)}).error() ==
        ReplicationErrc::outcome_unknown);
  CHECK(primary->link_count() == 1);
  moving.signal(SIGCONT);
  write_much(*primary);
  CHECK(primary->link_count() == 1);
}

TEST_SUITE_END();
