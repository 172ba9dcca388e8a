#include "arena.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include <sys/mman.h>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>

#include "memory_poison.h"

namespace tidelock {

namespace {

constexpr std::size_t kQuantumBytes = 64;
constexpr std::size_t kLinearClasses = 4;  // 64, 128, 192, 256; then four steps a doubling

/// A mapping aligned to its size, which a huge page needs.
std::byte* map_aligned(std::size_t bytes) {
  void* memory = ::mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(memory);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t before = align_up(address, bytes) - address;
  if (before != 0) ::munmap(begin, before);
  if (before != bytes) ::munmap(begin + before + bytes, bytes - before);
  return begin + before;
}

}  // namespace

Arena::Arena(const ArenaOptions& options) : options_(options), extents_(options.huge_pages) {}

Arena::~Arena() {
  while (chunks_ != nullptr) unmap_chunk();
}

void Arena::unmap_chunk() {
  Chunk* chunk = chunks_;
  chunks_ = chunk->next;
  // The next mapping at this address must not inherit what we forbade.
  unpoison_memory(chunk, kChunkBytes);
  ::munmap(chunk, kChunkBytes);
}

bool Arena::dismantle(std::size_t bytes) {
  std::uint64_t unmapped = extents_.taken_bytes();
  if (!extents_.dismantle(bytes)) return false;
  for (; chunks_ != nullptr && unmapped < std::max<std::size_t>(bytes, 1); unmapped += kChunkBytes) {
    unmap_chunk();
    carved_bytes_ -= std::min<std::uint64_t>(carved_bytes_, kChunkBytes);
  }
  return chunks_ == nullptr;
}

std::size_t Arena::class_index(std::size_t bytes) {
  if (bytes <= kLinearClasses * kQuantumBytes) return (bytes - 1) / kQuantumBytes;
  const auto doubling = static_cast<unsigned>(std::bit_width(bytes - 1)) - 1;  // 2^doubling < bytes
  const std::size_t step = (bytes - 1 - (std::size_t{1} << doubling)) >> (doubling - 2);
  return kLinearClasses + 4 * (doubling - 8) + step;
}

std::size_t Arena::class_bytes(std::size_t index) {
  TL_ASSERT(index < kClasses, "a size class beyond the last");
  if (index < kLinearClasses) return (index + 1) * kQuantumBytes;
  const std::size_t doubling = 8 + (index - kLinearClasses) / 4;
  const std::size_t step = (index - kLinearClasses) % 4 + 1;
  return (std::size_t{1} << doubling) + (step << (doubling - 2));
}

std::size_t Arena::block_bytes(std::size_t bytes) {
  return is_extent(bytes) ? Extents::mapping_bytes(bytes) : class_bytes(class_index(bytes));
}

std::byte* Arena::allocate(std::size_t bytes) {
  TL_ASSERT(bytes > 0, "a block has at least one byte");
  if (is_extent(bytes)) {
    // A kept extent is charged already; admit() may drop it, so it is asked only for what is not there.
    if (!admit(Extents::mapping_bytes(bytes))) return nullptr;
    return extents_.allocate(bytes);
  }
  const std::size_t index = class_index(bytes);
  if (FreeBlock* block = free_[index]; block != nullptr) {
    free_[index] = block->next;
    auto* memory = reinterpret_cast<std::byte*>(block);
    unpoison_memory(memory, class_bytes(index));
    return memory;
  }
  return carve(class_bytes(index));
}

void Arena::free(std::byte* block, std::size_t bytes) {
  if (is_extent(bytes)) return extents_.free(block);
  push_free(block, class_index(bytes));
}

void Arena::populate(std::byte* block, std::size_t block_size, std::size_t bytes) {
  if (is_extent(block_size)) extents_.populate(block, bytes);
}

bool Arena::admit(std::size_t bytes) {
  if (options_.bytes_max == 0 || taken_bytes() + bytes <= options_.bytes_max) return true;
  if (taken_bytes() - extents_.idle_bytes() + bytes > options_.bytes_max) return false;
  // At the limit, and only there, what was freed is unmapped at once instead of in slices.
  extents_.drop_cache();
  while (taken_bytes() + bytes > options_.bytes_max && extents_.has_deferred()) {
    extents_.free_some(taken_bytes() + bytes - options_.bytes_max);
  }
  return true;
}

std::byte* Arena::carve(std::size_t bytes) {
  if (!admit(bytes)) return nullptr;
  if (static_cast<std::size_t>(end_ - next_) < bytes) {
    give_tail_away();
    if (!open_chunk()) return nullptr;
  }
  if (next_ + bytes > populated_ && !populate_chunk(next_ + bytes)) return nullptr;
  std::byte* block = next_;
  next_ += bytes;
  carved_bytes_ += bytes;
  return block;
}

bool Arena::open_chunk() {
  std::byte* memory = map_aligned(kChunkBytes);
  if (memory == nullptr) return false;
  if (options_.huge_pages && chunks_ != nullptr) ::madvise(memory, kChunkBytes, MADV_HUGEPAGE);
  auto* chunk = reinterpret_cast<Chunk*>(memory);
  chunk->next = chunks_;
  chunks_ = chunk;
  next_ = memory + kQuantumBytes;
  populated_ = memory;
  end_ = memory + kChunkBytes;
  return true;
}

bool Arena::populate_chunk(std::byte* end) {
  const auto offset = static_cast<std::size_t>(end - (end_ - kChunkBytes));
  std::byte* wanted = end_ - kChunkBytes + align_up(offset, kPopulateBytes);
  if (can_populate_ &&
      ::madvise(populated_, static_cast<std::size_t>(wanted - populated_), MADV_POPULATE_WRITE) != 0) {
    if (errno == ENOMEM) return false;
    can_populate_ = false;  // EINVAL: a kernel before 5.14; pages come when they are touched
  }
  populated_ = wanted;
  return true;
}

/// Splits what is left of the open chunk into blocks of smaller classes.
void Arena::give_tail_away() {
  while (end_ - next_ >= static_cast<std::ptrdiff_t>(kQuantumBytes)) {
    const auto left = static_cast<std::size_t>(end_ - next_);
    std::size_t index = class_index(std::min(left, kClassBytesMax));
    if (class_bytes(index) > left) --index;
    const std::size_t bytes = class_bytes(index);
    push_free(next_, index);
    next_ += bytes;
    carved_bytes_ += bytes;
  }
}

void Arena::push_free(std::byte* block, std::size_t index) {
  auto* freed = reinterpret_cast<FreeBlock*>(block);
  freed->next = free_[index];
  free_[index] = freed;
  poison_memory(block + sizeof(FreeBlock), class_bytes(index) - sizeof(FreeBlock));
}

}  // namespace tidelock
