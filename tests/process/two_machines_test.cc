// `tidelock run --role`: the two halves of a run as two commands, and what either does about a bad other
// half.
#include <array>
#include <chrono>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "program.h"
#include "side_channel.h"
#include "side_messages.h"
#include "side_rig.h"

using namespace std::chrono_literals;
using tidelock::test::frame;
using tidelock::test::free_address;
using tidelock::test::kSideHello;
using tidelock::test::kTidelock;
using tidelock::test::kTidelockPlanted;
using tidelock::test::loopback_text;
using tidelock::test::port_of;
using tidelock::test::primary_flags;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::replica_flags;
using tidelock::test::run_program;
using tidelock::test::Socket;
using tidelock::test::TemporaryFile;

namespace {

void check_both_proved(const ProgramResult& primary, const ProgramResult& replica) {
  for (const ProgramResult* result : {&primary, &replica}) {
    INFO(result->err);
    INFO(result->out);
    CHECK(result->exit_status == 0);
    const auto report = result->json();
    REQUIRE(report.is_object());
    CHECK(report["passed"] == true);
    CHECK(report["stale"] == 0);
    CHECK(report["digests_equal"] == true);
    CHECK(report["checked"] > 0);
    CHECK(report["checked"] == report["acknowledged"]);
    CHECK(report["two_machines"] == true);
    CHECK(report["link"] == "shm");
  }
  for (const char* same : {"checked", "acknowledged", "writes", "keys"})
    CHECK_MESSAGE(primary.json()[same] == replica.json()[same], same);
  CHECK(primary.json()["shards"][0]["digest"] == replica.json()["shards"][0]["replica_digest"]);
}

}  // namespace

TEST_CASE("two commands prove what one does, whichever starts first") {
  for (const bool primary_first : {true, false}) {
    CAPTURE(primary_first);
    const std::string address = free_address();
    Program first(kTidelock, primary_first ? primary_flags(address) : replica_flags(address));
    if (primary_first) REQUIRE(first.wait_for_error_text("waiting for the replica", 60s));
    Program second(kTidelock, primary_first ? replica_flags(address) : primary_flags(address));
    const auto one = first.finish(120s);
    const auto other = second.finish(120s);
    check_both_proved(primary_first ? one : other, primary_first ? other : one);
  }
}

TEST_CASE("two commands: two shards, each ack level, an end by --checks") {
  for (const char* ack : {"local", "received", "applied"}) {
    CAPTURE(ack);
    const std::string address = free_address();
    Program primary(kTidelock,
                    {"run", "--json", "--role", "primary", "--side-channel", address, "--shards", "2",
                     "--duration", "60", "--checks", "5000", "--ack", ack, "--overprovisioned"});
    Program replica(kTidelock, replica_flags(address));
    check_both_proved(primary.finish(120s), replica.finish(120s));
  }
}

TEST_CASE("two commands: a replica that acknowledges before it applies is found out, at both") {
  const auto give_up = std::chrono::steady_clock::now() + 300s;
  for (;;) {
    const std::string address = free_address();
    Program primary(kTidelock, primary_flags(address, "2", {"--read-ratio", "0"}));
    Program replica(kTidelockPlanted, replica_flags(address));
    const auto first = primary.finish(120s);
    const auto second = replica.finish(120s);
    REQUIRE(first.json().is_object());
    // Whether the verifier reads before the replica has caught up is a matter of luck, but not for long.
    const bool lucky = first.json()["stale"] == 0 && std::chrono::steady_clock::now() < give_up;
    if (lucky) continue;
    for (const auto& result : {first, second}) {
      INFO(result.err);
      CHECK(result.exit_status == 1);
      REQUIRE(result.json().is_object());
      CHECK(result.json()["stale"] > 0);
    }
    return;
  }
}

TEST_CASE("two commands: the end of either is told by the other") {
  for (const bool primary_dies : {true, false}) {
    CAPTURE(primary_dies);
    const std::string address = free_address();
    Program::Setup terminal;
    terminal.terminal = true;
    Program primary(kTidelock, primary_flags(address, "600", {"--timeout", "1"}), terminal);
    Program replica(kTidelock, replica_flags(address));
    REQUIRE(primary.wait_for_ops(1, 60s) > 0);
    (primary_dies ? primary : replica).signal(SIGKILL);
    if (!primary_dies) primary.signal(SIGINT);  // it would go on alone for its ten minutes
    const auto result = (primary_dies ? replica : primary).finish(120s);
    INFO(result.err);
    CHECK(result.exit_status == (primary_dies ? 1 : 130));
    CHECK(result.err.find("the other machine") != std::string::npos);
    REQUIRE(result.json().is_object());
    CHECK(result.json()["passed"] == false);
  }
}

