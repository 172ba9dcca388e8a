// Replicas that the primary's log no longer reaches, over the shm link.
#include <atomic>
#include <map>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>

#include "engine/engine_fixture.h"
#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// A log that a few writes fill.
Options short_log(const std::string& path, std::uint32_t shards = 1) {
  Options options = primary_options(path, shards);
  options.log_bytes = 64 << 10;
  return options;
}

std::string sync_key(int number) { return "key" + std::to_string(number); }

void put_local(Engine& primary, const std::string& key, const std::string& value) {
  const auto put = primary.put(key, value, {AckLevel::local, kPatience});
  REQUIRE_MESSAGE(put, put.error().message());
}

/// Overwrites, erases and inserts until it is destroyed, with versions that only grow.
class Load {
 public:
  Load(Engine& primary, int keys) : thread_([this, &primary, keys] { run(primary, keys); }) {}
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() { stop(); }
  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] int version() const { return version_; }

 private:
  void run(Engine& primary, int keys) {
    while (!stopped_ && !failed_) {
      const int next = version_ + 1;
      const std::string key = sync_key(next % keys);
      const WriteOptions options{AckLevel::local, kPatience};
      const bool written =
          next % 7 == 0 ? primary.erase(key, options).has_value()
                        : primary.put(key, std::to_string(next) + " " + pattern(200, 1), options).has_value();
      if (!written) failed_ = true;
      version_ = next;
    }
  }
  std::atomic<bool> stopped_{false}, failed_{false};
  std::atomic<int> version_{0};
  std::thread thread_;
};

/// A reader must never see a key go back to an older write.
void check_ascends(Engine& replica, int keys, std::map<std::string, std::uint64_t>& seen) {
  std::string value;
  for (int i = 0; i < keys; ++i) {
    const auto read = replica.get(sync_key(i), value);
    if (!read) continue;  // erased, or not there yet
    std::uint64_t& newest = seen[sync_key(i)];
    CHECK(read->value >= newest);
    newest = read->value;
  }
}

}  // namespace

TEST_SUITE("engine/snapshot") {
  TEST_CASE("engine/snapshot: a replica that starts too late for the log gets all shards whole, under load") {
    const std::string path = unique_path();
    const auto primary = open(short_log(path, 2));
    for (int i = 0; i < 300; ++i) put_local(*primary, sync_key(i), pattern(1000, 1));
    for (int i = 0; i < 6; ++i) put_local(*primary, "large" + std::to_string(i), pattern(200'000, 2));
    put_local(*primary, "huge", pattern(3 << 20, 3));
    Load load(*primary, 300);
    const auto replica = open(replica_options(path, 2));
    CHECK(has_event(*replica, "a snapshot comes"));
    CHECK(eventually([&] {
      const EngineStats stats = replica->stats();
      return stats.shards[0].snapshots == 1 && stats.shards[1].snapshots == 1;
    }));
    put_local(*primary, "large1", pattern(300'000, 4));
    load.stop();
    CHECK(eventually([&] {
      return primary->put("last", "value", {AckLevel::applied, kPatience}).has_value();
    }));
    check_equal(*primary, *replica);
    std::string value;
    REQUIRE(replica->get("huge", value));
    CHECK(value == pattern(3 << 20, 3));
    CHECK(replica->stats().shards[0].links_lost == 0);
    CHECK(eventually([&] { return primary->stats().shards[0].snapshots == 1; }));
  }

  TEST_CASE(
      "engine/snapshot: a replica that stood still beyond the backlog serves what it had, and comes back") {
    const std::string path = unique_path();
    Options of_primary = short_log(path);
    of_primary.heartbeat = milliseconds(20);
    // Long enough for a busy machine: a second snapshot would have to wait for 30 s.
    of_primary.link_timeout = seconds(3);
    Options of_replica = replica_options(path);
    of_replica.heartbeat = milliseconds(20);
    Pair pair(of_primary, of_replica);
    constexpr int kKeys = 100;
    for (int i = 0; i < kKeys; ++i) put_local(*pair.primary, sync_key(i), "old " + pattern(200, 1));
    CHECK(eventually([&] { return pair.replica->visible_lsn({0}) >= Lsn{kKeys}; }));
    Receipt receipt;
    {
      Standstill standstill(*pair.replica, {0});
      CHECK(eventually([&] { return has_event(*pair.primary, "lost a replica"); }));
      // Several times the log, so that nothing of what comes next is there when the replica is back.
      for (int i = 0; i < 1000; ++i)
        put_local(*pair.primary, "filler" + std::to_string(i % 10), pattern(300, 2));
      const auto put = pair.primary->put("wanted", "value", {AckLevel::local, kPatience});
      REQUIRE(put);
      receipt = *put;
    }
    Load load(*pair.primary, kKeys);
    // Reads with its receipt wait for the swap, or come after it; others show what there is, and never go
    // back.
    std::string value;
    std::map<std::string, std::uint64_t> seen;
    CHECK(eventually([&] {
      check_ascends(*pair.replica, kKeys, seen);
      if (pair.replica->visible_lsn({0}) < receipt.lsn) CHECK(seen.size() == kKeys);
      return pair.replica->stats().shards[0].snapshots > 0;
    }));
    REQUIRE(pair.replica->get("wanted", value, ReadOptions::after(receipt, kPatience)));
    CHECK(value == "value");
    for (int i = 0; i < 20; ++i) check_ascends(*pair.replica, kKeys, seen);
    load.stop();
    CHECK(eventually([&] {
      return pair.primary->put("after", "value", {AckLevel::applied, kPatience}).has_value();
    }));
    check_equal(*pair.primary, *pair.replica);
    CHECK(pair.replica->stats().shards[0].snapshots >= 1);
  }

  TEST_CASE("engine/snapshot: an empty primary of a new history wipes nothing, and is refused for good") {
    const std::string path = unique_path();
    Pair pair(short_log(path), replica_options(path));
    for (int i = 0; i < 200; ++i) put_local(*pair.primary, sync_key(i), pattern(1000, 1));
    check_equal(*pair.primary, *pair.replica);
    const auto before = pair.replica->digest({0}, kPatience);
    REQUIRE(before);
    CHECK(before->first.keys == 200);
    REQUIRE(pair.primary->close(kPatience));
    pair.primary = open(short_log(path));
    bool filled = false;
    SUBCASE("empty") {}
    SUBCASE("and beyond its log") {
      filled = true;
      for (int i = 0; i < 300; ++i) put_local(*pair.primary, "new" + std::to_string(i), pattern(1000, 1));
    }
    CHECK(eventually([&] { return has_event(*pair.replica, "given up, reads go on with what is here"); }));
    CHECK(has_event(*pair.replica, "start this node empty to follow it"));
    const auto after = pair.replica->digest({0}, kPatience);
    REQUIRE(after);
    CHECK(*after == *before);
    CHECK(pair.replica->stats().shards[0].snapshots == 0);
    CHECK(pair.replica->link_count() == 0);
    // What the operator does: a new start, empty.
    REQUIRE(pair.replica->close(kPatience));
    pair.replica = open(replica_options(path));
    if (filled) CHECK(eventually([&] { return pair.replica->stats().shards[0].snapshots == 1; }));
    check_equal(*pair.primary, *pair.replica);
  }
}
