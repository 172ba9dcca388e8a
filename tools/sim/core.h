/// A core of a simulated node: a reactor with its mailbox, and the driver that turns, parks and wakes it by
/// the production park protocol, as events.
/// Thread:   one
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/reactor/lane_directory.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>

#include "sim_io.h"
#include "world.h"

namespace tidelock::sim {

class Node;

class Core final : public EventTarget, public Waker, private PollSource {
 public:
  Core(World& world, Node& node, CoreId id);
  ~Core() override;
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  [[nodiscard]] Reactor& reactor() { return *reactor_; }
  [[nodiscard]] Mailbox& mailbox() { return *mailbox_; }
  [[nodiscard]] bool asleep() const { return asleep_; }
  [[nodiscard]] std::uint64_t turns() const { return turns_; }
  [[nodiscard]] std::uint64_t wakes() const { return wakes_; }

  /// Something for one of its sources has arrived. Who sleeps is woken, who spins sees it. Who is busy with a
  /// turn and parks right after it is told nothing: its second look at the sources has to find that.
  void notify();
  /// `waits`: whether something has arrived that the node has not taken yet, as the world knows it. A core
  /// that goes to sleep then is a failure (`lost_wakeup`): it is for its sources to say so.
  void watch(std::function<bool()> waits) { waits_ = std::move(waits); }
  /// Runs `task` on the loop in a coming turn: what a control thread's job is in production.
  void post(std::function<void()> task);
  /// Lets it turn once now, whatever it was about to do.
  void turn_now();

  // Waker, from a turn of another core of this node.
  void wake(CoreId from) override;
  bool announce(CoreId from, std::uint64_t data) override;

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;

 private:
  friend class Node;
  enum Kind : std::uint16_t { turn, park, woken, announced, back_stop };

  std::uint32_t poll(std::uint32_t budget) override;
  [[nodiscard]] bool has_work() const override { return !tasks_.empty(); }

  void run_turn();
  void show_to_siblings();
  void try_park();
  void end_sleep();
  void schedule_turn(Instant when);

  World& world_;
  Node& node_;
  CoreId id_;
  TargetId target_;
  Random delays_;
  Random random_;  ///< the reactor's
  SimIo io_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<Mailbox> mailbox_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::uint64_t> announcements_;
  std::function<bool()> waits_;

  Instant turn_at_ = Instant::never();  ///< when the next turn is due; one event at most is valid
  std::uint64_t turn_token_ = 0;
  Instant free_at_{};                         ///< until then it is busy with the last turn
  Instant next_wanted_{};                     ///< what the last turn asked for, in world time
  Instant next_deadline_ = Instant::never();  ///< the same as the node's clock shows it
  bool asleep_ = false;
  std::uint64_t turns_ = 0;
  std::uint64_t wakes_ = 0;
};

}  // namespace tidelock::sim
