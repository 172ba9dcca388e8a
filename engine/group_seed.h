/// The routing seed of a node in a group: drawn by shard 0 for the history that it begins, or taken from the
/// first history that is known to be the group's. From then on it is the engine's, for as long as that is
/// open: keys are hashed before anybody can look whose they are.
/// Thread:   any
/// Suspends: never
#pragma once

#include <atomic>
#include <cstdint>

#include <tidelock/replication/routing_seed.h>

namespace tidelock {

class GroupSeed final : public RoutingSeed {
 public:
  /// `own`: what shard 0 draws, above 0.
  explicit GroupSeed(std::uint64_t own) : own_(own) {}

  /// 0: not known yet.
  [[nodiscard]] std::uint64_t value() const { return seed_.load(std::memory_order_acquire); }
  /// A history of this node's that is there to stay has that one. False: another's was here before.
  bool set(std::uint64_t seed, Instant now) {
    std::uint64_t none = 0;
    if (known_at_.load(std::memory_order_relaxed) == 0) known_at_.store(now.ns, std::memory_order_relaxed);
    return seed_.compare_exchange_strong(none, seed, std::memory_order_acq_rel) || none == seed;
  }
  /// Shard 0 leads here: the others' histories had better begin here, too.
  void leads(bool here) { leads_.store(here, std::memory_order_relaxed); }

  /// Shard 0 begins as soon as it may; the others once they know what it has, first where it leads.
  [[nodiscard]] std::uint64_t to_found(ShardId shard, Instant now) const override {
    constexpr Duration kFirst = seconds(2);
    const std::uint64_t seed = value();
    if (shard.value == 0) return seed != 0 ? seed : own_;
    const bool first = leads_.load(std::memory_order_relaxed);
    return first || now - Instant{known_at_.load(std::memory_order_relaxed)} >= kFirst ? seed : 0;
  }
  [[nodiscard]] bool takes(std::uint64_t seed) const override { return value() == 0 || value() == seed; }

 private:
  const std::uint64_t own_;
  std::atomic<std::uint64_t> seed_{0};
  std::atomic<std::int64_t> known_at_{0};
  std::atomic<bool> leads_{false};
};

}  // namespace tidelock
