/// Cores by number.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tidelock/base/ids.h>

namespace tidelock::test {

inline CoreId core(std::size_t value) { return CoreId{static_cast<std::uint16_t>(value)}; }

}  // namespace tidelock::test
