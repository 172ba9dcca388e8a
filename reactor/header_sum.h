/// What guards the small headers that travel many times a second: the low 32 bits of XXH3 (64 bits, no seed;
/// xxHash specification). On so few bytes of a size that the compiler knows it is a handful of instructions
/// without a call. XXH3's values are fixed since xxHash 0.8.0. What is large has a CRC32C instead.
/// Thread:   any
#pragma once

#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <tidelock/base/bytes.h>

namespace tidelock {

[[nodiscard]] inline std::uint32_t header_sum(Bytes bytes) {
  return static_cast<std::uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

}  // namespace tidelock
