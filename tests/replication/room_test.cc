#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "stream_rig.h"
#include "taker.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// Bytes that tell where they come from, so that a piece in a wrong place shows.
std::string pattern(std::size_t bytes) {
  std::string value(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) value[i] = static_cast<char>(i * 31 + i / 251);
  return value;
}

Status put_waiting(StreamRig& rig, const std::string& key, const std::string& value, Instant deadline) {
  TL_TRY(rig.primary->wait_for_room(entry_bytes(EntryKind::put, key.size(), value.size()), deadline));
  rig.put(key, value);
  return {};
}

LoopbackOptions late() {
  LoopbackOptions options;
  options.completes_on_release = true;
  return options;
}

std::string filler() { return std::string(6000, 'f'); }

/// Until another filler does not fit.
void fill(StreamRig& rig) {
  const std::string value = filler();
  while (rig.primary->try_append(EntryKind::put, as_bytes("f"), as_bytes(value))) {
  }
}

}  // namespace

TEST_CASE(
    "replication/room: writers that wait are served in order, a small one does not overtake a large one") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  std::vector<std::string> order;
  const std::string filler(6000, 'f');
  while (rig.primary->try_append(EntryKind::put, as_bytes("f"), as_bytes(filler))) {
  }
  const auto writer = [&](const std::string& key, std::size_t bytes) {
    rig.spawn([&rig, &order, key, bytes] {
      CHECK(put_waiting(rig, key, std::string(bytes, 'v'), rig.in(seconds(10))));
      order.push_back(key);
    });
  };
  writer("large", 30'000);
  writer("small1", 10);
  writer("small2", 10);
  rig.turn_primary();
  CHECK(order.empty());
  // Nor does somebody who does not wait at all.
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("rude"), {}).error() == ReplicationErrc::log_full);
  rig.settle();
  CHECK(order == std::vector<std::string>{"large", "small1", "small2"});
  CHECK(rig.primary->stats().log_full_waits == 3);
  CHECK(rig.replica->applied_lsn() == rig.primary->last_lsn());
}

