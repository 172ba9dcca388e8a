// `tidelock pingpong`: its flags, its hello, its statistics, and what it prints.
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include <tidelock/replication/errc.h>

#include "has.h"
#include "pingpong_options.h"
#include "pingpong_report.h"
#include "pingpong_stats.h"

using namespace tidelock;
using namespace tidelock::tools;
using tidelock::test::has;

namespace {

PingReport example() {
  PingReport report;
  report.options.server = "10.0.0.1";
  report.options.command = "tidelock pingpong 10.0.0.1";
  report.facts = {"verbs rxe_v1 10.0.0.2 -> 10.0.0.1", "rxe_v1", "10.0.0.2", "10.0.0.1", 1, 4096, 256};
  PingSamples samples(2);
  samples.add(2'000);
  samples.add(6'000);
  report.rows = {samples.row(64)};
  return report;
}

}  // namespace

TEST_CASE("pingpong: a row has half round trips, the median, and percentiles by nearest rank") {
  PingSamples samples(1000);
  for (std::uint64_t i = 1; i <= 1000; ++i) samples.add(i * 2'000);
  const PingRow row = samples.row(64);
  CHECK(row.bytes == 64);
  CHECK(row.iterations == 1000);
  CHECK(row.min_usec == doctest::Approx(1));
  CHECK(row.max_usec == doctest::Approx(1000));
  CHECK(row.typical_usec == doctest::Approx(500));
  CHECK(row.average_usec == doctest::Approx(500.5));
  CHECK(row.deviation_usec == doctest::Approx(std::sqrt((1e6 - 1) / 12)));
  CHECK(row.p99_usec == doctest::Approx(990));
  CHECK(row.p999_usec == doctest::Approx(999));
}

TEST_CASE("pingpong: one sample is every column, none is no division by zero") {
  PingSamples samples(1);
  CHECK(samples.row(8).iterations == 0);
  samples.add(3'000);
  const PingRow row = samples.row(8);
  for (const double column : {row.min_usec, row.max_usec, row.typical_usec, row.p99_usec, row.p999_usec}) {
    CHECK(column == doctest::Approx(1.5));
  }
  CHECK(row.deviation_usec == 0);
}

TEST_CASE("pingpong: beyond what is kept, extremes and mean are still of all, percentiles of a fair choice") {
  PingSamples samples(1 << 20, 1000);
  constexpr std::uint64_t kAll = 100'000;
  for (std::uint64_t i = 1; i <= kAll; ++i) samples.add(i * 2'000);
  CHECK(samples.kept() == 1000);
  const PingRow row = samples.row(64);
  CHECK(row.iterations == kAll);
  CHECK(row.min_usec == doctest::Approx(1));
  CHECK(row.max_usec == doctest::Approx(kAll));
  CHECK(row.average_usec == doctest::Approx(50'000.5));
  // The choice is seeded, so these hold always: a fair one of 1,000 is off by 1.6 % of the range on average.
  CHECK(std::abs(row.typical_usec - 50'000) < 8'000);
  CHECK(row.p99_usec > 95'000);
}

TEST_CASE("pingpong: flags that do not go together are refused with what to use instead") {
  const auto refused = [](PingpongOptions options, const std::string& part) {
    const Status valid = options.validate();
    REQUIRE_FALSE(valid.has_value());
    CHECK_MESSAGE(has(valid.error().message(), part), valid.error().message());
  };
  PingpongOptions options;
  CHECK(options.validate().has_value());
  for (const std::uint32_t bytes : {0U, 24U, 63U, kPingBytesMax + 8}) {
    options.bytes = bytes;
    refused(options, "multiple of 8");
  }
  options = {};
  options.bytes = kPingBytesMax;
  CHECK(options.validate().has_value());
  options = {};
  options.link = LinkKind::shm;
  options.verb = PingVerb::send;
  refused(options, "--verb");
  options.verb = PingVerb::link;
  options.device = "mlx5_0";
  refused(options, "-d");
  options = {};
  options.server = "10.0.0.1";
  options.listen = "10.0.0.2";
  refused(options, "--listen");
}

TEST_CASE("pingpong: all sizes are powers of two up to what a batch can have, and send has one") {
  PingpongOptions options;
  CHECK(options.sizes() == std::vector<std::uint32_t>{64});
  options.all_sizes = true;
  const auto sizes = options.sizes();
  CHECK(sizes.front() == 32);
  CHECK(sizes.back() == 512 << 10);
  CHECK(sizes.size() == 15);
  options.verb = PingVerb::send;
  CHECK(options.sizes() == std::vector<std::uint32_t>{64});
}

TEST_CASE("pingpong: terms survive the hello, and what no client says is refused with its reason") {
  const PingTerms terms{PingVerb::send, 4096};
  Refusal refusal;
  std::array<std::byte, kHelloBytes> wire{};
  encode_hello(hello_of(terms, NodeRole::replica), wire);
  const auto hello = decode_hello(wire);
  REQUIRE(hello.has_value());
  const auto back = terms_of(*hello, refusal);
  REQUIRE(back.has_value());
  CHECK(back->verb == PingVerb::send);
  CHECK(back->bytes_max == 4096);

  const auto refused = [&](auto&& spoil, RefusalReason reason) {
    Hello other = *hello;
    spoil(other);
    CHECK_FALSE(terms_of(other, refusal).has_value());
    CHECK(refusal.reason == reason);
  };
  refused([](Hello& other) { other.history.value = 0; }, RefusalReason::history);
  refused([](Hello& other) { other.role = NodeRole::primary; }, RefusalReason::role);
  refused([](Hello& other) { other.routing_seed += std::uint64_t{1} << 32; }, RefusalReason::version);
  refused([](Hello& other) { other.routing_seed |= 0xff; }, RefusalReason::malformed);
  refused([](Hello& other) { other.value_bytes_max = kPingBytesMax + 1; }, RefusalReason::limits);

  CHECK(check_server(hello_of(terms, NodeRole::primary)).has_value());
  CHECK_FALSE(check_server(hello_of(terms, NodeRole::replica)).has_value());
  CHECK_FALSE(check_server(Hello{}).has_value());
}

TEST_CASE("pingpong: perftest's columns, a preamble that says what was measured, and JSON") {
  const PingReport report = example();
  const std::string table = results(report);
  for (const char* part :
       {"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]",
        "t_stdev[usec]", "99% percentile[usec]", "99.9% percentile[usec]", " 64 ", "1.00", "3.00", "2.00"})
    CHECK_MESSAGE(has(table, part), part);
  const std::string before = preamble(report);
  for (const char* part : {"rxe_v1", "10.0.0.2 -> 10.0.0.1", "GID index 1", "MTU 4096", "inline 256",
                           "RDMA in software; says nothing about a network card", "WRITE_WITH_IMM"})
    CHECK_MESSAGE(has(before, part), part);
  const auto json = to_json(report);
  CHECK(json["results"][0]["t_typical_usec"] == 1.0);
  CHECK(json["results"][0]["t_avg_usec"] == 2.0);
  CHECK(json["link"]["mtu_bytes"] == 4096);
  PingReport other = report;
  other.facts.device = "mlx5_0";
  CHECK_FALSE(has(preamble(other), "software"));
  other.options.link = LinkKind::shm;
  CHECK(has(preamble(other), "says nothing about RDMA"));
}
