// Calls about a group: see engine.h.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "call_support.h"
#include "engine_impl.h"

namespace tidelock {
namespace {

/// Until what another thread or core does is seen: these calls are for operators, and rare.
constexpr Duration kLook = milliseconds(1);
constexpr Duration kLastWords = seconds(1);

Status look_again(Reactor* caller) {
  if (caller == nullptr) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLook.ns));
    return {};
  }
  const Wakeup wakeup = this_fiber::sleep_for(kLook);
  return wakeup == Wakeup::cancelled ? to_status(wakeup) : Status{};
}

}  // namespace

/// Keys are hashed with it, so no call goes anywhere before.
Status Engine::Impl::await_seed(Reactor* caller, Instant deadline) {
  if (!seed || seed->value() != 0) return {};
  for (;;) {
    if (seed->value() != 0) return {};
    const GatePass inside(host->pool());
    if (!inside) return EngineErrc::closed;
    const Instant now = caller != nullptr ? caller->now() : SystemClock().now();
    if (now >= deadline) return EngineErrc::not_ready;
    TL_TRY(look_again(caller));
  }
}

std::vector<ShardRole> Engine::roles() const {
  std::vector<ShardRole> roles;
  const GatePass inside(impl_->host->pool());
  if (!inside || !impl_->options.in_group()) return roles;
  for (const auto& shard : impl_->shards) roles.push_back(shard->role());
  return roles;
}

Status Engine::promote(Duration timeout) { return promote({timeout, false, {}}); }

Status Engine::promote(const PromotionOptions& options) {
  if (!impl_->options.in_group()) {
    return Error(EngineErrc::bad_option, "Options::nodes is empty: this node is in no group");
  }
  const PromoteOptions how{options.force, options.c};
  return impl_->on_each_shard(*this, " does not lead: ", options.timeout,
                              [how](Shard& shard, Instant deadline) { return shard.promote(how, deadline); });
}

Status Engine::switch_over(std::uint32_t node, Duration timeout) {
  const auto& nodes = impl_->options.nodes;
  const bool other =
      node != impl_->options.node &&
      std::any_of(nodes.begin(), nodes.end(), [node](const NodeAddress& each) { return each.node == node; });
  if (!other) {
    return Error(EngineErrc::bad_option,
                 "node " + std::to_string(node) + " is none of the others in Options::nodes");
  }
  return impl_->on_each_shard(
      *this, " was not handed over: ", timeout,
      [node](Shard& shard, Instant deadline) { return shard.switch_over(node, deadline); });
}

/// In a fiber on each core. The first error counts, and names its shard.
Status Engine::Impl::on_each_shard(Engine& engine, const char* what, Duration timeout,
                                   const std::function<Status(Shard& shard, Instant deadline)>& body) {
  struct Outcome {
    std::mutex mutex;
    std::size_t left = 0;
    Status first;  ///< error
  };
  const auto outcome = std::make_shared<Outcome>();
  TL_TRY(Reactor * caller, host->caller());
  const Instant deadline = deadline_of(caller, timeout);
  outcome->left = shards.size();
  for (const auto& shard : shards) {
    const auto run = [outcome, body, what, deadline, owner = shard.get()] {
      const Status ended = body(*owner, deadline);
      const std::lock_guard lock(outcome->mutex);
      --outcome->left;
      if (ended || !outcome->first) return;
      outcome->first = Error(ended.error().code(),
                             "shard " + std::to_string(owner->id().value) + what + ended.error().message());
    };
    TL_TRY(engine.spawn_on(shard->id(), run));
  }
  for (;;) {
    const Instant now = caller != nullptr ? caller->now() : SystemClock().now();
    {
      const std::lock_guard lock(outcome->mutex);
      if (outcome->left == 0) return outcome->first;
      // They have the same deadline, and a moment to say what they came to.
      if (now >= deadline + kLastWords) {
        return Error(
            ReactorErrc::deadline_exceeded,
            std::to_string(outcome->left) + " of " + std::to_string(shards.size()) +
                " shards have not answered: all fibers of their cores are in use (Options::max_fibers)");
      }
    }
    TL_TRY(look_again(caller));
  }
}

}  // namespace tidelock
