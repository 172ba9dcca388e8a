// A primary and its replicas in one process, joined by the shm link.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>
#include <tidelock/replication/replica.h>
#include <tidelock/replication/shm.h>

#include "engine/engine_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

std::string events(const Engine& engine) {
  std::string text;
  for (const std::string& line : engine.stats().events) text += line + "\n";
  return text;
}

}  // namespace

TEST_SUITE_BEGIN("engine/replication");

TEST_CASE("after an applied write no read at the replica returns an older state") {
  Pair pair(2);
  std::string value;
  for (int i = 0; i < kMany; ++i) {
    const std::string key = "key" + std::to_string(i % 50);
    const auto receipt = pair.primary->put(key, std::to_string(i), {AckLevel::applied, kPatience});
    REQUIRE(receipt.has_value());
    const auto lsn = pair.replica->get(key, value);
    REQUIRE(lsn.has_value());
    CHECK(*lsn >= receipt->lsn);
    CHECK(value == std::to_string(i));
  }
  CHECK(pair.primary->link_count() == 2);
  CHECK(pair.replica->link_count() == 2);
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("a read with min_lsn waits until the receipt's write is visible") {
  Pair pair;
  std::string value;
  for (const AckLevel ack : {AckLevel::local, AckLevel::received}) {
    for (int i = 0; i < kMany; ++i) {
      const auto receipt = pair.primary->put("key", std::to_string(i), {ack, kPatience});
      REQUIRE(receipt.has_value());
      const auto lsn = pair.replica->get("key", value, ReadOptions::after(*receipt, kPatience));
      REQUIRE(lsn.has_value());
      CHECK(*lsn >= receipt->lsn);
      CHECK(value == std::to_string(i));
    }
  }
  in_fiber(*pair.replica, {0}, [&] {
    const Lsn last = pair.replica->visible_lsn({0});
    CHECK(pair.replica->get("key", value, {last, {}, {}, kPatience}).has_value());
  });
}

TEST_CASE("a read of what never comes ends at its deadline, one of another epoch at once") {
  Pair pair;
  std::string value;
  const auto receipt = pair.primary->put("key", "value", {AckLevel::applied, kPatience});
  REQUIRE(receipt.has_value());
  const Lsn future{receipt->lsn.value + 1000};
  CHECK(pair.replica->get("key", value, {future, {}, {}, milliseconds(30)}).error() ==
        ReactorErrc::deadline_exceeded);
  in_fiber(*pair.replica, {0}, [&] {
    CHECK(pair.replica->get("key", value, {future, {}, {}, milliseconds(30)}).error() ==
          ReactorErrc::deadline_exceeded);
  });
  CHECK(pair.replica->get("key", value, {receipt->lsn, {}, {7, 7}, kPatience}).error() ==
        EngineErrc::history_lost);
  CHECK(pair.primary->get("key", value, {future, {}, {}, kPatience}).error() == EngineErrc::history_lost);
  CHECK(pair.primary->get("key", value, ReadOptions::after(*receipt, kPatience)).has_value());
}

TEST_CASE("a receipt from before both nodes were opened anew is of a lost history") {
  Receipt old;
  Receipt last;
  const std::string path = unique_path();
  {
    Pair pair(primary_options(path), replica_options(path));
    const auto receipt = pair.primary->put("key", "old", {AckLevel::applied, kPatience});
    REQUIRE(receipt.has_value());
    old = *receipt;
  }
  Pair pair(primary_options(path), replica_options(path));
  for (int i = 0; i < 10; ++i) {
    const auto receipt = pair.primary->put("key", "new", {AckLevel::applied, kPatience});
    REQUIRE(receipt.has_value());
    last = *receipt;
  }
  // Expect: epoch and LSN alone cannot tell, the history can, and both are named.
  CHECK(old.epoch == last.epoch);
  REQUIRE(old.history != last.history);
  const auto lost = [&](const Error& error) {
    CHECK(error == EngineErrc::history_lost);
    CHECK(error.message().find(std::to_string(old.history.value)) != std::string::npos);
    CHECK(error.message().find(std::to_string(last.history.value)) != std::string::npos);
  };
  for (Engine* node : {pair.primary.get(), pair.replica.get()}) {
    const auto look = [&] {
      std::string value;
      const auto read = node->get("key", value, ReadOptions::after(old, kPatience));
      REQUIRE(!read.has_value());
      lost(read.error());
      CHECK(node->get("key", value, ReadOptions::after(last, kPatience)).has_value());
    };
    look();
    in_fiber(*node, {0}, look);
  }
  const auto wait = [&] {
    const Status waited = pair.primary->wait(old, AckLevel::applied, kPatience);
    REQUIRE(!waited.has_value());
    lost(waited.error());
    CHECK(pair.primary->wait(last, AckLevel::applied, kPatience).has_value());
  };
  wait();
  in_fiber(*pair.primary, {0}, wait);
}

TEST_CASE("a replica refuses writes and says where they go") {
  Pair pair;
  CHECK(pair.replica->put("key", "value").error() == EngineErrc::read_only);
  CHECK(pair.replica->erase("key").error() == EngineErrc::read_only);
  WriteBatch batch;
  batch.put("key", "value");
  CHECK(pair.replica->write(batch, {AckLevel::local, kPatience}).error() == EngineErrc::read_only);
  in_fiber(*pair.replica, {0},
           [&] { CHECK(pair.replica->put("key", "v").error() == EngineErrc::read_only); });
}

TEST_CASE("erases, batches, large keys and large values arrive whole") {
  Pair pair(2);
  const std::string large = pattern(2'500'000, 4);
  const std::string long_key = pattern(64 * 1024, 5);
  REQUIRE(pair.primary->put("large", large, {AckLevel::applied, kPatience}).has_value());
  REQUIRE(pair.primary->put(long_key, large, {AckLevel::applied, kPatience}).has_value());
  REQUIRE(pair.primary->put(std::string("\0", 1), "", {AckLevel::applied, kPatience}).has_value());
  WriteBatch batch;
  for (int i = 0; i < 100; ++i) batch.put("batch" + std::to_string(i), pattern(100, 1));
  batch.erase("batch3");
  REQUIRE(pair.primary->write(batch, {AckLevel::applied, kPatience}).has_value());
  std::string value;
  REQUIRE(pair.replica->get("large", value).has_value());
  CHECK((value == large));
  REQUIRE(pair.replica->get(long_key, value).has_value());
  CHECK((value == large));
  REQUIRE(pair.replica->get(std::string("\0", 1), value).has_value());
  CHECK(value.empty());
  CHECK(pair.replica->get("batch3", value).error() == EngineErrc::not_found);
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("the smallest log and rings carry values far larger than both") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.log_bytes = 64 << 10;
  of_primary.ring_entries = 8;
  Options of_replica = replica_options(path);
  of_replica.ring_entries = 8;
  Pair pair(of_primary, of_replica);
  const std::string large = pattern(4 << 20, 6);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(pair.primary->put("large", large, {AckLevel::applied, kPatience}).has_value());
    for (int i = 0; i < 200; ++i) {
      REQUIRE(pair.primary->put("key" + std::to_string(i), pattern(2000, 1), {AckLevel::local, kPatience})
                  .has_value());
    }
  }
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("one fiber pipelines its puts and waits for the last") {
  Pair pair;
  in_fiber(*pair.primary, {0}, [&] {
    Receipt last;
    for (int i = 0; i < kMany; ++i) {
      const auto receipt =
          pair.primary->put("key" + std::to_string(i), "value", {AckLevel::local, kPatience});
      REQUIRE(receipt.has_value());
      last = *receipt;
    }
    CHECK(pair.primary->wait(last, AckLevel::applied, kPatience).has_value());
    CHECK(pair.replica->visible_lsn({0}) >= last.lsn);
  });
  CHECK(pair.primary->wait({{0}, {}, {}, pair.primary->visible_lsn({0})}, AckLevel::received, kPatience)
            .has_value());
  CHECK(pair.primary->wait({{0}, {}, {9, 9}, Lsn{1}}, AckLevel::applied, kPatience).error() ==
        EngineErrc::history_lost);
  CHECK(pair.primary->wait({{0}, {}, {}, Lsn{1ULL << 40}}, AckLevel::applied, kPatience).error() ==
        EngineErrc::history_lost);
  CHECK(pair.primary->wait({{1}, {}, {}, Lsn{1}}, AckLevel::applied, kPatience).error() ==
        EngineErrc::wrong_shard);
}

TEST_CASE("fibers of other cores and host threads write through to the replica together") {
  Pair pair(2);
  std::atomic<int> failed{0};
  std::atomic<int> ended{0};
  for (std::uint16_t core = 0; core < 2; ++core) {
    for (int fiber = 0; fiber < 8; ++fiber) {
      REQUIRE(pair.primary
                  ->spawn_on({core},
                             [&, core, fiber] {
                               for (int i = 0; i < kMany / 20; ++i) {
                                 const std::string key =
                                     std::to_string(core * 100 + fiber) + "/" + std::to_string(i);
                                 if (!pair.primary->put(key, key, {AckLevel::applied, kPatience})) ++failed;
                               }
                               ++ended;
                             })
                  .has_value());
    }
  }
  for (int i = 0; i < kMany / 20; ++i) {
    if (!pair.primary->put("host" + std::to_string(i), "v", {AckLevel::applied, kPatience})) ++failed;
  }
  CHECK(eventually([&] { return ended == 16; }));
  CHECK(failed == 0);
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("without a replica an acknowledged write is refused before anything is written") {
  const auto primary = open(primary_options(unique_path()));
  CHECK(primary->put("key", "value", {AckLevel::applied, kPatience}).error() == ReplicationErrc::no_replica);
  CHECK(primary->put("key", pattern(200'000, 1), {AckLevel::received, kPatience}).error() ==
        ReplicationErrc::no_replica);
  in_fiber(*primary, {0},
           [&] { CHECK(primary->put("key", "value").error() == ReplicationErrc::no_replica); });
  CHECK(primary->visible_lsn({0}) == Lsn{});
  CHECK(primary->put("key", "value", {AckLevel::local, kPatience}).has_value());
}

TEST_CASE("when the replica goes the primary says so and goes on") {
  Pair pair;
  REQUIRE(pair.primary->put("key", "one", {AckLevel::applied, kPatience}).has_value());
  REQUIRE(pair.replica->close(kPatience).has_value());
  // The event comes later in the turn that ends the count.
  CHECK(eventually(
      [&] { return pair.primary->link_count() == 0 && has_event(*pair.primary, "lost a replica"); }));
  CHECK(pair.primary->put("key", "two", {AckLevel::applied, kPatience}).error() ==
        ReplicationErrc::no_replica);
  CHECK(pair.primary->put("key", "three", {AckLevel::local, kPatience}).has_value());
  // A new replica starts from nothing; the log still holds all.
  const auto next = open(replica_options(pair.path));
  REQUIRE(pair.primary->put("key", "four", {AckLevel::applied, kPatience}).has_value());
  check_equal(*pair.primary, *next);
}

TEST_CASE("a write whose acknowledgement does not come has an unknown outcome, not a failed one") {
  Pair pair;
  REQUIRE(pair.primary->put("key", "one", {AckLevel::applied, kPatience}).has_value());
  // The replica's core stands still.
  Standstill standstill(*pair.replica, {0});
  CHECK(pair.primary->put("key", "two", {AckLevel::applied, milliseconds(50)}).error() ==
        ReplicationErrc::outcome_unknown);
  in_fiber(*pair.primary, {0}, [&] {
    CHECK(pair.primary->put("key", "three", {AckLevel::received, milliseconds(50)}).error() ==
          ReplicationErrc::outcome_unknown);
  });
  // The caller may be back before the shard has counted.
  CHECK(eventually([&] { return pair.primary->stats().shards[0].outcome_unknown == 2; }));
  standstill.release();
  CHECK(pair.primary->put("key", "four", {AckLevel::applied, kPatience}).has_value());
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("a log full of what a replica has not taken refuses the next write by its deadline") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.log_bytes = 64 << 10;
  Pair pair(of_primary, replica_options(path));
  Standstill standstill(*pair.replica, {0});
  // The shard's own answer, however late: a caller that waits for it leaves a little after the deadline.
  struct Answer {
    std::atomic<bool> came{false};
    Result<Receipt> result = EngineErrc::busy;
  };
  const auto put = [&](int number) {
    Answer answer;
    const auto take = [](void* context, const Result<Receipt>& result) {
      auto& self = *static_cast<Answer*>(context);
      self.result = result;
      self.came = true;
    };
    REQUIRE(pair.primary
                ->put_async("key" + std::to_string(number), pattern(4000, 1),
                            {AckLevel::local, milliseconds(100)}, take, &answer)
                .has_value());
    while (!answer.came) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return answer.result;
  };
  Result<Receipt> last = EngineErrc::busy;
  int written = 0;
  while (written < 1000 && (last = put(written))) ++written;
  REQUIRE(!last.has_value());
  CHECK(last.error() == ReplicationErrc::log_full);
  CHECK(last.error().message().find("65536") != std::string::npos);
  CHECK(pair.primary->visible_lsn({0}).value == static_cast<std::uint64_t>(written));
  standstill.release();
  CHECK(pair.primary->put("key", "value", {AckLevel::applied, kPatience}).has_value());
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("when the primary goes the replica says so and its readers go on") {
  Pair pair;
  REQUIRE(pair.primary->put("key", "value", {AckLevel::applied, kPatience}).has_value());
  REQUIRE(pair.primary->close(kPatience).has_value());
  CHECK(eventually(
      [&] { return pair.replica->link_count() == 0 && has_event(*pair.replica, "lost the primary"); }));
  std::string value;
  REQUIRE(pair.replica->get("key", value).has_value());
  CHECK(value == "value");
  // A new primary at the same place has a history of its own, which is not ours.
  pair.primary.reset();
  const auto other = open(primary_options(pair.path));
  CHECK(eventually([&] { return has_event(*pair.replica, "given up"); }));
  CHECK(has_event(*other, "refused"));
  CHECK(pair.replica->get("key", value).has_value());
  CAPTURE(events(*pair.replica));
}

TEST_CASE("a replica with another shard count is refused, and both values are named") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path, 1));
  const auto replica = Engine::open(replica_options(path, 2));
  REQUIRE(!replica.has_value());
  CHECK(replica.error() == ReplicationErrc::refused);
  const std::string message = replica.error().message();
  CAPTURE(message);
  CHECK(message.find('1') != std::string::npos);
  CHECK(message.find('2') != std::string::npos);
  CHECK(message.find(path) != std::string::npos);
  CHECK(has_event(*primary, "refused"));
}

TEST_CASE("a replica that takes smaller values than the primary's is refused") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path));
  Options small = replica_options(path);
  small.value_bytes_max = 1000;
  const auto replica = Engine::open(small);
  REQUIRE(!replica.has_value());
  CHECK(replica.error() == ReplicationErrc::refused);
  CHECK(replica.error().message().find("1000") != std::string::npos);
}

