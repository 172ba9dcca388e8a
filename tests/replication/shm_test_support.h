/// Helpers of the shm link's tests: hellos, a place for sockets, a link's victim and its attacker, a reactor
/// with the plainest driver.
#pragma once

#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/ring.h>
#include <tidelock/replication/shm.h>

#include "sanitized.h"
#include "shm_link.h"
#include "shm_memory.h"

namespace tidelock::testing {

using test::kSanitized;

inline constexpr FrameContext kContext{HistoryId{77}, Generation{5}, ShardId{1}};

inline Hello hello_of(NodeRole role) {
  Hello hello;
  hello.role = role;
  hello.shard = kContext.shard;
  hello.shard_count = 2;
  hello.history = kContext.history;
  hello.generation = kContext.generation;
  hello.epoch = {3, 1};
  return hello;
}

inline std::unique_ptr<PeerListener> listen_at(const std::string& path) {
  auto listener = make_shm_transport()->listen(path, {});
  if (!listener) FAIL(listener.error().message());
  return *std::move(listener);
}

/// A directory of its own, removed at the end with all that is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "tidelock-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// One real end, and the memory and socket of the other in the hands of the test.
struct Hostile {
  std::unique_ptr<ShmRingLink> victim;
  ShmMemory memory;
  UniqueFd socket;
};

inline Hostile make_hostile(NodeRole victim_role, const LinkOptions& options = {256 << 10, 4}) {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  auto shared = ShmMemory::create(options);
  REQUIRE(shared);
  auto theirs = ShmMemory::map_peers(shared->get(), options.ring_bytes);
  auto ours = ShmMemory::map_own(shared->get(), options);
  REQUIRE(theirs);
  REQUIRE(ours);
  Hostile hostile;
  hostile.victim =
      std::make_unique<ShmRingLink>(victim_role, UniqueFd(ends[0]), *std::move(theirs), kContext);
  hostile.memory = *std::move(ours);
  hostile.socket.reset(ends[1]);
  return hostile;
}

/// What Primary and Replica do for the link that they own, without a protocol on top.
class LinkSource final : public PollSource {
 public:
  LinkSource(Link& link, std::function<std::uint32_t(Link&)> on_poll)
      : link_(link), on_poll_(std::move(on_poll)) {}
  std::uint32_t poll(std::uint32_t budget) override { return link_.poll(budget) + on_poll_(link_); }
  void flush() override { link_.flush(); }
  void arm() override { link_.arm(); }
  void disarm() override { link_.disarm(); }
  [[nodiscard]] bool has_work() const override { return link_.has_work(); }

 private:
  Link& link_;
  std::function<std::uint32_t(Link&)> on_poll_;
};

/// A reactor on its own ring, driven by the test, which parks as soon as there is nothing to do.
class ParkingDriver {
 public:
  ParkingDriver() {
    auto io = UringBackend::create({});
    if (!io) FAIL(io.error().message());
    io_ = *std::move(io);
    auto reactor = Reactor::create({}, clock_, *io_, random_);
    if (!reactor) FAIL(reactor.error().message());
    reactor_ = *std::move(reactor);
  }
  ~ParkingDriver() {
    // The kernel's answer to the end of a watch must be in before the ring goes.
    for (int i = 0; i < 1000 && !reactor_->idle(); ++i) {
      reactor_->turn();
      if (!reactor_->has_work()) io_->wait(milliseconds(10));
    }
  }
  [[nodiscard]] Reactor& reactor() { return *reactor_; }

  /// Turns until `done`, or until nothing has happened for `timeout`. Returns whether it is done.
  bool run_until(const std::function<bool()>& done, Duration timeout = seconds(30)) {
    const Instant give_up = clock_.now() + timeout;
    while (!done()) {
      reactor_->turn();
      if (done()) return true;
      if (clock_.now() >= give_up) return false;
      reactor_->arm_sources();
      if (!reactor_->has_work()) {
        ++parks_;
        const WaitEnd end = io_->wait(kBackStop);
        // What came at the last moment has its wakeup on the way; one that was lost never comes.
        if (end == WaitEnd::timeout && reactor_->has_work() && io_->wait(kLate) == WaitEnd::timeout)
          ++lost_wakeups_;
      }
      reactor_->disarm_sources();
    }
    return true;
  }
  [[nodiscard]] int parks() const { return parks_; }
  /// Times that a sleep ended by its back-stop although there was work.
  [[nodiscard]] int lost_wakeups() const { return lost_wakeups_; }

 private:
  static constexpr Duration kBackStop = seconds(5);
  static constexpr Duration kLate = seconds(20);
  SystemClock clock_;
  Random random_{1};
  std::unique_ptr<UringBackend> io_;
  std::unique_ptr<Reactor> reactor_;
  int parks_ = 0;
  int lost_wakeups_ = 0;
};

}  // namespace tidelock::testing
