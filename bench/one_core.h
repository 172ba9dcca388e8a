/// One reactor without a group, turned by the calling thread: for what happens within one core.
/// Thread:   the one that created it
#pragma once

#include <memory>
#include <utility>

#include <tidelock/base/result.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/ring.h>

namespace tidelock::bench {

class OneCore {
 public:
  /// Errors:   io_uring_unavailable; those of Reactor::create
  static Result<std::unique_ptr<OneCore>> create(const UringOptions& ring = {}) {
    auto core = std::make_unique<OneCore>();
    TL_TRY(core->ring_, UringBackend::create(ring));
    TL_TRY(core->reactor_, Reactor::create({}, core->clock_, *core->ring_, core->random_));
    return core;
  }

  [[nodiscard]] Reactor& reactor() { return *reactor_; }
  [[nodiscard]] UringBackend& ring() { return *ring_; }

  /// Runs `closure` in a fiber and turns the reactor until no fiber is left.
  template <class F>
  Status run(F&& closure) {
    TL_TRY(reactor_->spawn_detached("benchmark", std::forward<F>(closure)));
    while (!reactor_->idle()) reactor_->turn();
    return {};
  }

 private:
  SystemClock clock_;
  Random random_{1};
  std::unique_ptr<UringBackend> ring_;
  std::unique_ptr<Reactor> reactor_;
};

}  // namespace tidelock::bench
