// The shm link between two real processes: parking, wakeups, and every way to die.
#include <array>
#include <csignal>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <tidelock/replication/errc.h>

#include "link_conformance.h"
#include "shm_test_support.h"

namespace tidelock::testing {
namespace {

/// A child process that runs `body`, and is gone when this is.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) ::_exit(body());
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      static_cast<void>(wait());
    }
  }
  void signal(int number) const { REQUIRE(::kill(pid_, number) == 0); }
  /// Returns once it has stopped.
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  /// The exit status, -1 if it was killed.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

FrameHeader header_of(std::uint64_t sequence) {
  FrameHeader header;
  header.history = kContext.history;
  header.shard = kContext.shard;
  header.entries = 1;
  header.first_lsn = header.last_lsn = Lsn{sequence};
  return header;
}

Status publish(Link& link, std::uint64_t sequence, std::size_t payload_bytes) {
  std::vector<std::byte> payload(payload_bytes);
  fill_payload(sequence, payload);
  const std::array<Bytes, 1> ranges{Bytes(payload)};
  return link.publish(header_of(sequence), ranges);
}

ControlFrame ack_of(std::uint64_t applied) {
  ControlFrame frame;
  frame.history = kContext.history;
  frame.shard = kContext.shard;
  frame.applied_lsn = Lsn{applied};
  return frame;
}

constexpr std::uint64_t kUntilClosed = ~std::uint64_t{0};

/// The replica of these tests: receives, checks, releases, acknowledges; until the link closes or `until`.
/// Returns 0 if all was intact and no wakeup was lost.
int run_replica(const std::string& path, std::uint64_t until) {
  ParkingDriver driver;
  auto peer = make_shm_transport()->connect(path, hello_of(NodeRole::replica), seconds(30));
  if (!peer) return 10;
  if (!peer->link->start(driver.reactor())) return 11;
  std::uint64_t received = 0;
  bool intact = true;
  LinkSource source(*peer->link, [&](Link& link) {
    std::uint32_t count = 0;
    while (auto batch = link.receive()) {
      intact = intact && payload_intact(++received, batch->payload);
      link.release();
      ++count;
    }
    if (count > 0) static_cast<void>(link.send_control(ack_of(received)));
    return count;
  });
  driver.reactor().add_source(source);
  const bool done = driver.run_until(
      [&] { return received == until || peer->link->state() == LinkState::closed; }, seconds(60));
  peer->link->flush();
  driver.reactor().remove_source(source);
  peer->link->close("done");
  if (!done) return 12;
  if (!intact) return 13;
  return driver.lost_wakeups() == 0 ? 0 : 14;
}

/// The primary's end of a connection that has been accepted.
std::unique_ptr<Link> accept_one(PeerListener& listener, const LinkOptions& options = {256 << 10, 4}) {
  auto pending = listener.accept(seconds(30));
  REQUIRE(pending);
  auto link = (*pending)->accept(hello_of(NodeRole::primary), options);
  if (!link) FAIL(link.error().message());
  return *std::move(link);
}

}  // namespace

TEST_CASE("replication/shm: two processes that both park lose no wakeup") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  constexpr std::uint64_t kRounds = 2000;
  Child replica([&] { return run_replica(path, kUntilClosed); });
  ParkingDriver driver;
  auto link = accept_one(*listener);
  REQUIRE(link->start(driver.reactor()));
  std::uint64_t published = 0;
  std::uint64_t acked = 0;
  LinkSource source(*link, [&](Link& from) {
    std::uint32_t count = 0;
    while (auto frame = from.receive_control()) {
      acked = frame->applied_lsn.value;
      ++count;
    }
    const bool more = published < kRounds || driver.parks() == 0;
    if (acked == published && more && publish(from, published + 1, 800)) {
      ++published;
      ++count;
    }
    return count;
  });
  driver.reactor().add_source(source);
  const auto done = [&] { return acked == published && published >= kRounds && driver.parks() > 0; };
  CHECK(driver.run_until(done, seconds(60)));
  CHECK(driver.lost_wakeups() == 0);
  CHECK(link->counters().peer_wakeups.load() <= published + 10);
  CHECK(link->last_heard() > Instant{});
  link->close("done");
  CHECK(replica.wait() == 0);
  driver.reactor().remove_source(source);
}

TEST_CASE("replication/shm: a primary that waits for room is woken by a receiver that parks") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  constexpr std::uint64_t kBatches = 600;
  Child replica([&] { return run_replica(path, kBatches); });
  ParkingDriver driver;
  auto link = accept_one(*listener);
  REQUIRE(link->start(driver.reactor()));
  std::uint64_t published = 0;
  // Acks are left alone: only credit can wake this side.
  LinkSource source(*link, [&](Link& to) {
    std::uint32_t count = 0;
    while (auto frame = to.receive_control()) ++count;
    while (published < kBatches && publish(to, published + 1, 60'000)) {
      ++published;
      ++count;
    }
    return count;
  });
  driver.reactor().add_source(source);
  CHECK(driver.run_until([&] { return published == kBatches; }, seconds(60)));
  CHECK(driver.lost_wakeups() == 0);
  link->flush();
  CHECK(replica.wait() == 0);
  CHECK(driver.run_until([&] { return link->state() == LinkState::closed; }));
  driver.reactor().remove_source(source);
}

