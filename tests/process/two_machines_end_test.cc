// How a run on two machines ends when it is interrupted, and when the other machine does not come to an end.
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include "has.h"
#include "program.h"
#include "side_channel.h"
#include "side_rig.h"

using namespace std::chrono_literals;
using tidelock::seconds;
using tidelock::test::frame;
using tidelock::test::free_address;
using tidelock::test::has;
using tidelock::test::kSideHello;
using tidelock::test::kTidelock;
using tidelock::test::loopback_text;
using tidelock::test::port_of;
using tidelock::test::primary_flags;
using tidelock::test::Program;
using tidelock::test::ProgramResult;
using tidelock::test::replica_flags;
using tidelock::test::Socket;
using tidelock::test::TemporaryFile;
using tidelock::tools::SideChannel;
using tidelock::tools::SideFrame;
using tidelock::tools::SideKind;
using tidelock::tools::SideListener;
using tidelock::tools::SideWait;

namespace {

const std::string kHasty = TIDELOCK_HASTY_PROGRAM;

/// Ended by the signal, in one line: not by a wait that was over.
void check_interrupted(Program& program, int signal) {
  program.signal(signal);
  const auto result = program.finish(60s);
  INFO(result.err);
  CHECK(result.exit_status == 128 + signal);
  CHECK(result.out.empty());
  CHECK(has(result.err, "tidelock run: interrupted before the run had begun"));
  CHECK_FALSE(has(result.err, "is no replica"));
  CHECK_FALSE(has(result.err, "in time"));
}

/// Whether the program has taken SIGINT and SIGTERM in hand: before, they end it in the system's way.
bool waits_for_signals(pid_t pid) {
  const auto until = std::chrono::steady_clock::now() + 60s;
  constexpr unsigned long kBoth = 1UL << (SIGINT - 1) | 1UL << (SIGTERM - 1);
  while (std::chrono::steady_clock::now() < until) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:") && (std::stoul(line.substr(7), nullptr, 16) & kBoth) == kBoth)
        return true;
    }
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

/// So much that no socket takes it at once.
std::string large_input() {
  std::string text;
  for (int i = 0; i < 3'000; ++i) text += "key" + std::to_string(i) + "\t" + std::string(10'000, 'v') + "\n";
  return text;
}

std::string some_records(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "key" + std::to_string(i) + "\tvalue\n";
  return text;
}

nlohmann::json json_of(const SideFrame& frame) {
  return frame.kind == SideKind::json ? nlohmann::json::parse(frame.body, nullptr, false) : nlohmann::json();
}

/// Stands between the two machines of a run, and changes what goes from one to the other.
class Between {
 public:
  /// Both answer whether the frame is to go on.
  using Judge = std::function<bool(const SideFrame&)>;
  struct Judges {
    Judge from_replica = [](const SideFrame&) { return true; };
    Judge from_primary = [](const SideFrame&) { return true; };
    /// Some ten times a second; may send to either.
    std::function<void(SideChannel& replica, SideChannel& primary)> now_and_then = [](auto&, auto&) {};
  };
  Between(std::string primary, const Judges& judges)
      : address_(free_address()), primary_(std::move(primary)), judges_(judges) {
    thread_ = std::thread([this] { stand(); });
  }
  ~Between() {
    over_ = true;
    thread_.join();
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;
  /// Where the replica's machine is to look for the primary's.
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void stand() {
    auto listener = SideListener::listen(address_);
    if (!listener) return;
    std::optional<SideChannel> replica;
    while (!over_ && !(replica = listener->accept())) std::this_thread::sleep_for(5ms);
    if (over_) return;
    auto primary = SideChannel::connect(primary_, SideWait(seconds(60), -1));
    auto next = std::chrono::steady_clock::now();
    while (!over_ && primary && pass(*replica, *primary, judges_.from_replica) &&
           pass(*primary, *replica, judges_.from_primary)) {
      if (std::chrono::steady_clock::now() >= next) {
        judges_.now_and_then(*replica, *primary);
        next += 100ms;
      }
      std::array<pollfd, 2> entries{{{replica->fd(), POLLIN, 0}, {primary->fd(), POLLIN, 0}}};
      ::poll(entries.data(), entries.size(), 1);
    }
    // A primary that is gone is not told to the replica.
    while (!over_ && replica->flush() && replica->receive()) std::this_thread::sleep_for(5ms);
  }
  /// False: one of them is gone.
  static bool pass(SideChannel& from, SideChannel& to, const Judge& judge) {
    for (int i = 0; i < 100; ++i) {
      auto received = from.receive();
      if (!received) return false;
      if (!received->has_value()) break;
      if (judge(**received) && !to.send((*received)->kind, (*received)->body)) return false;
    }
    return to.flush().has_value();
  }

  std::string address_;
  std::string primary_;
  Judges judges_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

void check_out_of_time(const ProgramResult& result) {
  INFO(result.err);
  CHECK(result.exit_status == 1);
  CHECK(has(result.err, "with the other machine this takes longer than it may"));
  REQUIRE(result.json().is_object());
  CHECK(result.json()["passed"] == false);
  CHECK(result.json()["failures"].size() > 0);
}

std::vector<std::string> hurried(const std::string& address, const TemporaryFile& input) {
  return primary_flags(address, "0.5", {"--input", input.path(), "--timeout", "1"});
}

}  // namespace

TEST_CASE("a signal ends the primary's machine while it waits for the other, or talks to it") {
  const TemporaryFile input(large_input());
  const auto hello_then = [](const std::string& hello) {
    return [hello](std::uint16_t port, Socket& visitor) {
      REQUIRE(visitor.connect(port));
      visitor.send(hello);
    };
  };
  const auto hello_and_listen = [&](std::uint16_t port, Socket& visitor) {
    hello_then(kSideHello)(port, visitor);
    char first = 0;
    REQUIRE(::recv(visitor.get(), &first, 1, 0) == 1);  // and no more of it
  };
  const std::vector<std::function<void(std::uint16_t, Socket&)>> visits{[](std::uint16_t, Socket&) {},
                                                                        hello_then(""), hello_and_listen};
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const auto& visit : visits) {
      const std::string address = free_address();
      Program primary(kTidelock, primary_flags(address, "0.5", {"--input", input.path()}));
      REQUIRE(primary.wait_for_error_text("waiting for the replica", 60s));
      Socket visitor;
      visit(port_of(address), visitor);
      check_interrupted(primary, signal);
    }
  }
}

