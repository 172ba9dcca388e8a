/// What the load writes: values that say which write they are, and show when a byte of them is not theirs.
/// Thread:   any
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <tidelock/base/bytes.h>

namespace tidelock::sim {

/// Keys are small numbers; `key_text` is what a node sees.
[[nodiscard]] std::string key_text(std::uint32_t key);
/// Nothing if it is no key of the load.
[[nodiscard]] std::optional<std::uint32_t> key_of(Bytes text);

inline constexpr std::size_t kValueBytesLeast = 8;
/// `number`: of the write, not 0. `bytes`: at least kValueBytesLeast.
[[nodiscard]] std::string make_value(std::uint64_t number, std::size_t bytes);
/// The write's number. Nothing if any byte is not the one that was made, or one is missing; but the number
/// alone names its write, too, so that lengths are compared apart.
[[nodiscard]] std::optional<std::uint64_t> number_of(Bytes value);

}  // namespace tidelock::sim
