#include "values.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace tidelock::sim {
namespace {

/// The bytes after the number: words that depend on it, on their place and on how long the whole value is.
std::uint64_t word_at(std::uint64_t number, std::size_t at, std::size_t bytes) {
  const std::uint64_t word = ((number + at) ^ std::uint64_t{bytes} << 32) * 0x9e37'79b9'7f4a'7c15ULL;
  return word ^ word >> 32;  // the last word may be cut to its low bytes
}

}  // namespace

std::string key_text(std::uint32_t key) { return "k" + std::to_string(key); }

std::optional<std::uint32_t> key_of(Bytes text) {
  const std::string_view all = as_text(text);
  std::uint32_t key = 0;
  if (all.size() < 2 || all[0] != 'k') return std::nullopt;
  const auto parsed = std::from_chars(all.data() + 1, all.data() + all.size(), key);
  if (parsed.ec != std::errc{} || parsed.ptr != all.data() + all.size()) return std::nullopt;
  return key;
}

std::string make_value(std::uint64_t number, std::size_t bytes) {
  std::string value(bytes, '\0');
  std::memcpy(value.data(), &number, sizeof number);
  for (std::size_t at = sizeof number; at < bytes; at += sizeof number) {
    const std::uint64_t word = word_at(number, at, bytes);
    std::memcpy(value.data() + at, &word, std::min(sizeof word, bytes - at));
  }
  return value;
}

std::optional<std::uint64_t> number_of(Bytes value) {
  if (value.size() < kValueBytesLeast) return std::nullopt;
  const auto number = load<std::uint64_t>(value.data());
  for (std::size_t at = sizeof number; at < value.size(); at += sizeof number) {
    const std::uint64_t word = word_at(number, at, value.size());
    if (std::memcmp(value.data() + at, &word, std::min(sizeof word, value.size() - at)) != 0)
      return std::nullopt;
  }
  return number;
}

}  // namespace tidelock::sim
