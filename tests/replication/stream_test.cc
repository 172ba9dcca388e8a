// Both ends together, over the loopback and over the shm link: seeded disorder, and an end state that must
// agree.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/shm.h>

#include "stream_rig.h"
#include "stream_writers.h"
#include "taker.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

enum class Carrier { loopback, loopback_late, shm };

Status connect(StreamRig& rig, Carrier carrier) {
  if (carrier != Carrier::shm) {
    LoopbackOptions options;
    options.slots = 3;
    options.completes_on_release = carrier == Carrier::loopback_late;
    return rig.connect(options);
  }
  LinkOptions options;
  options.ring_bytes = 256 * 1024;
  auto pair = shm_pair(FrameContext{kHistory, Generation{++rig.generation}, ShardId{}}, options);
  REQUIRE(pair);
  REQUIRE(rig.replica->attach(std::move(pair->replica), kHistory, kEpoch));
  return rig.attach(std::move(pair->primary));
}

void check_agreement(StreamRig& rig, const Writers& writers) {
  rig.settle();
  REQUIRE(rig.replica->applied_lsn() == rig.primary->last_lsn());
  CHECK(rig.primary->commit_lsn() == rig.primary->last_lsn());
  CHECK(rig.applier.map == writers.model);
  bool in_order = rig.applier.lsns.size() == rig.primary->last_lsn().value;
  for (std::size_t i = 0; in_order && i < rig.applier.lsns.size(); ++i)
    in_order = rig.applier.lsns[i] == i + 1;
  CHECK(in_order);
}

/// Writers and both reactors in random order. `cut`: the link breaks now and then, and a new one resumes.
void run_disorder(Carrier carrier, std::uint64_t log_bytes, bool cut, std::uint64_t seed) {
  CAPTURE(seed);
  PrimaryOptions options;
  options.log_bytes = log_bytes;
  StreamRig rig(options);
  Random random(seed);
  Writers writers{rig, random, {}, 0};
  REQUIRE(connect(rig, carrier));
  for (int i = 0; i < 3; ++i) writers.spawn(150);
  int cuts = 0;
  for (int i = 0; i < 200'000 && writers.running > 0; ++i) {
    if (random.below(2) == 0) rig.turn_primary();
    if (random.below(3) == 0) rig.turn_replica();
    rig.advance(microseconds(static_cast<std::int64_t>(random.below(200))));
    if (!cut || random.below(20) != 0) continue;
    if (random.below(2) == 0) {
      rig.replica->close("cut");
    } else {
      rig.near->close("cut");
    }
    for (int drained = 0; drained < 10 && rig.primary->replicas() + rig.replica->connected() > 0; ++drained)
      rig.turns(1);
    REQUIRE(rig.primary->replicas() == 0);
    if (connect(rig, carrier)) ++cuts;
  }
  REQUIRE(writers.running == 0);
  if (cut) CHECK(cuts >= 3);
  check_agreement(rig, writers);
}

/// Three replicas of which some stop now and then, c always go on, and those that were dropped come back as
/// if they had got a snapshot.
class Stops {
 public:
  Stops(std::uint32_t c, std::uint64_t seed) : c_(c), rig_(small_log(c)), random_(seed) {
    late_.completes_on_release = true;
    for (std::uint32_t node = 0; node < kNodes; ++node) nodes_.emplace_back(rig_, late_, kFirst + node);
    stopped_.resize(kNodes);
  }

  void run() {
    for (int i = 0; i < 3; ++i) write(150);
    Lsn committed{};
    for (int i = 0; i < 200'000 && running_ > 0; ++i) {
      if (random_.below(2) == 0) rig_.turn_primary();
      const std::size_t node = random_.below(kNodes);
      if (!stopped_[node]) nodes_[node].turn();
      if (random_.below(100) == 0) stop_or_go(random_.below(kNodes));
      if (random_.below(50) == 0) come_back(random_.below(kNodes));
      rig_.advance(microseconds(static_cast<std::int64_t>(random_.below(400))));
      REQUIRE(rig_.primary->commit_lsn() >= committed);
      committed = rig_.primary->commit_lsn();
      REQUIRE(holders(committed) >= c_);
    }
    REQUIRE(running_ == 0);
  }
  [[nodiscard]] std::uint64_t dropped() const { return rig_.primary->stats().backlog_drops; }

 private:
  static constexpr std::uint32_t kNodes = 3;
  static constexpr std::uint32_t kFirst = 10;

  [[nodiscard]] std::size_t holders(Lsn lsn) const {
    return static_cast<std::size_t>(
        std::count_if(nodes_.begin(), nodes_.end(), [lsn](const Taker& node) { return node.last >= lsn; }));
  }
  void write(int puts) {
    ++running_;
    rig_.spawn([this, puts] {
      for (int i = 0; i < puts; ++i) {
        const std::string value(random_.below(5000), 'v');
        REQUIRE(
            rig_.primary->wait_for_room(entry_bytes(EntryKind::put, 1, value.size()), rig_.in(seconds(60))));
        const Lsn lsn = rig_.put("k", value);
        const auto replicas = static_cast<std::uint32_t>(random_.below(c_ + 1));
        if (c_ == 0) continue;
        REQUIRE(rig_.primary->wait(lsn, AckLevel::applied, rig_.in(seconds(60)), replicas));
        REQUIRE(holders(lsn) >= (replicas == 0 ? c_ : replicas));
      }
      --running_;
    });
  }
  void stop_or_go(std::size_t node) {
    if (stopped_[node]) {
      stopped_[node] = false;
      return;
    }
    std::uint32_t others = 0;
    for (std::size_t i = 0; i < kNodes; ++i) others += i != node && !stopped_[i] && attached(i);
    stopped_[node] = others >= c_;
  }
  void come_back(std::size_t node) {
    if (stopped_[node] || attached(node)) return;
    nodes_[node] = Taker(rig_, late_, kFirst + static_cast<std::uint32_t>(node), rig_.primary->last_lsn());
  }
  [[nodiscard]] bool attached(std::size_t node) const {
    return rig_.primary->attached(kFirst + static_cast<std::uint32_t>(node));
  }

