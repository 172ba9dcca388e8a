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
  /// `capacity_bytes` is a power of two, 64 KiB to 64 GiB; mapped and populated. `buffer_bytes`, a multiple
  /// of 64 KiB up to 1 MiB: what buffers() has, of the same mapping.
  /// Errors:   EINVAL, ENOMEM with the size
  static Result<std::unique_ptr<Log>> create(std::uint64_t capacity_bytes, std::uint32_t buffer_bytes = 0);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  /// The ring and, behind it, the buffers: what a link is attached to, so that it may send from both.
  [[nodiscard]] Bytes memory() const { return {memory_, capacity_ + buffer_bytes_}; }
  /// For what a link sends and the ring does not hold. The log does nothing with it.
  [[nodiscard]] MutableBytes buffers() { return {memory_ + capacity_, buffer_bytes_}; }

  /// Nothing before `position` is needed by any replica: append() may reuse it. Goes back, at most to
  /// begin(), when a replica resumes from the backlog.
  void release_to(std::uint64_t position);
  /// True if `bytes` (of one entry, or of several in a row) can be appended without touching what is still
  /// needed. Up to half of the capacity always fits once everything is released.
  [[nodiscard]] bool fits(std::uint32_t bytes) const;
  /// Up to where everything has to be released for that.
  [[nodiscard]] std::uint64_t room_from(std::uint32_t bytes) const;
  /// Encodes an entry at the end. fits() was asked; the LSN follows last_lsn(). `bytes_after`: of the entries
  /// that follow it in its group; all of them stand in a row, and fits() was asked for all.
  void append(const EntryView& entry, std::uint32_t bytes_after = 0);
  /// Entries of another log, encoded, checked and in order: the first follows what this log ends with, the
  /// last ends its group (of a fragmented put some pieces may be missing yet). fits() was asked for all of
  /// them. A group stays in a row; groups may part where a lap ends.
  void append_encoded(Bytes entries);
  /// For entries that are to be checked where they will stay: memory at the end for `bytes` in a row. Empty
  /// if a lap ends before that. fits(bytes) was asked; what the ring held there is no longer readable.
  /// Lifetime: until anything else is appended or cut
  MutableBytes stage(std::uint32_t bytes);
  /// The first `bytes` that stand there are entries as append_encoded() takes them, and the log's from now
  /// on.
  void append_staged(std::uint32_t bytes);

  /// The two below take positions back or away: no cursor may stand in the log.
  /// The pieces of a put that is not whole are forgotten, so that the end is that of last_lsn().
  void cut_to_whole();
  /// Forgets all entries: the next one to be appended follows `lsn`, be that above or below last_lsn().
  void begin_anew(Lsn lsn);

  /// Of the newest whole entry: a fragmented one counts when its last piece is in. 0 if there was never any.
  [[nodiscard]] Lsn last_lsn() const { return last_lsn_; }
  [[nodiscard]] Lsn first_lsn() const;  ///< the oldest whole entry still readable; last_lsn() + 1 if none
  [[nodiscard]] std::uint64_t end() const { return end_; }      ///< where the next entry goes
  [[nodiscard]] std::uint64_t begin() const { return begin_; }  ///< the oldest position still readable

  /// A run of whole encoded entries (or pieces of one), contiguous in memory, from `position` on and at most
  /// `bytes_max` long. Skips the ring's tail. Never ends within a group: if the first group (or entry) is
  /// longer than `bytes_max`, it is the run, up to `group_bytes_max`. Empty at the end of the log.
  struct Run {
    Bytes bytes;
    std::uint64_t next = 0;  ///< position after the run
    std::uint32_t entries = 0;
    Lsn first_lsn{};
    Lsn last_lsn{};
    Lsn whole_lsn{};  ///< the newest entry that is whole with this run: last_lsn, or the one before it
  };
  [[nodiscard]] Run run_at(std::uint64_t position, std::uint32_t bytes_max,
                           std::uint32_t group_bytes_max = 0) const;

  /// Where the entry that follows `lsn` begins (its first piece); for resuming.
  /// Errors:   gap if the log does not hold it, naming what it holds
  Result<std::uint64_t> position_after(Lsn lsn) const;

 private:
  /// Which entry is the first to begin in a segment of the log, or after it if none does, and where: from
  /// there an LSN is looked for.
  struct Mark {
    std::uint64_t segment = ~0ULL;
    std::uint64_t position = 0;
    Lsn lsn{};
  };
  Log(std::byte* memory, std::uint64_t capacity, std::uint32_t buffer_bytes);
  [[nodiscard]] const std::byte* at(std::uint64_t position) const {
    return memory_ + (position & (capacity_ - 1));
  }
  [[nodiscard]] std::uint64_t tail_bytes(std::uint64_t position) const {
    return capacity_ - (position & (capacity_ - 1));
  }
  [[nodiscard]] std::uint64_t skip_tail(std::uint64_t position) const;
  [[nodiscard]] std::uint64_t search_from(Lsn lsn) const;
  std::uint64_t place(std::uint64_t bytes, std::uint64_t row_bytes);
  void take(std::uint64_t position, std::uint32_t bytes, Lsn lsn, bool last_piece);
  void take_row(std::uint64_t position, std::uint64_t bytes);
  void mark(std::uint64_t position, Lsn lsn);
  void unmark_from(std::uint64_t position);
  void forget_before(std::uint64_t position);

  std::byte* memory_;
  std::uint64_t capacity_;
  std::uint32_t buffer_bytes_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t whole_end_ = 0;  ///< end of the newest whole entry
  std::uint64_t needed_ = 0;
  Lsn last_lsn_{};
  std::vector<Mark> marks_;  ///< a ring, one mark a segment of 64 KiB
};

}  // namespace tidelock
