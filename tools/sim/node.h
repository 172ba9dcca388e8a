/// A simulated machine: a clock, cores that share memory, life and death. It can be slow, stand still, be
/// killed and be started again, empty.
/// Thread:   one
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <tidelock/reactor/lane_directory.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/reactor.h>

#include "core.h"
#include "faults.h"
#include "sim_clock.h"
#include "world.h"

namespace tidelock::sim {

struct NodeOptions {
  std::uint32_t cores = 1;
  ReactorOptions reactor;
  MailboxOptions mailbox;
  /// How long a core looks around after a turn that found nothing, before it parks.
  Duration spin{0};
  /// False: a planted fault. A core goes to sleep without a second look at its sources.
  bool looks_before_sleep = true;
};

class Node {
 public:
  Node(World& world, std::uint32_t number, const NodeOptions& options);
  /// kill() if it is up.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Starts it: cores without anything on them.
  void start();
  /// From now on none of its cores turns. Then its fibers are cancelled and turned until they have ended,
  /// `destroy` takes down what stands on the cores, and the cores go. Whoever holds its links has made them
  /// mute before, so nothing of this gets out. A fiber that does not end is a failure `no_leak`.
  void kill(const std::function<void()>& destroy);
  [[nodiscard]] bool up() const { return !cores_.empty(); }
  /// How often it was started.
  [[nodiscard]] std::uint32_t incarnation() const { return incarnation_; }
  [[nodiscard]] std::uint32_t number() const { return number_; }

  /// No core turns for so long; what arrives waits. `amid_turn`: one of the
  /// next turns is interrupted instead.
  /// `counts`: one hit once a turn that was due was held, or one that ran was interrupted.
  void pause(Duration length, bool amid_turn, FaultCounts* counts = nullptr);
  /// A pause is over, and it is as fast as ever.
  void heal();
  /// Each turn, and each look at the clock, takes so many times longer; 1: as usual.
  void set_slowness(std::int64_t factor);
  /// The clock jumps forward. True: over a timer.
  bool jump(Duration by);

  [[nodiscard]] SimClock& clock() { return *clock_; }
  [[nodiscard]] Core& core(std::size_t index = 0) { return *cores_[index]; }
  [[nodiscard]] std::size_t cores() const { return cores_.size(); }
  [[nodiscard]] LaneDirectory& directory() { return *directory_; }
  [[nodiscard]] const NodeOptions& options() const { return options_; }
  /// Called after each turn of a core; `inner` is what it took.
  void after_turn(std::function<void(Core&, Duration inner)> observer) { observer_ = std::move(observer); }

  /// Starts a fiber on a core and has it turn. False: out of fibers.
  template <class F>
  bool spawn(std::size_t index, const char* name, F&& body) {
    const bool started = static_cast<bool>(core(index).reactor().spawn_detached(name, std::forward<F>(body)));
    core(index).notify();
    return started;
  }

 private:
  friend class Core;
  void pause_took_effect() {
    if (FaultCounts* const counts = std::exchange(pause_counts_, nullptr)) counts->hit(FaultKind::pause);
  }

  World& world_;
  std::uint32_t number_;
  NodeOptions options_;
  std::uint32_t incarnation_ = 0;
  std::int64_t slowness_ = 1;
  Instant paused_until_{};
  FaultCounts* pause_counts_ = nullptr;  ///< of a pause that has held nothing yet
  Instant turn_ends_{};                  ///< turns of one node never overlap: its lanes are real memory
  std::unique_ptr<SimClock> clock_;
  std::unique_ptr<LaneDirectory> directory_;
  std::vector<std::unique_ptr<Core>> cores_;
  std::function<void(Core&, Duration)> observer_;
};

}  // namespace tidelock::sim