  std::uint32_t c_;
  StreamRig rig_;
  Random random_;
  LoopbackOptions late_;
  std::vector<Taker> nodes_;
  std::vector<bool> stopped_;
  int running_ = 0;
};

}  // namespace

TEST_CASE("replication/stream: in any order of turns both ends agree, over a log of 64 KiB") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    run_disorder(Carrier::loopback, 64 * 1024, false, seed);
    run_disorder(Carrier::loopback_late, 64 * 1024, false, seed);
    run_disorder(Carrier::shm, 64 * 1024, false, seed);
  }
}

TEST_CASE("replication/stream: a link that breaks at any moment loses nothing that the log still holds") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    run_disorder(Carrier::loopback, 64 << 20, true, seed);
    run_disorder(Carrier::loopback_late, 64 << 20, true, seed);
    run_disorder(Carrier::shm, 64 << 20, true, seed);
  }
}

TEST_CASE("replication/stream: the log waits for the slowest of two replicas, an ack for the fastest") {
  PrimaryOptions options;
  options.log_bytes = 64 * 1024;
  StreamRig rig(options);
  LoopbackOptions late;
  late.completes_on_release = true;
  REQUIRE(rig.connect(late));
  const auto fast_wire = rig.wire;
  const auto slow = rig.connect_by_hand(late);
  CHECK(rig.primary->replicas() == 2);
  const std::string value(5'000, 'v');
  while (rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(value))) rig.turns(2);
  const Lsn last = rig.primary->last_lsn();
  CHECK(rig.primary->reached(last, AckLevel::applied));
  CHECK(rig.primary->log().begin() == 0);
  // The slow one takes what it has. Expect: room again.
  for (int i = 0; i < 4; ++i) {
    REQUIRE(slow->receive());
    slow->release();
  }
  rig.turns(1);
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(value)));
  // It goes. Expect: nothing is held back any more, the other one goes on.
  slow->close("gone");
  rig.turns(2);
  CHECK(rig.primary->replicas() == 1);
  for (int i = 0; i < 100; ++i) {
    CHECK(rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(value)));
    rig.turns(2);
  }
  CHECK(rig.replica->applied_lsn() == rig.primary->last_lsn());
}

TEST_CASE("replication/stream: a long backlog leaves in pieces and does not hold the turn up") {
  PrimaryOptions options;
  options.log_bytes = 4 << 20;
  StreamRig rig(options);
  LoopbackOptions wide;
  wide.slots = 64;
  const std::string value(10'000, 'v');
  for (int i = 0; i < 200; ++i) rig.put("k" + std::to_string(i), value);
  REQUIRE(rig.connect(wide));
  rig.turn_primary();
  CHECK(rig.wire->written <= 5);
  CHECK(rig.primary->has_work());
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{200});
  CHECK_FALSE(rig.primary->has_work());
}

TEST_CASE("replication/stream: a peer that scribbles over its batch while it is applied changes nothing") {
  StreamRig rig;
  REQUIRE(rig.connect());
  int scribbled = 0;
  rig.applier.before_apply = [&] {
    ++scribbled;
    for (auto& slot : rig.wire->slots) std::fill(slot.begin(), slot.end(), std::byte{0xa5});
  };
  // Several slices of one batch, so that it is scribbled over before some are checked, too.
  std::map<std::string, std::string> expected;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "key" + std::to_string(i);
    rig.put(key, "value of " + key);
    expected[key] = "value of " + key;
  }
  rig.settle();
  CHECK(rig.replica->stats().batches == 1);
  CHECK(scribbled > 1);
  CHECK(rig.applier.map == expected);
  CHECK(rig.replica_lost.empty());
}

TEST_CASE("replication/stream: a batch larger than any group costs the replica no memory, but the link") {
  StreamRig rig;
  REQUIRE(rig.connect());
  rig.wire->tamper = [](std::vector<std::byte>& batch) {
    batch.resize(kFrameHeaderBytes + kGroupBytesMax + kEntryAlignment);
  };
  rig.put("a", "1");
  rig.settle();
  REQUIRE(rig.replica_lost.size() == 1);
  CHECK(rig.replica_lost[0].find("more than a group") != std::string::npos);
  CHECK(rig.applier.map.empty());
}

TEST_CASE(
    "replication/stream: whichever replicas stop, as long as c go on writers end, and what was "
    "acknowledged is on as many as were asked for") {
  std::uint64_t dropped = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    Stops stops(static_cast<std::uint32_t>(seed % 3), seed);
    stops.run();
    dropped += stops.dropped();
  }
  CHECK(dropped >= 12);
}
