/// The rig on real devices, or on soft-RoCE: TIDELOCK_VERBS_DEVICE names the passive side's device and
/// TIDELOCK_VERBS_PEER_DEVICE the active side's (by default the same, since a card reaches itself); with
/// neither there are rxe_v0 and rxe_v1, as the lab makes them.
/// Thread:   one, and a control thread
#pragma once

#include <chrono>
#include <cstdlib>

#include "rdma_rig.h"

namespace tidelock::test {

inline std::string passive_device() {
  const char* device = std::getenv("TIDELOCK_VERBS_DEVICE");
  return device != nullptr ? device : "rxe_v0";
}
inline std::string active_device() {
  const char* device = std::getenv("TIDELOCK_VERBS_PEER_DEVICE");
  if (device == nullptr) device = std::getenv("TIDELOCK_VERBS_DEVICE");
  return device != nullptr ? device : "rxe_v1";
}

/// An emulated machine on a loaded host stands still for seconds: there the engine's own deadlines end
/// attempts (and it tries again), which is not what these tests are about.
inline RdmaOptions patient() {
  RdmaOptions options;
  options.resolving_deadline = options.connecting_deadline = options.greeting_deadline = seconds(20);
  return options;
}

struct DeviceWorld {
  SystemClock clock;
  std::shared_ptr<ControlThread> calls = std::make_shared<ControlThread>();
};

class DeviceRig : public DeviceWorld, public RdmaRig {
 public:
  /// Longer than any deadline of patient().
  static constexpr auto kPatience = std::chrono::seconds(60);

  explicit DeviceRig(const RdmaOptions& passive_options = patient(),
                     const RdmaOptions& active_options = patient(),
                     const PassiveTerms& terms = default_terms())
      : RdmaRig(DeviceWorld::clock, DeviceWorld::calls, DeviceWorld::calls, passive_device(), active_device(),
                passive_options, active_options) {
    listen(terms);
  }
  ~DeviceRig() override { finish(); }

  bool run_until(const std::function<bool()>& done) override {
    const auto give_up = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      turn();
    }
    return true;
  }

  void finish() {
    if (!listener) return;
    listener->stop();
    abandon_all();
    CHECK(run_until([this] { return passive.core().idle() && active.core().idle(); }));
    listener.reset();
    passive.end();
    active.end();
  }
};

}  // namespace tidelock::test
