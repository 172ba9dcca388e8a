/// One shard's table: extendible hashing over small segments, so that one put moves at most 16 KiB.
/// Records of up to 128 bytes (header, key and value) stand in a cell at an address computed from the hash;
/// larger ones in size-class slabs, above 64 KiB in page extents.
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
};

/// Disjoint bit fields of one 64-bit hash, so that no choice repeats another's bits.
///   bits 0-15 shard, 16-19 bucket in the segment, 20-63 directory (top bits first) and, whole, the tag.
[[nodiscard]] std::uint64_t hash_key(std::uint64_t seed, Bytes key);
[[nodiscard]] ShardId shard_of_hash(std::uint64_t hash, std::uint32_t shards);

class Table {
 public:
  static Result<std::unique_ptr<Table>> create(const TableOptions& options);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  struct Found {
    Bytes value;
    Lsn lsn{};
  };
  /// Lifetime: until the next call that changes the table. Null value pointer: absent (see `found`).
  [[nodiscard]] bool find(std::uint64_t hash, Bytes key, Found& found) const;
  /// Brings the lines that find() will touch closer, for batches of lookups.
  void prefetch(std::uint64_t hash) const;

  /// Makes sure that a put of this size will succeed: splits, memory. The only step that can fail.
  /// Errors:   out_of_memory
  Status reserve(std::uint64_t hash, Bytes key, std::size_t value_bytes);
  /// After reserve() for the same key, with no other change between. Replaces an older value. Copies.
  void put(std::uint64_t hash, Bytes key, Bytes value, Lsn lsn);
  /// Returns whether it was there.
  bool erase(std::uint64_t hash, Bytes key);

  /// A put assembled piece by piece, invisible until it is committed.
  class Assembly {
   public:
    Assembly() = default;
    Assembly(Assembly&& other) noexcept;
    Assembly& operator=(Assembly&& other) noexcept;
    ~Assembly();  ///< gives the memory back if it was not committed
    [[nodiscard]] bool active() const { return memory_ != nullptr; }
    /// Of (key followed by value); the caller keeps offset + piece within the whole.
    void write(std::uint64_t offset, Bytes piece);
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
  /// Errors:   out_of_memory (the assembly is dropped)
  Status commit(Assembly&& assembly, std::uint64_t hash, Lsn lsn);

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

  /// Visits records in hash order from `position` on: whole buckets until at least `keys_max` were visited.
  /// Returns the next position, 0 when the end was reached.
  using Visit = void (*)(void* context, Bytes key, Bytes value, Lsn lsn);
  std::uint64_t scan(std::uint64_t position, std::size_t keys_max, Visit visit, void* context) const;

  [[nodiscard]] std::uint64_t keys() const;
  [[nodiscard]] std::uint64_t memory_bytes() const;
  /// Bytes moved by the latest reserve() or commit() for splits, and the most ever.
  [[nodiscard]] std::uint64_t moved_bytes_last() const;
  [[nodiscard]] std::uint64_t moved_bytes_max() const;

 private:
  struct State;
  explicit Table(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidelock
