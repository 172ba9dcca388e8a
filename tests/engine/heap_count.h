/// Counts the whole program's calls of operator new, so that a test can show that a piece of code makes none.
/// Thread:   any
#pragma once

#include <cstdint>

namespace tidelock::test {

[[nodiscard]] std::uint64_t heap_allocations();

}  // namespace tidelock::test
