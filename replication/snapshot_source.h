/// Where a snapshot's records come from: a table that is walked by hash while it changes. The engine
/// implements it.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstddef>
#include <cstdint>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>

namespace tidelock {

class SnapshotSource {
 public:
  struct Record {
    Bytes key;
    Bytes value;
    Lsn lsn{};
  };
  using Visit = void (*)(void* context, const Record& record);

  virtual ~SnapshotSource() = default;
  /// One step: visits the records with hashes from `position` on, 0 at first, up to a border that it chooses,
  /// and returns that; 0 when the end was reached. Encoded as puts they have at most `bytes_max`, except that
  /// records of one hash are never divided: what is larger comes alone. A step may find nothing. A record
  /// that is there throughout is visited at least once, whatever changes between the steps.
  /// Lifetime: of what is visited, until the call returns
  virtual std::uint64_t walk(std::uint64_t position, std::size_t bytes_max, Visit visit,
                             void* context) const = 0;
  /// Returns whether it is there. Lifetime: `found` until the table changes
  virtual bool find(Bytes key, Record& found) const = 0;
};

}  // namespace tidelock
