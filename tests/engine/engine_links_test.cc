// Links of engines: how batches and goodbyes travel, and primaries that are played.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/replication/shm.h>

#include "engine/engine_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_SUITE_BEGIN("engine/links");

TEST_CASE("what close() says goodbye after includes writes that nobody waited for") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.log_bytes = 16 << 20;
  Pair pair(of_primary, replica_options(path));
  const std::string value = pattern(10'000, 3);
  Lsn last{};
  for (int i = 0; i < 1'048; ++i) {  // 10 MiB, through a ring of 256 KiB
    const auto receipt = pair.primary->put("key" + std::to_string(i), value, {AckLevel::local, kPatience});
    REQUIRE(receipt.has_value());
    last = receipt->lsn;
  }
  REQUIRE(pair.primary->close(kPatience).has_value());
  CHECK(eventually([&] { return pair.replica->link_count() == 0; }));
  CHECK(pair.replica->visible_lsn({0}) == last);
  CHECK_FALSE(has_event(*pair.primary, "closed before"));
}

TEST_CASE("close() leaves a replica that stands still behind, and says with how much") {
  Pair pair;
  Standstill standstill(*pair.replica, {0});
  for (int i = 0; i < 3; ++i)
    REQUIRE(pair.primary->put("key", "v", {AckLevel::local, kPatience}).has_value());
  REQUIRE(pair.primary->close(seconds(8)).has_value());
  CHECK(has_event(*pair.primary, "closed before a replica had applied the last 3 writes"));
}

TEST_CASE("a batch becomes visible at the replica as a whole, however much there is of it") {
  Pair pair;
  const std::string value = pattern(500, 2);
  const std::size_t count = 110;  // near batch_bytes_max
  WriteBatch batch;
  for (std::size_t i = 0; i < count; ++i) batch.put("key" + std::to_string(i), value);
  const std::uint64_t size = count;
  std::atomic<bool> ended{false};
  std::atomic<int> torn{0};
  // Between two turns of the replica's core.
  const Status watching = pair.replica->spawn_on({0}, [&] {
    while (!ended) {
      if (pair.replica->visible_lsn({0}).value % size != 0) ++torn;
      static_cast<void>(this_fiber::yield());
    }
  });
  REQUIRE(watching.has_value());
  for (int i = 0; i < kMany / 4; ++i) {
    CHECK(pair.primary->write(batch, {AckLevel::local, kPatience}).has_value());
  }
  check_equal(*pair.primary, *pair.replica);
  ended = true;
  CHECK(torn == 0);
  CHECK(pair.primary->visible_lsn({0}).value % size == 0);
}

TEST_CASE("a batch that meets a log with room for a part of it is written as a whole, once") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.log_bytes = 64 << 10;
  Pair pair(of_primary, replica_options(path));
  const std::string value = pattern(1'000, 2);
  std::atomic<int> ended{0};
  constexpr int kWriters = 8;
  for (int writer = 0; writer < kWriters; ++writer) {
    REQUIRE(pair.primary
                ->spawn_on(
                    {0},
                    [&, writer] {
                      WriteBatch batch;
                      for (int i = 0; i < 10; ++i) batch.put(std::to_string(writer * 10 + i), value);
                      for (int i = 0; i < 100; ++i) {
                        // Some give up when they are let in, or nearly so.
                        const Duration patience = i % 7 == writer % 7 ? microseconds(200) : kPatience;
                        static_cast<void>(pair.primary->write(batch, {AckLevel::local, patience}));
                        static_cast<void>(pair.primary->put("single", value, {AckLevel::local, kPatience}));
                      }
                      ++ended;
                    })
                .has_value());
  }
  CHECK(eventually([&] { return ended == kWriters; }));
  check_equal(*pair.primary, *pair.replica);
  const std::uint64_t singles = 100ULL * kWriters;
  const std::uint64_t last = pair.primary->visible_lsn({0}).value;
  CHECK(last >= singles);
  CHECK((last - singles) % 10 == 0);
}

TEST_CASE("a batch that runs out of memory says how much was written, and the stream goes on") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.memory_bytes_max = 4 << 20;
  Pair pair(of_primary, replica_options(path));
  const std::string value = pattern(6'000, 2);
  Result<std::vector<Receipt>> written = EngineErrc::busy;
  for (int round = 0; round < 1'000; ++round) {
    WriteBatch batch;
    for (int i = 0; i < 10; ++i) batch.put(std::to_string(round * 10 + i), value);
    written = pair.primary->write(batch, {AckLevel::local, kPatience});
    if (!written) break;
  }
  REQUIRE_FALSE(written.has_value());
  CHECK(written.error() == EngineErrc::out_of_memory);
  CAPTURE(written.error().message());
  REQUIRE(pair.primary->erase("1", {AckLevel::applied, kPatience}).has_value());
  check_equal(*pair.primary, *pair.replica);
}