TEST_CASE("replication/room: one who gives up lets those behind it through") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  const auto far = rig.connect_by_hand(options);
  const std::string filler(6000, 'f');
  while (rig.primary->try_append(EntryKind::put, as_bytes("f"), as_bytes(filler))) {
  }
  Status large;
  Status small;
  rig.spawn([&] { large = put_waiting(rig, "large", std::string(30'000, 'v'), rig.in(milliseconds(100))); });
  rig.spawn([&] { small = put_waiting(rig, "small", "v", rig.in(seconds(100))); });
  rig.turn_primary();
  CHECK(rig.primary->last_lsn() == Lsn{10});
  rig.advance(milliseconds(200));
  rig.turn_primary();
  rig.turn_primary();
  REQUIRE_FALSE(large);
  CHECK(large.error() == ReactorErrc::deadline_exceeded);
  CHECK(small);
  CHECK(rig.primary->last_lsn() == Lsn{11});
  rig.primary->close("done");
}

TEST_CASE("replication/room: one who is let in and writes nothing does not hold up the next") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  const std::string filler(6000, 'f');
  while (rig.primary->try_append(EntryKind::put, as_bytes("f"), as_bytes(filler))) {
  }
  bool second = false;
  rig.spawn([&] { CHECK(rig.primary->wait_for_room(20'000, rig.in(seconds(10)))); });
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", std::string(20'000, 'v'), rig.in(seconds(10))));
    second = true;
  });
  rig.settle();
  CHECK(second);
}

TEST_CASE("replication/room: what one gives up lets nobody overtake, and nobody write a part") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  const std::string filler(6000, 'f');
  while (rig.primary->try_append(EntryKind::put, as_bytes("f"), as_bytes(filler))) {
  }
  bool gave_up = false;
  bool last = false;
  rig.spawn([&] {
    REQUIRE(rig.primary->wait_for_room(20'000, rig.in(seconds(10))));
    CHECK(rig.primary->can_append(20'000));
    CHECK_FALSE(rig.primary->can_append(20'008));  // another one waits
    rig.primary->forgo_room();
    CHECK_FALSE(rig.primary->can_append(8));
    CHECK(rig.primary->try_append(EntryKind::put, as_bytes("rude"), {}).error() == ReplicationErrc::log_full);
    gave_up = true;
  });
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", std::string(20'000, 'v'), rig.in(seconds(10))));
    last = true;
  });
  rig.settle();
  CHECK(gave_up);
  CHECK(last);
}

TEST_CASE("replication/room: several entries fit in a row after one wait for all of them") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  const std::string value(700, 'v');
  int ended = 0;
  for (int writer = 0; writer < 5; ++writer) {
    rig.spawn([&] {
      for (int round = 0; round < 20; ++round) {
        const std::uint32_t bytes = entry_bytes(EntryKind::put, 1, value.size());
        REQUIRE(rig.primary->wait_for_room(bytes * 40, rig.in(seconds(100))));
        const Lsn before = rig.primary->last_lsn();
        for (int i = 0; i < 40; ++i) rig.put("k", value);
        CHECK(rig.primary->last_lsn().value == before.value + 40);
      }
      ++ended;
    });
  }
  rig.settle();
  CHECK(ended == 5);
  CHECK(rig.replica->applied_lsn() == Lsn{5 * 20 * 40});
}

TEST_CASE("replication/room: what can never fit is refused with the log's size") {
  StreamRig rig(small_log());
  rig.spawn([&] {
    const Status status = rig.primary->wait_for_room(40'000, rig.in(seconds(1)));
    REQUIRE_FALSE(status);
    CHECK(status.error() == ReplicationErrc::too_large);
    CHECK(status.error().message().find("65536") != std::string::npos);
  });
  rig.settle();
  const std::string large(kEntryBytesMax, 'v');
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(large)).error() ==
        ReplicationErrc::too_large);
}

TEST_CASE("replication/room: a tiny log with a slow receiver loses and reorders nothing") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.slots = 2;
  SUBCASE("bytes are needed until they are copied") {}
  SUBCASE("bytes are needed until the receiver is done") { options.completes_on_release = true; }
  REQUIRE(rig.connect(options));
  Random random(11);
  constexpr int kPuts = 3000;
  int written = 0;
  rig.spawn([&] {
    for (; written < kPuts; ++written) {
      const std::size_t bytes = random.below(written % 20 == 0 ? 30'000 : 500);
      REQUIRE(put_waiting(rig, std::to_string(written), std::string(bytes, 'v'), rig.in(seconds(1000))));
    }
  });
  for (int i = 0; i < 1'000'000 && rig.replica->applied_lsn() < Lsn{kPuts}; ++i) {
    rig.turn_primary();
    if (random.below(3) == 0) rig.turn_replica();
  }
  CHECK(written == kPuts);
  REQUIRE(rig.applier.lsns.size() == kPuts);
  for (std::uint64_t i = 0; i < kPuts; ++i) REQUIRE(rig.applier.lsns[i] == i + 1);
  CHECK(rig.applier.map.size() == kPuts);
}

TEST_CASE(
    "replication/fragments: a put of a megabyte goes through a log of 64 KiB and shows only when whole") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  SUBCASE("bytes are needed until they are copied") {}
  SUBCASE("bytes are needed until the receiver is done") { options.completes_on_release = true; }
  REQUIRE(rig.connect(options));
  const std::string value = pattern(1'000'003);
  Lsn lsn{};
  rig.put("before", "1");
  rig.spawn([&] {
    const auto appended = rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5)));
    REQUIRE(appended);
    lsn = *appended;
    CHECK(rig.primary->wait(lsn, AckLevel::applied, rig.in(seconds(5))));
  });
  for (int i = 0; i < 10'000 && lsn == Lsn{}; ++i) {
    if (rig.replica->applied_lsn() < Lsn{2}) CHECK(rig.applier.map.count("big") == 0);
    if (rig.primary->fragmenting()) CHECK(rig.primary->last_lsn() == Lsn{1});
    rig.turns(1);
  }
  rig.settle();
  CHECK(lsn == Lsn{2});
  CHECK(rig.applier.fragments > 60);
  CHECK(rig.applier.map["big"] == value);
  CHECK(rig.applier.lsns == std::vector<std::uint64_t>{1, 2});
  rig.put("after", "3");
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{3});
}

