// `tidelock pingpong` between two processes over the shm link; the lab runs it over verbs.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <signal.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include "has.h"
#include "program.h"

using namespace std::chrono_literals;
using tidelock::test::has;
using tidelock::test::kTidelock;
using tidelock::test::Program;
using tidelock::test::run_program;
using tidelock::test::TemporaryFile;

namespace {

/// An abstract socket of this test's own.
std::string address(const std::string& name) {
  return "@tidelock-pingpong-test-" + std::to_string(::getpid()) + "-" + name;
}

std::vector<std::string> flags(std::vector<std::string> more) {
  std::vector<std::string> all{"pingpong", "--link", "shm", "--overprovisioned"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// A server that waits for its client: it has said so, into a file.
class Server {
 public:
  explicit Server(const std::string& at) : program_(kTidelock, flags({"--listen", at}), setup(out_)) {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (!has(said(), "waiting for") && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(10ms);
  }
  [[nodiscard]] std::string said() const {
    std::ifstream file(out_.path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  Program& program() { return program_; }

 private:
  static Program::Setup setup(const TemporaryFile& out) {
    Program::Setup setup;
    setup.out_path = out.path();
    return setup;
  }
  TemporaryFile out_{""};
  Program program_;
};

/// One that goes on until it is told otherwise, and that has measured something.
struct Endless {
  explicit Endless(const std::string& at)
      : program(kTidelock, flags({"--json", "-D", "600", "--warmup", "0", at}), setup()) {
    REQUIRE(program.wait_for_error_text("round trips", 60s));
  }
  static Program::Setup setup() {
    Program::Setup setup;
    setup.terminal = true;  // progress
    return setup;
  }
  Program program;
};

}  // namespace

TEST_CASE("pingpong: server and client end well, and the client prints JSON") {
  const std::string at = address("json");
  Server server(at);
  const auto measured =
      run_program(kTidelock, flags({"--json", "-n", "200", "--warmup", "10", "-s", "128", at}));
  INFO(measured.err);
  CHECK(measured.exit_status == 0);
  const auto json = measured.json();
  REQUIRE(json.is_object());
  CHECK(json["role"] == "client");
  CHECK(json["link"]["kind"] == "shm");
  REQUIRE(json["results"].size() == 1);
  const auto& row = json["results"][0];
  CHECK(row["bytes"] == 128);
  CHECK(row["iterations"] == 200);
  CHECK(row["t_min_usec"] > 0.0);
  CHECK(row["t_min_usec"] <= row["t_typical_usec"]);
  CHECK(row["t_typical_usec"] <= row["p99_usec"]);
  CHECK(row["p99_usec"] <= row["t_max_usec"]);
  CHECK(server.program().finish(60s).exit_status == 0);
  CHECK(has(server.said(), "answered: 210"));
}

TEST_CASE("pingpong: all sizes, a table with perftest's columns") {
  const std::string at = address("all");
  Server server(at);
  const auto measured = run_program(kTidelock, flags({"-a", "-n", "5", "--warmup", "1", at}));
  INFO(measured.err);
  CHECK(measured.exit_status == 0);
  for (const char* part : {"t_typical[usec]", "99.9% percentile[usec]", "\n 32 ", "\n 524288 ", "command:"})
    CHECK_MESSAGE(has(measured.out, part), part);
  CHECK(server.program().finish(60s).exit_status == 0);
  CHECK(has(server.said(), "waiting for: tidelock pingpong --link shm " + at));
  CHECK(has(server.said(), "answered: 90"));
}

TEST_CASE("pingpong: nobody there, or a wrong flag, is one line and exit status 2") {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--timeout", "0.5", address("nobody")},
        {"-s", "63", address("nobody")},
        {"--verb", "send", "--timeout", "0.5", address("nobody")},
        {"--verb", "write", address("nobody")},
        {"-n", "0", address("nobody")},
        {"-n", "5", "-D", "1", address("nobody")},
        {"-a", "-s", "64", address("nobody")},
        {"--listen", "@a", "@b"},
        {"--timeout", "0.2", "--listen", address("timeout"), "--json"},
        {"--listen", "/no/such/folder/socket"}}) {
    const auto result = run_program(kTidelock, flags(more));
    INFO(result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.err.starts_with("tidelock"));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
  const auto nobody = run_program(kTidelock, flags({"--timeout", "0.5", address("nobody")}));
  CHECK(has(nobody.err, "start one there"));
}

TEST_CASE("pingpong: a killed server ends the client with status 1 and what came before") {
  const std::string at = address("killed");
  Server server(at);
  Endless client(at);
  server.program().signal(SIGKILL);
  const auto measured = client.program.finish(60s);
  INFO(measured.err);
  CHECK(measured.exit_status == 1);
  CHECK(has(measured.err, "the other side is gone"));
  CHECK_FALSE(measured.json()["error"].empty());
  CHECK(measured.json()["results"][0]["iterations"] > 0);
}

TEST_CASE("pingpong: a killed client ends the server with status 1") {
  const std::string at = address("lost");
  Server server(at);
  Endless client(at);
  client.program.signal(SIGKILL);
  CHECK(server.program().finish(60s).exit_status == 1);
}

TEST_CASE("pingpong: Ctrl-C gives the partial result and exit status 130; the server ends well") {
  const std::string at = address("interrupt");
  Server server(at);
  Endless client(at);
  client.program.signal(SIGINT);
  const auto measured = client.program.finish(60s);
  INFO(measured.err);
  CHECK(measured.exit_status == 130);
  CHECK(measured.json()["interrupted"] == true);
  CHECK(measured.json()["results"][0]["iterations"] > 0);
  CHECK(server.program().finish(60s).exit_status == 0);
}

TEST_CASE("pingpong: a signal that comes twice at once, as timeout(1) sends it, is one") {
  const std::string at = address("twice");
  Server server(at);
  Endless client(at);
  client.program.signal(SIGTERM);
  client.program.signal(SIGTERM);
  const auto measured = client.program.finish(60s);
  INFO(measured.err);
  CHECK(measured.exit_status == 143);
  CHECK(measured.json()["interrupted"] == true);
}

TEST_CASE("pingpong: Ctrl-C ends a server that waits") {
  Server server(address("alone"));
  server.program().signal(SIGINT);
  CHECK(server.program().finish(60s).exit_status == 130);
}