TEST_CASE("two commands: Ctrl-C at the primary gives both the partial result") {
  const std::string address = free_address();
  Program::Setup terminal;
  terminal.terminal = true;
  Program primary(kTidelock, primary_flags(address, "600"), terminal);
  Program replica(kTidelock, replica_flags(address));
  REQUIRE(primary.wait_for_ops(1, 60s) > 0);
  primary.signal(SIGINT);
  for (Program* program : {&primary, &replica}) {
    const auto result = program->finish(120s);
    INFO(result.err);
    CHECK(result.exit_status == 130);
    REQUIRE(result.json().is_object());
    CHECK(result.json()["interrupted"] == true);
    CHECK(result.json()["stale"] == 0);
  }
}

TEST_CASE("a primary lets those go that are no replica, and serves the one that comes then") {
  const std::string address = free_address();
  Program primary(kTidelock, primary_flags(address));
  for (const std::string& nonsense :
       {std::string("GET / HTTP/1.1\r\n\r\n"), frame(9, "x"), frame(2, "too early"), frame(1, "[]"),
        frame(1, R"({"tidelock":"side channel","version":99})"),
        std::string("TLSC\1\0\0\0\xff\xff\xff\xff", 12), frame(1, std::string(1000, '[')), std::string()}) {
    Socket visitor;
    REQUIRE(visitor.connect(port_of(address)));
    visitor.send(nonsense);
    if (nonsense.empty()) continue;
    std::array<char, 64> bytes;
    while (::recv(visitor.get(), bytes.data(), bytes.size(), 0) > 0) {  // until it hangs up
    }
  }
  Program replica(kTidelock, replica_flags(address));
  const auto result = primary.finish(120s);
  check_both_proved(result, replica.finish(120s));
  CHECK(result.err.find("is no replica") != std::string::npos);
}

TEST_CASE("a primary gives up on a replica that turns hostile, in one line") {
  const std::vector<std::string> tricks{
      frame(4, std::string(8, '\xff')),  // credit for receipts that were never sent
      frame(4, "short"),                 // credit of a wrong length
      frame(3, "receipts go the other way"),
      frame(1, R"({"event":"shard","result":{"shard":7}})"),  // no such shard
      frame(1, R"({"event":"ready","notices":[1]})"),
      frame(1, R"({"event":5})"),
      frame(1, "\xff\xfe"),
      "no frame at all"};
  const TemporaryFile input("key\tvalue\n");  // it is sent to the trickster, who does not read
  for (const std::string& trick : tricks) {
    CAPTURE(trick);
    const std::string address = free_address();
    Program primary(kTidelock, primary_flags(address, "0.5", {"--input", input.path()}));
    Socket visitor;
    REQUIRE(visitor.connect(port_of(address)));
    visitor.send(kSideHello + trick);
    const auto result = primary.finish(60s);
    INFO(result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.err.find("is out of reach: ") != std::string::npos);
    CHECK(result.out.empty());
  }
}

TEST_CASE("a replica gives up on a primary that makes no sense, in one line") {
  const std::string config =
      R"({"tidelock":"side channel","version":2,"dataset_bytes":10,"run":{"role":2,"cpus":[],"overprovisioned":true,)"
      R"("shards":SHARDS,"ack":2,"duration_s":1.0,"value_bytes":10,"read_ratio":0.5,"keys":0,"seed":1,"in_flight":4,)"
      R"("wake":0,"log_bytes":1048576,"ring_bytes":262144,"timeout_s":TIMEOUT,"link":0,"socket":"SOCKET",)"
      R"("device":"","primary_address":"","replica_address":"","port":7471}})";
  const auto with = [&](const std::string& shards, const std::string& timeout, const std::string& socket) {
    std::string text = config;
    for (const auto& [name, value] : {std::pair("SHARDS", shards), {"TIMEOUT", timeout}, {"SOCKET", socket}})
      text.replace(text.find(name), std::string(name).size(), value);
    return frame(1, text);
  };
  const std::string good = with("1", "5.0", "@tidelock-nobody-listens-here");
  const std::vector<std::string> tricks{
      "HTTP/1.1 400 Bad Request\r\n\r\n",
      frame(1, "{}"),
      frame(1, R"({"tidelock":"side channel","version":2,"dataset_bytes":1})"),
      frame(1, R"({"tidelock":"side channel","version":2,"dataset_bytes":-1})"),
      with("0", "5.0", "@x"),
      with("257", "5.0", "@x"),
      with("\"1\"", "5.0", "@x"),
      with("1", "1e300", "@x"),
      with("1", "5.0", std::string(200, 'x')),
      good + frame(2, "more than it said"),
      good + frame(2, ""),
      good + frame(2, "\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02"),
      good + frame(1, "{}")};
  for (const std::string& trick : tricks) {
    CAPTURE(trick);
    Socket listener;
    const std::string address = loopback_text(listener.listen());
    Program replica(kTidelock, replica_flags(address));
    const Socket visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    visitor.send(trick);
    const auto result = replica.finish(60s);
    INFO(result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.out.empty());
    CHECK(result.err.starts_with("tidelock run: "));
  }
}

