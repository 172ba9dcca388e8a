// Scans beside everything else that a core does.
#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/fiber.h>

#include "engine/engine_fixture.h"
#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr std::size_t kAll = ~std::size_t{0};

/// What one call of scan() showed.
struct Page {
  std::map<std::string, std::string> records;
  std::size_t bytes = 0;
};

std::vector<Page> pages_of(Engine& engine, ShardId shard, std::size_t keys_max) {
  std::vector<Page> pages;
  ScanCursor cursor;
  while (!cursor.done) {
    Page page;
    const auto visit = [&](std::string_view key, std::string_view value, Lsn) {
      page.bytes += key.size() + value.size();
      CHECK(page.records.emplace(key, value).second);
    };
    REQUIRE(engine.scan(shard, cursor, keys_max, visit, kPatience).has_value());
    pages.push_back(std::move(page));
  }
  return pages;
}

std::map<std::string, std::string> together(const std::vector<Page>& pages) {
  std::map<std::string, std::string> all;
  for (const Page& page : pages) {
    for (const auto& [key, value] : page.records) CHECK(all.emplace(key, value).second);
  }
  return all;
}

/// Fills the one shard and returns what is in it.
std::map<std::string, std::string> fill(Engine& engine, int records, std::size_t value_bytes) {
  std::map<std::string, std::string> written;
  for (int i = 0; i < records; ++i) {
    const std::string key = "key" + std::to_string(i);
    written[key] = pattern(value_bytes, static_cast<unsigned>(i));
    REQUIRE(engine.put(key, written[key]).has_value());
  }
  return written;
}

}  // namespace

TEST_SUITE_BEGIN("engine/scan");

TEST_CASE("a page for another thread or core is at most 4 MiB, or one record") {
  const auto engine = open(small_options(2));
  std::map<std::string, std::string> written;
  for (int i = 0; written.size() < 40; ++i) {
    const std::string key = "key" + std::to_string(i);
    if (engine->shard_of(key) != ShardId{0}) continue;
    // From small ones to some that are longer than a page.
    const std::size_t bytes = i % 8 == 0 ? 5 << 20 : i % 3 == 0 ? 700'000 : 50'000;
    written[key] = pattern(bytes, static_cast<unsigned>(i));
    REQUIRE(engine->put(key, written[key]).has_value());
  }
  const auto look = [&] {
    const std::vector<Page> pages = pages_of(*engine, {0}, kAll);
    CHECK(pages.size() > 5);
    for (const Page& page : pages) CHECK((page.bytes <= kScanPageBytes || page.records.size() == 1));
    CHECK((together(pages) == written));
  };
  look();
  in_fiber(*engine, {1}, look);
  // On the shard's own core nothing is copied, so nothing has to end early.
  in_fiber(*engine, {0}, [&] {
    const std::vector<Page> pages = pages_of(*engine, {0}, kAll);
    CHECK(pages.size() == 1);
    CHECK((together(pages) == written));
  });
}

