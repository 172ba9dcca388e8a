#include "core.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <tidelock/base/check.h>

#include "node.h"

namespace tidelock::sim {
namespace {

/// A parked core that nobody woke looks around after so long.
constexpr Duration kBackStop = seconds(1);

std::uint64_t entity_of(const Node& node, CoreId id) {
  return std::uint64_t{node.number()} << 40 | std::uint64_t{node.incarnation()} << 16 | id.value;
}

}  // namespace

Core::Core(World& world, Node& node, CoreId id)
    : world_(world),
      node_(node),
      id_(id),
      target_(world.add(*this)),
      delays_(world.stream("core", entity_of(node, id))),
      random_(world.stream("reactor", entity_of(node, id))) {
  ReactorOptions options = node.options().reactor;
  options.id = id;
  auto made = Reactor::create(options, node.clock(), io_, random_);
  TL_ASSERT(made, "a simulated core has what it needs");
  reactor_ = *std::move(made);
  mailbox_ = std::make_unique<Mailbox>(*reactor_, node.directory(), node.options().mailbox);
  node.directory().set_waker(id, this);
  reactor_->add_source(*this);
  schedule_turn(world.now());
}

Core::~Core() {
  reactor_->remove_source(*this);
  mailbox_.reset();
  reactor_.reset();
  world_.remove(target_);
}

void Core::notify() {
  const bool parks_next = !asleep_ && node_.options().spin.ns == 0 && world_.now() < free_at_;
  if (parks_next) return;
  const Duration delay = asleep_ ? draw(delays_, microseconds(5), microseconds(60))
                                 : draw(delays_, nanoseconds(100), microseconds(3));
  schedule_turn(world_.now() + delay);
}

void Core::post(std::function<void()> task) {
  tasks_.push_back(std::move(task));
  notify();
}

void Core::turn_now() { schedule_turn(world_.now()); }

void Core::wake(CoreId) {
  ++wakes_;
  world_.schedule(world_.now() + draw(delays_, microseconds(5), microseconds(60)), target_, woken);
}

bool Core::announce(CoreId from, std::uint64_t data) {
  world_.schedule(world_.now() + draw(delays_, microseconds(1), microseconds(30)), target_, announced, data,
                  from.value);
  return true;
}

/// Of several reasons to turn the earliest counts; no turn begins before the last one is over.
void Core::schedule_turn(Instant when) {
  when = std::max(when, free_at_);
  if (when >= turn_at_) return;
  turn_at_ = when;
  world_.schedule(when, target_, turn, ++turn_token_);
}

void Core::on_event(const Event& event) {
  switch (event.kind) {
    case turn:
      if (event.a != turn_token_) return;
      turn_at_ = Instant::never();
      return run_turn();
    case park:
      if (event.a == turns_ && !asleep_) try_park();
      return;
    case woken:
      return schedule_turn(world_.now());
    case announced:
      announcements_.push_back(event.a);
      return schedule_turn(world_.now());
    case back_stop:
      if (event.a == turns_) schedule_turn(world_.now());
      return;
    default:
      TL_ASSERT(false, "an event that no core has");
  }
}

void Core::run_turn() {
  const Instant start = world_.now();
  if (start < node_.paused_until_) node_.pause_took_effect();
  if (const Instant not_before = std::max(node_.paused_until_, node_.turn_ends_); start < not_before)
    return schedule_turn(not_before);
  end_sleep();
  for (const std::uint64_t data : std::exchange(announcements_, {})) {
    if (node_.options().mailbox.carrier == Carrier::eventfd) {
      mailbox_->on_event();
    } else {
      mailbox_->on_announcement(data);
    }
  }
  ++turns_;
  node_.clock().begin_turn();
  world_.begin_turn();
  const Instant next = reactor_->turn();
  const Duration inner = world_.end_turn();
  if (node_.clock().end_turn()) node_.pause_took_effect();
  const ReactorStats& stats = reactor_->stats();
  world_.trace().mix(static_cast<std::uint64_t>(next.ns));
  world_.trace().mix(stats.fiber_switches.load(std::memory_order_relaxed));
  world_.trace().mix(stats.timers_fired.load(std::memory_order_relaxed));

  node_.turn_ends_ = start + inner;
  free_at_ = node_.turn_ends_ + draw(delays_, microseconds(1), microseconds(20)) * node_.slowness_;
  next_deadline_ = next == Instant{0} ? Instant::never() : next;
  if (next == Instant{0}) {
    schedule_turn(free_at_ + draw(delays_, nanoseconds(100), microseconds(3)));
  } else {
    next_wanted_ = node_.clock().world_time(next);
    world_.schedule(free_at_ + node_.options().spin, target_, park, turns_);
    if (next_wanted_ != Instant::never()) schedule_turn(next_wanted_);
  }
  if (node_.options().spin.ns > 0) show_to_siblings();
  if (node_.observer_) node_.observer_(*this, inner);
}

/// A core that spins sees what a sibling has sent it without being woken.
void Core::show_to_siblings() {
  for (const auto& sibling : node_.cores_) {
    if (sibling.get() != this && !sibling->asleep_ && sibling->turn_at_ > free_at_ &&
        sibling->reactor_->has_work()) {
      sibling->notify();
    }
  }
}

/// Apart from the turn, so that others run in between: what they send then finds the flag down, and it is the
/// second look at the sources that must find it.
void Core::try_park() {
  reactor_->arm_sources();
  const bool looks = node_.options().looks_before_sleep;
  const bool sleeps = node_.directory().park_flag(id_).prepare([&] { return looks && reactor_->has_work(); });
  if (!sleeps) {
    reactor_->disarm_sources();
    return schedule_turn(world_.now() + draw(delays_, nanoseconds(100), microseconds(3)));
  }
  asleep_ = true;
  if (waits_ && waits_()) {
    world_.fail("lost_wakeup",
                fmt::format("node {} core {} goes to sleep although something has arrived for it",
                            node_.number(), id_.value));
  }
  if (next_wanted_ > world_.now() + kBackStop)
    world_.schedule(world_.now() + kBackStop, target_, back_stop, turns_);
}

void Core::end_sleep() {
  if (!asleep_) return;
  asleep_ = false;
  ParkFlag& flag = node_.directory().park_flag(id_);
  // A sender that has settled without claiming the flag will never send a wakeup.
  if (mailbox_->has_settled_work() && flag.raised()) {
    world_.fail("lost_wakeup",
                fmt::format("node {} core {} slept through a message: its sender has looked at "
                            "the park flag and sent no wakeup",
                            node_.number(), id_.value));
  }
  flag.finish();
  reactor_->disarm_sources();
}

std::uint32_t Core::poll(std::uint32_t budget) {
  std::uint32_t done = 0;
  for (; done < budget && !tasks_.empty(); ++done) {
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
  }
  return done;
}

std::string Core::describe(const Event& event) const {
  constexpr const char* kNames[] = {"turn", "park", "woken", "announced", "back_stop"};
  return fmt::format("node {} core {} {}", node_.number(), id_.value, kNames[event.kind]);
}

}  // namespace tidelock::sim
