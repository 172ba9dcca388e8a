/// The event queue and virtual time. Events of one instant run in the order in which they were scheduled, so
/// a seed has one course.
/// Thread:   one
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tidelock/base/time.h>
#include <tidelock/reactor/random.h>

#include "streams.h"
#include "trace.h"
#include "verdict.h"

namespace tidelock::sim {

/// Names what an event is for. Never given out twice: what is for a target that is gone does nothing.
struct TargetId {
  std::uint32_t value = 0;
};

struct Event {
  Instant at{};
  std::uint64_t sequence = 0;
  TargetId target{};
  std::uint16_t kind = 0;  ///< the target's own numbering
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

class EventTarget {
 public:
  virtual ~EventTarget() = default;
  virtual void on_event(const Event& event) = 0;
  /// For the trace's text.
  [[nodiscard]] virtual std::string describe(const Event& event) const = 0;
};

struct WorldLimits {
  std::uint64_t events = 5'000'000;
  std::uint64_t events_an_instant = 200'000;
};

class World {
 public:
  explicit World(std::uint64_t seed, std::size_t trace_lines = 0, const WorldLimits& limits = {})
      : streams_(seed), limits_(limits), trace_(trace_lines) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// World time: the event's, and within a turn what the turn has used up so far.
  [[nodiscard]] Instant now() const { return now_ + inner_; }
  [[nodiscard]] std::uint64_t events() const { return events_; }

  [[nodiscard]] TargetId add(EventTarget& target);
  void remove(TargetId target) { targets_[target.value] = nullptr; }
  /// `when` in the past: now.
  void schedule(Instant when, TargetId target, std::uint16_t kind, std::uint64_t a = 0, std::uint64_t b = 0);
  /// Runs the next event. False: there is none, or the run has gone beyond its limits (a failure `livelock`).
  bool step();
  /// Runs all events up to `until`, then it is that time.
  void run_until(Instant until);
  void run_for(Duration span) { run_until(now() + span); }
  /// Runs all events there are, as far as a second from now.
  void run_to_rest();
  /// Beyond its limits: nothing runs any more.
  [[nodiscard]] bool stopped() const { return stopped_; }

  // A turn starts at the event's time and uses up some of its own; what it schedules is later by that.
  void begin_turn() { in_turn_ = true; }
  [[nodiscard]] bool in_turn() const { return in_turn_; }
  void spend(Duration span) { inner_ = inner_ + span; }
  /// Returns what it has used up.
  Duration end_turn();

  [[nodiscard]] Random stream(std::string_view name, std::uint64_t entity) const {
    return streams_.make(name, entity);
  }
  [[nodiscard]] Trace& trace() { return trace_; }
  [[nodiscard]] const Verdict& verdict() const { return verdict_; }
  /// Now, in this event.
  void fail(std::string checker, std::string text);

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
    }
  };
  void stop(const std::string& why);

  Streams streams_;
  WorldLimits limits_;
  Trace trace_;
  Verdict verdict_;
  Instant now_{};
  Duration inner_{};
  bool in_turn_ = false;
  bool stopped_ = false;
  std::uint64_t scheduled_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t events_this_instant_ = 0;
  std::vector<Event> heap_;
  std::vector<EventTarget*> targets_;
};

/// "12.003518442 s", for people.
[[nodiscard]] std::string time_text(Instant at);

}  // namespace tidelock::sim
