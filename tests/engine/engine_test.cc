#include <map>
#include <set>
#include <string>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/reactor.h>

#include "engine/engine_fixture.h"
#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_SUITE_BEGIN("engine/engine");

TEST_CASE("what was put is read back with its LSN") {
  for (const std::uint32_t shards : {1U, 3U}) {
    CAPTURE(shards);
    const auto engine = open(small_options(shards));
    std::string value;
    std::map<std::string, Receipt> receipts;
    for (int i = 0; i < 300; ++i) {
      const std::string key = "key" + std::to_string(i);
      const auto receipt = engine->put(key, "value" + std::to_string(i));
      REQUIRE(receipt.has_value());
      CHECK(receipt->shard == engine->shard_of(key));
      receipts[key] = *receipt;
    }
    for (const auto& [key, receipt] : receipts) {
      const auto lsn = engine->get(key, value);
      REQUIRE(lsn.has_value());
      CHECK(*lsn == receipt.lsn);
      CHECK(value == "value" + key.substr(3));
    }
    for (std::uint16_t shard = 0; shard < shards; ++shard) CHECK(engine->visible_lsn({shard}) > Lsn{});
    CHECK(engine->close(kPatience).has_value());
  }
}

TEST_CASE("a later put replaces, an erase removes, each with a later LSN") {
  const auto engine = open(small_options());
  std::string value;
  const auto first = engine->put("k", "one");
  const auto second = engine->put("k", "two, and longer than before");
  const auto third = engine->erase("k");
  REQUIRE((first && second && third));
  CHECK(second->lsn == first->lsn.next());
  CHECK(third->lsn == second->lsn.next());
  CHECK(engine->get("k", value).error() == EngineErrc::not_found);
  CHECK(engine->erase("never there").has_value());
  CHECK(engine->stats().shards[0].keys == 0);
}

TEST_CASE("keys and values are bytes of any kind and size within the limits") {
  const auto engine = open(small_options());
  std::string value = "left over";
  const std::string binary("\0\xff\n\0key", 7);
  REQUIRE(engine->put(binary, std::string("\0v\0", 3)).has_value());
  REQUIRE(engine->get(binary, value).has_value());
  CHECK(value == std::string("\0v\0", 3));

  REQUIRE(engine->put("empty", "").has_value());
  REQUIRE(engine->get("empty", value).has_value());
  CHECK(value.empty());

  const std::string long_key = pattern(64 * 1024, 1);
  REQUIRE(engine->put(long_key, "of a long key").has_value());
  REQUIRE(engine->get(long_key, value).has_value());
  CHECK(value == "of a long key");
  REQUIRE(engine->put(long_key, "").has_value());
  REQUIRE(engine->get(long_key, value).has_value());
  CHECK(value.empty());

  for (const std::size_t bytes : {32UL * 1024 - 64, 32UL * 1024, 64UL * 1024, 64UL * 1024 + 1, 3'000'000UL}) {
    CAPTURE(bytes);
    const std::string large = pattern(bytes, 7);
    REQUIRE(engine->put("large", large).has_value());
    REQUIRE(engine->get("large", value).has_value());
    CHECK((value == large));
  }
}

TEST_CASE("the largest value goes through the smallest log") {
  if (kSanitized) return;
  Options options = small_options();
  options.log_bytes = 64 << 10;
  const auto engine = open(options);
  const std::string large = pattern(64 << 20, 3);
  REQUIRE(engine->put("large", large).has_value());
  std::string value;
  REQUIRE(engine->get("large", value).has_value());
  CHECK((value == large));
}