TEST_CASE("replication/fragments: the largest key, alone and with a value, is cut at any place") {
  StreamRig rig;
  REQUIRE(rig.connect());
  const std::string key = pattern(kKeyBytesMax);
  const std::string other = "x" + pattern(kKeyBytesMax - 1);
  const std::string value = pattern(100'000);
  rig.spawn([&] {
    CHECK(rig.primary->append_fragments(as_bytes(key), {}, rig.in(seconds(5))));
    CHECK(rig.primary->append_fragments(as_bytes(other), as_bytes(value), rig.in(seconds(5))));
    CHECK(rig.primary->append_fragments(as_bytes("tiny"), as_bytes("v"), rig.in(seconds(5))));
    CHECK(rig.primary->append_fragments({}, as_bytes("v"), rig.in(seconds(5))).error() ==
          ReplicationErrc::too_large);
    CHECK(rig.primary->append_fragments(as_bytes(key + "x"), {}, rig.in(seconds(5))).error() ==
          ReplicationErrc::too_large);
  });
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{3});
  CHECK(rig.applier.map.count(key) == 1);
  CHECK(rig.applier.map[key].empty());
  CHECK(rig.applier.map[other] == value);
  CHECK(rig.applier.map["tiny"] == "v");
}

TEST_CASE("replication/fragments: other writers wait until the put is whole, then go in order") {
  StreamRig rig(small_log());
  REQUIRE(rig.connect());
  const std::string value = pattern(500'000);
  std::vector<std::string> order;
  rig.spawn([&] {
    REQUIRE(rig.primary->append_fragments(as_bytes("big1"), as_bytes(value), rig.in(seconds(5))));
    order.emplace_back("big1");
  });
  rig.spawn([&] {
    CHECK(rig.primary->fragmenting());
    CHECK(rig.primary->try_append(EntryKind::put, as_bytes("rude"), {}).error() == ReplicationErrc::log_full);
    REQUIRE(put_waiting(rig, "small", "v", rig.in(seconds(5))));
    order.emplace_back("small");
  });
  rig.spawn([&] {
    REQUIRE(rig.primary->append_fragments(as_bytes("big2"), as_bytes(value), rig.in(seconds(5))));
    order.emplace_back("big2");
  });
  rig.spawn([&] {
    REQUIRE(put_waiting(rig, "last", "v", rig.in(seconds(5))));
    order.emplace_back("last");
  });
  rig.settle();
  CHECK(order == std::vector<std::string>{"big1", "small", "big2", "last"});
  CHECK(rig.replica->applied_lsn() == Lsn{4});
  CHECK(rig.applier.map["big2"] == value);
}

TEST_CASE("replication/fragments: nobody gets in between two pieces, however much room there is") {
  StreamRig rig;
  REQUIRE(rig.connect());
  const std::string value = pattern(300'000);
  Result<Lsn> big = ReplicationErrc::log_full;
  Result<Lsn> rude = ReplicationErrc::log_full;
  bool second_ran = false;
  rig.spawn(
      [&] { big = rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5))); });
  rig.spawn([&] {
    REQUIRE(rig.primary->fragmenting());
    REQUIRE(rig.primary->log().fits(100));
    rude = rig.primary->try_append(EntryKind::put, as_bytes("rude"), {});
    second_ran = true;
  });
  rig.settle();
  CHECK(second_ran);
  CHECK(big);
  REQUIRE_FALSE(rude);
  CHECK(rude.error() == ReplicationErrc::log_full);
  CHECK(rig.applier.map["big"] == value);
}

