#include "plan.h"

#include <algorithm>

namespace tidelock::sim {
namespace {

/// How long a fault lasts, or how late it makes things.
struct Reach {
  Duration least;
  Duration most;
};

Reach reach_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::delay:
      return {microseconds(1), seconds(2)};
    case FaultKind::cut:
      return {milliseconds(1), seconds(4)};
    case FaultKind::half_open:
    case FaultKind::partition:
      return {milliseconds(100), seconds(10)};
    case FaultKind::notify_before_data:
      return {nanoseconds(100), milliseconds(5)};
    case FaultKind::completion_late:
      return {microseconds(10), milliseconds(500)};
    case FaultKind::receiver_not_ready:
      return {microseconds(10), milliseconds(70)};
    case FaultKind::slow_peer:
      return {milliseconds(500), seconds(10)};
    case FaultKind::duplicate_connect:
      return {microseconds(10), seconds(5)};
    case FaultKind::pause:
      return {milliseconds(1), seconds(10)};
    case FaultKind::kill:
      return {milliseconds(50), seconds(3)};
    case FaultKind::slow_core:
      return {milliseconds(100), seconds(5)};
    case FaultKind::clock_jump:
      return {milliseconds(1), seconds(3'600)};
    case FaultKind::promotion_race:
      return {microseconds(1), milliseconds(50)};
    default:
      return {nanoseconds(1), nanoseconds(1)};
  }
}

/// A node that dies takes all of its links along, so it is rarer than what befalls one frame.
Duration gap_of(Random& random, FaultKind kind) {
  const Duration gaps[] = {milliseconds(200), seconds(1), seconds(5), seconds(20)};
  const bool rare = kind == FaultKind::kill || kind == FaultKind::clock_jump ||
                    kind == FaultKind::partition || kind == FaultKind::promotion_race;
  return gaps[rare ? 1 + random.below(3) : random.below(4)];
}

}  // namespace

std::vector<Fault> draw_plan(const Streams& streams, const FaultMask& mask, std::uint32_t replicas,
                             Instant until, std::size_t kinds) {
  std::vector<Fault> plan;
  for (std::size_t i = 0; i < kinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    Random random = streams.make("plan", i);
    if (!one_in(random, 3) || !mask[i]) continue;
    const Duration gap = gap_of(random, kind);
    const Reach reach = reach_of(kind);
    std::uint64_t number = 0;
    for (Instant at = Instant{} + draw(random, Duration{0}, gap * 2); at < until;
         at = at + draw(random, Duration{1}, gap * 2)) {
      Fault fault;
      fault.number = std::uint64_t{i} << 32 | number++;
      fault.at = at;
      fault.kind = kind;
      fault.replica = static_cast<std::uint32_t>(random.below(replicas));
      fault.length = draw_magnitude(random, reach.least, reach.most);
      fault.detail = random.next();
      plan.push_back(fault);
    }
  }
  std::stable_sort(plan.begin(), plan.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return plan;
}

}  // namespace tidelock::sim
