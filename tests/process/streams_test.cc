// Standard output that takes nothing, standard error that is full or closed: each subcommand says what it
// can, and fails if its result got lost.
#include <chrono>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "has.h"
#include "program.h"
#include "side_rig.h"

using namespace std::chrono_literals;
using tidelock::test::free_address;
using tidelock::test::has;
using tidelock::test::kTidelock;
using tidelock::test::primary_flags;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::replica_flags;
using tidelock::test::run_program;
using tidelock::test::TemporaryFile;

namespace {

using Flags = std::vector<std::string>;

Program::Setup to_full_disk() {
  Program::Setup setup;
  setup.out_path = "/dev/full";
  return setup;
}

Program::Setup before_exec(void (*change)()) {
  Program::Setup setup;
  setup.before_exec = change;
  return setup;
}

void close_error() { ::close(STDERR_FILENO); }
void close_output() { ::close(STDOUT_FILENO); }
void fill_error() { ::dup2(::open("/dev/full", O_WRONLY), STDERR_FILENO); }
void fill_both() {
  fill_error();
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
}
void close_all() {
  ::close(STDIN_FILENO);
  ::close(STDOUT_FILENO);
  ::close(STDERR_FILENO);
}

void check_lost(const ProgramResult& result, const char* why) {
  INFO(result.err);
  CHECK(result.exit_status == 2);
  CHECK(result.out.empty());
  CHECK(has(result.err, "tidelock"));
  CHECK(has(result.err, "standard output"));
  CHECK(has(result.err, why));
}

std::string pingpong_socket(const char* name) {
  return "@tidelock-streams-" + std::to_string(::getpid()) + "-" + name;
}

/// One that others can ask, until the end of the scope.
struct LongRun {
  LongRun() : program(kTidelock, {"run", "--json", "--duration", "600", "--shards", "1"}, setup()) {
    REQUIRE(program.wait_for_ops(1, 120s) > 0);
  }
  static Program::Setup setup() {
    Program::Setup setup;
    setup.terminal = true;
    return setup;
  }
  Program program;
};

}  // namespace

TEST_CASE("streams: a full disk for standard output is an error of each subcommand") {
  const LongRun run;
  for (const Flags& flags : {Flags{"--help"},
                             {"--version"},
                             {"run", "--help"},
                             {"doctor", "--help"},
                             {"link", "--help"},
                             {"pingpong", "--help"},
                             {"run", "--duration", "0.2", "--shards", "1"},
                             {"run", "--json", "--duration", "0.2", "--shards", "1"},
                             {"doctor"},
                             {"doctor", "--json"},
                             {"link"},
                             {"link", "--json"},
                             {"link", "--watch", "0.1"},
                             {"pingpong", "--link", "shm", "--listen", pingpong_socket("server")}}) {
    CAPTURE(flags[0]);
    CAPTURE(flags.back());
    check_lost(run_program(kTidelock, flags, to_full_disk()), "No space left");
  }
}

TEST_CASE("streams: a full disk for both sides of a ping-pong, whose results come last") {
  const std::string at = pingpong_socket("json");
  Program server(kTidelock, {"pingpong", "--link", "shm", "--overprovisioned", "--json", "--listen", at},
                 to_full_disk());
  ProgramResult client;
  // Until the server listens.
  const auto until = std::chrono::steady_clock::now() + 60s;
  do {
    client =
        run_program(kTidelock, {"pingpong", "--link", "shm", "--overprovisioned", "--json", "-n", "10", at},
                    to_full_disk());
  } while (!has(client.err, "standard output") && std::chrono::steady_clock::now() < until);
  check_lost(client, "No space left");
  check_lost(server.finish(60s), "No space left");
}

TEST_CASE("streams: both halves of a run on two machines whose report got lost") {
  const std::string address = free_address();
  Program primary(kTidelock, primary_flags(address), to_full_disk());
  Program replica(kTidelock, replica_flags(address), to_full_disk());
  check_lost(primary.finish(120s), "No space left");
  check_lost(replica.finish(120s), "No space left");
}

TEST_CASE("streams: a standard output that is closed is an error, too") {
  for (const Flags& flags :
       {Flags{"--help"}, {"doctor"}, {"run", "--duration", "0.2", "--shards", "1"}, {"run", "--help"}}) {
    CAPTURE(flags.back());
    check_lost(run_program(kTidelock, flags, before_exec(close_output)), "Bad file descriptor");
  }
}

TEST_CASE("streams: what cannot be said does not change how a subcommand ends") {
  for (void (*change)() : {close_error, fill_error, fill_both, close_all}) {
    for (const Flags& flags :
         {Flags{},
          {"frobnicate"},
          {"run", "--no-such-flag"},
          {"run", "--input", "/no/such/file"},
          {"doctor", "--shards", "0"},
          {"link", "--at", "@tidelock-nobody-is-here"},
          {"pingpong", "-s", "63", "@tidelock-nobody-is-here"},
          {"pingpong", "--link", "shm", "--timeout", "0.1", "@tidelock-nobody-is-here"}}) {
      CAPTURE(flags.size());
      CHECK(run_program(kTidelock, flags, before_exec(change)).exit_status == 2);
    }
  }
  for (const Flags& flags : {Flags{"doctor"}, {"--help"}, {"run", "--duration", "0.2", "--shards", "1"}})
    CHECK(run_program(kTidelock, flags, before_exec(fill_both)).exit_status == 2);
}

TEST_CASE("streams: an interrupted ping-pong ends as one, whether or not it can say so") {
  const TemporaryFile out("");
  Program::Setup setup = before_exec(fill_error);
  setup.out_path = out.path();
  Program server(kTidelock, {"pingpong", "--link", "shm", "--listen", pingpong_socket("stopped")}, setup);
  const auto waits = [&] {
    std::ifstream file(out.path());
    return has({std::istreambuf_iterator<char>(file), {}}, "waiting for");
  };
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (!waits() && std::chrono::steady_clock::now() < until) ::usleep(5'000);
  server.signal(SIGINT);
  CHECK(server.finish(60s).exit_status == 130);
}

TEST_CASE("streams: what is said while standard error is closed gets into no other file") {
  const TemporaryFile report("");
  const std::string address = free_address();
  Flags flags = primary_flags(address);
  flags.insert(flags.end(), {"--output", report.path()});
  // It says at least that it waits for the other.
  Program primary(kTidelock, flags, before_exec(close_error));
  Program replica(kTidelock, replica_flags(address));
  CHECK(primary.finish(120s).exit_status == 0);
  CHECK(replica.finish(120s).exit_status == 0);
  std::ifstream file(report.path());
  const std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK(nlohmann::json::parse(text, nullptr, false).is_object());
}
