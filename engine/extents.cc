#include "extents.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include <sys/mman.h>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>

namespace tidelock {

namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugeBytes = 2 << 20;
constexpr std::size_t kPopulateBytes = 64 << 10;

}  // namespace

Extents::~Extents() {
  drop_cache();
  while (deferred_ != nullptr) free_some(deferred_->mapped_bytes);
  while (live_ != nullptr) {
    Header* header = live_;
    unlink(header);
    ::munmap(header, header->mapped_bytes);
  }
}

std::size_t Extents::mapping_bytes(std::size_t bytes) {
  const std::size_t total = bytes + sizeof(Header);
  return align_up(total, std::max(kPageBytes, std::bit_floor(total) / 8));
}

Extents::Header* Extents::header_of(std::byte* block) {
  return reinterpret_cast<Header*>(block - sizeof(Header));
}

void Extents::link(Header* header) {
  header->previous = nullptr;
  header->next = live_;
  if (live_ != nullptr) live_->previous = header;
  live_ = header;
}

void Extents::unlink(Header* header) {
  (header->previous != nullptr ? header->previous->next : live_) = header->next;
  if (header->next != nullptr) header->next->previous = header->previous;
}

Extents::Header* Extents::take_cached(std::size_t bytes) {
  for (Header*& slot : cached_) {
    if (slot == nullptr || slot->mapped_bytes != bytes) continue;
    Header* header = slot;
    slot = nullptr;
    cached_bytes_ -= bytes;
    return header;
  }
  return nullptr;
}

Extents::Header* Extents::map(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Advice only: without huge pages everything works, more slowly.
  if (huge_pages_ && bytes >= kHugeBytes) ::madvise(memory, bytes, MADV_HUGEPAGE);
  auto* header = static_cast<Header*>(memory);
  header->mapped_bytes = bytes;
  header->populated_bytes = 0;
  taken_bytes_ += bytes;
  return header;
}

std::byte* Extents::allocate(std::size_t bytes) {
  const std::size_t mapped_bytes = mapping_bytes(bytes);
  Header* header = take_cached(mapped_bytes);
  if (header == nullptr) header = map(mapped_bytes);
  if (header == nullptr) return nullptr;
  link(header);
  return reinterpret_cast<std::byte*>(header) + sizeof(Header);
}

void Extents::free(std::byte* block) {
  Header* header = header_of(block);
  unlink(header);
  if (header->mapped_bytes > kCachedBytesMax / 2) return defer(header);
  // The oldest makes room, so that sizes that nobody asks for any more do not stay.
  for (std::size_t looked = 0; looked < kCachedMax; ++looked) {
    Header*& slot = cached_[cached_next_++ % kCachedMax];
    if (slot != nullptr) {
      cached_bytes_ -= slot->mapped_bytes;
      defer(slot);
      slot = nullptr;
    }
    if (cached_bytes_ + header->mapped_bytes > kCachedBytesMax) continue;
    slot = header;
    cached_bytes_ += header->mapped_bytes;
    return;
  }
  defer(header);
}

void Extents::defer(Header* header) {
  header->next = deferred_;
  deferred_ = header;
  deferred_bytes_ += header->mapped_bytes;
}

void Extents::drop_cache() {
  for (Header*& slot : cached_) {
    if (slot == nullptr) continue;
    cached_bytes_ -= slot->mapped_bytes;
    defer(slot);
    slot = nullptr;
  }
}

void Extents::free_some(std::size_t bytes) {
  std::size_t left = align_up(std::max(bytes, kPageBytes), kPageBytes);
  while (left > 0 && deferred_ != nullptr) {
    Header* header = deferred_;
    const std::size_t slice = std::min(left, header->mapped_bytes);
    // From the end on, since the header stands at the beginning.
    std::byte* from = reinterpret_cast<std::byte*>(header) + (header->mapped_bytes - slice);
    if (slice == header->mapped_bytes) {
      deferred_ = header->next;
    } else {
      header->mapped_bytes -= slice;
    }
    TL_ASSERT(::munmap(from, slice) == 0, "an extent is unmapped twice");
    taken_bytes_ -= slice;
    deferred_bytes_ -= slice;
    left -= slice;
  }
}

bool Extents::dismantle(std::size_t bytes) {
  drop_cache();
  const std::uint64_t end = taken_bytes_ - std::min<std::uint64_t>(taken_bytes_, std::max(bytes, kPageBytes));
  while (taken_bytes_ > end) {
    if (Header* header = live_; deferred_ == nullptr && header != nullptr) {
      unlink(header);
      defer(header);
    }
    free_some(taken_bytes_ - end);
  }
  return taken_bytes_ == 0;
}

void Extents::populate(std::byte* block, std::size_t bytes) {
  Header* header = header_of(block);
  const std::size_t wanted =
      std::min<std::size_t>(align_up(bytes + sizeof(Header), kPopulateBytes), header->mapped_bytes);
  if (wanted <= header->populated_bytes) return;
  std::byte* from = reinterpret_cast<std::byte*>(header) + header->populated_bytes;
  const std::size_t length = wanted - header->populated_bytes;
  header->populated_bytes = wanted;
  // EINVAL: a kernel before 5.14. Whatever else fails here shows when the page is touched.
  if (can_populate_ && ::madvise(from, length, MADV_POPULATE_WRITE) != 0 && errno == EINVAL) {
    can_populate_ = false;
  }
}

}  // namespace tidelock