TEST_CASE("replication/shm: a killed replica closes the primary's link, parked or not") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  Child replica([&] { return run_replica(path, kUntilClosed); });
  ParkingDriver driver;
  auto link = accept_one(*listener);
  REQUIRE(link->start(driver.reactor()));
  std::uint64_t acked = 0;
  LinkSource source(*link, [&](Link& from) {
    auto frame = from.receive_control();
    if (frame) acked = frame->applied_lsn.value;
    return frame ? 1U : 0U;
  });
  driver.reactor().add_source(source);
  REQUIRE(publish(*link, 1, 800));
  REQUIRE(driver.run_until([&] { return acked == 1; }));
  replica.signal(SIGKILL);
  CHECK(driver.run_until([&] { return link->state() == LinkState::closed; }));
  CHECK(link->close_reason() == "peer process ended");
  CHECK(publish(*link, 2, 800).error() == ReplicationErrc::link_closed);
  CHECK(replica.wait() == -1);
  driver.reactor().remove_source(source);
}

TEST_CASE("replication/shm: a killed primary's last batches are still received") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  Child primary([&] {
    auto listener = make_shm_transport()->listen(path, {});
    if (!listener) return 10;
    auto pending = (*listener)->accept(seconds(30));
    if (!pending) return 11;
    auto link = (*pending)->accept(hello_of(NodeRole::primary), {256 << 10, 4});
    if (!link) return 12;
    for (std::uint64_t i = 1; i <= 5; ++i) {
      if (!publish(**link, i, 800)) return 13;
    }
    (*link)->flush();
    if (!publish(**link, 6, 800)) return 14;  // never flushed: it was never sent
    if (::write(ready[1], "x", 1) != 1) return 15;
    for (;;) ::pause();
  });
  ParkingDriver driver;
  auto peer = make_shm_transport()->connect(path, hello_of(NodeRole::replica), seconds(30));
  REQUIRE(peer);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  ::close(ready[1]);
  primary.signal(SIGKILL);
  CHECK(primary.wait() == -1);

  REQUIRE(peer->link->start(driver.reactor()));
  std::uint64_t received = 0;
  LinkSource source(*peer->link, [&](Link& link) {
    auto batch = link.receive();
    if (!batch) return 0U;
    CHECK(payload_intact(++received, batch->payload));
    link.release();
    return 1U;
  });
  driver.reactor().add_source(source);
  CHECK(driver.run_until([&] { return peer->link->state() == LinkState::closed; }));
  CHECK(received == 5);
  CHECK(peer->link->close_reason() == "peer process ended");
  driver.reactor().remove_source(source);
}

TEST_CASE("replication/shm: a frozen replica fills the ring and nothing else, and resumes where it was") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  constexpr std::uint64_t kBatches = 300;
  Child replica([&] { return run_replica(path, kBatches); });
  ParkingDriver driver;
  auto link = accept_one(*listener);
  REQUIRE(link->start(driver.reactor()));
  std::uint64_t published = 0;
  LinkSource source(*link, [&](Link& to) {
    std::uint32_t count = 0;
    while (auto frame = to.receive_control()) ++count;
    while (published < kBatches && publish(to, published + 1, 4000)) {
      ++published;
      ++count;
    }
    return count;
  });
  replica.stop();
  driver.reactor().add_source(source);
  CHECK(driver.run_until([&] { return link->counters().full.load() > 0; }));
  CHECK(published < kBatches);
  CHECK(link->state() == LinkState::ready);
  for (int i = 0; i < 100; ++i) {
    REQUIRE(link->send_control(ack_of(1)));
    link->flush();
  }
  replica.signal(SIGCONT);
  CHECK(driver.run_until([&] { return published == kBatches; }, seconds(60)));
  link->flush();
  CHECK(replica.wait() == 0);
  driver.reactor().remove_source(source);
}

TEST_CASE("replication/shm: a close wakes a parked peer of the same process and ends its watch") {
  ParkingDriver driver;
  auto pair = shm_pair(kContext, {256 << 10, 4});
  REQUIRE(pair);
  REQUIRE(pair->replica->start(driver.reactor()));
  LinkSource source(*pair->replica, [](Link&) { return 0U; });
  driver.reactor().add_source(source);
  SUBCASE("in good order") {
    pair->primary->close("bye");
    CHECK(driver.run_until([&] { return pair->replica->state() == LinkState::closed; }));
    CHECK(pair->replica->close_reason() == "closed by the peer");
  }
  SUBCASE("by destruction") {
    pair->primary.reset();
    CHECK(driver.run_until([&] { return pair->replica->state() == LinkState::closed; }));
  }
  driver.reactor().remove_source(source);
  pair->replica.reset();
}

}  // namespace tidelock::testing
