/// One shard's table: extendible hashing over small segments, so that one put moves at most 16 KiB.
/// Records of up to 128 bytes (24 of header, key and value) stand in a cell at an address computed from the
/// hash; larger ones in size-class slabs, above 64 KiB in page extents. Erasing frees records, not segments.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <memory>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>

namespace tidelock {

struct TableOptions {
  std::uint64_t memory_bytes_max = 0;  ///< 0: no limit
  bool huge_pages = true;              ///< madvise(MADV_HUGEPAGE) on arenas
  std::uint64_t number = 0;            ///< its owner's, who tells its tables apart by it
};

/// Disjoint bit fields of one 64-bit hash, so that no choice repeats another's bits.
///   bits 0-15 shard, 16-19 bucket in the segment, 20-63 directory, from the top down. Tag (20-35) and wished
///   unit (36-43) are bits that the directory reaches last, beyond 20 bits of depth.
[[nodiscard]] std::uint64_t hash_key(std::uint64_t seed, Bytes key);
[[nodiscard]] ShardId shard_of_hash(std::uint64_t hash, std::uint32_t shards);

class Table {
 public:
  /// Errors:   out_of_memory
  static Result<std::unique_ptr<Table>> create(const TableOptions& options);
  /// No Pin or active Assembly may be left. Unmaps all at once: milliseconds for gigabytes.
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  struct Found {
    Bytes value;
    Lsn lsn{};
  };
  /// Returns whether it is there. Lifetime: `found.value` until the next call that changes the table.
  [[nodiscard]] bool find(std::uint64_t hash, Bytes key, Found& found) const;
  /// Brings the lines that find() will touch closer, for batches of lookups.
  void prefetch(std::uint64_t hash) const;

  /// Makes sure that a put of this size will succeed: splits, memory. The only step that can fail. Without a
  /// put after it, nothing is lost: the next call takes the memory back.
  /// Errors:   out_of_memory
  Status reserve(std::uint64_t hash, Bytes key, std::size_t value_bytes);
  /// After reserve() for the same key and size, with no other change (nor reserve()) between. Replaces an
  /// older value. Copies: values above 64 KiB should come by assemble(), piece by piece. `key` and `value`
  /// must not lie in this table.
  void put(std::uint64_t hash, Bytes key, Bytes value, Lsn lsn);
  /// Returns whether it was there.
  bool erase(std::uint64_t hash, Bytes key);

  // Of two sources that tell of the same writes, whichever comes first: a table that a snapshot and the live
  // entries fill at the same time. LSNs are at least 1.
  /// As reserve() and put(), unless a record of the same or a greater LSN is there. Returns whether it put.
  /// Errors:   out_of_memory
  Result<bool> put_newer(std::uint64_t hash, Bytes key, Bytes value, Lsn lsn);
  /// Removes a record of a smaller LSN only. Returns whether it did.
  bool erase_older(std::uint64_t hash, Bytes key, Lsn lsn);

  /// A put assembled piece by piece, invisible until it is committed.
  class Assembly {
   public:
    Assembly() = default;
    Assembly(Assembly&& other) noexcept;
    Assembly& operator=(Assembly&& other) noexcept;
    ~Assembly();  ///< gives the memory back if it was not committed
    [[nodiscard]] bool active() const { return memory_ != nullptr; }
    /// Of (key followed by value), in ascending order; offset + piece stay within the whole.
    void write(std::uint64_t offset, Bytes piece);
    /// Once its bytes were written.
    [[nodiscard]] Bytes key() const;

   private:
    friend class Table;
    Table* table_ = nullptr;
    std::byte* memory_ = nullptr;
    std::uint32_t key_bytes_ = 0;
    std::uint32_t value_bytes_ = 0;
  };
  /// Errors:   out_of_memory
  Result<Assembly> assemble(std::uint32_t key_bytes, std::uint32_t value_bytes);
  /// Makes sure that a commit() of this assembly will succeed, if nothing else changes the table before it.
  /// Errors:   out_of_memory (the assembly stays)
  Status prepare(const Assembly& assembly, std::uint64_t hash);
  /// Errors:   out_of_memory (the assembly is dropped); none after prepare()
  Status commit(Assembly&& assembly, std::uint64_t hash, Lsn lsn);
  /// The same, unless a record of the same or a greater LSN is there: then the assembly is dropped. Returns
  /// whether it was committed.
  /// Errors:   out_of_memory (the assembly is dropped)
  Result<bool> commit_newer(Assembly&& assembly, std::uint64_t hash, Lsn lsn);

  /// Keeps a large value's memory alive while it is copied in pieces across suspensions.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept;
    Pin& operator=(Pin&& other) noexcept;
    ~Pin();
    [[nodiscard]] Bytes value() const { return value_; }

   private:
    friend class Table;
    Table* table_ = nullptr;
    std::byte* record_ = nullptr;
    Bytes value_;
  };
  /// Values above 64 KiB only. The record must be there.
  [[nodiscard]] Pin pin(std::uint64_t hash, Bytes key);
  /// Pins that are out.
  [[nodiscard]] std::uint64_t pins() const;
  /// Nothing of it is out: no Pin, no Assembly.
  [[nodiscard]] bool idle() const;

  using Visit = void (*)(void* context, Bytes key, Bytes value, Lsn lsn);
  /// One step of a scan: visits the records with hashes from `position` on, 0 at first, to a border that it
  /// chooses, and returns that, 0 when the end was reached. It stays within a segment and below `bytes_max`
  /// (keys, values, `record_bytes` more a record), except that records of one hash are never divided: what is
  /// larger comes alone. A step may find nothing. The visitor must not change the table. A record that is
  /// there throughout is visited at least once, whatever changes between the steps.
  std::uint64_t scan(std::uint64_t position, std::size_t bytes_max, Visit visit, void* context,
                     std::size_t record_bytes = kScanRecordBytes) const;
  static constexpr std::size_t kScanRecordBytes = 24;

  /// Values above 64 KiB that were replaced or erased go back to the system in slices: call free_some(65,536)
  /// once a turn while there are any.
  [[nodiscard]] bool has_deferred() const;
  void free_some(std::size_t bytes);

  /// Of a table that nobody uses any more: unmaps about `bytes` of it (a chunk of 2 MiB at least, where there
  /// are no large values), but nothing before its last pin is gone. No Assembly is active. Returns whether
  /// nothing is left; nothing else but that and its destruction is allowed from the first call on.
  [[nodiscard]] bool dismantle(std::size_t bytes);

  [[nodiscard]] std::uint64_t number() const;
  [[nodiscard]] std::uint64_t keys() const;
  /// Taken from the system: segments, directory, slabs with their free blocks, extents until they are
  /// unmapped.
  [[nodiscard]] std::uint64_t memory_bytes() const;
  /// Records outside of all buckets, found by walking a list. Stays near 0 unless somebody chooses the
  /// hashes.
  [[nodiscard]] std::uint64_t chained() const;
  /// Bytes moved by the latest reserve() or commit() for splits (records and directory), and the most ever.
  [[nodiscard]] std::uint64_t moved_bytes_last() const;
  [[nodiscard]] std::uint64_t moved_bytes_max() const;

 private:
  struct State;
  explicit Table(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidelock
