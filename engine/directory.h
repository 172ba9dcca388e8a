/// Finds the segment of a hash: a trie of arrays indexed by the hash's bits from the top down. Only an array
/// of at most 8 KiB is ever copied, when it doubles; beyond that a slot gets an array of its own below it.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>

#include "arena.h"
#include "segment.h"

namespace tidelock::detail {

class Directory {
 public:
  static constexpr unsigned kNodeBitsMax = 10;

  explicit Directory(Arena& arena) : arena_(arena) {}
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  /// Before anything else: `segment` takes all hashes. False: no memory.
  [[nodiscard]] bool open(Segment& segment);

  [[nodiscard]] Segment* segment(std::uint64_t hash) const {
    std::uint64_t slot = root_;
    do {
      const unsigned bits = bits_of(slot);
      slot = slots_of(slot)[hash >> (64 - bits)];
      hash <<= bits;
    } while (is_node(slot));
    return reinterpret_cast<Segment*>(slot);
  }

  /// Gives the segment of `hash`, which has this depth, at least two slots. Adds what it copied to `moved`.
  /// False: no memory; nothing changed.
  [[nodiscard]] bool make_divisible(std::uint64_t hash, unsigned depth, std::uint64_t& moved);
  /// Points all slots of the hashes that begin with the segment's prefix at it. make_divisible() came before.
  void assign(Segment& segment, std::uint64_t& moved);

 private:
  // A slot is a segment's address, or a node's: the address of its array, bit 0 set, its bits on top.
  [[nodiscard]] static bool is_node(std::uint64_t slot) { return (slot & 1) != 0; }
  [[nodiscard]] static unsigned bits_of(std::uint64_t slot) { return static_cast<unsigned>(slot >> 56); }
  [[nodiscard]] static std::uint64_t* slots_of(std::uint64_t slot) {
    return reinterpret_cast<std::uint64_t*>(slot & 0x00ff'ffff'ffff'fffeULL);
  }
  [[nodiscard]] static std::size_t node_bytes(unsigned bits) { return sizeof(std::uint64_t) << bits; }
  [[nodiscard]] std::uint64_t new_node(unsigned bits);
  /// The slot that holds the lowest node above the segment of `hash`; `above` is the depth at its top.
  [[nodiscard]] std::uint64_t* lowest_node(std::uint64_t hash, unsigned& above);

  Arena& arena_;
  std::uint64_t root_ = 0;
};

}  // namespace tidelock::detail
