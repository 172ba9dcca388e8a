/// What the reactors of one group share to reach each other: the lanes, each reactor's park flag and waker,
/// and the bitmaps that say who has sent something. Knows nothing of threads or io_uring, so that the
/// simulator joins reactors of one thread with it.
/// Thread:   set_waker before any traffic; the rest from each reactor's own thread
/// Lifetime: outlives the mailboxes made on it
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/reactor/park.h>

namespace tidelock {

struct Lane;

/// How a reactor is reached from outside of its thread. Called on the sender's thread.
class Waker {
 public:
  virtual ~Waker() = default;
  /// Ends the reactor's sleep, at once: the caller has claimed its park flag. Never silent about a failure.
  virtual void wake(CoreId from) = 0;
  /// For lanes whose carrier is msg_ring or eventfd: hands `data` to Mailbox::on_announcement, or makes
  /// Mailbox::on_event run. False: not sent, ask again at the next flush.
  [[nodiscard]] virtual bool announce(CoreId from, std::uint64_t data) {
    static_cast<void>(from);
    static_cast<void>(data);
    return false;
  }
};

class LaneDirectory {
 public:
  /// Up to this many reactors a turn polls every lane; beyond it senders set bits.
  static constexpr std::uint32_t kPolledCores = 8;
  static constexpr std::uint32_t kCoresMax = 256;

  /// `cores`: 1 to 256, with ids from 0.
  explicit LaneDirectory(std::uint32_t cores);
  ~LaneDirectory();
  LaneDirectory(const LaneDirectory&) = delete;
  LaneDirectory& operator=(const LaneDirectory&) = delete;

  [[nodiscard]] std::uint32_t cores() const { return cores_; }
  [[nodiscard]] bool uses_bitmap() const { return cores_ > kPolledCores; }
  [[nodiscard]] ParkFlag& park_flag(CoreId core) { return entries_[core.value].flag; }
  /// `waker` outlives the traffic; null: that reactor never parks.
  void set_waker(CoreId core, Waker* waker) { entries_[core.value].waker = waker; }
  [[nodiscard]] Waker* waker(CoreId core) const { return entries_[core.value].waker; }

  /// Null until its sender has made it.
  [[nodiscard]] Lane* lane(CoreId source, CoreId target) const {
    return cell(source, target).load(std::memory_order_acquire);
  }
  /// Only `source` makes its lanes, so there is one writer a cell.
  Lane& add_lane(CoreId source, CoreId target, std::unique_ptr<Lane> lane);

  /// Who has sent to `core` since the word was last taken: bit i of word w is reactor 64 w + i.
  using PendingWords = std::array<std::atomic<std::uint64_t>, kCoresMax / 64>;
  [[nodiscard]] PendingWords& pending(CoreId core) { return entries_[core.value].pending; }

 private:
  struct Entry {
    ParkFlag flag;
    alignas(kCacheLineBytes) PendingWords pending{};
    alignas(kCacheLineBytes) Waker* waker = nullptr;
  };
  // A target's cells are adjacent: with eight cores a turn's look for new lanes is one line.
  [[nodiscard]] std::atomic<Lane*>& cell(CoreId source, CoreId target) const {
    return lanes_[std::size_t{target.value} * cores_ + source.value];
  }

  std::uint32_t cores_;
  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<std::atomic<Lane*>[]> lanes_;
};

}  // namespace tidelock
