#include "node.h"

#include <algorithm>

#include <fmt/format.h>

namespace tidelock::sim {
namespace {

/// More turns than any fiber needs to see that it was cancelled.
constexpr int kTurnsToDie = 10'000;

}  // namespace

Node::Node(World& world, std::uint32_t number, const NodeOptions& options)
    : world_(world), number_(number), options_(options) {
  Random random = world.stream("clock", number);
  const Duration offset{draw(random, 1, (std::int64_t{1} << 40) - 1)};
  const std::int64_t ppm = draw(random, -SimClock::kPpmMax, SimClock::kPpmMax);
  clock_ = std::make_unique<SimClock>(world, random, offset, ppm);
}

Node::~Node() { kill({}); }

void Node::start() {
  ++incarnation_;
  paused_until_ = turn_ends_ = Instant{};
  pause_counts_ = nullptr;
  set_slowness(1);
  directory_ = std::make_unique<LaneDirectory>(options_.cores);
  for (std::uint32_t i = 0; i < options_.cores; ++i) {
    cores_.push_back(std::make_unique<Core>(world_, *this, CoreId{static_cast<std::uint16_t>(i)}));
  }
}

void Node::kill(const std::function<void()>& destroy) {
  if (!up()) return;
  observer_ = nullptr;
  for (const auto& core : cores_) {
    world_.remove(core->target_);
    core->target_ = world_.add(*core);  // events on their way are for the core that was
    core->tasks_.clear();
  }
  const auto idle = [this] {
    return std::all_of(cores_.begin(), cores_.end(), [](const auto& core) { return core->reactor().idle(); });
  };
  for (int i = 0; i < kTurnsToDie && !idle(); ++i) {
    for (const auto& core : cores_) {
      core->end_sleep();
      core->reactor().cancel_all();  // each time: a late message may have started another fiber
      core->reactor().turn();
      core->tasks_.clear();
    }
  }
  if (!idle()) {
    world_.fail("no_leak", fmt::format("node {}: a fiber does not end although it was cancelled", number_));
  }
  if (destroy) destroy();
  cores_.clear();
  directory_.reset();
}

void Node::pause(Duration length, bool amid_turn, FaultCounts* counts) {
  pause_counts_ = counts;
  if (amid_turn) return clock_->stall(length);
  paused_until_ = std::max(paused_until_, world_.now() + length);
}

void Node::heal() {
  paused_until_ = Instant{};
  pause_counts_ = nullptr;
  clock_->stall(Duration{});
  set_slowness(1);
  for (const auto& core : cores_) core->turn_now();
}

void Node::set_slowness(std::int64_t factor) {
  slowness_ = factor;
  clock_->set_slowness(factor);
}

bool Node::jump(Duration by) {
  bool over_timer = false;
  for (const auto& core : cores_) {
    const Instant due = core->next_deadline_;
    over_timer = over_timer || (due != Instant::never() && clock_->local(world_.now()) < due &&
                                clock_->local(world_.now()) + by >= due);
  }
  clock_->jump(by);
  for (const auto& core : cores_) core->turn_now();  // what it waits for may be due
  return over_timer;
}

}  // namespace tidelock::sim
