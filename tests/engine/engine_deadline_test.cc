// What a write says when its time is up, or its fiber is cancelled, and that it says so in time.
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/errc.h>

#include "engine/engine_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr Duration kLong = seconds(3600);
constexpr Duration kShort = milliseconds(50);

/// What put_async reported.
struct Answer {
  std::atomic<bool> came{false};
  std::optional<Result<Receipt>> result;  ///< once `came`

  static void on_put(void* context, const Result<Receipt>& result) {
    auto& self = *static_cast<Answer*>(context);
    self.result = result;
    self.came = true;
  }
};

/// A pair whose log is small and whose replica takes nothing.
struct Stuck {
  Stuck()
      : path(unique_path()), pair(primary(path), replica_options(path, 2)), standstill(*pair.replica, {0}) {}

  static Options primary(const std::string& path) {
    Options options = primary_options(path, 2);
    options.log_bytes = 64 << 10;
    return options;
  }
  [[nodiscard]] Engine& engine() const { return *pair.primary; }
  /// Until nothing more fits into shard 0's log.
  void fill() const {
    const std::string key = key_on(engine(), {0});
    const auto refused = [&] {  // for that reason: a busy machine may keep the core from answering in time
      const auto result = engine().put(key, pattern(4000, 1), {AckLevel::local, milliseconds(100)});
      return !result && result.error() == ReplicationErrc::log_full;
    };
    REQUIRE(eventually(refused));
  }

  std::string path;
  Pair pair;
  Standstill standstill;
};

bool mentions(const Error& error, const std::string& part) {
  return error.message().find(part) != std::string::npos;
}

/// What the shard said to a put: tried again, with more patience each time, where only its core was late to
/// answer.
template <class Put>
Result<Receipt> answered(Put put) {
  Duration timeout = kShort;
  auto result = put(WriteOptions{AckLevel::local, timeout});
  while (!result && result.error() == ReplicationErrc::outcome_unknown && timeout < kPatience) {
    timeout = timeout * 2;
    result = put(WriteOptions{AckLevel::local, timeout});
  }
  return result;
}

/// Runs `put` in a fiber of that core, cancels it once `when` holds, and returns its result.
template <class Put, class When>
Result<Receipt> cancelled_put(Engine& engine, ShardId core, Put put, When when) {
  std::optional<Result<Receipt>> result;
  in_fiber(engine, core, [&] {
    auto fiber = engine.reactor(core).spawn("put", [&] { result = put(); });
    REQUIRE(fiber.has_value());
    while (!when()) static_cast<void>(this_fiber::sleep_for(milliseconds(1)));
    fiber->cancel();
    CHECK(fiber->join(engine.reactor(core).now() + kPatience).has_value());
  });
  REQUIRE(result.has_value());
  return *result;
}

}  // namespace

TEST_SUITE_BEGIN("engine/deadline");

TEST_CASE("a put behind a patient one ends by its own deadline") {
  Stuck stuck;
  stuck.fill();
  const std::string key = key_on(stuck.engine(), {0});
  const std::string value = pattern(4000, 2);
  const Lsn before = stuck.engine().visible_lsn({0});
  Answer patient;
  Answer between;
  Answer last;
  const auto put = [&](Duration timeout, Answer& answer) {
    return stuck.engine().put_async(key, value, {AckLevel::local, timeout}, &Answer::on_put, &answer);
  };
  REQUIRE(put(kLong, patient).has_value());
  REQUIRE(put(kShort, between).has_value());
  REQUIRE(put(kLong, last).has_value());
  CHECK(eventually([&] { return between.came.load(); }));
  REQUIRE(between.result.has_value());
  CHECK(between.result->error() == ReplicationErrc::log_full);
  CHECK(!patient.came);
  CHECK(!last.came);
  // The queue is whole: what is left of it goes on, in its order, and a newcomer stands at its end.
  Answer newcomer;
  REQUIRE(put(kLong, newcomer).has_value());
  stuck.standstill.release();
  CHECK(eventually([&] { return patient.came && last.came && newcomer.came; }));
  REQUIRE((*patient.result && *last.result && *newcomer.result));
  CHECK((*patient.result)->lsn == before.next());
  CHECK((*last.result)->lsn == before.next().next());
  CHECK((*newcomer.result)->lsn == before.next().next().next());
}

