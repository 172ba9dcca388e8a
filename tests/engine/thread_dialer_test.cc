// The threads between fibers that dial and a transport that blocks.
#include "thread_dialer.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <tidelock/reactor/clock.h>

#include "has.h"
#include "reactor/group_fixture.h"
#include "replication/loopback_link.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// Addresses answer once the test lets them.
class SlowTransport final : public Transport {
 public:
  Result<std::unique_ptr<PeerListener>> listen(const std::string&, const LinkOptions&) override {
    return ReactorErrc::closed;
  }
  Result<ConnectedPeer> connect(const std::string& address, const Hello&, Duration timeout,
                                std::optional<Refusal>*) override {
    std::unique_lock lock(mutex_);
    ++dials_[address];
    changed_.notify_all();
    const bool answered = changed_.wait_for(lock, std::chrono::nanoseconds(timeout.ns),
                                            [&] { return open_[address] || interrupted_; });
    if (interrupted_) return Error(ReactorErrc::closed, "interrupted");
    if (!answered) return Error(ReactorErrc::deadline_exceeded, "the transport waited in vain");
    wire_ = std::make_shared<LoopbackWire>(FrameContext{}, LoopbackOptions{});
    return ConnectedPeer{std::make_unique<LoopbackLink>(wire_, NodeRole::replica, clock_), Hello{}};
  }
  void interrupt() override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] const char* kind() const override { return "slow"; }

  void open(const std::string& address) {
    const std::lock_guard lock(mutex_);
    open_[address] = true;
    changed_.notify_all();
  }
  void await_dial(const std::string& address) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return dials_[address] > 0; }));
  }
  [[nodiscard]] int dials(const std::string& address) {
    const std::lock_guard lock(mutex_);
    return dials_[address];
  }
  /// Of the newest link, or none yet. What it holds belongs to the core that has the link.
  [[nodiscard]] std::shared_ptr<LoopbackWire> wire() {
    const std::lock_guard lock(mutex_);
    return wire_;
  }

 private:
  SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, bool> open_;
  std::map<std::string, int> dials_;
  bool interrupted_ = false;
  std::shared_ptr<LoopbackWire> wire_;
};

struct DialerRig {
  explicit DialerRig(std::uint32_t threads = 1) : dialer(*group, transport, {"a", "b"}, threads) {}
  ~DialerRig() {
    dialer.stop();
    stop_group(*group);
  }
  /// In a fiber of core 0. Only what outlives a fiber that was given up may be referred to.
  Result<ConnectedPeer> dial(const std::string& address, Duration patience) {
    const auto outcome = std::make_shared<std::optional<Result<ConnectedPeer>>>();
    const Status ran = group->run(
        core(0),
        [this, outcome, address, patience] {
          *outcome = dialer.dial(address, Hello{}, Reactor::current()->now() + patience);
        },
        kPatience);
    REQUIRE(ran);
    return *std::move(*outcome);
  }
  /// The same, without waiting for it.
  std::shared_ptr<std::atomic<bool>> dial_apart(const std::string& address, Duration patience) {
    const auto over = std::make_shared<std::atomic<bool>>(false);
    REQUIRE(group->run(
        core(0),
        [this, over, address, patience] {
          REQUIRE(Reactor::current()->spawn_detached("dials", [this, over, address, patience] {
            static_cast<void>(dialer.dial(address, Hello{}, Reactor::current()->now() + patience));
            *over = true;
          }));
        },
        kPatience));
    return over;
  }

  SlowTransport transport;
  std::unique_ptr<ReactorGroup> group = start_group(group_options(1));
  ThreadDialer dialer;
};

bool comes_true(const std::atomic<bool>& flag) {
  for (int i = 0; i < 60'000 && !flag; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return flag;
}

}  // namespace

TEST_SUITE_BEGIN("engine/thread_dialer");

TEST_CASE("a fiber gets the link that its address gave") {
  DialerRig rig;
  rig.transport.open("a");
  const auto peer = rig.dial("a", kPatience);
  REQUIRE(peer);
  CHECK(peer->link != nullptr);
}

TEST_CASE("a peer that does not answer delays no other's") {
  DialerRig rig;
  const auto over = rig.dial_apart("a", kPatience);
  rig.transport.await_dial("a");
  rig.transport.open("b");
  CHECK(rig.dial("b", kPatience));
  CHECK_FALSE(*over);
  rig.transport.open("a");
  CHECK(comes_true(*over));
}

TEST_CASE("with two threads an address, two dial it at a time") {
  DialerRig rig(2);
  const auto first = rig.dial_apart("a", kPatience);
  const auto second = rig.dial_apart("a", kPatience);
  for (int i = 0; i < 60'000 && rig.transport.dials("a") < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(rig.transport.dials("a") == 2);
  rig.transport.open("a");
  CHECK(comes_true(*first));
  CHECK(comes_true(*second));
}

TEST_CASE("the transport's own error arrives, and at the latest soon after the deadline another") {
  DialerRig rig;
  const auto alone = rig.dial("a", seconds(1));
  REQUIRE_FALSE(alone);
  CHECK(has(alone.error(), "the transport waited in vain"));
  // Its thread is busy for longer than the second one waits.
  const auto first = rig.dial_apart("b", kPatience);
  rig.transport.await_dial("b");
  const auto second = rig.dial("b", milliseconds(20));
  REQUIRE_FALSE(second);
  CHECK(second.error() == ReactorErrc::deadline_exceeded);
  CHECK(has(second.error(), "b"));
  // Nobody waits for that one any more, so it is never begun.
  rig.transport.open("b");
  CHECK(comes_true(*first));
  CHECK(rig.dial("b", kPatience));
  CHECK(rig.transport.dials("b") == 2);
}

TEST_CASE("a link that comes after its fiber was cancelled is closed") {
  DialerRig rig;
  const auto over = rig.dial_apart("a", kPatience);
  rig.transport.await_dial("a");
  REQUIRE(rig.group->run(
      core(0), [] { Reactor::current()->cancel_all(); }, kPatience));
  CHECK(comes_true(*over));
  rig.transport.open("a");
  // Once this has come by the same way, that one has arrived.
  rig.transport.open("b");
  bool closed = false;
  for (int i = 0; i < 60'000 && !closed; ++i) {
    const auto look = [&] {
      const auto wire = rig.transport.wire();
      closed = wire && wire->replica_closed;
    };
    REQUIRE(rig.group->run(core(0), look, kPatience));
    if (!closed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(closed);
}

TEST_CASE("once it has ended, who waits and who comes later hears that it is closed") {
  DialerRig rig;
  const auto first = rig.dial_apart("a", kPatience);
  rig.transport.await_dial("a");
  const auto queued = rig.dial_apart("a", kPatience);
  rig.dialer.stop();
  CHECK(comes_true(*first));
  CHECK(comes_true(*queued));
  const auto late = rig.dial("a", kPatience);
  REQUIRE_FALSE(late);
  CHECK(late.error() == ReactorErrc::closed);
}

TEST_CASE("it dials the addresses that it was made for, and no other") {
  DialerRig rig;
  const auto peer = rig.dial("c", kPatience);
  REQUIRE_FALSE(peer);
  CHECK(has(peer.error(), "nobody dials c"));
}

TEST_SUITE_END();
