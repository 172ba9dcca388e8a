/// A reactor without a kernel: for tests that need fibers and time only.
/// Thread:   one
#pragma once

#include <memory>
#include <utility>

#include <doctest/doctest.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/io_backend.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>

namespace tidelock::test {

inline constexpr Instant kNever = Instant::never();

class NullIoBackend final : public IoBackend {
 public:
  Result<IoToken> submit(const IoRequest&, IoCompletion&) override {
    return Error::from_errno(EOPNOTSUPP, "this backend has no kernel behind it");
  }
  void cancel(IoToken) override {}
  std::uint32_t poll(std::uint32_t) override { return 0; }
  void flush() override { ++flushes; }
  [[nodiscard]] bool has_work() const override { return false; }
  [[nodiscard]] std::uint32_t in_flight() const override { return 0; }

  std::uint64_t flushes = 0;
};

/// A reactor whose time the test turns by hand. Leaves no fiber behind, so it can be destroyed.
class Rig {
 public:
  explicit Rig(const ReactorOptions& options = small()) : random(1) {
    auto made = Reactor::create(options, clock, io, random);
    REQUIRE(made);
    reactor = *std::move(made);
  }
  ~Rig() { end(); }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  static ReactorOptions small() {
    ReactorOptions options;
    options.prepared_fibers = 2;
    return options;
  }

  /// Turns until nothing is ready; time stands still.
  Instant run() {
    Instant next{0};
    for (int turns = 0; turns < 1'000'000; ++turns) {
      next = reactor->turn();
      if (next != Instant{0}) return next;
    }
    FAIL("the reactor never came to rest");
    return next;
  }
  /// Turns and moves time from one deadline to the next, up to `until`.
  void run_until(Instant until) {
    for (Instant next = run(); next <= until; next = run()) clock.advance_to(next);
    clock.advance_to(until);
    run();
  }
  void run_for(Duration span) { run_until(clock.now() + span); }
  /// Runs `closure` in a fiber and turns until it has ended.
  template <class F>
  void run_fiber(F&& closure) {
    bool ended = false;
    REQUIRE(reactor->spawn_detached("test", [&] {
      closure();
      ended = true;
    }));
    run_until(clock.now() + seconds(1000));
    CHECK(ended);
  }
  void end() {
    reactor->cancel_all();
    run_for(seconds(1000));
    CHECK(reactor->idle());
  }

  ManualClock clock;
  NullIoBackend io;
  Random random;
  std::unique_ptr<Reactor> reactor;
};

}  // namespace tidelock::test
