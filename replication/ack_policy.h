/// Where a primary's end may be made to believe what it must not: for tests that plant faults.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <tidelock/base/ids.h>
#include <tidelock/replication/errc.h>

namespace tidelock {

/// When a primary believes that a write has come how far, and that log bytes are free. Production has one
/// way, these defaults; tests plant others to prove that the simulator sees them.
class AckPolicy {
 public:
  virtual ~AckPolicy() = default;
  /// Up to which LSN those who wait for a level are woken.
  [[nodiscard]] virtual Lsn wakes_to(Lsn reached) const { return reached; }
  /// What those hear whose deadline has passed.
  [[nodiscard]] virtual ReplicationErrc expired() const { return ReplicationErrc::outcome_unknown; }
  /// True: what a link took counts as applied by its replica.
  [[nodiscard]] virtual bool counts_sent() const { return false; }
  /// True: a replica counts while it gets a snapshot.
  [[nodiscard]] virtual bool counts_syncing() const { return false; }
  /// True: log bytes are free once their replica has acknowledged them, whatever the link still reads.
  [[nodiscard]] virtual bool releases_on_ack() const { return false; }
  /// True: log bytes that only closed links may still read are free.
  [[nodiscard]] virtual bool forgets_closed_links() const { return false; }
};

}  // namespace tidelock