TEST_CASE("beyond the limits a write is refused and the limit named") {
  Options options = small_options();
  options.value_bytes_max = 1000;
  const auto engine = open(options);
  const auto no_key = engine->put("", "v");
  CHECK(no_key.error() == EngineErrc::key_size);
  const auto long_key = engine->put(std::string(65'537, 'k'), "v");
  CHECK(long_key.error() == EngineErrc::key_size);
  CHECK(long_key.error().message().find("65536") != std::string::npos);
  const auto large = engine->put("k", std::string(1001, 'v'));
  CHECK(large.error() == EngineErrc::value_too_large);
  CHECK(large.error().message().find("1000") != std::string::npos);
  CHECK(engine->put("k", std::string(1000, 'v')).has_value());
  CHECK(engine->visible_lsn({0}) == Lsn{1});
}

TEST_CASE("the memory limit refuses a write and leaves what was there") {
  Options options = small_options();
  options.memory_bytes_max = 8 << 20;
  const auto engine = open(options);
  const std::string mebibyte = pattern(1 << 20, 5);
  int written = 0;
  Result<Receipt> last = EngineErrc::busy;
  while (written < 64 && (last = engine->put("key" + std::to_string(written), mebibyte))) ++written;
  REQUIRE(!last.has_value());
  CHECK(last.error() == EngineErrc::out_of_memory);
  CHECK(written > 2);
  CHECK(engine->visible_lsn({0}).value == static_cast<std::uint64_t>(written));
  std::string value;
  for (int i = 0; i < written; ++i) {
    REQUIRE(engine->get("key" + std::to_string(i), value).has_value());
    CHECK((value == mebibyte));
  }
  REQUIRE(engine->erase("key0").has_value());
  CHECK(eventually([&] { return engine->put("again", mebibyte).has_value(); }));
}

TEST_CASE("fibers call the engine on their own core and across cores") {
  const auto engine = open(small_options(3));
  for (std::uint16_t from = 0; from < 3; ++from) {
    for (std::uint16_t to = 0; to < 3; ++to) {
      in_fiber(*engine, {from}, [&] {
        CHECK(Reactor::current() == &engine->reactor({from}));
        const std::string key = key_on(*engine, {to}, "from" + std::to_string(from) + "-");
        const auto receipt = engine->put(key, key);
        REQUIRE(receipt.has_value());
        CHECK(receipt->shard == ShardId{to});
        std::string value;
        const auto lsn = engine->get(key, value);
        REQUIRE(lsn.has_value());
        CHECK(*lsn == receipt->lsn);
        CHECK(value == key);
        CHECK(engine->erase(key).has_value());
        CHECK(engine->get(key, value).error() == EngineErrc::not_found);
        const std::string large = pattern(200'000, from * 3U + to);
        CHECK(engine->put(key, large).has_value());
        CHECK(engine->get(key, value).has_value());
        CHECK((value == large));
      });
    }
  }
}

TEST_CASE("many fibers on every core write everywhere at once") {
  constexpr int kFibers = 16;
  constexpr int kWrites = kSanitized ? 40 : 200;
  const auto engine = open(small_options(3));
  std::atomic<int> ended{0};
  std::atomic<int> failed{0};
  for (std::uint16_t core = 0; core < 3; ++core) {
    for (int fiber = 0; fiber < kFibers; ++fiber) {
      const auto body = [&, core, fiber] {
        std::string value;
        for (int i = 0; i < kWrites; ++i) {
          const std::string key =
              std::to_string(core) + "/" + std::to_string(fiber) + "/" + std::to_string(i);
          if (!engine->put(key, key) || !engine->get(key, value) || value != key) ++failed;
        }
        ++ended;
      };
      REQUIRE(engine->spawn_on({core}, body).has_value());
    }
  }
  CHECK(eventually([&] { return ended == 3 * kFibers; }));
  CHECK(failed == 0);
  std::uint64_t keys = 0;
  for (const ShardStats& shard : engine->stats().shards) keys += shard.keys;
  CHECK(keys == 3ULL * kFibers * kWrites);
}

TEST_CASE("a fiber whose calls need nobody's answer leaves its core to others, and hears its cancellation") {
  enum class Work { writes, batches, reads };
  for (const Work work : {Work::writes, Work::batches, Work::reads}) {
    const auto engine = open(small_options());
    REQUIRE(engine->put("other", "there").has_value());
    std::atomic<bool> stop{false};
    std::atomic<bool> running{false};
    std::atomic<bool> ended{false};
    const auto busy = [&] {
      WriteBatch batch;
      batch.put("a", "1");
      std::string value;
      running = true;
      while (!stop) {
        // A refusal is how a cancelled fiber hears of it.
        if (work == Work::writes && !engine->put("mine", "value", {AckLevel::local, kPatience})) break;
        if (work == Work::batches && !engine->write(batch, {AckLevel::local, kPatience})) break;
        if (work == Work::reads && !engine->get("other", value)) break;
      }
      ended = true;
    };
    REQUIRE(engine->spawn_on({0}, busy).has_value());
    REQUIRE(eventually([&] { return running.load(); }));
    std::string value;
    const auto got = engine->get("other", value, {{}, {}, {}, kPatience});
    CHECK(got.has_value());
    if (!got) stop = true;  // else close() would wait for the core in vain
    CHECK(engine->close(seconds(30)).has_value());
    CHECK(ended);
  }
}

TEST_CASE("a batch has one receipt a shard, consecutive LSNs, and its last write of a key wins") {
  const auto engine = open(small_options(3));
  for (const bool from_fiber : {false, true}) {
    WriteBatch batch;
    std::set<std::uint16_t> touched;
    for (int i = 0; i < 50; ++i) {
      const std::string key = "batch" + std::to_string(i);
      batch.put(key, "v" + std::to_string(i));
      touched.insert(engine->shard_of(key).value);
    }
    batch.erase("batch7");
    batch.put("batch8", "again");
    std::uint64_t before = 0;
    for (std::uint16_t shard = 0; shard < 3; ++shard) before += engine->visible_lsn({shard}).value;
    const auto write = [&] {
      const auto receipts = engine->write(batch, {AckLevel::local, kPatience});
      REQUIRE(receipts.has_value());
      CHECK(receipts->size() == touched.size());
      std::uint64_t after = 0;
      for (const Receipt& receipt : *receipts) after += receipt.lsn.value;
      CHECK(after - before == batch.size());
      std::string value;
      CHECK(engine->get("batch7", value).error() == EngineErrc::not_found);
      REQUIRE(engine->get("batch8", value).has_value());
      CHECK(value == "again");
    };
    if (from_fiber) {
      in_fiber(*engine, {1}, write);
    } else {
      write();
    }
  }
}

TEST_CASE("a batch that can never be one turn is refused and the limit named") {
  Options options = small_options();
  options.log_bytes = 64 << 10;
  const auto engine = open(options);
  WriteBatch batch;
  batch.put("small", "v");
  batch.put("large", std::string(40'000, 'v'));
  auto refused = engine->write(batch, {AckLevel::local, kPatience});
  CHECK(refused.error() == ReplicationErrc::too_large);
  batch.clear();
  for (int i = 0; i < 20; ++i) batch.put("key" + std::to_string(i), std::string(1000, 'v'));
  refused = engine->write(batch, {AckLevel::local, kPatience});
  CHECK(refused.error() == ReplicationErrc::too_large);
  CHECK(refused.error().message().find("16384") != std::string::npos);
  CHECK(engine->visible_lsn({0}) == Lsn{});
  CHECK(engine->write(WriteBatch{}, {AckLevel::local, kPatience})->empty());
}

TEST_CASE("a scan visits every key at least once, from a host thread and from the core itself") {
  const auto engine = open(small_options(2));
  std::map<std::string, std::string> written[2];
  for (int i = 0; i < 2000; ++i) {
    const std::string key = "scan" + std::to_string(i);
    REQUIRE(engine->put(key, pattern(static_cast<std::size_t>(i) % 300, 1)).has_value());
    written[engine->shard_of(key).value][key] = pattern(static_cast<std::size_t>(i) % 300, 1);
  }
  for (std::uint16_t shard = 0; shard < 2; ++shard) {
    for (const bool from_fiber : {false, true}) {
      std::map<std::string, std::string> seen;
      const auto scan = [&] {
        ScanCursor cursor;
        while (!cursor.done) {
          const Status status = engine->scan(
              {shard}, cursor, 100,
              [&](std::string_view key, std::string_view value, Lsn) { seen[std::string(key)] = value; },
              kPatience);
          REQUIRE(status.has_value());
        }
      };
      if (from_fiber) {
        in_fiber(*engine, {shard}, scan);
      } else {
        scan();
      }
      CHECK((seen == written[shard]));
    }
  }
  ScanCursor cursor;
  CHECK(engine
            ->scan(
                {2}, cursor, 1, [](std::string_view, std::string_view, Lsn) {}, kPatience)
            .error() == EngineErrc::wrong_shard);
}

TEST_CASE("a digest tells contents, values and LSNs apart, and depends on nothing else") {
  const auto digest_of = [](Engine& engine) {
    const auto digest = engine.digest({0}, kPatience);
    REQUIRE(digest.has_value());
    return *digest;
  };
  const auto one = open(small_options());
  const auto other = open(small_options());
  const std::string large = pattern(300'000, 1);
  for (Engine* engine : {one.get(), other.get()}) {
    for (int i = 0; i < 500; ++i) REQUIRE(engine->put("key" + std::to_string(i), "value").has_value());
    REQUIRE(engine->put("large", large).has_value());
  }
  CHECK(digest_of(*one) == digest_of(*other));
  CHECK(digest_of(*one).first.keys == 501);
  CHECK(digest_of(*one).second == Lsn{501});
  REQUIRE(other->put("key7", "value").has_value());
  CHECK(digest_of(*one).first != digest_of(*other).first);
  in_fiber(*one, {0}, [&] { CHECK(one->digest({0}, kPatience)->first == digest_of(*one).first); });
}

TEST_CASE("a digest is taken of one state while others write, and writers go on after it") {
  const auto engine = open(small_options());
  for (int i = 0; i < 2000; ++i) REQUIRE(engine->put("key" + std::to_string(i), "value").has_value());
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::atomic<std::uint64_t> writes{0};
  std::thread writer([&] {
    const std::string large = pattern(100'000, 2);
    for (int i = 0; !stop; ++i) {
      if (!engine->put("key" + std::to_string(i % 2000), std::to_string(i))) ++failed;
      if (i % 50 == 0 && !engine->put("large", large)) ++failed;
      ++writes;
    }
  });
  for (int i = 0; i < 20; ++i) CHECK(engine->digest({0}, kPatience).has_value());
  const std::uint64_t before = writes;
  CHECK(eventually([&] { return writes > before + 10; }));
  stop = true;
  writer.join();
  CHECK(failed == 0);
}

TEST_CASE("two engines in one process know nothing of each other") {
  const auto one = open(small_options(2));
  const auto other = open(small_options(2));
  REQUIRE(one->put("key", "of one").has_value());
  REQUIRE(other->put("key", "of the other").has_value());
  std::string value;
  REQUIRE(one->get("key", value).has_value());
  CHECK(value == "of one");
  REQUIRE(other->get("key", value).has_value());
  CHECK(value == "of the other");
  // A foreign reactor must not be blocked.
  in_fiber(*one, {0}, [&] { CHECK(other->put("key", "v").error() == ReactorErrc::not_on_reactor); });
  CHECK(one->close(kPatience).has_value());
  CHECK(other->put("key", "still here").has_value());
}

TEST_CASE("after close every call says so, and the statistics stay") {
  const auto engine = open(small_options());
  REQUIRE(engine->put("key", "value").has_value());
  REQUIRE(engine->close(kPatience).has_value());
  CHECK(engine->close(kPatience).has_value());
  std::string value;
  CHECK(engine->put("key", "value").error() == EngineErrc::closed);
  CHECK(engine->get("key", value).error() == EngineErrc::closed);
  CHECK(engine->erase("key").error() == EngineErrc::closed);
  ScanCursor cursor;
  CHECK(engine
            ->scan(
                {0}, cursor, 1, [](std::string_view, std::string_view, Lsn) {}, kPatience)
            .error() == EngineErrc::closed);
  CHECK(engine->digest({0}, kPatience).error() == EngineErrc::closed);
  CHECK(engine->spawn_on({0}, [] {}).error() == EngineErrc::closed);
  CHECK(engine->stats().shards.at(0).puts == 1);
  CHECK(engine->visible_lsn({0}) == Lsn{1});
  CHECK(engine->link_count() == 0);
}

TEST_CASE("close waits for fibers of the user, and cancels those that do not end") {
  const auto engine = open(small_options());
  std::atomic<bool> started{false};
  std::atomic<bool> cancelled{false};
  REQUIRE(engine
              ->spawn_on({0},
                         [&] {
                           started = true;
                           cancelled = this_fiber::sleep_for(seconds(3600)) == Wakeup::cancelled;
                         })
              .has_value());
  CHECK(eventually([&] { return started.load(); }));
  // The first call may have no time left for what it cancelled.
  CHECK(eventually([&] { return engine->close(seconds(4)).has_value(); }));
  CHECK(cancelled);
}

TEST_CASE("close may be called again and again while a fiber ignores its cancellation") {
  for (const bool counted : {true, false}) {
    CAPTURE(counted);
    const auto engine = open(small_options(2));
    REQUIRE(engine->put("key", "value").has_value());
    std::atomic<bool> started{false};
    std::atomic<bool> released{false};
    std::atomic<bool> ended{false};
    const auto stubborn = [&] {
      started = true;
      while (!released) static_cast<void>(this_fiber::yield());
      ended = true;
    };
    if (counted) {
      REQUIRE(engine->spawn_on({1}, stubborn).has_value());
    } else {
      in_fiber(*engine, {1}, [&] { REQUIRE(engine->reactor({1}).spawn_detached("stubborn", stubborn)); });
    }
    CHECK(eventually([&] { return started.load(); }));
    for (int i = 0; i < 2; ++i) {
      CHECK(engine->close(milliseconds(400)).error() == ReactorErrc::deadline_exceeded);
      CHECK(engine->put("key", "value").error() == EngineErrc::closed);
      CHECK(engine->stats().shards.size() == 2);
    }
    released = true;
    CHECK(engine->close(kPatience).has_value());
    CHECK(ended);
  }
}

TEST_CASE("every accepted spawn runs, also with fewer stacks than bodies") {
  Options options = small_options();
  options.max_fibers = 16;
  const auto engine = open(options);
  constexpr int kBodies = 200;
  std::atomic<int> ran{0};
  for (int i = 0; i < kBodies; ++i) {
    REQUIRE(engine
                ->spawn_on({0},
                           [&] {
                             static_cast<void>(this_fiber::sleep_for(milliseconds(1)));
                             ++ran;
                           })
                .has_value());
  }
  CHECK(eventually([&] { return ran == kBodies; }));
}

TEST_CASE("options out of range are refused with their name, value and range") {
  const auto refused = [](auto change, const char* name) {
    Options options = small_options();
    change(options);
    const auto engine = Engine::open(options);
    REQUIRE(!engine.has_value());
    CHECK(engine.error() == EngineErrc::bad_option);
    CAPTURE(engine.error().message());
    CHECK(engine.error().message().find(name) != std::string::npos);
  };
  refused([](Options& o) { o.shards = 0; }, "shards is 0; it must be 1 to 256");
  refused([](Options& o) { o.shards = 257; }, "257");
  refused([](Options& o) { o.cpus = {0, 1}; }, "cpus");
  refused([](Options& o) { o.node = 0; }, "node");
  refused([](Options& o) { o.ring_entries = 7; }, "ring_entries");
  refused([](Options& o) { o.log_bytes = 100'000; }, "log_bytes");
  refused([](Options& o) { o.log_bytes = 32 << 10; }, "65536");
  refused([](Options& o) { o.ring_bytes = 1; }, "ring_bytes");
  refused([](Options& o) { o.value_bytes_max = (64 << 20) + 1; }, "value_bytes_max");
  refused([](Options& o) { o.host_slots = 0; }, "host_slots");
  refused([](Options& o) { o.link_timeout = o.heartbeat; }, "link_timeout");
  refused([](Options& o) { o.listen = std::string(200, 'x'); }, "listen");
  refused([](Options& o) { o.role = NodeRole::replica; }, "primary");
  refused([](Options& o) { o.primary = "@x"; }, "primary");
  refused([](Options& o) { o.mailbox.lane_slots = 3; }, "lane_slots");
  refused([](Options& o) { o.stall_signal = 11; }, "stall_signal");
  refused([](Options& o) { o.link = static_cast<LinkKind>(9); }, "shm or verbs");
  refused([](Options& o) { o.device = "mlx5_0"; }, "device");
  refused([](Options& o) { o.local_address = "10.0.0.1"; }, "local_address");
}

TEST_CASE("the addresses of a verbs link are checked, and an example is given") {
  Options options;
  options.link = LinkKind::verbs;
  const auto refusal = [&] {
    const Status checked = options.validate();
    REQUIRE(!checked.has_value());
    CHECK(checked.error() == EngineErrc::bad_option);
    return checked.error().message();
  };
  for (const char* address : {"10.0.0.1:1", "10.0.0.1:65535"}) {
    options.listen = address;
    CHECK(options.validate().has_value());
  }
  for (const char* address :
       {"10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:7471x", ":7471", "@name",
        "primary.example:7471", "0.0.0.0:7471", "10.0.1:7471", "[::1]:7471", "10.0.0.1 :7471"}) {
    CAPTURE(address);
    options.listen = address;
    CHECK(refusal().find("such as \"10.0.0.1:7471\"") != std::string::npos);
  }
  options.listen = std::string("10.0.0.1\0:7471", 14);
  CHECK(refusal().find("listen") != std::string::npos);
  options.listen = "10.0.0.1:7471";
  options.local_address = "10.0.0.2";
  CHECK(refusal().find("local_address") != std::string::npos);
  options.role = NodeRole::replica;
  options.primary = std::exchange(options.listen, "");
  CHECK(options.validate().has_value());
  options.local_address = "rxe0";
  CHECK(refusal().find("local_address") != std::string::npos);
  options.local_address.clear();
  options.device = "a/b";
  CHECK(refusal().find("ibv_devices") != std::string::npos);
  options.device = std::string(64, 'd');
  CHECK(refusal().find("device") != std::string::npos);
}

TEST_CASE("the smallest ring, lanes and pools still serve") {
  Options options = small_options(2);
  options.ring_entries = 8;
  options.mailbox.lane_slots = 4;
  options.max_fibers = 16;
  options.host_slots = 1;
  options.log_bytes = 64 << 10;
  const auto engine = open(options);
  for (std::uint16_t core = 0; core < 2; ++core) {
    in_fiber(*engine, {core}, [&] {
      for (int i = 0; i < 200; ++i)
        CHECK(engine->put("key" + std::to_string(i), std::string(900, 'v')).has_value());
    });
  }
  CHECK(engine->put("host", "value").has_value());
}

TEST_SUITE_END();