TEST_CASE("a put that a large one holds up says so, wherever it comes from") {
  Stuck stuck;
  const std::string key = key_on(stuck.engine(), {0});
  Answer large;
  REQUIRE(stuck.engine()
              .put_async(key, pattern(500'000, 1), {AckLevel::local, kLong}, &Answer::on_put, &large)
              .has_value());
  const auto refused = [&](const Result<Receipt>& result) {
    REQUIRE(!result.has_value());
    CAPTURE(result.error().message());
    CHECK(result.error() == EngineErrc::not_written);
    CHECK(mentions(result.error(), "a large put"));
  };
  const auto put = [&](std::string_view value) {
    return answered([&](const WriteOptions& how) { return stuck.engine().put(key, value, how); });
  };
  refused(put("of a host thread"));
  in_fiber(stuck.engine(), {0}, [&] {
    // Its writes are held off only once it is assembled.
    Result<Receipt> result = EngineErrc::busy;
    while ((result = put("of a fiber"))) continue;
    refused(result);
    refused(put(pattern(100'000, 2)));
  });
  in_fiber(stuck.engine(), {1}, [&] { refused(put("of another core")); });
  stuck.standstill.release();
  CHECK(eventually([&] { return large.came.load(); }));
  CHECK(large.result->has_value());
  CHECK(stuck.engine().put(key, "after it", {AckLevel::local, kPatience}).has_value());
}

TEST_CASE("a put that is cancelled before its turn was not written") {
  Stuck stuck;
  stuck.fill();
  const std::string key = key_on(stuck.engine(), {0});
  const Lsn before = stuck.engine().visible_lsn({0});
  std::atomic<bool> begun{false};
  for (const std::size_t bytes : {4000UL, 100'000UL}) {
    CAPTURE(bytes);
    const auto put = [&] {
      begun = true;
      return stuck.engine().put(key, pattern(bytes, 1), {AckLevel::local, kLong});
    };
    const auto result = cancelled_put(stuck.engine(), {0}, put, [&] { return begun.load(); });
    CHECK(result.error() == EngineErrc::not_written);
  }
  CHECK(stuck.engine().visible_lsn({0}) == before);
}

TEST_CASE("a put that is cancelled while it waits for its acknowledgement has an unknown outcome") {
  Stuck stuck;
  const std::string key = key_on(stuck.engine(), {0});
  for (const std::uint16_t core : {std::uint16_t{0}, std::uint16_t{1}}) {
    CAPTURE(core);
    const Lsn before = stuck.engine().visible_lsn({0});
    const auto put = [&] { return stuck.engine().put(key, "value", {AckLevel::applied, kLong}); };
    const auto written = [&] { return stuck.engine().visible_lsn({0}) > before; };
    const auto result = cancelled_put(stuck.engine(), {core}, put, written);
    CHECK(result.error() == ReplicationErrc::outcome_unknown);
  }
}

TEST_CASE("a put whose call did not leave was not written, one that left has an unknown outcome") {
  Options options = small_options(2);
  options.mailbox.lane_slots = 4;
  const auto engine = open(options);
  const std::string key = key_on(*engine, {0});
  std::atomic<int> unknown{0};
  std::atomic<int> not_written{0};
  constexpr int kPuts = 12;
  Standstill standstill(*engine, {0});
  for (int i = 0; i < kPuts; ++i) {
    const auto put = [&] {
      const auto result = engine->put(key, "value", {AckLevel::local, kShort});
      if (result) return;
      if (result.error() == ReplicationErrc::outcome_unknown) ++unknown;
      if (result.error() == EngineErrc::not_written) ++not_written;
    };
    REQUIRE(engine->spawn_on({1}, put).has_value());
  }
  CHECK(eventually([&] { return unknown + not_written == kPuts; }));
  CHECK(unknown > 0);
  CHECK(not_written > 0);
  standstill.release();
  const auto receipt = engine->put(key, "value", {AckLevel::local, kPatience});
  REQUIRE(receipt.has_value());
  CHECK(receipt->lsn.value == static_cast<std::uint64_t>(unknown) + 1);
}

TEST_CASE("a fiber with too many calls in flight is told which limit that is") {
  Options options = small_options(2);
  options.max_fibers = 16;
  const auto engine = open(options);
  const std::string key = key_on(*engine, {0});
  std::mutex mutex;
  std::string told;
  std::atomic<int> ended{0};
  constexpr int kFibers = 12;
  Standstill standstill(*engine, {0});
  for (int i = 0; i < kFibers; ++i) {
    const auto get = [&] {
      std::string value;
      for (int call = 0; call < 4; ++call) {
        const auto result = engine->get(key, value, {.timeout = milliseconds(1)});
        if (result.has_value() || !(result.error() == EngineErrc::busy)) continue;
        const std::lock_guard lock(mutex);
        told = result.error().message();
      }
      ++ended;
    };
    REQUIRE(engine->spawn_on({1}, get).has_value());
  }
  CHECK(eventually([&] { return ended == kFibers; }));
  CAPTURE(told);
  CHECK(told.find("max_fibers") != std::string::npos);
  CHECK(told.find("host_slots") == std::string::npos);
}

TEST_SUITE_END();
