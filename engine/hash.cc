#define XXH_INLINE_ALL
#include <xxhash.h>

#include "table.h"

namespace tidelock {

std::uint64_t hash_key(std::uint64_t seed, Bytes key) {
  return XXH3_64bits_withSeed(key.data(), key.size(), seed);
}

ShardId shard_of_hash(std::uint64_t hash, std::uint32_t shards) {
  return {static_cast<std::uint16_t>(((hash & 0xffff) * shards) >> 16)};
}

}  // namespace tidelock
