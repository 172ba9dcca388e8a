#include "directory.h"

#include <algorithm>

#include <tidelock/base/check.h>

namespace tidelock::detail {

std::uint64_t Directory::new_node(unsigned bits) {
  const std::byte* array = arena_.allocate(node_bytes(bits));
  if (array == nullptr) return 0;
  const auto address = reinterpret_cast<std::uintptr_t>(array);
  TL_ASSERT(address >> 56 == 0, "addresses above 56 bits leave no room for the node's size");
  return address | 1 | std::uint64_t{bits} << 56;
}

bool Directory::open(Segment& segment) {
  root_ = new_node(1);
  if (root_ == 0) return false;
  std::fill_n(slots_of(root_), 2, reinterpret_cast<std::uintptr_t>(&segment));
  return true;
}

std::uint64_t* Directory::lowest_node(std::uint64_t hash, unsigned& above) {
  std::uint64_t* node = &root_;
  above = 0;
  for (;;) {
    const unsigned bits = bits_of(*node);
    std::uint64_t* slot = slots_of(*node) + ((hash << above) >> (64 - bits));
    if (!is_node(*slot)) return node;
    node = slot;
    above += bits;
  }
}

bool Directory::make_divisible(std::uint64_t hash, unsigned depth, std::uint64_t& moved) {
  unsigned above = 0;
  std::uint64_t* node = lowest_node(hash, above);
  const unsigned bits = bits_of(*node);
  if (depth < above + bits) return true;

  std::uint64_t* slots = slots_of(*node);
  if (bits == kNodeBitsMax) {
    const std::uint64_t child = new_node(1);
    if (child == 0) return false;
    std::uint64_t& slot = slots[(hash << above) >> (64 - bits)];
    std::fill_n(slots_of(child), 2, slot);
    slot = child;
    moved += node_bytes(1);
    return true;
  }
  const std::uint64_t doubled = new_node(bits + 1);
  if (doubled == 0) return false;
  for (std::size_t i = 0; i < std::size_t{2} << bits; ++i) slots_of(doubled)[i] = slots[i / 2];
  arena_.free(reinterpret_cast<std::byte*>(slots), node_bytes(bits));
  *node = doubled;
  moved += node_bytes(bits + 1);
  return true;
}

void Directory::assign(Segment& segment, std::uint64_t& moved) {
  unsigned above = 0;
  const std::uint64_t* node = lowest_node(segment.prefix, above);
  const unsigned bits = bits_of(*node);
  TL_ASSERT(segment.depth > above && segment.depth <= above + bits, "a segment's slots share one node");
  const std::size_t count = std::size_t{1} << (above + bits - segment.depth);
  std::fill_n(slots_of(*node) + ((segment.prefix << above) >> (64 - bits)), count,
              reinterpret_cast<std::uintptr_t>(&segment));
  moved += count * sizeof(std::uint64_t);
}

}  // namespace tidelock::detail