TEST_CASE("a signal ends the replica's machine while it looks for the other, or listens to it") {
  const std::string config =
      R"({"tidelock":"side channel","version":2,"dataset_bytes":1000,"run":{"role":2,"cpus":[],"overprovisioned":true,)"
      R"("shards":1,"ack":2,"duration_s":1.0,"value_bytes":10,"read_ratio":0.5,"keys":0,"seed":1,"in_flight":4,)"
      R"("wake":0,"log_bytes":1048576,"ring_bytes":262144,"timeout_s":5.0,"link":0,"socket":"@x",)"
      R"("device":"","primary_address":"","replica_address":"","port":7471}})";
  for (const int signal : {SIGINT, SIGTERM}) {
    {
      Program replica(kTidelock, replica_flags(free_address()));
      REQUIRE(waits_for_signals(replica.pid()));
      check_interrupted(replica, signal);
    }
    for (const std::string& answer :
         {std::string(), frame(1, config), frame(1, config) + frame(2, "piece")}) {
      Socket listener;
      const std::string address = loopback_text(listener.listen());
      Program replica(kTidelock, replica_flags(address));
      const Socket visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      visitor.send(answer);
      check_interrupted(replica, signal);
    }
  }
}

TEST_CASE("a replica's machine that sends a hello byte by byte is let go, and the one behind it served") {
  const std::string address = free_address();
  Program primary(kTidelock, primary_flags(address));
  Socket visitor;
  REQUIRE(visitor.connect(port_of(address)));
  std::atomic<bool> over{false};
  std::thread trickle([&] {
    visitor.send(kSideHello.substr(0, 12));
    while (!over) {
      visitor.send(" ");
      std::this_thread::sleep_for(500ms);
    }
  });
  CHECK(primary.wait_for_error_text("is no replica", 60s));
  over = true;
  trickle.join();
  Program replica(kTidelock, replica_flags(address));
  CHECK(primary.finish(120s).exit_status == 0);
  CHECK(replica.finish(120s).exit_status == 0);
}

