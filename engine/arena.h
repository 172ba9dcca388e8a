/// Memory of one table: size classes for blocks of up to 64 KiB, mappings of their own above that. A freed
/// block serves its class again; nothing comes from the heap and nothing returns to the system but extents.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstddef>
#include <cstdint>

#include "extents.h"

namespace tidelock {

struct ArenaOptions {
  std::uint64_t bytes_max = 0;  ///< of live blocks; 0: no limit
  bool huge_pages = true;       ///< MADV_HUGEPAGE from the second chunk on: a small table stays small
};

class Arena {
 public:
  /// Blocks above this are extents.
  static constexpr std::size_t kClassBytesMax = 64 << 10;
  static constexpr std::size_t kChunkBytes = 2 << 20;
  /// Memory is populated this far ahead of need: a populated page costs a twentieth of one that is touched.
  static constexpr std::size_t kPopulateBytes = 64 << 10;

  explicit Arena(const ArenaOptions& options);
  /// Unmaps everything at once: milliseconds for gigabytes, so not on a busy reactor.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// What a block of `bytes` (at least 1) really takes: at most a quarter of it waste, from 192 bytes on.
  [[nodiscard]] static std::size_t block_bytes(std::size_t bytes);
  [[nodiscard]] static bool is_extent(std::size_t bytes) { return bytes > kClassBytesMax; }

  /// Aligned to 64 bytes, not zeroed. Null: the limit is reached, or the machine has no more.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);
  /// `bytes` as allocated, or any other size of the same block_bytes().
  void free(std::byte* block, std::size_t bytes);
  /// Before the first `bytes` of a large block are written; no call is needed for small ones.
  void populate(std::byte* block, std::size_t block_size, std::size_t bytes);

  /// Large blocks are unmapped in slices, by the owner's loop: a munmap of 64 MiB takes milliseconds.
  [[nodiscard]] bool has_deferred() const { return extents_.has_deferred(); }
  void free_some(std::size_t bytes) { extents_.free_some(bytes); }
  /// Unmaps about `bytes` of all that there is, blocks in use, too, but a chunk at least once only chunks are
  /// left: in one call that costs less than in pieces. Nobody allocates or frees any more. Returns whether
  /// nothing is left.
  [[nodiscard]] bool dismantle(std::size_t bytes);

  /// Taken from the system and charged: blocks in use or free in their class, extents until they are
  /// unmapped.
  [[nodiscard]] std::uint64_t taken_bytes() const { return carved_bytes_ + extents_.taken_bytes(); }
  [[nodiscard]] std::uint64_t bytes_max() const { return options_.bytes_max; }

 private:
  static constexpr std::size_t kClasses = 36;
  struct FreeBlock {
    FreeBlock* next;
  };
  struct Chunk {
    Chunk* next;
  };

  [[nodiscard]] static std::size_t class_index(std::size_t bytes);
  [[nodiscard]] static std::size_t class_bytes(std::size_t index);
  /// Makes room for `bytes` more under the limit, from cached and deferred extents if need be.
  [[nodiscard]] bool admit(std::size_t bytes);
  [[nodiscard]] std::byte* carve(std::size_t bytes);
  [[nodiscard]] bool open_chunk();
  void unmap_chunk();
  [[nodiscard]] bool populate_chunk(std::byte* end);
  void give_tail_away();
  void push_free(std::byte* block, std::size_t index);

  ArenaOptions options_;
  FreeBlock* free_[kClasses] = {};
  Chunk* chunks_ = nullptr;
  std::byte* next_ = nullptr;  // the open chunk: [next_, end_), populated up to populated_
  std::byte* populated_ = nullptr;
  std::byte* end_ = nullptr;
  std::uint64_t carved_bytes_ = 0;
  bool can_populate_ = true;
  Extents extents_;
};

}  // namespace tidelock
