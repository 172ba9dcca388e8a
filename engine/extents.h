/// Blocks above 64 KiB, each a mapping of its own. A few freed ones are kept for reuse; the others are
/// unmapped in slices by free_some().
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidelock {

class Extents {
 public:
  explicit Extents(bool huge_pages) : huge_pages_(huge_pages) {}
  ~Extents();
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;

  /// Rounded to an eighth of the power of two below, so that similar sizes can follow one another.
  [[nodiscard]] static std::size_t mapping_bytes(std::size_t bytes);
  /// Aligned to 64 bytes. Null: the machine has no more.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);
  void free(std::byte* block);
  void populate(std::byte* block, std::size_t bytes);

  [[nodiscard]] bool has_deferred() const { return deferred_ != nullptr; }
  /// Unmaps about `bytes` of what waits for it.
  void free_some(std::size_t bytes);
  /// Moves what is kept for reuse to what waits to be unmapped.
  void drop_cache();
  /// Unmaps about `bytes` of all that there is, in use or not. Nothing is allocated any more. Returns whether
  /// nothing is left.
  [[nodiscard]] bool dismantle(std::size_t bytes);

  [[nodiscard]] std::uint64_t taken_bytes() const { return taken_bytes_; }
  [[nodiscard]] std::uint64_t idle_bytes() const { return cached_bytes_ + deferred_bytes_; }

 private:
  static constexpr std::size_t kCachedMax = 8;
  static constexpr std::size_t kCachedBytesMax = 16 << 20;
  /// Stands before the block.
  struct alignas(64) Header {
    Header* previous;
    Header* next;
    std::size_t mapped_bytes;
    std::size_t populated_bytes;
  };

  [[nodiscard]] static Header* header_of(std::byte* block);
  [[nodiscard]] Header* take_cached(std::size_t bytes);
  [[nodiscard]] Header* map(std::size_t bytes);
  void link(Header* header);
  void unlink(Header* header);
  void defer(Header* header);

  bool huge_pages_;
  bool can_populate_ = true;
  Header* live_ = nullptr;
  Header* deferred_ = nullptr;
  Header* cached_[kCachedMax] = {};
  std::size_t cached_next_ = 0;
  std::uint64_t taken_bytes_ = 0;
  std::uint64_t cached_bytes_ = 0;
  std::uint64_t deferred_bytes_ = 0;
};

}  // namespace tidelock
