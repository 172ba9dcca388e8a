// `tidelock link`: what it finds, what it shows, how it ends.
#include <chrono>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "has.h"
#include "inspect_client.h"
#include "link_view.h"
#include "program.h"

using namespace std::chrono_literals;
using tidelock::test::has;
using tidelock::test::kTidelock;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::run_program;
using tidelock::test::TemporaryFile;
using tidelock::tools::find_inspection_sockets;
using tidelock::tools::format_links;

namespace {

nlohmann::json example() {
  return nlohmann::json::parse(R"({"node":1,"role":"primary","pid":77,"shards":2,"links":[
    {"shard":0,"peer_node":2,"kind":"shm","state":"attached","description":"shm","generation":3,
     "batches_out":1000,"batches_in":0,"bytes_out":123456789,"bytes_in":0,"control_out":5,"control_in":6,
     "peer_wakeups":7,"full":8,"last_heard_age_ns":12000000,
     "transitions":[{"state":"closed","age_ns":2500000000,"detail":"peer process ended"},
                    {"state":"attached","age_ns":1500000000,"detail":"generation 3"}]}]})");
}

/// A run whose nodes answer.
struct AnsweringRun {
  AnsweringRun() : program(kTidelock, {"run", "--json", "--duration", "600", "--shards", "1"}) {
    const auto until = std::chrono::steady_clock::now() + 120s;
    for (const char* role : {"primary", "replica"}) {
      while (!asked(role) && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(20ms);
    }
  }
  ~AnsweringRun() { program.signal(SIGKILL); }
  [[nodiscard]] std::string pid(const std::string& role) const {
    const auto pid = program.node(role);
    return pid ? std::to_string(*pid) : "0";
  }
  [[nodiscard]] bool asked(const std::string& role) const {
    if (pid(role) == "0") return false;
    const auto result = run_program(kTidelock, {"link", "--json", "--pid", pid(role)});
    return result.exit_status == 0 && !result.json()["nodes"][0]["links"].empty();
  }
  Program program;
};

/// `tidelock link --watch`, and what it has printed.
class Watch {
 public:
  explicit Watch(std::vector<std::string> flags)
      : program(kTidelock, arguments(std::move(flags)), to(out_)) {}
  /// Once there is something.
  [[nodiscard]] std::string first() const {
    const auto until = std::chrono::steady_clock::now() + 120s;
    for (;;) {
      std::ifstream file(out_.path());
      std::ostringstream text;
      text << file.rdbuf();
      if (!text.str().empty() || std::chrono::steady_clock::now() > until) return text.str();
      std::this_thread::sleep_for(20ms);
    }
  }

 private:
  static std::vector<std::string> arguments(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"link", "--watch", "0.1"});
    return flags;
  }
  static Program::Setup to(const TemporaryFile& file) {
    Program::Setup setup;
    setup.out_path = file.path();
    return setup;
  }
  const TemporaryFile out_{""};

 public:
  Program program;
};

}  // namespace

TEST_CASE("link: a table with peers, states, counters, and how each link came to be") {
  const auto text = format_links({example()});
  REQUIRE(text.has_value());
  for (const char* part : {"node 1, primary, pid 77, 2 shards", "shard", "peer", "last heard", "batches out",
                           "attached", "12 ms", "1000", "123.5M", "2.5 s ago: closed, peer process ended",
                           "1.5 s ago: attached, generation 3"})
    CHECK_MESSAGE(has(*text, part), part);
}

TEST_CASE("link: with an earlier answer counters become rates, anew with each generation") {
  nlohmann::json later = example();
  later["links"][0]["batches_out"] = 5000;
  const auto text = format_links({later}, {example()}, 2);
  REQUIRE(text.has_value());
  CHECK(has(*text, "batches out/s"));
  CHECK(has(*text, " 2000 "));
  later["links"][0]["generation"] = 4;
  const auto anew = format_links({later}, {example()}, 2);
  REQUIRE(anew.has_value());
  CHECK_FALSE(has(*anew, "2000"));
}

TEST_CASE(
    "link: what an engine would not say is refused, and nothing reaches the terminal that does not print") {
  for (const char* member : {"node", "role", "pid", "shards", "links"}) {
    nlohmann::json node = example();
    node.erase(member);
    CHECK_MESSAGE(!format_links({node}).has_value(), member);
  }
  nlohmann::json node = example();
  node["links"][0]["shard"] = "zero";
  CHECK_FALSE(format_links({node}).has_value());
  node = example();
  node["links"][0]["transitions"][0]["detail"] = "\x1b[2J\n";
  const auto text = format_links({node});
  REQUIRE(text.has_value());
  CHECK_FALSE(has(*text, "\x1b"));
  CHECK(has(*text, "?[2J?"));
}

TEST_CASE("link: sockets are found by name, by pid, and only where somebody listens") {
  const std::string table =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "00000000: 00000002 00000000 00010000 0001 01 100 @tidelock-inspect-900\n"
      "00000000: 00000002 00000000 00010000 0001 01 101 @tidelock-inspect-77\n"
      "00000000: 00000003 00000000 00000000 0001 03 102 @tidelock-inspect-77\n"
      "00000000: 00000003 00000000 00000000 0001 03 103 @tidelock-inspect-5\n"
      "00000000: 00000002 00000000 00010000 0001 01 104 @tidelock-inspect-x\n"
      "00000000: 00000002 00000000 00010000 0001 01 105 @tidelock-inspect-\n"
      "00000000: 00000002 00000000 00010000 0001 01 106 /run/tidelock-inspect-8\n"
      "00000000: 00000002 00000000 00010000 0001 01 107\n";
  CHECK(find_inspection_sockets(table) ==
        std::vector<std::string>{"@tidelock-inspect-77", "@tidelock-inspect-900"});
  CHECK(find_inspection_sockets("").empty());
}

TEST_CASE("link: shows both nodes of a run, one by its pid, and goes on until Ctrl-C") {
  const AnsweringRun run;
  const auto all = run_program(kTidelock, {"link", "--json"});
  INFO(all.err);
  CHECK(all.exit_status == 0);
  for (const char* role : {"primary", "replica"}) CHECK(has(all.out, "\"pid\":" + run.pid(role)));
  const auto table = run_program(kTidelock, {"link", "--pid", run.pid("primary")});
  CHECK(table.exit_status == 0);
  for (const char* part : {"node 1, primary", "attached", "generation 1", "shm"})
    CHECK_MESSAGE(has(table.out, part), part);
  Watch watch({"--json", "--pid", run.pid("replica")});
  CHECK(has(watch.first(), "\"role\":\"replica\""));
  watch.program.signal(SIGINT);
  CHECK(watch.program.finish(60s).exit_status == 0);
}

TEST_CASE("link: a watch ends in good order when the node does") {
  const AnsweringRun run;
  Watch watch({"--pid", run.pid("primary")});
  CHECK(has(watch.first(), "primary"));
  run.program.signal(SIGKILL);
  CHECK(watch.program.finish(60s).exit_status == 0);
}

TEST_CASE("link: nobody to ask is one line and exit status 2") {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"link", "--at", "@tidelock-nobody-is-here"},
        {"link", "--pid", "1"},
        {"link", "--at", "@"},
        {"link", "--at", std::string(200, 'x')}}) {
    const auto result = run_program(kTidelock, flags);
    INFO(result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.out.empty());
    CHECK(result.err.starts_with("tidelock link: "));
  }
}
