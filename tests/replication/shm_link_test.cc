// The shm link's data path: conformance, and peers that lie.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "link_conformance.h"
#include "shm_test_support.h"

namespace tidelock::testing {
namespace {

class ShmFixture final : public LinkFixture {
 public:
  explicit ShmFixture(const LinkOptions& options) : options_(options) {
    auto pair = shm_pair(kContext, options);
    if (!pair) FAIL(pair.error().message());
    pair_ = *std::move(pair);
  }
  Link& primary() override { return *pair_.primary; }
  Link& replica() override { return *pair_.replica; }
  [[nodiscard]] FrameContext context() const override { return kContext; }
  [[nodiscard]] std::uint64_t ring_bytes() const override { return options_.ring_bytes; }

 private:
  LinkOptions options_;
  ShmPair pair_;
};

// ---- a peer's forgeries ---------------------------------------------------------------------------------

FrameHeader forged_header(std::uint64_t sequence, std::uint32_t payload_bytes) {
  FrameHeader header;
  header.history = kContext.history;
  header.generation = kContext.generation;
  header.shard = kContext.shard;
  header.sequence = sequence;
  header.payload_bytes = payload_bytes;
  header.entries = 1;
  header.first_lsn = header.last_lsn = Lsn{sequence};
  return header;
}

void forge_batch(Hostile& hostile, std::uint64_t position, const FrameHeader& header) {
  std::byte* at = hostile.memory.ring() + (position & (hostile.memory.ring_bytes() - 1));
  encode_frame_header(header, std::span<std::byte, kFrameHeaderBytes>(at, kFrameHeaderBytes));
}

void claim_produced(Hostile& hostile, std::uint64_t position) {
  hostile.memory.primary().produced.store(position, std::memory_order_release);
}

/// The victim finds an error that is no mere emptiness, closes, and says why on both sides of the API.
template <class T>
void check_closed_by(const Result<T>& result, Link& victim) {
  REQUIRE_FALSE(result);
  CHECK_FALSE(result.error() == ReplicationErrc::link_empty);
  CHECK(victim.state() == LinkState::closed);
  CHECK_FALSE(victim.close_reason().empty());
  CHECK(victim.receive().error() == ReplicationErrc::link_closed);
  CHECK(victim.receive_control().error() == ReplicationErrc::link_closed);
}

}  // namespace

TEST_CASE("replication/shm: the link keeps the rules of all links") {
  check_link_conformance([] { return std::make_unique<ShmFixture>(LinkOptions{256 << 10, 4}); });
}

TEST_CASE("replication/shm: ten gigabytes through a ring of one MiB") {
  ShmFixture fixture({1 << 20, 16});
  LinkTraffic traffic(fixture);
  Random random(3);
  const std::uint64_t goal = kSanitized ? 32ULL << 20 : 10'000'000'000;
  std::uint64_t bytes = 0;
  while (bytes < goal) {
    const std::uint64_t size = random_payload(random, fixture.primary().batch_bytes_max());
    const Status status = traffic.publish(size);
    if (status) {
      bytes += size;
      continue;
    }
    REQUIRE(status.error() == ReplicationErrc::link_full);
    fixture.pump();
    traffic.receive_and_release_all();
    fixture.pump();
  }
  fixture.pump();
  traffic.receive_and_release_all();
  CHECK(traffic.received() == traffic.published());
  CHECK(fixture.replica().counters().bytes_in.load() == bytes);
  CHECK(fixture.primary().counters().peer_wakeups.load() == 0);
}

TEST_CASE("replication/shm: nothing is visible before the flush, all of it after") {
  ShmFixture fixture({256 << 10, 4});
  LinkTraffic traffic(fixture);
  REQUIRE(traffic.publish(800));
  REQUIRE(fixture.primary().send_control(control_frame(fixture, 9)));
  CHECK_FALSE(fixture.replica().has_work());
  CHECK_FALSE(traffic.receive());
  fixture.primary().flush();
  CHECK(fixture.replica().has_work());
  CHECK(traffic.receive());
  CHECK(newest_control(fixture.replica()) == 9);
}

TEST_CASE("replication/shm: options out of range are refused with the limits") {
  for (const LinkOptions options :
       {LinkOptions{0, 16}, LinkOptions{300'000, 16}, LinkOptions{128 << 10, 16}, LinkOptions{2ULL << 30, 16},
        LinkOptions{1 << 20, 0}, LinkOptions{1 << 20, 5}, LinkOptions{1 << 20, 512}}) {
    const auto pair = shm_pair(kContext, options);
    REQUIRE_FALSE(pair);
    CHECK(pair.error().message().find("must be a power of two") != std::string::npos);
  }
}

TEST_CASE("replication/shm: a primary that lies about what it has produced is left") {
  Hostile hostile = make_hostile(NodeRole::replica);
  Link& victim = *hostile.victim;
  const std::uint64_t ring = hostile.memory.ring_bytes();
  forge_batch(hostile, 0, forged_header(1, 800));

  SUBCASE("more than the ring holds") {
    claim_produced(hostile, ring + kShmBatchAlignment);
    CHECK(victim.has_work());
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("close to the end of the counter") {
    claim_produced(hostile, ~std::uint64_t{63});
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("not a multiple of the alignment") {
    claim_produced(hostile, 900);
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("backwards") {
    claim_produced(hostile, 896);
    REQUIRE(victim.receive());
    claim_produced(hostile, 832);
    check_closed_by(victim.receive(), victim);
    victim.release();  // still legal
  }
  SUBCASE("a lap more than was released") {
    claim_produced(hostile, 896);
    REQUIRE(victim.receive());
    claim_produced(hostile, ring + 64);
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("too many control frames") {
    hostile.memory.primary().control_produced.store(5, std::memory_order_release);
    check_closed_by(victim.receive_control(), victim);
  }
  SUBCASE("seen by poll alone") {
    claim_produced(hostile, ring * 2);
    CHECK(victim.poll(64) > 0);
    CHECK(victim.state() == LinkState::closed);
  }
}

TEST_CASE("replication/shm: a primary that forges batches is left") {
  Hostile hostile = make_hostile(NodeRole::replica);
  Link& victim = *hostile.victim;
  const std::uint64_t ring = hostile.memory.ring_bytes();
  std::uint64_t produced = 896;
  FrameHeader header = forged_header(1, 800);
  bool encode = true;

  SUBCASE("no header at all") { encode = false; }
  SUBCASE("another generation") { header.generation.value += 1; }
  SUBCASE("another history") { header.history.value += 1; }
  SUBCASE("another shard") { header.shard.value += 1; }
  SUBCASE("a sequence that was skipped") { header.sequence = 2; }
  SUBCASE("longer than a batch may be") {
    header.payload_bytes = static_cast<std::uint32_t>(ring / 4);
    produced = ring;
  }
  SUBCASE("longer than what was produced") { header.payload_bytes = 4000; }
  SUBCASE("as long as four GiB") { header.payload_bytes = 0xffff'fff8; }
  SUBCASE("no room for a header") { produced = kShmBatchAlignment; }
  SUBCASE("a tail that reaches beyond what was produced") {
    encode = false;
    store(hostile.memory.ring(), kShmTailMarker);
    produced = ring;
  }
  if (encode) forge_batch(hostile, 0, header);
  claim_produced(hostile, produced);
  check_closed_by(victim.receive(), victim);
}

TEST_CASE("replication/shm: a forged tail near the end of the ring is left") {
  Hostile hostile = make_hostile(NodeRole::replica);
  Link& victim = *hostile.victim;
  const std::uint64_t ring = hostile.memory.ring_bytes();
  // Four batches reach to 64 bytes before the end.
  const std::uint64_t sizes[] = {ring / 4, ring / 4, ring / 4, ring / 4 - 64};
  std::uint64_t position = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    forge_batch(hostile, position,
                forged_header(i + 1, static_cast<std::uint32_t>(sizes[i]) - kFrameHeaderBytes));
    position += sizes[i];
  }
  claim_produced(hostile, position);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(victim.receive());
    victim.release();
  }
  victim.flush();
  std::byte* const tail = hostile.memory.ring() + position;

  SUBCASE("a header that would straddle the end") {
    std::array<std::byte, kFrameHeaderBytes> bytes;
    encode_frame_header(forged_header(5, 800), bytes);
    std::memcpy(tail, bytes.data(), 64);
    claim_produced(hostile, position + 896);
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("a tail with nothing behind it") {
    store(tail, kShmTailMarker);
    claim_produced(hostile, position + 64);
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("a tail with a second tail behind it") {
    store(tail, kShmTailMarker);
    store(hostile.memory.ring(), kShmTailMarker);
    claim_produced(hostile, position + 64 + 896);
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("a tail that is longer than any batch") {
    // A lap later, so that enough is produced to cover it.
    store(tail, kShmTailMarker);
    forge_batch(hostile, ring, forged_header(5, 800));
    claim_produced(hostile, ring + 896);
    REQUIRE(victim.receive());
    victim.release();
    victim.flush();
    store(hostile.memory.ring() + 896, kShmTailMarker);
    forge_batch(hostile, 0, forged_header(6, 800));
    claim_produced(hostile, 2 * ring + 896);
    check_closed_by(victim.receive(), victim);
  }
  SUBCASE("an honest tail is skipped and charged") {
    store(tail, kShmTailMarker);
    forge_batch(hostile, ring, forged_header(5, 800));
    claim_produced(hostile, position + 64 + 896);
    REQUIRE(victim.receive());
    victim.release();
    victim.flush();
    CHECK(hostile.memory.replica().consumed.load() == ring + 896);
  }
}

TEST_CASE("replication/shm: the header that was checked is not the one in the ring") {
  Hostile hostile = make_hostile(NodeRole::replica);
  forge_batch(hostile, 0, forged_header(1, 800));
  claim_produced(hostile, 896);
  const auto batch = hostile.victim->receive();
  REQUIRE(batch);
  // The ring, the header page and the victim's own words turn into something else.
  std::memset(hostile.memory.ring(), 0xff, 896);
  std::memset(hostile.memory.ring() - shm_ring_offset(hostile.memory.control_slots()), 0xff,
              sizeof(ShmHeader));
  hostile.memory.replica().consumed.store(12'345, std::memory_order_relaxed);
  CHECK(batch->header.payload_bytes == 800);
  CHECK(batch->payload.size() == 800);
  hostile.victim->release();
  hostile.victim->flush();
  CHECK(hostile.memory.replica().consumed.load() == 896);
  CHECK(hostile.victim->state() == LinkState::ready);
}

TEST_CASE("replication/shm: a replica that lies about what it has consumed is left") {
  Hostile hostile = make_hostile(NodeRole::primary);
  Link& victim = *hostile.victim;
  const std::vector<std::byte> payload(800);
  const std::array<Bytes, 1> ranges{Bytes(payload)};
  const FrameHeader header = forged_header(1, 800);
  REQUIRE(victim.publish(header, ranges));
  REQUIRE(victim.publish(header, ranges));
  victim.flush();
  auto& consumed = hostile.memory.replica().consumed;

  SUBCASE("more than was published") { consumed.store(3 * 896); }
  SUBCASE("what is written but not published yet") {
    REQUIRE(victim.publish(header, ranges));
    consumed.store(3 * 896);
  }
  SUBCASE("not a multiple of the alignment") { consumed.store(100); }
  SUBCASE("backwards") {
    consumed.store(1792);
    victim.poll(64);
    REQUIRE(victim.state() == LinkState::ready);
    consumed.store(896);
  }
  SUBCASE("control frames that were never sent") { hostile.memory.replica().control_consumed.store(1); }
  SUBCASE("control frames that go back") {
    hostile.memory.replica().control_produced.store(~std::uint64_t{0});
  }
  victim.poll(64);
  CHECK(victim.state() == LinkState::closed);
  CHECK_FALSE(victim.close_reason().empty());
  CHECK(victim.publish(header, ranges).error() == ReplicationErrc::link_closed);
  CHECK(victim.send_control({}).error() == ReplicationErrc::link_closed);
  victim.flush();
}

TEST_CASE("replication/shm: a bad control frame closes the link") {
  Hostile hostile = make_hostile(NodeRole::primary);
  ControlFrame frame;
  frame.history = kContext.history;
  frame.generation = kContext.generation;
  frame.shard = kContext.shard;
  frame.sequence = 1;
  bool damage = false;
  SUBCASE("a sequence that was skipped") { frame.sequence = 2; }
  SUBCASE("another generation") { frame.generation.value += 1; }
  SUBCASE("damaged") { damage = true; }
  std::byte* const slot = hostile.memory.replica_lane();
  encode_control(frame, std::span<std::byte, kControlFrameBytes>(slot, kControlFrameBytes));
  if (damage) slot[40] ^= std::byte{1};
  hostile.memory.replica().control_produced.store(1, std::memory_order_release);
  check_closed_by(hostile.victim->receive_control(), *hostile.victim);
}

TEST_CASE("replication/shm: parked flags that a peer toggles cost wakeups and nothing else") {
  Hostile hostile = make_hostile(NodeRole::primary);
  ControlFrame frame;
  frame.history = kContext.history;
  frame.shard = kContext.shard;
  const std::uint64_t rounds = 5000;  // more bytes than the socket holds: the peer never reads them
  for (std::uint64_t i = 0; i < rounds; ++i) {
    hostile.memory.replica().parked.store(i % 2 == 0 ? 0xdead'beef : kShmParked);
    REQUIRE(hostile.victim->send_control(frame));
    hostile.victim->flush();
    hostile.memory.replica().control_consumed.store(hostile.memory.primary().control_produced.load());
  }
  CHECK(hostile.victim->state() == LinkState::ready);
  CHECK(hostile.victim->counters().peer_wakeups.load() == rounds);
}

TEST_CASE("replication/shm: whoever waits for credit is woken by credit, others are not") {
  Hostile hostile = make_hostile(NodeRole::replica);
  forge_batch(hostile, 0, forged_header(1, 800));
  forge_batch(hostile, 896, forged_header(2, 800));
  claim_produced(hostile, 2 * 896);
  const auto& wakeups = hostile.victim->counters().peer_wakeups;

  hostile.memory.primary().parked.store(kShmParked);
  REQUIRE(hostile.victim->receive());
  hostile.victim->release();
  hostile.victim->flush();
  CHECK(wakeups.load() == 0);

  hostile.memory.primary().parked.store(kShmParkedForRoom);
  REQUIRE(hostile.victim->receive());
  hostile.victim->release();
  hostile.victim->flush();
  CHECK(wakeups.load() == 1);
  CHECK(hostile.memory.primary().parked.load() == kShmAwake);
}

TEST_CASE("replication/shm: a refused publisher arms for credit") {
  Hostile hostile = make_hostile(NodeRole::primary);
  auto& victim = *hostile.victim;
  const std::vector<std::byte> payload(victim.batch_bytes_max());
  const std::array<Bytes, 1> ranges{Bytes(payload)};
  const FrameHeader header = forged_header(1, 0);
  victim.arm();
  CHECK(hostile.memory.primary().parked.load() == kShmParked);
  victim.disarm();
  for (int i = 0; i < 4; ++i) REQUIRE(victim.publish(header, ranges));
  CHECK(victim.publish(header, ranges).error() == ReplicationErrc::link_full);
  victim.flush();
  victim.arm();
  CHECK(hostile.memory.primary().parked.load() == kShmParkedForRoom);
  CHECK_FALSE(victim.has_work());
  hostile.memory.replica().consumed.store(hostile.memory.ring_bytes() / 4);
  CHECK(victim.has_work());
  victim.disarm();
  CHECK(victim.poll(64) == 1);
  CHECK_FALSE(victim.has_work());
  CHECK(victim.publish(header, ranges));
}

TEST_CASE("replication/shm: credit that a control frame's search for room finds is still told") {
  Hostile hostile = make_hostile(NodeRole::primary);
  auto& victim = *hostile.victim;
  const std::vector<std::byte> payload(victim.batch_bytes_max());
  const std::array<Bytes, 1> ranges{Bytes(payload)};
  const FrameHeader header = forged_header(1, 0);
  ControlFrame frame;
  frame.history = kContext.history;
  frame.shard = kContext.shard;
  // 1. Ring and lane are full, one frame waits. Expect: the publisher is refused, nothing to do.
  for (int i = 0; i < 4; ++i) REQUIRE(victim.publish(header, ranges));
  REQUIRE(victim.publish(header, ranges).error() == ReplicationErrc::link_full);
  for (int i = 0; i < 4; ++i) REQUIRE(victim.send_control(frame));
  victim.flush();
  REQUIRE_FALSE(victim.has_work());
  hostile.memory.replica().consumed.store(hostile.memory.ring_bytes() / 4);
  // 2. Credit comes, and the search for a place in the lane sees it. Expect: the loop must not sleep.
  SUBCASE("as the frame is sent") { REQUIRE(victim.send_control(frame)); }
  SUBCASE("as the frame waits") {
    REQUIRE(victim.send_control(frame));
    victim.flush();
  }
  victim.arm();
  CHECK(victim.has_work());
  victim.disarm();
  // 3. Expect: told once.
  CHECK(victim.poll(64) == 1);
  CHECK_FALSE(victim.has_work());
  CHECK(victim.poll(64) == 0);
  CHECK(victim.publish(header, ranges));
}

TEST_CASE("replication/shm: random words and bytes from a peer never do worse than close the link") {
  Random random(17);
  const int rounds = kSanitized ? 300 : 1000;
  for (int round = 0; round < rounds; ++round) {
    const NodeRole role = random.below(2) == 0 ? NodeRole::replica : NodeRole::primary;
    Hostile hostile = make_hostile(role);
    ShmSide& words = role == NodeRole::replica ? hostile.memory.primary() : hostile.memory.replica();
    std::byte* const lane =
        role == NodeRole::replica ? hostile.memory.primary_lane() : hostile.memory.replica_lane();
    std::uint64_t sequence = 1;
    for (int step = 0; step < 40 && hostile.victim->state() == LinkState::ready; ++step) {
      const std::uint64_t position = random.below(hostile.memory.ring_bytes() / 64) * 64;
      switch (random.below(8)) {
        case 0:
          words.produced.store(random.below(8) == 0 ? random.next() : position);
          break;
        case 1:
          words.consumed.store(random.below(8) == 0 ? random.next() : 0);
          break;
        case 2:
          words.control_produced.store(random.below(6));
          break;
        case 3:
          words.control_consumed.store(random.below(3));
          break;
        case 4:
          words.parked.store(static_cast<std::uint32_t>(random.next()));
          break;
        case 5:
          store(hostile.memory.ring() + position, random.below(2) ? kShmTailMarker : random.next());
          break;
        case 6:
          store(lane + random.below(4 * kControlFrameBytes - 8), random.next());
          break;
        default:
          forge_batch(hostile,
                      random.below(2) == 0 ? 0 : std::min(position, hostile.memory.ring_bytes() - 128),
                      forged_header(sequence, static_cast<std::uint32_t>(random.below(70'000))));
      }
      hostile.victim->poll(64);
      static_cast<void>(hostile.victim->receive_control());
      if (role == NodeRole::replica) {
        if (const auto batch = hostile.victim->receive()) {
          ++sequence;
          CHECK(payload_intact(0, batch->payload.first(0)));
          std::uint64_t sum = 0;
          for (const std::byte byte : batch->payload) sum += static_cast<std::uint64_t>(byte);
          CHECK(sum < ~std::uint64_t{0});  // every byte was readable
          hostile.victim->release();
        }
      }
      hostile.victim->flush();
    }
  }
}

}  // namespace tidelock::testing
