/// A shard's log: one ring of memory in which entries are encoded and CRC'd once. It is at the same time what
/// is sent and the backlog that a reconnecting replica resumes from. Every replica is a cursor in it.
/// Positions count bytes from the start of the history; memory offset = position mod capacity. An entry never
/// straddles the end: the tail is skipped (and counts as used).
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/wire.h>

namespace tidelock {

class Log {
 public:
  /// `capacity_bytes` is a power of two, 64 KiB to 64 GiB; mapped and populated.
  /// Errors:   EINVAL, ENOMEM with the size
  static Result<std::unique_ptr<Log>> create(std::uint64_t capacity_bytes);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] Bytes memory() const { return {memory_, capacity_}; }

  /// Nothing before `position` is needed by any replica; append() may reuse it. Never goes back.
  void release_to(std::uint64_t position);
  /// True if `bytes` (an entry's size) can be appended without touching what is still needed.
  [[nodiscard]] bool fits(std::uint32_t bytes) const;
  /// Encodes an entry at the end. fits() was asked.
  void append(const EntryView& entry);

  [[nodiscard]] Lsn last_lsn() const { return last_lsn_; }    ///< 0 if nothing was ever appended
  [[nodiscard]] Lsn first_lsn() const;                        ///< the oldest whole entry still readable; last+1 if none
  [[nodiscard]] std::uint64_t end() const { return end_; }    ///< where the next entry goes
  [[nodiscard]] std::uint64_t begin() const { return begin_; }///< the oldest position still readable

  /// A run of whole entries, contiguous in memory, from `position` on and at most `bytes_max` long. Skips the
  /// ring's tail. Empty at the end of the log.
  struct Run {
    Bytes bytes;
    std::uint64_t next = 0;  ///< position after the run
    std::uint32_t entries = 0;
    Lsn first_lsn{};
    Lsn last_lsn{};
  };
  [[nodiscard]] Run run_at(std::uint64_t position, std::uint32_t bytes_max) const;

  /// Where the entry that follows `lsn` begins; for resuming. Errors: gap if the log no longer holds it
  Result<std::uint64_t> position_after(Lsn lsn) const;

 private:
  explicit Log(std::byte* memory, std::uint64_t capacity) : memory_(memory), capacity_(capacity) {}
  std::byte* memory_;
  std::uint64_t capacity_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t needed_ = 0;
  Lsn last_lsn_{};
  struct Mark {
    std::uint64_t position;
    Lsn lsn;
  };
  std::vector<Mark> marks_;  ///< a ring, one a 64 KiB of log: where to start looking for an LSN
};

}  // namespace tidelock
