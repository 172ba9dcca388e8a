#include "shape.h"

#include <algorithm>
#include <iterator>

#include <tidelock/replication/snapshot_sender.h>

namespace tidelock::sim {
namespace {

template <class T, std::size_t n>
T one_of(Random& random, const T (&choices)[n]) {
  return choices[random.below(n)];
}

/// The same in all worlds, but for how slow a link may be.
void draw_core_and_wire(Random& random, std::uint64_t bytes_a_second_least, Shape& shape) {
  shape.node.reactor.prepared_fibers = 2;
  shape.node.reactor.max_fibers = 128;
  shape.node.reactor.max_operations = 16;
  shape.node.reactor.source_budget = one_of(random, {1U, 4U, 64U});
  shape.node.reactor.idle_looks = one_of(random, {1U, 8U});
  shape.node.reactor.fiber_quota = one_of(random, {microseconds(20), microseconds(500)});
  shape.node.reactor.flush_interval = one_of(random, {microseconds(2), microseconds(20)});
  shape.node.reactor.stall_threshold =
      one_of(random, {microseconds(100), microseconds(500), milliseconds(5)});

  shape.wire.batch_slots = one_of(random, {4U, 16U, 64U});
  shape.wire.control_slots = one_of(random, {4U, 16U});
  shape.wire.bytes_a_second = bytes_a_second_least << random.below(8);
  shape.wire.latency_least = draw_magnitude(random, nanoseconds(500), microseconds(20));
  shape.wire.latency_most = shape.wire.latency_least * draw(random, 1, 8);
}

}  // namespace

Shape draw_shape(WorldKind kind, const Streams& streams) {
  return kind == WorldKind::groups ? draw_group_shape(streams) : draw_shape(streams);
}

Shape draw_shape(const Streams& streams) {
  Random random = streams.make("shape", 0);
  Shape shape;
  shape.replicas = static_cast<std::uint32_t>(draw(random, 1, 3));
  shape.clients = static_cast<std::uint32_t>(draw(random, 2, 8));
  shape.keys = 8U << random.below(4);
  shape.calls = static_cast<std::uint32_t>(draw(random, 100, 600));
  shape.faults_until = Instant{} + draw(random, seconds(2), seconds(10));
  // Mostly so large that a replica which comes back empty finds all that was written.
  shape.log_bytes = one_of(random, {1ULL << 20, 1ULL << 20, 1ULL << 20, 256ULL << 10, 64ULL << 10});
  shape.heartbeat = one_of(random, {milliseconds(20), milliseconds(50), milliseconds(100)});
  shape.link_timeout = shape.heartbeat * draw(random, 5, 30);

  shape.node.spin = one_of(random, {Duration{0}, microseconds(50), microseconds(200)});
  draw_core_and_wire(random, 50'000'000ULL, shape);

  Random group = streams.make("shape", 1);
  if (!one_in(group, 3)) shape.c = static_cast<std::uint32_t>(draw(group, 0, shape.replicas));
  // All of them at once is a group that stands still with each fault of each.
  if (shape.replicas > 1 && shape.c == shape.replicas && one_in(group, 2)) shape.c = 1;
  shape.snapshots = !one_in(group, 10);
  shape.heavy = one_in(group, 3);
  if (shape.heavy) {
    if (one_in(group, 2))
      shape.last_starts_at = Instant{} + draw(group, Duration{0}, Duration{shape.faults_until.ns});
    shape.keys *= 2;
    shape.log_bytes = one_of(group, {64ULL << 10, 64ULL << 10, 256ULL << 10});
    // So slow that a snapshot lasts, and other faults befall it.
    if (!one_in(group, 3)) shape.wire.bytes_a_second = 500'000ULL << group.below(5);
    // But nobody is given up for the time that one of its ranges takes, with others before it on the way.
    const std::uint64_t range_ns =
        SnapshotSender::kRangeBytesMax * 1'000'000'000ULL / shape.wire.bytes_a_second;
    shape.link_timeout = std::max(shape.link_timeout, nanoseconds(static_cast<std::int64_t>(4 * range_ns)));
  }
  return shape;
}

Shape draw_group_shape(const Streams& streams) {
  Random random = streams.make("group shape", 0);
  Shape shape;
  shape.replicas = static_cast<std::uint32_t>(draw(random, 1, 4));
  shape.c = static_cast<std::uint32_t>(draw(random, 0, shape.replicas));
  // With none nothing is promised, with all any fault of any node stops it.
  if ((shape.c == 0U || shape.c == shape.replicas) && !one_in(random, 4)) shape.c = 1 + shape.replicas / 3;
  shape.clients = static_cast<std::uint32_t>(draw(random, 1, 3));  // at each node
  shape.keys = 4U << random.below(4);
  shape.calls = static_cast<std::uint32_t>(draw(random, 40, 200));
  shape.faults_until = Instant{} + draw(random, seconds(2), seconds(8));
  shape.log_bytes = one_of(random, {64ULL << 10, 64ULL << 10, 256ULL << 10});
  shape.heavy = one_in(random, 3);
  shape.heartbeat = one_of(random, {milliseconds(20), milliseconds(50), milliseconds(100)});
  shape.link_timeout = shape.heartbeat * draw(random, 5, 15);
  shape.group.lease = draw_magnitude(random, milliseconds(50), seconds(1));
  shape.group.stands = one_in(random, 2);
  shape.group.beyond = one_in(random, 16);
  shape.group.round = draw(random, milliseconds(50), seconds(1));
  shape.group.pause = draw_magnitude(random, milliseconds(10), milliseconds(200));
  shape.group.pause_max = shape.group.pause * draw(random, 2, 8);

  shape.node.spin = one_of(random, {Duration{0}, Duration{0}, microseconds(50)});
  draw_core_and_wire(random, 10'000'000ULL, shape);
  return shape;
}

}  // namespace tidelock::sim
