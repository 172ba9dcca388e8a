#include <chrono>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include "program.h"

using namespace std::chrono_literals;
using tidelock::test::kTidelock;
using tidelock::test::kTidelockPlanted;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::run_program;
using tidelock::test::TemporaryFile;

namespace {

void check_proved(const nlohmann::json& report) {
  REQUIRE(report.is_object());
  CHECK(report["stale"] == 0);
  CHECK(report["wrong"] == 0);
  CHECK(report["unverified"] == 0);
  CHECK(report["failed"] == 0);
  CHECK(report["digests_equal"] == true);
  CHECK(report["checked"] > 0);
  CHECK(report["checked"] == report["acknowledged"]);
  CHECK(report["ops"] > 0);
  CHECK(report["loaded"] == report["keys"]);
  CHECK(report["failures"].empty());
  for (const auto& shard : report["shards"]) CHECK(shard["last_lsn"] == shard["replica_lsn"]);
  for (const char* list : {"shards", "primary", "replica"}) {
    REQUIRE(report[list].size() == report["shards"].size());
    for (std::size_t i = 0; i < report[list].size(); ++i) CHECK(report[list][i]["shard"] == i);
  }
}

void check_proved(const ProgramResult& result) {
  INFO(result.err);
  INFO(result.out);
  CHECK(result.exit_status == 0);
  const auto report = result.json();
  check_proved(report);
  CHECK(report["passed"] == true);
}

/// Not so if it only waits to be reaped, which in a container perhaps nobody does.
bool runs(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  return name_end != std::string::npos && text.compare(name_end, 3, ") Z") != 0;
}

/// So few that the checks which a run is asked for are mostly of its load.
std::string hundred_records() {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "key" + std::to_string(i) + "\tvalue\n";
  return text;
}

/// Runs until so many receipts were checked, however long that takes.
ProgramResult run_until_checked(const char* checks, std::vector<std::string> more,
                                const Program::Setup& setup = {}) {
  std::vector<std::string> arguments{"run", "--json", "--duration", "3600", "--checks", checks};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_program(kTidelock, arguments, setup);
}

Program::Setup on_a_terminal() {
  Program::Setup setup;
  setup.terminal = true;
  return setup;
}

}  // namespace

TEST_CASE("run: every ack level, one and two shards, both wakeups: nothing stale, digests equal") {
  const TemporaryFile file(hundred_records());
  for (const char* shards : {"1", "2"}) {
    for (const char* ack : {"local", "received", "applied"}) {
      for (const char* wake : {"msg_ring", "eventfd"}) {
        CAPTURE(shards);
        CAPTURE(ack);
        CAPTURE(wake);
        check_proved(run_until_checked(
            "1000", {"--input", file.path(), "--shards", shards, "--ack", ack, "--wake", wake}));
      }
    }
  }
}

TEST_CASE("run: the report names all that a reader needs to judge it") {
  const auto result = run_program(kTidelock, {"run", "--json", "--duration", "0.2", "--shards", "1"});
  const auto report = result.json();
  REQUIRE(report.is_object());
  for (const char* name : {"checked", "stale", "digests_equal", "ops", "ops_per_second", "ack_ns", "shards",
                           "link", "host", "kernel", "command"})
    CHECK_MESSAGE(report.contains(name), name);
  for (const char* name : {"p50", "p99", "p99_9", "max"})
    CHECK_MESSAGE(report["ack_ns"].contains(name), name);
  CHECK(report["link"] == "shm");
  CHECK(report["command"] == "tidelock run --json --duration 0.2 --shards 1");
  CHECK(report["shards"].size() == 1);
  for (const char* name : {"checked", "stale", "digests_equal", "ops", "ops_per_second", "ack_ns"})
    CHECK_MESSAGE(report["shards"][0].contains(name), name);
  for (const auto& shard : report["primary"]) CHECK(shard["lost_wakeups"] == 0);
  for (const auto& shard : report["replica"]) CHECK(shard["lost_wakeups"] == 0);
}

TEST_CASE("run: the table has a line a shard, a total, and where it was measured") {
  const auto result = run_program(kTidelock, {"run", "--duration", "0.2", "--shards", "2"});
  CHECK(result.exit_status == 0);
  for (const char* text : {"shard", "ops/s", "p99.9", "checked", "stale", "digest", "\ntotal", "link: shm",
                           "host: ", "kernel: ", "command: tidelock run"})
    CHECK_MESSAGE(result.out.find(text) != std::string::npos, text);
}

