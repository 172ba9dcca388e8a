/// The checkers that look on while a run goes on. Each gives nothing, or what is wrong. None knows the
/// workload.
/// Thread:   one
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <tidelock/base/ids.h>
#include <tidelock/replication/log.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/wire.h>

#include "oracle.h"

namespace tidelock::sim {

using Violation = std::optional<std::string>;

/// no_older_read: in its line the key stood as it was found at some LSN from `floor` on: a receipt's, or what
/// the node had published as applied when the read began.
[[nodiscard]] Violation check_read(const Line& line, std::uint32_t key, std::uint64_t found, Lsn floor);

/// applied_once: LSNs are 1, 2, 3, ...
[[nodiscard]] Violation check_next(Lsn last, Lsn next);

/// log_prefix: an entry is the one that was written at its LSN.
[[nodiscard]] Violation check_entry(const Line& line, Lsn lsn, const Written& entry);

/// snapshot: a record of one is a write that was made at its LSN. `entry`: of which the epoch is not known.
[[nodiscard]] Violation check_record(const Line& line, Lsn lsn, Written entry);

/// acked: of a success of `level` at so many `replicas`: as many nodes had come so far, those that died since
/// included.
[[nodiscard]] Violation check_acked(const Line& line, Lsn lsn, AckLevel level, std::uint32_t replicas = 1);

/// one_commit: a commit LSN never falls, and covers only what so many nodes have applied; 0: what is written.
[[nodiscard]] Violation check_commit(const Line& line, Lsn before, Lsn commit, std::uint32_t replicas = 1);

/// below_c: nothing is appended with fewer whole replicas than that.
[[nodiscard]] Violation check_enough(std::size_t whole, std::uint32_t c);

/// excused: a node that stands at `last` is left behind only by a log into which more was written since than
/// it holds. `under_way`: at most so much of a put that is not whole yet stands in it, too.
[[nodiscard]] Violation check_left_behind(const Line& line, Lsn last, std::uint64_t log_bytes,
                                          std::uint64_t under_way);

/// refused: for good only who was left behind, or who follows another history than the primary's.
[[nodiscard]] Violation check_refusal(const Refusal& refusal, HistoryId of_replica);

/// waits: nobody is told that its deadline passed who waited for what is there.
[[nodiscard]] Violation check_expired(Lsn lsn, bool reached);

/// one_commit, at a replica: it does not fall, and is nothing that no primary has told.
[[nodiscard]] Violation check_told(const Line& line, Lsn before, Lsn commit);

/// log_prefix, on the primary's own log: follows it from turn to turn.
class LogFollower {
 public:
  [[nodiscard]] Violation follow(const Log& log, const Line& line);

 private:
  std::uint64_t position_ = 0;
  Lsn last_{};
  Epoch epoch_{};
};

}  // namespace tidelock::sim