TEST_CASE("flags of a run on two machines, and of its link, that do not go together") {
  const auto refused = [](std::vector<std::string> flags, const char* text) {
    flags.insert(flags.begin(), "run");
    const auto result = run_program(kTidelock, flags);
    CAPTURE(result.err);
    CHECK(result.exit_status == 2);
    CHECK(result.out.empty());
    CHECK(result.err.find(text) != std::string::npos);
  };
  refused({"--role", "primary"}, "--side-channel");
  refused({"--side-channel", "127.0.0.1:7472"}, "--role");
  refused({"--role", "both", "--side-channel", "127.0.0.1:7472"}, "--role");
  refused({"--role", "replica", "--side-channel", "127.0.0.1:7472", "--shards", "1"}, "--shards");
  refused({"--role", "primary", "--side-channel", "nonsense"}, "such as 10.0.0.1:7472");
  refused({"--role", "replica", "--side-channel", "127.0.0.1:0"}, "such as 10.0.0.1:7472");
  refused({"--link", "verbs"}, "--primary-address");
  refused({"--link", "verbs", "--primary-address", "nonsense"}, "10.0.0.1:7471");
  refused({"--link", "verbs", "--primary-address", "10.0.0.1", "--socket", "@x"}, "--socket");
  refused({"--link", "verbs", "--primary-address", "10.0.0.1", "--port", "0"}, "--port");
  refused({"--device", "mlx5_0"}, "--link verbs");
  refused({"--link", "smoke"}, "--link");
}

TEST_CASE("the side channel counts how deep a message nests, whatever its texts hold") {
  using tidelock::tools::SideChannel;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK_FALSE(SideChannel::parse(R"({"a":")" + std::string(100'000, ']') + R"(","b":)" + deep + "}"));
  CHECK_FALSE(SideChannel::parse(R"({"a":"\"]]]]]]]]","b":)" + deep + "}"));
  const auto texts = SideChannel::parse(R"({"a":")" + std::string(100, '[') + R"(\\","b":[[1]]})");
  REQUIRE(texts);
  CHECK(texts->at("b")[0][0] == 1);
}

TEST_CASE("what comes through the side channel prints, names and other languages, too") {
  const auto parsed =
      tidelock::tools::SideChannel::parse(R"({"na\u001b[2Jme":"\u0007 \u00e9","list":[{"\u0000":1}]})");
  REQUIRE(parsed);
  CHECK(parsed->dump() == R"({"list":[{"?":1}],"na?[2Jme":"? é"})");
}

TEST_CASE("a shard's result from another machine has all its numbers, in bounds") {
  using tidelock::NodeRole;
  using tidelock::tools::check_shard_result;
  const nlohmann::json good = {{"shard", 0U}, {"checked", 1U},    {"stale", 0U},
                               {"wrong", 0U}, {"unverified", 0U}, {"last_lsn", 9U}};
  CHECK(check_shard_result(good, 1, NodeRole::replica));
  CHECK_FALSE(check_shard_result(good, 1, NodeRole::primary));
  for (const char* name : {"checked", "stale", "wrong", "unverified", "last_lsn"}) {
    nlohmann::json without = good;
    without.erase(name);
    CHECK_FALSE(check_shard_result(without, 1, NodeRole::replica));
    nlohmann::json huge = good;
    huge[name] = (1ULL << 53) + 1;
    CHECK_FALSE(check_shard_result(huge, 1, NodeRole::replica));
  }
}