TEST_CASE("pages of few keys divide a segment of long values, and show each once") {
  const auto engine = open(small_options());
  const auto written = fill(*engine, 60, 60'000);
  const std::vector<Page> pages = pages_of(*engine, {0}, 1);
  CHECK(pages.size() >= 60);
  CHECK((together(pages) == written));
}

TEST_CASE("a scan from a host thread lets other fibers run after each 64 KiB") {
  const auto engine = open(small_options());
  SUBCASE("of one long value") { fill(*engine, 1, 4 << 20); }
  SUBCASE("of a segment of shorter ones") { fill(*engine, 64, 60'000); }
  const std::uint64_t before = engine->stats().shards[0].fiber_switches;
  pages_of(*engine, {0}, kAll);
  // Expect: nothing else runs on this core, so these are the scan's own.
  CHECK(eventually([&] { return engine->stats().shards[0].fiber_switches >= before + 40; }));
}

TEST_CASE("a scan on the shard's own core, or for a fiber of another, lets other fibers run") {
  const auto engine = open(small_options(2));
  for (int i = 0; i < 2000; ++i)
    REQUIRE(engine->put("key" + std::to_string(i), std::string(1000, 'v')).has_value());
  for (const std::uint16_t core : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(core);
    std::atomic<bool> stop{false};
    std::atomic<bool> ended{false};
    std::uint64_t rounds = 0;  // of that core's fibers only
    REQUIRE(engine
                ->spawn_on({core},
                           [&] {
                             for (; !stop; ++rounds) this_fiber::yield();
                             ended = true;
                           })
                .has_value());
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    in_fiber(*engine, {core}, [&] {
      const auto visit = [&](std::string_view, std::string_view, Lsn) {
        if (first == 0) first = rounds;
        last = rounds;
      };
      ScanCursor cursor;
      CHECK(engine->scan({0}, cursor, kAll, visit, kPatience).has_value());
      CHECK(cursor.done);
    });
    stop = true;
    CHECK(eventually([&] { return ended.load(); }));
    CHECK(last >= first + 5);  // some 1 MB was visited
  }
}

TEST_CASE("a key that is there throughout a host thread's scan is visited, whatever others write") {
  const auto engine = open(small_options());
  std::set<std::string> lasting;
  for (int i = 0; i < 1500; ++i) {
    const std::string key = "lasting" + std::to_string(i);
    lasting.insert(key);
    REQUIRE(engine->put(key, pattern(static_cast<std::size_t>(i) % 200, 1)).has_value());
  }
  // Makes segments split, and replaces lasting values by longer and shorter ones, large ones among them.
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::atomic<int> failed{0};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      const std::string later = "later" + std::to_string(i % 20'000);
      const std::string kept = "lasting" + std::to_string(i * 7 % 1500);
      const std::size_t bytes = i % 50 == 0 ? 200'000 : static_cast<std::size_t>(i) * 13 % 400;
      if (!engine->put(later, "value") || !engine->put(kept, std::string(bytes, 'w'))) ++failed;
      if (i % 3 == 0 && !engine->erase(later)) ++failed;
      ++rounds;
    }
  });
  for (int round = 0; round < 5; ++round) {
    const int written = rounds;
    std::set<std::string> seen;
    int pages = 0;
    ScanCursor cursor;
    while (!cursor.done) {
      const auto visit = [&](std::string_view key, std::string_view, Lsn) { seen.emplace(key); };
      REQUIRE(engine->scan({0}, cursor, 20, visit, kPatience).has_value());
      // Expect: writes between any two pages.
      CHECK(eventually([&] { return rounds > written + (kSanitized ? 5 : 50) * pages; }));
      ++pages;
    }
    CHECK(pages > 5);
    CHECK(std::includes(seen.begin(), seen.end(), lasting.begin(), lasting.end()));
  }
  stop = true;
  writer.join();
  CHECK(failed == 0);
}

TEST_CASE("a scan that outlasts its deadline says so, and goes on from its cursor") {
  const auto engine = open(small_options());
  const auto written = fill(*engine, 300, 10'000);
  in_fiber(*engine, {0}, [&] {
    std::map<std::string, std::string> seen;
    const auto visit = [&](std::string_view key, std::string_view value, Lsn) {
      seen[std::string(key)] = value;
    };
    ScanCursor cursor;
    const Status cut = engine->scan({0}, cursor, kAll, visit, Duration{0});
    REQUIRE(!cut.has_value());
    CHECK(cut.error() == ReactorErrc::deadline_exceeded);
    CHECK(!seen.empty());
    CHECK(seen.size() < written.size());
    REQUIRE(engine->scan({0}, cursor, kAll, visit, kPatience).has_value());
    CHECK(cursor.done);
    CHECK((seen == written));
  });
}

TEST_SUITE_END();