TEST_CASE("a replica whose start the log no longer holds gets a snapshot, and then the stream") {
  const std::string path = unique_path();
  Options options = primary_options(path, 2);
  options.log_bytes = 64 << 10;
  const auto primary = open(options);
  for (int i = 0; i < 400; ++i)
    REQUIRE(primary->put("key" + std::to_string(i), pattern(2000, i), {AckLevel::local, kPatience}));
  for (int i = 0; i < 3; ++i)
    REQUIRE(primary->put("large" + std::to_string(i), pattern(300'000, i), {AckLevel::local, kPatience}));
  for (int i = 0; i < 400; i += 3)
    REQUIRE(primary->erase("key" + std::to_string(i), {AckLevel::local, kPatience}));
  const auto replica = open(replica_options(path, 2));
  // It is open once it is whole: a write that asks for an acknowledgement gets it.
  std::string value;
  for (int i = 0; i < 20; ++i) {
    const std::string key = "key" + std::to_string(i);
    REQUIRE(primary->put(key, std::to_string(i), {AckLevel::applied, kPatience}));
    REQUIRE(replica->get(key, value));
    CHECK(value == std::to_string(i));
  }
  check_equal(*primary, *replica);
  CHECK(replica->get("large1", value));
  CHECK(value == pattern(300'000, 1));
}

TEST_CASE("a replica gets its snapshot while others write, and misses nothing") {
  const std::string path = unique_path();
  Options options = primary_options(path);
  options.log_bytes = 256 << 10;
  const auto primary = open(options);
  for (int i = 0; i < 2'000; ++i)
    REQUIRE(primary->put("key" + std::to_string(i), pattern(500, i), {AckLevel::local, kPatience}));
  std::jthread writer([&](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) {
      const std::string key = "key" + std::to_string(i * 7 % 2'500);
      const WriteOptions local{AckLevel::local, kPatience};
      const bool written = i % 5 == 0    ? primary->erase(key, local).has_value()
                           : i % 97 == 0 ? primary->put(key, pattern(100'000, i), local).has_value()
                                         : primary->put(key, pattern(i % 900, i), local).has_value();
      CHECK(written);
    }
  });
  const auto replica = open(replica_options(path));
  std::string value;
  for (int i = 0; i < 50; ++i) {
    const auto receipt = primary->put("mine", std::to_string(i), {AckLevel::applied, kPatience});
    if (!receipt) FAIL(receipt.error().message());
    REQUIRE(replica->get("mine", value));
    CHECK(value == std::to_string(i));
  }
  writer.request_stop();
  writer.join();
  REQUIRE(primary->put("last", "1", {AckLevel::applied, kPatience}));
  check_equal(*primary, *replica);
}

TEST_CASE("a replica without its primary ends by the connect timeout and names the path") {
  const std::string path = unique_path();
  Options options = replica_options(path);
  options.connect_timeout = milliseconds(100);
  const auto replica = Engine::open(options);
  REQUIRE(!replica.has_value());
  CHECK(replica.error().message().find(path) != std::string::npos);
}

TEST_CASE("a replica that its primary accepts but does not come to count is not open") {
  const std::string path = unique_path();
  auto listener = make_shm_transport()->listen(path, {});
  REQUIRE(listener.has_value());
  std::unique_ptr<Link> link;  // never handed to a core
  std::thread primary([&] {
    auto pending = (*listener)->accept(kPatience);
    if (!pending) return;
    Hello ours = (*pending)->hello();
    ours.role = NodeRole::primary;
    ours.node = 1;
    ours.history = {7};
    ours.epoch = {1, 1};
    ours.generation = {1};
    ours.ring_bytes = 256 << 10;
    auto accepted = (*pending)->accept(ours, {});
    if (accepted) link = *std::move(accepted);
  });
  Options options = replica_options(path);
  options.connect_timeout = seconds(10);
  const auto engine = Engine::open(options);
  primary.join();
  CHECK(link != nullptr);
  REQUIRE(!engine.has_value());
  CHECK(engine.error() == ReactorErrc::deadline_exceeded);
  CHECK(engine.error().message().find("count") != std::string::npos);
}

TEST_CASE("a replica may start before its primary") {
  const std::string path = unique_path();
  Result<std::unique_ptr<Engine>> replica = EngineErrc::busy;
  std::thread first([&] { replica = Engine::open(replica_options(path)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto primary = open(primary_options(path));
  first.join();
  REQUIRE(replica.has_value());
  CHECK(primary->put("key", "value", {AckLevel::applied, kPatience}).has_value());
}

TEST_CASE("a listen path in use is refused and named") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path));
  const auto second = Engine::open(primary_options(path));
  REQUIRE(!second.has_value());
  CHECK(second.error().message().find(path) != std::string::npos);
}

TEST_CASE("a link that was lost for silence is made again and resumes inside the log") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.heartbeat = milliseconds(20);
  of_primary.link_timeout = milliseconds(400);
  Options of_replica = replica_options(path);
  of_replica.heartbeat = milliseconds(20);
  Pair pair(of_primary, of_replica);
  // On a busy machine the link may be lost, and made again, without our help.
  REQUIRE(eventually([&] {
    return pair.primary->put("before", "value", {AckLevel::applied, kPatience}).has_value();
  }));
  Standstill standstill(*pair.replica, {0});
  CHECK(eventually([&] { return has_event(*pair.primary, "lost a replica"); }));
  for (int i = 0; i < 100; ++i) {
    CHECK(pair.primary->put("meanwhile" + std::to_string(i), "value", {AckLevel::local, kPatience})
              .has_value());
  }
  standstill.release();
  CHECK(eventually(
      [&] { return pair.replica->stats().shards[0].links_lost >= 1 && pair.replica->link_count() == 1; }));
  CHECK(eventually([&] {
    return pair.primary->put("after", "value", {AckLevel::applied, kPatience}).has_value();
  }));
  check_equal(*pair.primary, *pair.replica);
}

TEST_CASE("both sides count what was written, sent and acknowledged") {
  Pair pair;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(
        pair.primary->put("key" + std::to_string(i), std::string(100, 'v'), {AckLevel::applied, kPatience}));
  }
  REQUIRE(pair.primary->erase("key1", {AckLevel::applied, kPatience}).has_value());
  const ShardStats ours = pair.primary->stats().shards.at(0);
  const ShardStats theirs = pair.replica->stats().shards.at(0);
  CHECK(ours.puts == 100);
  CHECK(ours.erases == 1);
  CHECK(theirs.puts == 100);
  for (const ShardStats& side : {ours, theirs}) {
    CHECK(side.keys == 99);
    CHECK(side.last_lsn == 101);
    CHECK(side.received_lsn == 101);
    CHECK(side.applied_lsn == 101);
    CHECK(side.replicas == 1);
    CHECK(side.links_lost == 0);
    CHECK(side.batches > 0);
    CHECK(side.batches <= 101);
    CHECK(side.batch_bytes > 100 * 100);
    CHECK(side.memory_bytes > 0);
    CHECK(side.lost_wakeups == 0);
  }
  CHECK(ours.batch_bytes == theirs.batch_bytes);
}

TEST_CASE("with two replicas one is enough, and both end equal") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path));
  const auto one = open(replica_options(path));
  Options third = replica_options(path);
  third.node = 3;
  const auto two = open(third);
  CHECK(primary->link_count() == 2);
  for (int i = 0; i < kMany; ++i) {
    REQUIRE(primary->put("key" + std::to_string(i % 100), std::to_string(i), {AckLevel::applied, kPatience}));
  }
  check_equal(*primary, *one);
  check_equal(*primary, *two);
}

TEST_CASE("a replica that acknowledges before it applies is caught by a reader") {
  class Early final : public ApplyPolicy {
    // Many, since it may take a while until a reader arrives.
    [[nodiscard]] std::uint32_t turns_acknowledged_early() const override { return 5'000; }
  };
  const Early early;
  const std::string path = unique_path();
  Options of_replica = replica_options(path);
  of_replica.apply_policy = &early;
  Pair pair(primary_options(path), of_replica);
  std::string value;
  int puts = 0;
  CHECK(eventually([&] {
    const auto receipt = pair.primary->put("key", std::to_string(++puts), {AckLevel::applied, kPatience});
    REQUIRE(receipt.has_value());
    const auto lsn = pair.replica->get("key", value);
    return !lsn || *lsn < receipt->lsn;
  }));
}

TEST_SUITE_END();
