/// The rig with what the fault tests do over and over: batches, exchanges, and one side that stands still.
/// Thread:   one
#pragma once

#include <array>
#include <string>

#include "fake_rig.h"
#include "has.h"

namespace tidelock::test {

inline constexpr std::array<std::byte, 80> kHeader{std::byte{5}};
inline constexpr std::array<std::byte, kControlFrameSize> kFrame{std::byte{6}};

class FaultRig : public FakeRig {
 public:
  using FakeRig::FakeRig;
  ~FaultRig() override { fake::set_post_hook(nullptr); }

  /// The queue pairs as their sides have them now, the youngest last.
  static std::uint32_t passive_number() { return fake::qp_numbers("fake0").back(); }
  static std::uint32_t active_number() { return fake::qp_numbers("fake1").back(); }

  void attach() { REQUIRE(accepted->attach(log)); }
  Status try_publish(std::size_t bytes = 640) {
    const Bytes range = Bytes(log).first(bytes);
    return accepted->publish(kHeader, std::span(&range, 1));
  }
  void publish() { REQUIRE(try_publish()); }
  using FakeRig::settle;
  void settle(int turns) {
    for (int i = 0; i < turns; ++i) turn();
  }

  /// Rounds of a batch one way and a control frame each way.
  void exchange(int rounds) {
    attach();
    for (int i = 0; i < rounds; ++i) {
      publish();
      REQUIRE(accepted->send_control(kFrame));
      REQUIRE(connected->send_control(kFrame));
      accepted->flush();
      connected->flush();
      REQUIRE(run_until([this] {
        return connected->batch_waiting() && connected->control_waiting() && accepted->control_waiting();
      }));
      CHECK(connected->receive()->front() == std::byte{5});
      connected->release();
      connected->receive_control();
      accepted->receive_control();
    }
  }

  /// One side goes on, the other does not; time passes.
  bool only(bool passive_side, const std::function<bool()>& done, Duration at_most) {
    for (const Instant end = clock.now() + at_most; !done() && clock.now() < end;) {
      for (int i = 0; i < 8; ++i) turn_one(passive_side);
      clock.advance(milliseconds(2));
    }
    return done();
  }
  void turn_one(bool passive_side) {
    (passive_side ? passive : active).turn();
    (passive_side ? passive_calls : active_calls).step();
  }
};

/// What the active side asks for in a later attempt, or after it was started anew.
inline ActiveTerms attempt(FaultRig& rig, std::uint32_t generation, std::uint64_t incarnation = 99) {
  auto terms = rig.default_active();
  terms.request.generation = {generation};
  terms.request.incarnation = incarnation;
  return terms;
}

}  // namespace tidelock::test
