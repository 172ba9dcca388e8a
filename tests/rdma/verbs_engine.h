/// Engines over the verbs link, in one process: what an embedder's first hour with it does.
/// Thread:   the engines' own reactors and control threads
#pragma once

#include <memory>
#include <string>

#include <engine/engine_fixture.h>

namespace tidelock::test {

struct VerbsPlaces {
  std::string primary_address;
  std::string replica_address;
  std::string primary_device;
  std::string replica_device;
};

inline Options verbs_primary(const VerbsPlaces& places, std::uint32_t shards) {
  Options options = primary_options(places.primary_address + ":7471", shards);
  options.link = LinkKind::verbs;
  options.device = places.primary_device;
  return options;
}

inline Options verbs_replica(const VerbsPlaces& places, std::uint32_t shards) {
  Options options = replica_options(places.primary_address + ":7471", shards);
  options.link = LinkKind::verbs;
  options.device = places.replica_device;
  options.local_address = places.replica_address;
  return options;
}

inline void check_verbs_engines(const VerbsPlaces& places, std::uint32_t shards) {
  auto primary = open(verbs_primary(places, shards));
  auto replica = open(verbs_replica(places, shards));
  for (int i = 0; i < 200; ++i) {
    const std::string key = "key" + std::to_string(i % 50);
    const std::string value = pattern(static_cast<std::size_t>(i) * 37, static_cast<unsigned>(i));
    const auto receipt = primary->put(key, value);
    if (!receipt) FAIL(receipt.error().message());
    // Acknowledged as applied, so a plain read at the replica has it.
    std::string read;
    const auto visible = replica->get(key, read);
    if (!visible) FAIL(visible.error().message());
    CHECK(read == value);
  }
  // A value of many fragments, larger than a batch.
  const std::string large = pattern(1 << 20, 5);
  REQUIRE(primary->put("large", large));
  std::string read;
  REQUIRE(replica->get("large", read));
  CHECK(read == large);
  check_equal(*primary, *replica);

  REQUIRE(replica->close(kPatience));
  REQUIRE(primary->close(kPatience));
}

}  // namespace tidelock::test
