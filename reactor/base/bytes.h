/// Little-endian loads and stores on bytes of any alignment, and power-of-two arithmetic.
/// Thread:   any
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace tidelock {

static_assert(std::endian::native == std::endian::little,
              "the wire format is little-endian, copied as it is");

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// False sharing is avoided at this distance on x86-64 and most arm64 parts.
inline constexpr std::size_t kCacheLineBytes = 64;

template <class T>
[[nodiscard]] T load(const std::byte* from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(std::byte* to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof value);
}

[[nodiscard]] inline Bytes as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
[[nodiscard]] inline std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// `alignment` is a power of two.
[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

}  // namespace tidelock