TEST_CASE("replication/fragments: half a put that was sent cannot be acknowledged") {
  StreamRig rig;
  LoopbackOptions options;
  options.slots = 1;
  const auto far = rig.connect_by_hand(options);
  const std::string value = pattern(300'000);
  rig.spawn(
      [&] { CHECK(rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5)))); });
  for (int i = 0; i < 10; ++i) rig.turn_primary();
  CHECK(rig.primary->last_lsn() == Lsn{1});
  ControlFrame frame;
  frame.history = kHistory;
  frame.epoch = kEpoch;
  frame.received_lsn = {1};
  REQUIRE(far->send_control(frame));
  rig.turn_primary();
  CHECK(rig.primary->replicas() == 0);
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::received));
}

TEST_CASE("replication/fragments: a deadline before the first piece writes nothing") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  const auto far = rig.connect_by_hand(options);
  const std::string filler(30'000, 'f');
  while (rig.primary->try_append(EntryKind::put, as_bytes("f"), as_bytes(filler))) {
  }
  const Lsn before = rig.primary->last_lsn();
  const std::string value = pattern(200'000);
  bool ended = false;
  rig.spawn([&] {
    const auto appended =
        rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(milliseconds(50)));
    REQUIRE_FALSE(appended);
    CHECK(appended.error() == ReactorErrc::deadline_exceeded);
    ended = true;
  });
  rig.turn_primary();
  rig.advance(milliseconds(60));
  rig.turn_primary();
  CHECK(ended);
  CHECK_FALSE(rig.primary->fragmenting());
  CHECK(rig.primary->last_lsn() == before);
  rig.primary->close("done");
}

TEST_CASE("replication/fragments: after the first piece a frozen replica is dropped and the put completed") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  rig.settle();
  const std::string value = pattern(400'000);
  bool ended = false;
  rig.spawn([&] {
    CHECK(rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(milliseconds(50))));
    ended = true;
  });
  for (int i = 0; i < 2; ++i) rig.turns(1);  // some pieces arrive, then the replica freezes
  for (int i = 0; i < 1000 && !ended; ++i) {
    rig.advance(milliseconds(10));
    rig.turn_primary();
  }
  CHECK(ended);
  CHECK(rig.primary->last_lsn() == Lsn{1});
  CHECK(rig.primary->replicas() == 0);
  // The replica wakes up to a closed link. Expect: it forgets the half that it has.
  rig.settle();
  CHECK(rig.applier.map.empty());
  CHECK(rig.applier.half_abandoned == 1);
  CHECK(rig.applier.assembly.empty());
}

TEST_CASE(
    "replication/fragments: a cancelled writer drops the links and still leaves no half entry in the log") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  rig.settle();
  const std::string value = pattern(400'000);
  auto writer = rig.primary_side.reactor->spawn("writer", [&] {
    return rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5))).has_value();
  });
  REQUIRE(writer);
  for (int i = 0; i < 4; ++i) rig.turn_primary();
  CHECK(rig.primary->fragmenting());
  writer->cancel();
  rig.settle();
  CHECK(writer->finished());
  CHECK_FALSE(rig.primary->fragmenting());
  CHECK(rig.primary->last_lsn() == Lsn{1});
  CHECK(rig.applier.map.empty());
  REQUIRE(rig.primary_lost.size() == 1);
  CHECK(rig.primary_lost[0].find("cancelled half way") != std::string::npos);
  writer->detach();
}

TEST_CASE("replication/fragments: a cancelled writer outlasts links that are not drained at once") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  rig.settle();
  rig.wire->polls_to_drain = 1000;
  const std::string value = pattern(400'000);
  auto writer = rig.primary_side.reactor->spawn("writer", [&] {
    return rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5))).has_value();
  });
  REQUIRE(writer);
  for (int i = 0; i < 4; ++i) rig.turn_primary();
  CHECK(rig.primary->fragmenting());
  writer->cancel();
  rig.settle();
  CHECK(writer->finished());
  CHECK(rig.wire->polls_to_drain == 0);
  CHECK(rig.primary->last_lsn() == Lsn{1});
  writer->detach();
}

