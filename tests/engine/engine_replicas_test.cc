// A primary with several replicas, counted by node. See Options::c.
#include <memory>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>

#include "engine/engine_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

Options counting_primary(const std::string& path, std::uint32_t c, std::uint64_t log_bytes = 1 << 20) {
  Options options = primary_options(path);
  options.c = c;
  options.log_bytes = log_bytes;
  return options;
}

std::unique_ptr<Engine> open_replica(const std::string& path, std::uint32_t node) {
  Options options = replica_options(path);
  options.node = node;
  return open(options);
}

}  // namespace

TEST_SUITE_BEGIN("engine/replicas");

TEST_CASE("with c = 1 a replica that stands still stops no write while another keeps up") {
  const std::string path = unique_path();
  const auto primary = open(counting_primary(path, 1, 64 << 10));
  const auto moving = open_replica(path, 2);
  const auto stopped = open_replica(path, 3);
  CHECK(eventually([&] { return primary->link_count() == 2; }));
  {
    const Standstill standstill(*stopped, {0});
    // More than its ring and the log hold.
    for (int i = 0; i < 200; ++i) {
      REQUIRE(primary->put("key" + std::to_string(i), pattern(4000, 1), {AckLevel::applied, kPatience})
                  .has_value());
    }
    CHECK(primary->link_count() == 1);
    CHECK(has_event(*primary, "the log has no room for what the replica has not taken"));
  }
  check_equal(*primary, *moving);
}

TEST_CASE("with fewer replicas than c every write is refused, and nothing is written") {
  const std::string path = unique_path();
  const auto primary = open(counting_primary(path, 2));
  const auto first = open_replica(path, 2);
  const WriteOptions local{AckLevel::local, kPatience};
  const auto put = primary->put("key", "value", local);
  REQUIRE_FALSE(put.has_value());
  CHECK(put.error() == ReplicationErrc::no_replica);
  CHECK(put.error().message().find("1 of the 2") != std::string::npos);
  CHECK(primary->put("key", pattern(200'000, 1), local).error() == ReplicationErrc::no_replica);
  WriteBatch batch;
  batch.put("key", "value");
  CHECK(primary->write(batch, local).error() == ReplicationErrc::no_replica);
  in_fiber(*primary, {0}, [&] {
    CHECK(primary->put("key", "value", local).error() == ReplicationErrc::no_replica);
    CHECK(primary->put("key", pattern(200'000, 1), local).error() == ReplicationErrc::no_replica);
  });
  CHECK(primary->visible_lsn({0}) == Lsn{});
  const auto second = open_replica(path, 3);
  const auto written = primary->put("key", "value", {AckLevel::applied, kPatience});
  REQUIRE(written.has_value());
  REQUIRE(second->close(kPatience).has_value());
  CHECK(eventually([&] { return !primary->put("key", "value", local).has_value(); }));
  // What was written may still be asked for: it has been acknowledged.
  CHECK(primary->wait(*written, AckLevel::applied, kPatience).has_value());
  in_fiber(*primary, {0}, [&] { CHECK(primary->wait(*written, AckLevel::applied, kPatience).has_value()); });
}

TEST_CASE("a write waits for as many replicas as it asks for, from fibers and from threads") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path));
  const auto moving = open_replica(path, 2);
  const auto standing = open_replica(path, 3);
  CHECK(eventually([&] { return primary->link_count() == 2; }));
  const auto at = [](std::uint32_t replicas, Duration timeout = kPatience) {
    return WriteOptions{AckLevel::applied, timeout, replicas};
  };
  CHECK(primary->put("key", "value", at(2)).has_value());
  CHECK(primary->put("key", "value", at(3)).error() == ReplicationErrc::no_replica);
  CHECK(primary->put("key", "value", at(kAckReplicasMax + 1)).error() == EngineErrc::bad_option);
  Standstill standstill(*standing, {0});
  const auto one = primary->put("key", "value", at(1));
  REQUIRE(one.has_value());
  CHECK(primary->put("key", "value", at(2, milliseconds(50))).error() == ReplicationErrc::outcome_unknown);
  WriteBatch batch;
  batch.put("key", "value");
  CHECK(primary->write(batch, at(1)).has_value());
  CHECK(primary->write(batch, at(2, milliseconds(50))).error() == ReplicationErrc::outcome_unknown);
  CHECK(primary->wait(*one, AckLevel::applied, kPatience, 1).has_value());
  CHECK(primary->wait(*one, AckLevel::applied, milliseconds(50), 2).error() ==
        ReplicationErrc::outcome_unknown);
  in_fiber(*primary, {0}, [&] {
    CHECK(primary->put("key", "value", at(1)).has_value());
    CHECK(primary->put("key", "value", at(2, milliseconds(50))).error() == ReplicationErrc::outcome_unknown);
    CHECK(primary->wait(*one, AckLevel::applied, milliseconds(50), 2).error() ==
          ReplicationErrc::outcome_unknown);
  });
  standstill.release();
  CHECK(primary->wait(*one, AckLevel::applied, kPatience, 2).has_value());
}

TEST_CASE("with c two replicas by one number are not two: the second waits until the first is gone") {
  const std::string path = unique_path();
  const auto primary = open(counting_primary(path, 1));
  auto first = open_replica(path, 2);
  CHECK(primary->put("key", "value").has_value());
  std::unique_ptr<Engine> second;
  std::thread opening([&] { second = open_replica(path, 2); });
  CHECK(eventually([&] { return has_event(*primary, "a number of its own"); }));
  CHECK(primary->link_count() == 1);
  CHECK(primary->put("key", "value").has_value());
  CHECK(first->close(kPatience).has_value());
  opening.join();
  CHECK(primary->put("key", "value").has_value());
  check_equal(*primary, *second);
}

TEST_CASE("c is a primary's that listens, and has a range") {
  const auto refused = [](const Options& options) {
    const Status valid = options.validate();
    REQUIRE_FALSE(valid.has_value());
    CHECK(valid.error() == EngineErrc::bad_option);
    CHECK(valid.error().message().find("c is ") != std::string::npos);
  };
  refused(counting_primary(unique_path(), kAckReplicasMax + 1));
  refused(counting_primary("", 1));
  Options replica = replica_options(unique_path());
  replica.c = 1;
  refused(replica);
  CHECK(counting_primary("", 0).validate().has_value());
}

TEST_SUITE_END();