TEST_CASE("a primary that sends its input a little at a time is not listened to for ever") {
  Socket listener;
  const std::string address = loopback_text(listener.listen());
  Program replica(kHasty, replica_flags(address));
  const std::string config =
      R"({"tidelock":"side channel","version":2,"dataset_bytes":1000000,"run":{"role":2,"cpus":[],"overprovisioned":true,)"
      R"("shards":1,"ack":2,"duration_s":1.0,"value_bytes":10,"read_ratio":0.5,"keys":0,"seed":1,"in_flight":4,)"
      R"("wake":0,"log_bytes":1048576,"ring_bytes":262144,"timeout_s":5.0,"link":0,"socket":"@x",)"
      R"("device":"","primary_address":"","replica_address":"","port":7471}})";
  const Socket visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  visitor.send(frame(1, config));
  std::atomic<bool> over{false};
  std::thread trickle([&] {
    while (!over) {
      visitor.send(frame(2, "x"));
      std::this_thread::sleep_for(50ms);
    }
  });
  const auto result = replica.finish(60s);
  over = true;
  trickle.join();
  INFO(result.err);
  CHECK(result.exit_status == 2);
  CHECK(has(result.err, "did not answer on the side channel in time"));
}

TEST_CASE("a verifier that hardly gets on while the load runs ends the run, in time") {
  const TemporaryFile input(some_records(100'000));
  const std::string address = free_address();
  Between::Judges judges;
  judges.from_replica = [](const SideFrame& frame) { return frame.kind != SideKind::credit; };
  const Between between(address, judges);
  Program primary(kHasty, hurried(address, input));
  Program replica(kTidelock, replica_flags(between.address()));
  check_out_of_time(primary.finish(120s));
}

TEST_CASE("a replica that always has checked one more receipt, and never all, ends the run in time") {
  const TemporaryFile input(some_records(100));
  const std::string address = free_address();
  auto finishing = std::make_shared<std::atomic<bool>>(false);
  Between::Judges judges;
  judges.from_primary = [finishing](const SideFrame& frame) {
    const auto message = json_of(frame);
    if (message.is_object() && message.value("command", "") == "finish") *finishing = true;
    return !*finishing;
  };
  judges.from_replica = [finishing](const SideFrame& frame) {
    return !*finishing || frame.kind == SideKind::credit;
  };
  judges.now_and_then = [finishing, checked = 1'000'000U](SideChannel&, SideChannel& primary) mutable {
    if (!*finishing) return;
    static_cast<void>(primary.send({{"event", "progress"}, {"checked", ++checked}, {"stale", 0U}}));
  };
  const Between between(address, judges);
  Program primary(kHasty, hurried(address, input));
  Program replica(kTidelock, replica_flags(between.address()));
  check_out_of_time(primary.finish(120s));
}

TEST_CASE("a primary that never says that it is over ends the replica's half in time") {
  const TemporaryFile input(some_records(100));
  const std::string address = free_address();
  Between::Judges judges;
  judges.from_primary = [](const SideFrame& frame) {
    const auto message = json_of(frame);
    return !message.is_object() || message.value("command", "") != "close";
  };
  const Between between(address, judges);
  Program primary(kTidelock, hurried(address, input));
  Program replica(kHasty, replica_flags(between.address()));
  check_out_of_time(replica.finish(120s));
}

TEST_CASE("what the replica's machine says in excess is neither shown nor kept") {
  const TemporaryFile input(some_records(100));
  const std::string address = free_address();
  auto ready = std::make_shared<std::atomic<bool>>(false);
  auto said = std::make_shared<std::atomic<int>>(0);
  Between::Judges judges;
  judges.from_replica = [ready](const SideFrame& frame) {
    const auto message = json_of(frame);
    if (message.is_object() && message.value("event", "") == "ready") *ready = true;
    return true;
  };
  judges.now_and_then = [ready, said](SideChannel&, SideChannel& primary) {
    if (!*ready) return;
    for (int i = 0; i < 200 && *said < 2'000; ++i, ++*said) {
      const std::string text = "trouble " + std::to_string(*said);
      static_cast<void>(primary.send({{"event", "notice"}, {"text", text}}));
    }
  };
  const Between between(address, judges);
  Program primary(kTidelock, primary_flags(address, "3", {"--input", input.path()}));
  Program replica(kTidelock, replica_flags(between.address()));
  const auto result = primary.finish(120s);
  CHECK(replica.finish(120s).exit_status == 0);
  CHECK(*said == 2'000);
  CHECK(result.exit_status == 0);
  REQUIRE(result.json().is_object());
  CHECK(result.json()["notices"].size() < 300);
  CHECK(has(result.err, "trouble 0"));
  CHECK_FALSE(has(result.err, "trouble 1999"));
}
