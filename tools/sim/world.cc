#include "world.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <tidelock/base/check.h>

namespace tidelock::sim {

std::string time_text(Instant at) {
  return fmt::format("{}.{:09} s", at.ns / 1'000'000'000, at.ns % 1'000'000'000);
}

TargetId World::add(EventTarget& target) {
  targets_.push_back(&target);
  return {static_cast<std::uint32_t>(targets_.size() - 1)};
}

void World::schedule(Instant when, TargetId target, std::uint16_t kind, std::uint64_t a, std::uint64_t b) {
  heap_.push_back({std::max(when, now()), scheduled_++, target, kind, a, b});
  std::push_heap(heap_.begin(), heap_.end(), Later{});
}

bool World::step() {
  if (heap_.empty() || stopped_) return false;
  TL_ASSERT(!in_turn_, "an event within a turn");
  std::pop_heap(heap_.begin(), heap_.end(), Later{});
  const Event event = heap_.back();
  heap_.pop_back();
  events_this_instant_ = event.at == now_ ? events_this_instant_ + 1 : 1;
  now_ = event.at;
  EventTarget* const target = targets_[event.target.value];
  if (target == nullptr) return true;
  if (++events_ > limits_.events) stop("more events than a run may have");
  if (events_this_instant_ > limits_.events_an_instant) stop("time stands still");
  trace_.event_begins();
  trace_.mix(static_cast<std::uint64_t>(event.at.ns));
  trace_.mix(event.sequence);
  trace_.mix(std::uint64_t{event.target.value} << 16 | event.kind);
  trace_.note([&] { return fmt::format("{} {} {}", time_text(event.at), events_, target->describe(event)); });
  target->on_event(event);
  return true;
}

void World::run_until(Instant until) {
  while (!heap_.empty() && heap_.front().at <= until && step()) {
  }
  now_ = std::max(now_, until);
}

void World::run_to_rest() {
  const Instant limit = now() + seconds(1);
  while (!heap_.empty() && heap_.front().at <= limit && step()) {
  }
}

Duration World::end_turn() {
  in_turn_ = false;
  return std::exchange(inner_, Duration{});
}

void World::fail(std::string checker, std::string text) {
  trace_.note([&] { return fmt::format("{} {} FAILED {}: {}", time_text(now()), events_, checker, text); });
  trace_.freeze();  // what led to the first failure is what somebody wants to read
  verdict_.add({std::move(checker), now(), events_, std::move(text)});
}

void World::stop(const std::string& why) {
  fail("livelock", why);
  stopped_ = true;
}

}  // namespace tidelock::sim