TEST_CASE("run: a replica that acknowledges before it applies is found out") {
  const auto give_up = std::chrono::steady_clock::now() + 300s;
  for (;;) {
    const auto result = run_program(kTidelockPlanted, {"run", "--json", "--duration", "60", "--checks",
                                                       "20000", "--shards", "1", "--read-ratio", "0"});
    const auto report = result.json();
    REQUIRE(report.is_object());
    // Whether the verifier reads before the replica has caught up is a matter of luck, but not for long.
    const bool lucky = report["stale"] == 0 && std::chrono::steady_clock::now() < give_up;
    if (lucky) continue;
    CHECK(result.exit_status == 1);
    CHECK(report["stale"] > 0);
    return;
  }
}

TEST_CASE(
    "run: tsv from a file and from standard input; of duplicate keys the last wins and they are counted") {
  const std::string text = "a\t1\nb\t2\na\t3\nc\t\n";
  const TemporaryFile file(text);
  const auto from_file = run_until_checked("1000", {"--input", file.path()});
  check_proved(from_file);
  CHECK(from_file.json()["duplicates"] == 1);
  CHECK(from_file.json()["keys"] == 3);
  Program::Setup setup;
  setup.input = text;
  check_proved(run_until_checked("1000", {"--input", "-"}, setup));
}

TEST_CASE("run: zipfian keys, writes only, empty and large values") {
  const TemporaryFile file(hundred_records());
  const auto with = [&](const char* checks, std::vector<std::string> more) {
    more.insert(more.begin(), {"--shards", "1", "--input", file.path()});
    return run_until_checked(checks, more);
  };
  check_proved(with("1000", {"--keys", "zipfian"}));
  check_proved(with("1000", {"--read-ratio", "0", "--ack", "local"}));
  check_proved(with("1000", {"--read-ratio", "0", "--value-bytes", "0"}));
  check_proved(with("150", {"--read-ratio", "0", "--value-bytes", "300000", "--in-flight", "4"}));
}

TEST_CASE("run: reads only") {
  Program program(kTidelock, {"run", "--json", "--duration", "3600", "--shards", "1", "--read-ratio", "1"},
                  on_a_terminal());
  CHECK(program.wait_for_ops(1, 120s) > 0);
  program.signal(SIGINT);
  const auto result = program.finish(120s);
  INFO(result.err);
  CHECK(result.exit_status == 130);
  check_proved(result.json());
}

TEST_CASE("run: a log of two batches and the smallest ring hold up") {
  const TemporaryFile file(hundred_records());
  check_proved(
      run_until_checked("500", {"--input", file.path(), "--shards", "1", "--log-bytes", "65536",
                                "--ring-bytes", "262144", "--value-bytes", "20000", "--read-ratio", "0"}));
}

TEST_CASE("run: Ctrl-C gives the partial result and exits 130") {
  Program program(kTidelock, {"run", "--json", "--duration", "3600", "--shards", "1"}, on_a_terminal());
  CHECK(program.wait_for_ops(1, 120s) > 0);
  program.signal(SIGINT);
  const auto result = program.finish(120s);
  CHECK(result.exit_status == 130);
  const auto report = result.json();
  REQUIRE(report.is_object());
  CHECK(report["interrupted"] == true);
  CHECK(report["stale"] == 0);
  CHECK(report["seconds"] < 3600);
}

TEST_CASE("run: nothing is left behind, also when it is killed") {
  const std::string socket =
      std::filesystem::temp_directory_path() / ("tidelock-left-" + std::to_string(::getpid()));
  std::filesystem::remove_all(socket);  // of an earlier process with this number
  {
    const auto result = run_program(kTidelock, {"run", "--json", "--duration", "0.2", "--socket", socket});
    CHECK(result.exit_status == 0);
    CHECK_FALSE(std::filesystem::exists(socket));
  }
  Program program(kTidelock, {"run", "--json", "--duration", "3600", "--shards", "1"}, on_a_terminal());
  CHECK(program.wait_for_ops(1, 120s) > 0);
  const auto children = program.children();
  CHECK(children.size() == 2);
  program.signal(SIGKILL);
  CHECK(program.finish(60s).exit_status == 137);
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  for (const pid_t child : children) {
    while (runs(child) && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(10ms);
    CHECK_FALSE(runs(child));
  }
}
