// What the side channel and those who speak through it put up with.
#include "side_channel.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <malloc.h>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "kept_lines.h"
#include "receipt_wire.h"
#include "remote_node.h"
#include "side_messages.h"

using namespace tidelock;
using namespace tidelock::tools;

namespace {

/// Two connected sockets, of which neither waits.
std::pair<FileHandle, FileHandle> socket_pair() {
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  return {FileHandle(fds[0]), FileHandle(fds[1])};
}

SideWait patiently() { return {seconds(60), -1}; }

/// An eventfd that can be read.
FileHandle interruption() { return FileHandle(::eventfd(1, EFD_CLOEXEC)); }

std::size_t read_some(const FileHandle& socket, std::vector<char>& into) {
  const ssize_t count = ::recv(socket.get(), into.data(), into.size(), 0);
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

std::string frame(SideKind kind, const std::string& body) {
  REQUIRE(body.size() < 256);
  std::string bytes = "TLSC";
  bytes += static_cast<char>(kind);
  bytes.append(3, '\0');
  bytes += static_cast<char>(body.size());
  bytes.append(3, '\0');
  return bytes + body;
}

std::string repeated(int times, const std::string& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

void send_at_once(int fd, const std::string& bytes) {
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

/// A thread that goes on with `body` until the end of the test's scope.
class Meanwhile {
 public:
  template <class Body>
  explicit Meanwhile(Body body)
      : thread_([this, body] {
          while (!over_) body();
        }) {}
  ~Meanwhile() {
    over_ = true;
    thread_.join();
  }
  Meanwhile(const Meanwhile&) = delete;
  Meanwhile& operator=(const Meanwhile&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// A run with an input of some 12 MB, more than sockets take at once.
struct MeetingRig {
  MeetingRig() : dataset(Dataset::generate(1, 10'000, 1'200).value()) {
    config.run.shards = 2;
    receipts = ReceiptChannels::create(2).value();
  }
  Result<std::unique_ptr<RemoteNode>> meet(FileHandle socket, int interrupt_fd = -1) {
    return RemoteNode::meet(SideChannel(std::move(socket)), config, dataset, receipts.get(), limits,
                            interrupt_fd);
  }
  NodeConfig config;
  Dataset dataset;
  FileHandle receipts;
  RunLimits limits;
};

}  // namespace

TEST_SUITE_BEGIN("tools/side_channel");

TEST_CASE("a text that is no UTF-8 is sent with what there is of it") {
  auto [ours, theirs] = socket_pair();
  SideChannel from(std::move(ours));
  SideChannel to(std::move(theirs));
  REQUIRE(from.send({{"event", "error"}, {"message", "device \xff\xfe is gone"}}));
  const auto frame = to.receive(patiently());
  REQUIRE(frame);
  const auto message = SideChannel::parse(frame->body);
  REQUIRE(message);
  CHECK(message->at("message").get<std::string>().ends_with(" is gone"));
}

TEST_CASE("what the other side does not take is kept up to a limit, and refused beyond it") {
  auto [ours, theirs] = socket_pair();
  SideChannel channel(std::move(ours));
  const std::string body(100'000, 'x');
  Status sent;
  for (int i = 0; i < 1'000 && sent; ++i) {
    sent = channel.send(SideKind::json, body);
    CHECK(channel.unsent() <= kSideUnsentBytesMax);
  }
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code() == std::errc::no_buffer_space);
}

TEST_CASE("what was taken is not kept, even if there is always something left to send") {
  auto [ours, theirs] = socket_pair();
  SideChannel channel(std::move(ours));
  const std::string body(64'000, 'x');
  while (channel.unsent() < (1 << 20)) REQUIRE(channel.send(SideKind::json, body));
  const std::size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
  std::vector<char> taken(64'000);
  std::size_t total = 0;
  while (total < (std::size_t{200} << 20)) {
    total += read_some(theirs, taken);
    if (channel.unsent() < (1 << 20)) REQUIRE(channel.send(SideKind::json, body));
    REQUIRE(channel.flush());
    REQUIRE(channel.unsent() > 0);
  }
  CHECK(::mallinfo2().uordblks + ::mallinfo2().hblkhd < before + (std::size_t{16} << 20));
}

TEST_CASE("frames come out as they went in, whatever pieces they travel in") {
  auto [ours, theirs] = socket_pair();
  SideChannel from(std::move(ours));
  SideChannel to(std::move(theirs));
  std::thread sending([&] {
    for (std::size_t i = 0; i < 300; ++i) {
      REQUIRE(from.send(SideKind::receipts, std::string(i * 1'000, static_cast<char>('a' + i % 26))));
      if (i % 10 == 0) REQUIRE(from.send(SideKind::alive, {}));
      if (i % 50 == 0) REQUIRE(from.send_all(patiently()));
    }
    REQUIRE(from.send_all(patiently()));
  });
  for (std::size_t i = 0; i < 300; ++i) {
    const auto frame = to.receive(patiently());
    REQUIRE(frame);
    CHECK(frame->kind == SideKind::receipts);
    REQUIRE(frame->body == std::string(i * 1'000, static_cast<char>('a' + i % 26)));
  }
  sending.join();
  CHECK_FALSE(to.buffered());
}

TEST_CASE("one look at the side channel ends, however many frames there are that say nothing") {
  auto [ours, theirs] = socket_pair();
  SideChannel to(std::move(theirs));
  send_at_once(ours.get(), repeated(1'000, frame(SideKind::alive, "")) + frame(SideKind::credit, "last"));
  int looks = 0;
  for (bool there = false; !there; ++looks) {
    const auto frame = to.receive();
    REQUIRE(frame);
    there = frame->has_value();
    if (!there) REQUIRE(to.buffered());  // so nobody sleeps on it
  }
  CHECK(looks > 10);
}

TEST_CASE("a wait for a frame ends at its time though a byte comes every now and then") {
  auto [ours, theirs] = socket_pair();
  SideChannel channel(std::move(theirs));
  const std::string header("TLSC\1\0\0\0\0\0\1\0", 12);
  REQUIRE(::send(ours.get(), header.data(), header.size(), 0) == 12);
  const Meanwhile trickle([fd = ours.get()] {
    static_cast<void>(::send(fd, "x", 1, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  const auto frame = channel.receive(SideWait(milliseconds(200), -1));
  REQUIRE_FALSE(frame);
  CHECK(frame.error().code() == std::errc::timed_out);
}

TEST_CASE("an interruption ends each wait for the other machine") {
  auto [ours, theirs] = socket_pair();
  SideChannel channel(std::move(ours));
  const FileHandle interrupt = interruption();
  const SideWait wait(seconds(3'600), interrupt.get());
  const auto frame = channel.receive(wait);
  REQUIRE_FALSE(frame);
  CHECK(frame.error().code() == std::errc::operation_canceled);
  while (channel.unsent() == 0) REQUIRE(channel.send(SideKind::json, std::string(100'000, 'x')));
  const Status sent = channel.send_all(wait);
  REQUIRE_FALSE(sent);
  CHECK(sent.error().code() == std::errc::operation_canceled);
  // Port 1 of this machine: nobody listens there.
  const auto connected = SideChannel::connect("127.0.0.1:1", wait);
  REQUIRE_FALSE(connected);
  CHECK(connected.error().code() == std::errc::operation_canceled);
}

TEST_CASE("a replica that takes the input a little at a time is not waited for beyond its time") {
  MeetingRig rig;
  rig.limits.base = milliseconds(300);
  rig.limits.mebibyte = Duration{0};
  auto [ours, theirs] = socket_pair();
  SideChannel replica(std::move(theirs));
  REQUIRE(replica.send(side_hello()));
  const Meanwhile trickle([fd = replica.fd()] {
    char byte = 0;
    static_cast<void>(::recv(fd, &byte, 1, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const auto met = rig.meet(std::move(ours));
  REQUIRE_FALSE(met);
  CHECK(met.error().code() == std::errc::timed_out);
}

TEST_CASE("an interruption ends the meeting, before the hello and with the input on its way") {
  for (const bool says_hello : {false, true}) {
    CAPTURE(says_hello);
    MeetingRig rig;
    rig.limits.hello = seconds(3'600);
    const FileHandle interrupt = interruption();
    auto [ours, theirs] = socket_pair();
    SideChannel replica(std::move(theirs));
    if (says_hello) REQUIRE(replica.send(side_hello()));
    const auto met = rig.meet(std::move(ours), interrupt.get());
    REQUIRE_FALSE(met);
    CHECK(met.error().code() == std::errc::operation_canceled);
  }
}

namespace {

/// The replica's machine in the test's hands, met.
struct MetRig : MeetingRig {
  MetRig() {
    auto [ours, theirs] = socket_pair();
    replica.emplace(std::move(theirs));
    REQUIRE(replica->send(side_hello()));
    const Meanwhile taking([this] { static_cast<void>(replica->receive()); });
    auto met = meet(std::move(ours));
    REQUIRE(met);
    node = *std::move(met);
  }
  void say(const nlohmann::json& message) { REQUIRE(replica->send(message)); }
  std::optional<SideChannel> replica;
  std::unique_ptr<RemoteNode> node;
};

nlohmann::json result_of(std::uint32_t shard) {
  return {
      {"event", "shard"},
      {"result",
       {{"shard", shard},
        {"checked", 1U},
        {"stale", 0U},
        {"wrong", 0U},
        {"unverified", 0U},
        {"last_lsn", 9U},
        {"check_delay_ns", {{"buckets", nlohmann::json::array()}, {"min", 0U}, {"max", 0U}, {"sum", 0U}}}}}};
}

}  // namespace

TEST_CASE("one look at a replica ends, however many credits it sends, and its word comes through") {
  MetRig rig;
  const std::vector<std::uint64_t> none(2);
  send_at_once(rig.replica->fd(), repeated(1'000, frame(SideKind::credit, encode_credit(none))) +
                                      frame(SideKind::json, R"({"event":"progress","checked":7,"stale":0})"));
  int looks = 0;
  for (bool there = false; !there; ++looks) {
    const auto message = rig.node->receive();
    REQUIRE(message);
    there = message->has_value();
    if (!there) REQUIRE(rig.node->buffered());
  }
  CHECK(looks > 10);
}

TEST_CASE("a replica has one result a shard") {
  MetRig rig;
  for (const std::uint32_t shard : {0U, 1U}) {
    rig.say(result_of(shard));
    const auto message = rig.node->receive();
    REQUIRE(message);
    CHECK(message->has_value());
  }
  rig.say(result_of(1));
  CHECK_FALSE(rig.node->receive());
}

TEST_CASE("a result from another machine holds what a result has, and no more of it than there can be") {
  const nlohmann::json good = result_of(0)["result"];
  CHECK(check_shard_result(good, 1, NodeRole::replica));
  nlohmann::json more = good;
  more["ballast"] = std::string(100, 'x');
  CHECK_FALSE(check_shard_result(more, 1, NodeRole::replica));
  more = good;
  more["check_delay_ns"]["ballast"] = 1U;
  CHECK_FALSE(check_shard_result(more, 1, NodeRole::replica));
  more = good;
  for (int i = 0; i < 100'000; ++i) more["check_delay_ns"]["buckets"].push_back({0U, 1U});
  CHECK_FALSE(check_shard_result(more, 1, NodeRole::replica));
}

TEST_CASE("lines that are kept have an end, and say so") {
  std::vector<std::string> lines;
  std::size_t kept = 0;
  for (int i = 0; i < 10'000; ++i) kept += keep_line(lines, "notice " + std::to_string(i)) ? 1 : 0;
  CHECK(kept == kKeptLinesMax);
  CHECK(lines.size() == kKeptLinesMax);
  CHECK(lines.front() == "notice 0");
  CHECK(lines.back().find("left out") != std::string::npos);
}

TEST_CASE("a run's limits grow with what is asked for, and with nothing else") {
  const RunLimits limits;
  RunOptions run;
  run.duration_s = 100;
  const Duration small = limits.load(run, 100, 1'000);
  CHECK(small > seconds(100));
  CHECK(small < seconds(1'000));
  CHECK(limits.load(run, 1'000'000, 1'000) > small);
  CHECK(limits.load(run, 100, 1ULL << 30) > small);
  CHECK(limits.input(1ULL << 30) >= seconds(1'024));
  run.duration_s = 86'400;
  run.timeout_s = 3'600;
  CHECK(limits.load(run, 100'000'000, 1ULL << 30) > seconds(86'400));  // and no overflow
}

TEST_SUITE_END();