TEST_CASE("replication/fragments: a replica that lost its link amid a put gets all of it again") {
  PrimaryOptions primary_options;
  primary_options.log_bytes = 1 << 20;
  StreamRig rig(primary_options);
  LoopbackOptions options;
  options.slots = 1;
  REQUIRE(rig.connect(options));
  rig.put("before", "1");
  rig.settle();
  const std::string value = pattern(300'000);
  rig.spawn(
      [&] { CHECK(rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5)))); });
  while (rig.applier.fragments < 3) rig.turns(1);
  rig.replica->close("on purpose");
  CHECK(rig.applier.half_abandoned == 1);
  rig.settle();
  CHECK(rig.applier.map.count("big") == 0);
  CHECK(rig.replica->applied_lsn() == Lsn{1});
  REQUIRE(rig.connect(options));
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{2});
  CHECK(rig.applier.map["big"] == value);
}

// ---- several replicas, with c ---------------------------------------------------------------------------

TEST_CASE(
    "replication/room: a stopped replica is dropped at the ring's end while c others keep up, and no "
    "append waits") {
  StreamRig rig(small_log(1));
  const auto stopped = rig.connect_by_hand(late());
  Taker moving(rig, late());
  constexpr int kPuts = 100;
  int written = 0;
  const std::string value(3000, 'v');
  // Time stands still: nobody is silent, one is only behind.
  for (int i = 0; i < kPuts; ++i) {
    rig.spawn([&] {
      CHECK(put_waiting(rig, "k", value, rig.in(seconds(60))));
      ++written;
    });
    rig.turn_primary();
    moving.turn();
  }
  moving.turn();
  CHECK(written == kPuts);
  CHECK(rig.primary->stats().log_full_waits == 0);
  CHECK(rig.primary->stats().backlog_drops == 1);
  CHECK(rig.primary->replicas() == 1);
  CHECK(moving.last == Lsn{kPuts});
  REQUIRE(rig.primary_lost.size() == 1);
  CHECK(rig.primary_lost[0].find("others are at least half of the log ahead of it") != std::string::npos);
}

TEST_CASE("replication/room: with c = 1 and only a slow one left the writer waits, by its deadline") {
  StreamRig rig(small_log(1));
  const auto slow = rig.connect_by_hand(late());
  fill(rig);
  Status hasty;
  Status patient;
  bool ended = false;
  rig.spawn([&] {
    hasty = put_waiting(rig, "k", filler(), rig.in(milliseconds(500)));
    patient = put_waiting(rig, "k", filler(), rig.in(seconds(60)));
    ended = true;
  });
  for (int i = 0; i < 20; ++i) {
    rig.advance(milliseconds(50));
    REQUIRE(slow->send_control(acknowledgement(0, 0)));
    rig.turns(1);
  }
  REQUIRE_FALSE(hasty);
  CHECK(hasty.error() == ReactorErrc::deadline_exceeded);
  CHECK_FALSE(ended);
  CHECK(rig.primary->replicas() == 1);
  REQUIRE(slow->receive());
  slow->release();
  rig.turns(2);
  CHECK(ended);
  CHECK(patient);
  CHECK(rig.primary->stats().backlog_drops == 0);
}

TEST_CASE("replication/room: without c a slow replica holds writers up although another keeps up") {
  StreamRig rig(small_log());
  const auto slow = rig.connect_by_hand(late());
  Taker moving(rig, late());
  fill(rig);
  bool ended = false;
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))));
    ended = true;
  });
  for (int i = 0; i < 10; ++i) {
    rig.advance(milliseconds(50));
    REQUIRE(slow->send_control(acknowledgement(0, 0)));
    rig.turns(1);
    moving.turn();
  }
  CHECK_FALSE(ended);
  CHECK(rig.primary->replicas() == 2);
  REQUIRE(slow->receive());
  slow->release();
  rig.turns(2);
  CHECK(ended);
}

TEST_CASE("replication/room: a burst that outruns all replicas alike drops none") {
  StreamRig rig(small_log(1));
  Taker first(rig, late());
  Taker second(rig, late());
  int written = 0;
  rig.spawn([&] {
    for (; written < 200; ++written)
      REQUIRE(put_waiting(rig, "k", std::string(3000, 'v'), rig.in(seconds(60))));
  });
  for (int i = 0; i < 1000 && written < 200; ++i) {
    rig.turn_primary();
    first.turn();
    second.turn();
  }
  CHECK(written == 200);
  CHECK(rig.primary->replicas() == 2);
  CHECK(rig.primary->stats().backlog_drops == 0);
}

