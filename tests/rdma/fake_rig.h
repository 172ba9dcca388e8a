/// The rig on the fake provider: virtual time, and the control thread's work done between turns, so that each
/// interleaving is the test's.
/// Thread:   one
#pragma once

#include <deque>
#include <functional>

#include "fake/fake_verbs.h"
#include "rdma_rig.h"

namespace tidelock::test {

/// The control thread, as a queue that the test works off.
class QueuedCalls final : public BlockingCalls {
 public:
  void run(std::function<void()> work) override { work_.push_back(std::move(work)); }
  bool step() {
    if (held || work_.empty()) return false;
    const auto work = std::move(work_.front());
    work_.pop_front();
    work();
    return true;
  }
  [[nodiscard]] std::size_t waiting() const { return work_.size(); }
  bool held = false;  ///< as if a verb did not return

 private:
  std::deque<std::function<void()>> work_;
};

/// What must be there before the rig's base: the rig itself starts with a fresh fake.
struct FakeWorld {
  /// `change`: what is to be otherwise with each device.
  explicit FakeWorld(const std::function<void(fake::DeviceConfig&)>& change) {
    fake::reset();
    for (const char* name : {"fake0", "fake1"}) {
      fake::DeviceConfig device = fake::device_config(name);
      device.max_sge = 32;  // for the conformance suite's many pieces
      if (change) change(device);
      fake::change_device(name, device);
    }
  }
  ManualClock clock;
  QueuedCalls passive_calls;
  QueuedCalls active_calls;
};

/// A pointer to what the rig owns.
inline std::shared_ptr<BlockingCalls> borrow(BlockingCalls& calls) {
  return {std::shared_ptr<void>(), &calls};
}

/// The active side is fake1 (10.0.0.2), the passive one fake0 (10.0.0.1).
class FakeRig : public FakeWorld, public RdmaRig {
 public:
  explicit FakeRig(const RdmaOptions& passive_options = {}, const RdmaOptions& active_options = {},
                   const PassiveTerms& terms = default_terms(),
                   const std::function<void(fake::DeviceConfig&)>& change = {})
      : FakeWorld(change),
        RdmaRig(FakeWorld::clock, borrow(FakeWorld::passive_calls), borrow(FakeWorld::active_calls), "fake0",
                "fake1", passive_options, active_options) {
    listen(terms);
  }
  ~FakeRig() override { finish(); }

  /// One turn of each side, one piece of each control thread's work.
  void turn() override {
    RdmaRig::turn();
    passive_calls.step();
    active_calls.step();
  }
  /// Without letting time pass.
  bool run_until(const std::function<bool()>& done) override {
    for (int i = 0; i < 5000; ++i) {
      if (done()) return true;
      turn();
    }
    return done();
  }
  /// Turns while time passes in steps of a millisecond.
  bool pass_until(const std::function<bool()>& done, Duration at_most) {
    const Instant end = clock.now() + at_most;
    while (clock.now() < end) {
      for (int i = 0; i < 8; ++i) turn();
      if (done()) return true;
      clock.advance(milliseconds(1));
    }
    return done();
  }
  void settle() {
    for (int i = 0; i < 200; ++i) turn();
  }

  /// Closes everything; nothing may be left over.
  void finish() {
    if (!listener) return;
    listener->stop();
    passive_calls.held = active_calls.held = false;
    fake::go();
    abandon_all();
    CHECK(pass_until([this] { return passive.core().idle() && active.core().idle(); }, seconds(10)));
    settle();
    listener.reset();
    passive.end();
    active.end();
    const auto live = fake::live_objects();
    CHECK(live.total() == 0);
  }
};

}  // namespace tidelock::test
