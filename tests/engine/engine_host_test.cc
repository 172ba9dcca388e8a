// Calls from threads that run no reactor.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>

#include "engine/engine_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kPipelined = 10'000;
#else
constexpr int kPipelined = 100'000;
#endif

namespace {

/// Counts what put_async reported.
struct Outcomes {
  std::atomic<int> good{0};
  std::atomic<int> bad{0};
  std::atomic<std::uint64_t> lsn_last{0};
  std::atomic<bool> ordered{true};

  static void on_put(void* context, const Result<Receipt>& result) {
    auto& self = *static_cast<Outcomes*>(context);
    if (!result) {
      ++self.bad;
      return;
    }
    if (result->lsn.value <= self.lsn_last.load()) self.ordered = false;
    self.lsn_last = result->lsn.value;
    ++self.good;
  }
};

Status put_patiently(Engine& engine, std::string_view key, std::string_view value,
                     const WriteOptions& options, Engine::PutCallback callback, void* context) {
  for (;;) {
    Status status = engine.put_async(key, value, options, callback, context);
    if (status || !(status.error() == EngineErrc::busy)) return status;
    std::this_thread::yield();
  }
}

}  // namespace

TEST_SUITE_BEGIN("engine/host");

TEST_CASE("four threads write and read at once, each sees what it wrote") {
  const auto engine = open(small_options(3));
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::string value;
      for (int i = 0; i < 500; ++i) {
        const std::string key = std::to_string(thread) + "/" + std::to_string(i);
        const auto receipt = engine->put(key, key);
        const auto lsn = engine->get(key, value);
        if (!receipt || !lsn || *lsn != receipt->lsn || value != key) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
}

TEST_CASE("pipelined puts keep a thread's order, and the last one wins") {
  const auto engine = open(small_options());
  Outcomes outcomes;
  for (int i = 0; i < kPipelined; ++i) {
    const Status accepted = put_patiently(*engine, "key" + std::to_string(i % 100), std::to_string(i),
                                          {AckLevel::local, kPatience}, &Outcomes::on_put, &outcomes);
    REQUIRE(accepted.has_value());
  }
  CHECK(eventually([&] { return outcomes.good + outcomes.bad == kPipelined; }));
  CHECK(outcomes.bad == 0);
  CHECK(outcomes.ordered);
  std::string value;
  for (int key = 0; key < 100; ++key) {
    REQUIRE(engine->get("key" + std::to_string(key), value).has_value());
    CHECK(value == std::to_string(kPipelined - 100 + key));
  }
}

TEST_CASE("small puts do not overtake a large one of the same thread") {
  const auto engine = open(small_options());
  Outcomes outcomes;
  constexpr int kRounds = 30;
  const std::string large = pattern(500'000, 9);
  for (int i = 0; i < kRounds; ++i) {
    for (const std::string_view value : {std::string_view(large), std::string_view("small")}) {
      REQUIRE(put_patiently(*engine, "key", value, {AckLevel::local, kPatience}, &Outcomes::on_put, &outcomes)
                  .has_value());
    }
  }
  CHECK(eventually([&] { return outcomes.good + outcomes.bad == 2 * kRounds; }));
  CHECK(outcomes.bad == 0);
  CHECK(outcomes.ordered);
  std::string value;
  REQUIRE(engine->get("key", value).has_value());
  CHECK(value == "small");
}

TEST_CASE("a callback may start the next put") {
  struct Chain {
    Engine* engine;
    std::atomic<int> left{1000};
    std::atomic<bool> failed{false};
    static void next(void* context, const Result<Receipt>& result) {
      auto& self = *static_cast<Chain*>(context);
      if (!result) self.failed = true;
      if (--self.left == 0) return;
      if (!self.engine->put_async("chain", "value", {AckLevel::local, kPatience}, &next, context)) {
        self.failed = true;
        self.left = 0;
      }
    }
  };
  Options options = small_options();
  options.host_slots = 1;
  const auto engine = open(options);
  Chain chain{engine.get()};
  REQUIRE(
      engine->put_async("chain", "value", {AckLevel::local, kPatience}, &Chain::next, &chain).has_value());
  CHECK(eventually([&] { return chain.left == 0; }));
  CHECK(!chain.failed);
}

TEST_CASE("with all slots in use a put is refused as busy, and accepted again after a completion") {
  Options options = small_options();
  options.host_slots = 4;
  const auto engine = open(options);
  // The core stands still, so nothing completes.
  Standstill standstill(*engine, {0});
  Outcomes outcomes;
  const WriteOptions how{AckLevel::local, kPatience};
  for (int i = 0; i < 4; ++i)
    REQUIRE(engine->put_async("key", "v", how, &Outcomes::on_put, &outcomes).has_value());
  const Status refused = engine->put_async("key", "v", how, &Outcomes::on_put, &outcomes);
  CHECK(refused.error() == EngineErrc::busy);
  standstill.release();
  CHECK(eventually([&] { return outcomes.good == 4; }));
  CHECK(eventually(
      [&] { return engine->put_async("key", "v", how, &Outcomes::on_put, &outcomes).has_value(); }));
  CHECK(eventually([&] { return outcomes.good == 5; }));
}

TEST_CASE("a caller whose core does not answer leaves by its deadline, and nothing dangles") {
  const auto engine = open(small_options());
  Standstill standstill(*engine, {0});
  {
    std::string value = "what the caller had";
    const std::string key = "short-lived";
    CHECK(engine->get(key, value, {{}, {}, {}, milliseconds(20)}).error() == ReactorErrc::deadline_exceeded);
    CHECK(engine->put(key, std::string(10'000, 'v'), {AckLevel::local, milliseconds(20)}).error() ==
          ReplicationErrc::outcome_unknown);
  }
  standstill.release();
  std::string value;
  CHECK(eventually([&] { return engine->get("short-lived", value).has_value(); }));
  CHECK(value == std::string(10'000, 'v'));
}

TEST_CASE("close with calls in flight completes every one of them") {
  const auto engine = open(small_options(2));
  std::atomic<int> unexpected{0};
  std::atomic<bool> closed_seen{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0;; ++i) {
        const auto receipt = engine->put(std::to_string(thread) + "/" + std::to_string(i), "v");
        if (receipt) continue;
        if (!(receipt.error() == EngineErrc::closed)) ++unexpected;
        closed_seen = true;
        return;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(engine->close(kPatience).has_value());
  for (std::thread& thread : threads) thread.join();
  CHECK(unexpected == 0);
  CHECK(closed_seen);
}

TEST_SUITE_END();