// ---- a peer that is played ------------------------------------------------------------------------------

namespace {

/// A primary of which the test decides every step of the handshake.
struct PlayedPrimary {
  PlayedPrimary() : path(unique_path()) {
    auto made = make_shm_transport()->listen(path, {});
    REQUIRE(made.has_value());
    listener = *std::move(made);
  }
  std::unique_ptr<PendingPeer> next() {
    auto pending = listener->accept(kPatience);
    REQUIRE(pending.has_value());
    return *std::move(pending);
  }
  std::unique_ptr<Link> accept(PendingPeer& pending, Epoch epoch) {
    Hello ours;
    ours.role = NodeRole::primary;
    ours.shard = pending.hello().shard;
    ours.shard_count = 1;
    ours.history = {4711};
    ours.routing_seed = 1;
    ours.epoch = epoch;
    ours.generation = {++generation};
    auto link = pending.accept(ours, LinkOptions{});
    REQUIRE(link.has_value());
    // By which the replica sees that it is counted.
    ControlFrame frame;
    frame.history = ours.history;
    frame.epoch = epoch;
    frame.whole = true;
    REQUIRE((*link)->send_control(frame).has_value());
    (*link)->flush();
    return *std::move(link);
  }
  std::string path;
  std::unique_ptr<PeerListener> listener;
  std::uint32_t generation = 0;
};

}  // namespace

TEST_CASE("a primary that takes links and drops them again is asked ever less often") {
  PlayedPrimary primary;
  Result<std::unique_ptr<Engine>> replica = EngineErrc::busy;
  std::thread opening([&] { replica = Engine::open(replica_options(primary.path)); });
  auto link = primary.accept(*primary.next(), {1, 1});
  opening.join();
  REQUIRE(replica.has_value());
  link->close("no");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 6; ++i) primary.accept(*primary.next(), {1, 1})->close("no");
  // At least half of 100 + 200 + 400 + 800 + 1600 + 2000 ms; it would be 300 without.
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(2000));
}

TEST_CASE("a replica takes the newer epoch of its history from the primary's hello, and keeps it") {
  PlayedPrimary primary;
  Result<std::unique_ptr<Engine>> replica = EngineErrc::busy;
  std::thread opening([&] { replica = Engine::open(replica_options(primary.path)); });
  auto link = primary.accept(*primary.next(), {1, 1});
  opening.join();
  REQUIRE(replica.has_value());
  link->close("on purpose");
  // The same history in a later epoch. Expect: its frames are taken.
  link = primary.accept(*primary.next(), {2, 1});
  Result<ControlFrame> answer = ReplicationErrc::link_empty;
  CHECK(eventually([&] {
    link->poll(64);
    answer = link->receive_control();
    return answer.has_value() || answer.error() == ReplicationErrc::link_closed;
  }));
  REQUIRE(answer.has_value());
  CHECK(answer->epoch == Epoch{2, 1});
  CHECK((*replica)->link_count() == 1);
  link->close("on purpose");
  CHECK(primary.next()->hello().epoch == Epoch{2, 1});
}

TEST_CASE("a primary that is busy is asked again, when opening and later") {
  PlayedPrimary primary;
  Result<std::unique_ptr<Engine>> replica = EngineErrc::busy;
  std::thread opening([&] { replica = Engine::open(replica_options(primary.path)); });
  primary.next()->refuse({RefusalReason::busy, 5000, 0});
  auto link = primary.accept(*primary.next(), {1, 1});
  opening.join();
  REQUIRE(replica.has_value());
  link->close("on purpose");
  primary.next()->refuse({RefusalReason::busy, 5000, 0});
  link = primary.accept(*primary.next(), {1, 1});
  CHECK(eventually([&] { return (*replica)->link_count() == 1; }));
  CHECK_FALSE(has_event(**replica, "given up"));
}

TEST_CASE("a replica that has writes of no history is refused") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path));
  REQUIRE(primary->put("key", "value", {AckLevel::local, kPatience}).has_value());
  Hello hello;
  hello.role = NodeRole::replica;
  hello.node = 2;
  hello.shard_count = 1;
  hello.last_lsn = {1};
  const auto peer = make_shm_transport()->connect(path, hello, kPatience);
  REQUIRE(!peer.has_value());
  CHECK(peer.error() == ReplicationErrc::refused);
  CHECK(peer.error().message().find("history") != std::string::npos);
  CHECK(primary->stats().shards[0].applied_lsn == 0);
}

TEST_SUITE_END();
