#include "arena.h"

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include <doctest/doctest.h>

using tidelock::Arena;

namespace {

struct Block {
  std::byte* memory;
  std::size_t bytes;
  std::byte fill;
};

bool intact(const Block& block) {
  return block.memory[0] == block.fill && block.memory[block.bytes / 2] == block.fill &&
         block.memory[block.bytes - 1] == block.fill;
}

}  // namespace

TEST_SUITE("engine/arena") {
  TEST_CASE("engine/arena: a block has room for what was asked, and at most a quarter of it is waste") {
    std::size_t previous = 0;
    for (std::size_t bytes = 1; bytes <= Arena::kClassBytesMax; ++bytes) {
      const std::size_t block = Arena::block_bytes(bytes);
      REQUIRE(block >= bytes);
      REQUIRE(block % 64 == 0);
      REQUIRE(block >= previous);
      REQUIRE(Arena::block_bytes(block) == block);
      if (bytes >= 192) REQUIRE((block - bytes) * 4 <= block);
      previous = block;
    }
    for (std::size_t bytes = Arena::kClassBytesMax + 1; bytes < (80U << 20); bytes += bytes / 7) {
      const std::size_t block = Arena::block_bytes(bytes);
      REQUIRE(block >= bytes);
      REQUIRE((block - bytes) * 4 <= block);
    }
  }

  TEST_CASE("engine/arena: blocks of all sizes are aligned, disjoint and reused") {
    Arena arena({});
    std::mt19937_64 random(1);
    std::vector<Block> blocks;
    for (int i = 0; i < 30'000; ++i) {
      if (blocks.size() < 400) {
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (4 + random() % 14));
        std::byte* memory = arena.allocate(bytes);
        REQUIRE(memory != nullptr);
        REQUIRE(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
        arena.populate(memory, bytes, bytes);
        blocks.push_back({memory, bytes, std::byte(random() & 0xff)});
        std::memset(memory, static_cast<int>(blocks.back().fill), bytes);
      } else {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        REQUIRE(intact(blocks.back()));
        arena.free(blocks.back().memory, blocks.back().bytes);
        blocks.pop_back();
      }
      if (arena.has_deferred()) arena.free_some(64 << 10);
    }
    for (const Block& block : blocks) {
      CHECK(intact(block));
      arena.free(block.memory, block.bytes);
    }
    // 400 live blocks of at most 128 KiB at any time: without reuse this would be hundreds of MiB.
    CHECK(arena.taken_bytes() < (64U << 20));
  }

  TEST_CASE("engine/arena: the limit holds to the byte, and freed blocks serve again under it") {
    Arena arena({.bytes_max = 10 * 1024, .huge_pages = false});
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(arena.allocate(1024));
    CHECK(blocks.back() != nullptr);
    CHECK(arena.taken_bytes() == 10 * 1024);
    CHECK(arena.allocate(1) == nullptr);
    CHECK(arena.allocate(100'000) == nullptr);
    arena.free(blocks.back(), 1024);
    CHECK(arena.allocate(1000) == blocks.back());
    CHECK(arena.allocate(1000) == nullptr);
  }

  TEST_CASE("engine/arena: a large freed block is unmapped in slices") {
    Arena arena({});
    constexpr std::size_t kBytes = 20 << 20;
    std::byte* block = arena.allocate(kBytes);
    REQUIRE(block != nullptr);
    arena.populate(block, kBytes, kBytes);
    std::memset(block, 1, kBytes);
    arena.free(block, kBytes);
    REQUIRE(arena.has_deferred());
    const std::uint64_t before = arena.taken_bytes();
    arena.free_some(64 << 10);
    CHECK(before - arena.taken_bytes() == (64 << 10));
    int slices = 1;
    for (; arena.has_deferred(); ++slices) arena.free_some(64 << 10);
    CHECK(slices >= 320);
    CHECK(arena.taken_bytes() == 0);
  }

  TEST_CASE("engine/arena: large blocks of like size follow one another without a new mapping") {
    Arena arena({});
    std::set<std::byte*> seen;
    for (int i = 0; i < 1000; ++i) {
      std::byte* block = arena.allocate(200'000 + static_cast<std::size_t>(i));
      REQUIRE(block != nullptr);
      seen.insert(block);
      arena.free(block, 200'000 + static_cast<std::size_t>(i));
    }
    CHECK(seen.size() == 1);
    CHECK_FALSE(arena.has_deferred());
  }

  TEST_CASE("engine/arena: what waits to be unmapped does not count against the limit when room is needed") {
    Arena arena({.bytes_max = 30 << 20, .huge_pages = true});
    std::byte* first = arena.allocate(20 << 20);
    REQUIRE(first != nullptr);
    CHECK(arena.allocate(20 << 20) == nullptr);
    arena.free(first, 20 << 20);
    std::byte* second = arena.allocate(20 << 20);
    CHECK(second != nullptr);
    CHECK(arena.taken_bytes() <= (30U << 20));
  }
}