TEST_CASE("replication/room: one that has fallen silent is no reason to drop another") {
  StreamRig rig(small_log(1));
  const auto slow = rig.connect_by_hand(late());
  Taker other(rig, late());
  bool ended = false;
  fill(rig);
  rig.turns(1);
  other.turn();
  // The other has all, but then says nothing for two heartbeats.
  for (int i = 0; i < 25; ++i) {
    rig.advance(milliseconds(10));
    REQUIRE(slow->send_control(acknowledgement(0, 0)));
    rig.turns(1);
  }
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))));
    ended = true;
  });
  for (int i = 0; i < 20; ++i) rig.turns(1);
  CHECK_FALSE(ended);
  CHECK(rig.primary->replicas() == 2);
  // It speaks again. Expect: it is enough, the one in the way goes, at once.
  other.turn();
  rig.turns(2);
  CHECK(ended);
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.primary->stats().backlog_drops == 1);
}

namespace {

/// Behind by as many entries of 2 KiB as it has not taken; all of the log is 32 of them.
struct Behind {
  Behind(StreamRig& rig, std::uint32_t node) {
    LoopbackOptions options = late();
    options.slots = 64;
    far = rig.connect_by_hand(options, {}, node);
  }
  void take(int entries) {
    for (; entries > 0; --entries) {
      REQUIRE(far->receive());
      far->release();
      ++taken;
    }
    speak();
  }
  void speak() { REQUIRE(far->send_control(acknowledgement(taken, taken))); }
  std::unique_ptr<LoopbackLink> far;
  std::uint64_t taken = 0;
};

void put_entries(StreamRig& rig, int count) {
  for (int i = 0; i < count; ++i) {
    rig.put("k", std::string(2048 - kEntryHeaderBytes - 8, 'v'));
    rig.turn_primary();
  }
}

}  // namespace

TEST_CASE("replication/room: none is dropped if another, who may not be, still stands in the way") {
  StreamRig rig(small_log(1));
  Behind last(rig, 2);
  Behind middle(rig, 3);
  Behind first(rig, 4);
  put_entries(rig, 30);
  middle.take(13);
  first.take(28);
  rig.turns(1);
  // Half of the log is asked for. The first is half of the log ahead of the last, but not of the middle one.
  bool let_in = false;
  rig.spawn([&] {
    CHECK(rig.primary->wait_for_room(32 * 1024, rig.in(seconds(60))));
    let_in = true;
  });
  for (int i = 0; i < 5; ++i) rig.turns(1);
  CHECK_FALSE(let_in);
  CHECK(rig.primary->replicas() == 3);
  // The middle one catches up. Expect: now it helps that the last one goes.
  middle.take(10);
  rig.turns(2);
  CHECK(let_in);
  CHECK(rig.primary->replicas() == 2);
  CHECK(rig.primary->stats().backlog_drops == 1);
}

TEST_CASE("replication/room: none is dropped for a closed link that still reads the log") {
  StreamRig rig(small_log(1));
  Behind last(rig, 2);
  rig.wire->polls_to_drain = 4;
  Behind behind(rig, 3);
  Behind first(rig, 4);
  put_entries(rig, 30);
  first.take(30);
  last.far->close("gone");
  rig.turns(1);
  CHECK(rig.primary->replicas() == 2);
  rig.spawn([&] { CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60)))); });
  rig.turns(1);
  CHECK(rig.primary->stats().backlog_drops == 0);
  for (int i = 0; i < 5; ++i) rig.turns(1);
  CHECK(rig.primary->stats().backlog_drops == 1);
}

