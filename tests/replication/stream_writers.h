/// Fibers that write at random at a stream's primary, and what a replica has to hold then.
/// Thread:   one
#pragma once

#include <map>
#include <string>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>

#include "stream_rig.h"

namespace tidelock::test {

struct Writers {
  StreamRig& rig;
  Random& random;
  std::map<std::string, std::string> model;
  int running = 0;

  /// A random put or erase; large values go as fragments.
  void write_one() {
    const std::string key = "key" + std::to_string(random.below(200));
    const std::uint64_t kind = random.below(100);
    if (kind < 10) {
      REQUIRE(
          rig.primary->wait_for_room(entry_bytes(EntryKind::erase, key.size(), 0), rig.in(seconds(1000))));
      REQUIRE(rig.primary->try_append(EntryKind::erase, as_bytes(key), {}));
      model.erase(key);
      return;
    }
    const std::uint64_t bytes = kind < 13 ? random.below(300'000) : random.below(kind < 20 ? 20'000 : 400);
    const std::string value(bytes, static_cast<char>('a' + random.below(26)));
    if (entry_bytes(EntryKind::put, key.size(), bytes) > kEntryBytesMax) {
      REQUIRE(rig.primary->append_fragments(as_bytes(key), as_bytes(value), rig.in(seconds(1000))));
    } else {
      REQUIRE(
          rig.primary->wait_for_room(entry_bytes(EntryKind::put, key.size(), bytes), rig.in(seconds(1000))));
      REQUIRE(rig.primary->try_append(EntryKind::put, as_bytes(key), as_bytes(value)));
    }
    model[key] = value;
  }
  void spawn(int operations) {
    ++running;
    rig.spawn([this, operations] {
      for (int i = 0; i < operations; ++i) {
        write_one();
        if (random.below(4) == 0) static_cast<void>(this_fiber::sleep_for(microseconds(500)));
      }
      --running;
    });
  }
};

}  // namespace tidelock::test
