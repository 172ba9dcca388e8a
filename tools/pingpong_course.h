/// The two sides of a ping-pong on their reactors. The client asks with a control frame and the server
/// answers with a batch (or, PingVerb::send, a control frame); so each round trip crosses the link once each
/// way. The client says in each frame how long an answer it wants.
/// Thread:   run on the owner core; stop(), done() and answers() from any
/// Suspends: never
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include <tidelock/base/time.h>
#include <tidelock/reactor/reactor.h>

#include "pingpong_lane.h"
#include "pingpong_stats.h"

namespace tidelock::tools {

/// A lane as a source of its reactor, with a deadline for the other side.
class PingCourse : public PollSource {
 public:
  /// `patience`: how long the other side may be silent.
  PingCourse(PingLane& lane, Duration patience) : lane_(lane), patience_(patience) {}
  Status start(Reactor& reactor);
  void leave(Reactor& reactor) { reactor.remove_source(*this); }

  /// Ends it early; what was measured until then stands.
  void stop() { stop_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool done() const { return done_.load(std::memory_order_acquire); }
  /// After done(): why it ended, if not because all was done or it was stopped.
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] std::uint64_t answers() const { return answers_.load(std::memory_order_relaxed); }

  std::uint32_t poll(std::uint32_t budget) final;
  void flush() final { lane_.flush(); }
  void arm() final { lane_.arm(); }
  void disarm() final { lane_.disarm(); }
  [[nodiscard]] bool has_work() const final;

 protected:
  virtual Status begin() = 0;
  /// What the turn brought; returns whether it was anything.
  virtual Result<bool> step() = 0;
  /// Said when it is stopped or has done all.
  virtual void say_goodbye() {}
  void finish(std::optional<Error> error);
  void heard(Instant now) { heard_ = now; }
  void count_answer() {
    answers_.store(answers_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  PingLane& lane_;
  Reactor* reactor_ = nullptr;

 private:
  Duration patience_;
  Instant heard_{};
  std::atomic<bool> stop_{false};
  std::atomic<bool> done_{false};
  std::atomic<std::uint64_t> answers_{0};
  std::optional<Error> error_;
};

class PingServer final : public PingCourse {
 public:
  PingServer(PingLane& lane, Duration patience, const PingTerms& terms, Bytes memory)
      : PingCourse(lane, patience), terms_(terms), memory_(memory) {}

 private:
  Status begin() override { return {}; }
  Result<bool> step() override;
  Status check(const ControlFrame& asked) const;
  Result<bool> answer();
  Result<bool> answer_or_part();

  PingTerms terms_;
  Bytes memory_;
  ControlFrame asked_;
  bool owes_answer_ = false;  ///< to asked_
};

struct PingPlan {
  PingVerb verb = PingVerb::link;
  std::vector<std::uint32_t> sizes;
  std::uint64_t iterations = 1000;  ///< a size
  Duration duration{0};             ///< a size; instead of iterations
  std::uint64_t warmup = 0;         ///< a size, not counted
};

class PingClient final : public PingCourse {
 public:
  PingClient(PingLane& lane, Duration patience, const PingPlan& plan);
  /// After done(). The last one may be incomplete.
  [[nodiscard]] std::vector<PingRow> rows() const;
  /// After done(): each size with its samples.
  [[nodiscard]] const std::vector<PingSamples>& samples() const { return samples_; }

 private:
  Status begin() override;
  Result<bool> step() override;
  void say_goodbye() override;
  Result<bool> answered();
  Result<bool> ask();
  bool next_size(Instant now);
  [[nodiscard]] bool size_done(Instant now) const;

  PingPlan plan_;
  std::vector<PingSamples> samples_;  ///< by size; made before it starts
  std::size_t at_ = 0;                ///< of the plan's sizes
  std::uint64_t warmup_left_ = 0;
  std::uint64_t number_ = 0;  ///< of the frame that was asked last
  bool owed_ = false;         ///< it has found no room yet
  Instant asked_at_{};
  Instant size_ends_{};
};

}  // namespace tidelock::tools
