/// A replica by hand, for tests that need several: it takes what it is sent, says so, and keeps nothing.
/// Thread:   one
#pragma once

#include <memory>

#include <doctest/doctest.h>

#include "stream_rig.h"

namespace tidelock::test {

struct Taker {
  /// `peer_last`: as if it had all up to there.
  Taker(StreamRig& rig, const LoopbackOptions& options, std::uint32_t node = 0, Lsn peer_last = {})
      : far(rig.connect_by_hand(options, peer_last, node)), last(peer_last) {}
  void turn() {
    while (const auto batch = far->receive()) {
      for (EntryReader reader(batch->payload); !reader.at_end();) {
        const auto entry = reader.next();
        REQUIRE(entry);
        if (entry->kind != EntryKind::fragment || entry->last_fragment()) last = entry->lsn;
      }
      far->release();
    }
    static_cast<void>(far->send_control(acknowledgement(last.value, last.value)));
  }
  std::unique_ptr<LoopbackLink> far;
  Lsn last;
};

}  // namespace tidelock::test