TEST_CASE("replication/room: who is waited for is not dropped, until nobody waits for so many any more") {
  StreamRig rig(small_log(1));
  Behind slow(rig, 2);
  Behind second(rig, 3);
  Behind third(rig, 4);
  Status outcome;
  rig.spawn([&] { outcome = rig.primary->wait(Lsn{1}, AckLevel::applied, rig.in(milliseconds(150)), 3); });
  put_entries(rig, 30);
  second.take(30);
  third.take(30);
  rig.turns(1);
  bool written = false;
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))));
    written = true;
  });
  const auto pass = [&] {
    for (int i = 0; i < 10; ++i) {
      rig.advance(milliseconds(10));
      for (Behind* each : {&slow, &second, &third}) {
        if (!each->far->close_reason().empty()) continue;
        each->speak();
      }
      rig.turns(1);
    }
  };
  pass();
  CHECK_FALSE(written);
  CHECK(rig.primary->replicas() == 3);
  pass();
  CHECK(outcome.error() == ReplicationErrc::outcome_unknown);
  CHECK(written);
  CHECK(rig.primary->replicas() == 2);
}

TEST_CASE("replication/room: who speaks as seldom as its own heartbeat says keeps up all the same") {
  StreamRig rig(small_log(1));
  Behind seldom(rig, 2);
  Behind often(rig, 3);
  for (int i = 1; i <= 30; ++i) {
    rig.advance(milliseconds(50));
    if (i % 8 == 0) seldom.speak();
    often.speak();
    rig.turns(1);
  }
  // Its last word is 300 ms old when a burst fills the log; the other is ahead of it by less than half.
  put_entries(rig, 30);
  often.take(6);
  rig.turns(1);
  bool written = false;
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))));
    written = true;
  });
  rig.turns(3);
  CHECK_FALSE(written);
  CHECK(rig.primary->replicas() == 2);
  // Silent for more than twice its own pause. Expect: gone, and the reason is the true one.
  for (int i = 0; i < 14; ++i) {
    rig.advance(milliseconds(50));
    if (i % 3 == 0) often.take(1);
    rig.turns(1);
  }
  CHECK(written);
  REQUIRE(rig.primary_lost.size() == 1);
  const bool true_reason =
      rig.primary_lost[0].find("took or said nothing for two heartbeats") != std::string::npos;
  CHECK_MESSAGE(true_reason, rig.primary_lost[0]);
}

TEST_CASE("replication/room: with c = 0 a lone replica that takes nothing for two heartbeats goes") {
  StreamRig rig(small_log(0));
  LoopbackOptions options;
  options.slots = 1;
  const auto frozen = rig.connect_by_hand(options);
  fill(rig);
  rig.turns(1);
  fill(rig);
  Instant written{};
  const Instant start = rig.primary_side.clock.now();
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))));
    written = rig.primary_side.clock.now();
  });
  for (int i = 0; i < 100 && written == Instant{}; ++i) {
    rig.turn_primary();
    rig.advance(milliseconds(10));
  }
  CHECK(written - start >= milliseconds(200));
  CHECK(written - start <= milliseconds(300));
  CHECK(rig.primary->replicas() == 0);
  rig.put("k", "v");
}

TEST_CASE("replication/room: a primary that stood still itself drops nobody who takes what it is offered") {
  StreamRig rig(small_log(0));
  LoopbackOptions options;
  options.slots = 1;
  REQUIRE(rig.connect(options));
  rig.settle();
  fill(rig);
  rig.turn_primary();
  fill(rig);  // the only slot is taken, the log full
  bool ended = false;
  rig.spawn([&] {
    CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(600))));
    ended = true;
  });
  rig.turn_primary();
  rig.turn_replica();
  rig.replica_side.clock.advance(seconds(2));
  rig.turn_replica();
  rig.primary_side.clock.advance(seconds(60));
  rig.settle();
  CHECK(ended);
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.replica->applied_lsn() == rig.primary->last_lsn());
}

TEST_CASE("replication/room: who waits for room hears when fewer than c are left") {
  StreamRig rig(small_log(1));
  const auto slow = rig.connect_by_hand(late());
  fill(rig);
  std::vector<std::string> heard;
  for (const char* name : {"first", "second"}) {
    rig.spawn([&, name] {
      CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))).error() == ReplicationErrc::no_replica);
      heard.emplace_back(name);
    });
  }
  rig.turns(1);
  const Lsn last = rig.primary->last_lsn();
  slow->close("gone");
  rig.turns(2);
  CHECK(heard == std::vector<std::string>{"first", "second"});
  CHECK(rig.primary->last_lsn() == last);
}

