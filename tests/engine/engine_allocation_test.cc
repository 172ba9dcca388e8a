// In a program of its own: it counts every call of operator new in the process.
#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>

#include "engine/engine_fixture.h"
#include "engine/heap_count.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr int kKeys = 256;
constexpr int kSlots = 16;

/// Keys and values that are made before anything is counted.
struct Records {
  std::vector<std::string> keys;
  std::string value = std::string(100, 'v');
  Records() {
    for (int i = 0; i < kKeys; ++i) keys.push_back("a key beyond the small-string size " + std::to_string(i));
  }
};

/// What `body` allocates, once it has run a few times.
template <class F>
std::uint64_t allocations_of(F&& body) {
  for (int i = 0; i < 3; ++i) body();
  const std::uint64_t before = heap_allocations();
  body();
  return heap_allocations() - before;
}

}  // namespace

TEST_SUITE_BEGIN("engine/allocation");

TEST_CASE("a replicated put of a fiber allocates nothing, on either side") {
  Pair pair;
  const Records records;
  std::atomic<std::uint64_t> allocated{~0ULL};
  in_fiber(*pair.primary, {0}, [&] {
    allocated = allocations_of([&] {
      for (const std::string& key : records.keys) {
        if (!pair.primary->put(key, records.value, {AckLevel::applied, kPatience})) std::abort();
      }
    });
  });
  CHECK(allocated == 0);
}

TEST_CASE("a put and a get of a fiber on another core allocate nothing") {
  const auto engine = open(small_options(2));
  const Records records;
  std::atomic<std::uint64_t> allocated{~0ULL};
  in_fiber(*engine, {0}, [&] {
    std::string value;
    allocated = allocations_of([&] {
      for (const std::string& key : records.keys) {
        if (!engine->put(key, records.value) || !engine->get(key, value)) std::abort();
      }
    });
  });
  CHECK(allocated == 0);
}

TEST_CASE("replicated puts of a host thread allocate nothing, waiting or pipelined") {
  const std::string path = unique_path();
  Options of_primary = primary_options(path);
  of_primary.host_slots = kSlots;
  Pair pair(of_primary, replica_options(path));
  const Records records;
  const WriteOptions how{AckLevel::applied, kPatience};
  const std::uint64_t waiting = allocations_of([&] {
    for (const std::string& key : records.keys) {
      if (!pair.primary->put(key, records.value, how)) std::abort();
    }
  });
  CHECK(waiting == 0);

  std::atomic<int> done{0};
  const auto count = [](void* context, const Result<Receipt>& result) {
    if (!result) std::abort();
    ++*static_cast<std::atomic<int>*>(context);
  };
  // While the core stands still every slot is taken once, so that the buffers of all have grown.
  Standstill standstill(*pair.primary, {0});
  for (int i = 0; i < kSlots; ++i) {
    REQUIRE(pair.primary->put_async(records.keys.back(), records.value, how, count, &done).has_value());
  }
  standstill.release();
  REQUIRE(eventually([&] { return done == kSlots; }));
  const std::uint64_t pipelined = allocations_of([&] {
    done = 0;
    for (const std::string& key : records.keys) {
      while (!pair.primary->put_async(key, records.value, how, count, &done)) std::this_thread::yield();
    }
    while (done != kKeys) std::this_thread::yield();
  });
  CHECK(pipelined == 0);
}

TEST_CASE("a batch that runs out of memory under way leaves nothing behind that another call would get") {
  const auto engine = open(small_options(2));
  const std::string here = key_on(*engine, {0});
  const std::string there = key_on(*engine, {1});
  int failed = 0;
  for (std::uint64_t allowed = 0;; ++allowed) {
    CAPTURE(allowed);
    WriteBatch batch;
    batch.put(here, std::string(1000, 'v'));
    batch.put(there, std::string(1000, 'v'));
    {
      // The first shard has not looked at its share when memory fails for the second one's.
      Standstill standstill(*engine, {0});
      Result<std::vector<Receipt>> written = EngineErrc::busy;
      {
        const HeapLimit limit(allowed);
        written = engine->write(batch, {AckLevel::local, Duration{0}});
      }
      REQUIRE(!written.has_value());
      if (!(written.error() == EngineErrc::out_of_memory)) break;
      ++failed;
      // The slot that was used last is the next one to be taken.
      std::atomic<int> done{0};
      const auto count = [](void* context, const Result<Receipt>& result) {
        if (result) ++*static_cast<std::atomic<int>*>(context);
      };
      REQUIRE(engine->put_async(there, "zero", {AckLevel::local, kPatience}, count, &done).has_value());
      CHECK(eventually([&] { return done == 1; }));
    }
    for (const std::string& key : {here, there}) {
      const auto first = engine->put(key, "one");
      const auto second = engine->put(key, "two");
      REQUIRE((first && second));
      CHECK(second->lsn == first->lsn.next());
      std::string value;
      const auto read = engine->get(key, value);
      REQUIRE(read.has_value());
      CHECK(*read == second->lsn);
      CHECK(value == "two");
    }
  }
  CHECK(failed > 5);
  CHECK(engine->close(kPatience).has_value());
}

TEST_CASE("a spawn for which there is no memory is refused, and close does not wait for it") {
  const auto engine = open(small_options());
  std::atomic<bool> ran{false};
  for (std::uint64_t allowed = 0;; ++allowed) {
    std::function<void()> body = [&ran] { ran = true; };
    Status spawned;
    {
      const HeapLimit limit(allowed);
      spawned = engine->spawn_on({0}, std::move(body));
    }
    if (spawned) break;
    CHECK(spawned.error() == EngineErrc::out_of_memory);
  }
  CHECK(eventually([&] { return ran.load(); }));
  CHECK(engine->close(kPatience).has_value());
}

TEST_SUITE_END();