TEST_CASE("replication/room: close wakes who waits for room") {
  std::optional<std::uint32_t> c;
  SUBCASE("without c") {}
  SUBCASE("with c") { c = 1; }
  StreamRig rig(small_log(c));
  const auto slow = rig.connect_by_hand(late());
  rig.wire->polls_to_drain = 1'000'000;  // the log's bytes are needed for long after it
  fill(rig);
  std::vector<std::string> heard;
  for (const char* name : {"first", "second"}) {
    rig.spawn([&, name] {
      CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))).error() == ReactorErrc::closed);
      heard.emplace_back(name);
      // Nor does it wait again.
      CHECK(put_waiting(rig, "k", filler(), rig.in(seconds(60))).error() == ReactorErrc::closed);
      heard.emplace_back(name);
    });
  }
  rig.turns(1);
  CHECK(heard.empty());
  rig.primary->close("done");
  rig.turns(2);
  std::sort(heard.begin(), heard.end());
  CHECK(heard == std::vector<std::string>{"first", "first", "second", "second"});
  rig.wire->polls_to_drain = 0;
}

TEST_CASE("replication/room: a closed primary appends nothing") {
  std::optional<std::uint32_t> c;
  SUBCASE("without c") {}
  SUBCASE("with c = 0") { c = 0; }
  StreamRig rig(small_log(c));
  REQUIRE(rig.connect());
  rig.put("key", "before");
  const Lsn last = rig.primary->last_lsn();
  rig.primary->close("done");
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("key"), {}).error() == ReactorErrc::closed);
  bool ran = false;
  rig.spawn([&] {
    CHECK(rig.primary->wait_for_room(100, rig.in(seconds(60))).error() == ReactorErrc::closed);
    CHECK(rig.primary->append_fragments(as_bytes("big"), as_bytes(filler()), rig.in(seconds(60))).error() ==
          ReactorErrc::closed);
    ran = true;
  });
  rig.turns(2);
  CHECK(ran);
  CHECK(rig.primary->last_lsn() == last);
}

TEST_CASE("replication/fragments: close ends a put that is half in") {
  LoopbackOptions options;
  bool waits_for_room = false;
  SUBCASE("between two turns") {}
  SUBCASE("which waits for room, of a link that still reads the log") {
    options = late();
    waits_for_room = true;
  }
  StreamRig rig(waits_for_room ? small_log() : StreamRig::one_mebibyte());
  const auto slow = rig.connect_by_hand(options);
  if (waits_for_room) rig.wire->polls_to_drain = 1'000'000;
  const std::string value = pattern(500'000);
  Result<Lsn> put = ReplicationErrc::log_full;
  bool ended = false;
  rig.spawn([&] {
    put = rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(60)));
    ended = true;
  });
  bool amid = false;
  std::uint64_t end = 0;
  rig.spawn([&] {
    amid = rig.primary->fragmenting();
    rig.primary->close("done");
    end = rig.primary->log().end();
  });
  for (int i = 0; i < 20 && !ended; ++i) rig.turn_primary();
  REQUIRE(ended);
  CHECK(amid);
  REQUIRE_FALSE(put);
  CHECK(put.error() == ReactorErrc::closed);
  CHECK_FALSE(rig.primary->fragmenting());
  CHECK(rig.primary->log().end() == end);
  rig.wire->polls_to_drain = 0;
}

TEST_CASE("replication/fragments: a stopped replica does not hold a large put up while c others take it") {
  StreamRig rig(small_log(1));
  const auto stopped = rig.connect_by_hand(late());
  Taker moving(rig, late());
  const std::string value = pattern(400'000);
  bool ended = false;
  rig.spawn([&] {
    CHECK(rig.primary->append_fragments(as_bytes("big"), as_bytes(value), rig.in(seconds(5))));
    ended = true;
  });
  for (int i = 0; i < 200 && !ended; ++i) {
    rig.turn_primary();
    moving.turn();
  }
  CHECK(ended);
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.primary->stats().backlog_drops == 1);
}
