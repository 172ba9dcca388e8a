/// Assertions for programmer errors. They stay on in every build.
/// Thread:   any
/// Errors:   a failed check prints the expression and its place to stderr and aborts
#pragma once

namespace tidelock::detail {

[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const char* message) noexcept;

}  // namespace tidelock::detail

#define TL_ASSERT(condition, message)                \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::tidelock::detail::check_failed(#condition, __FILE__, __LINE__, message))
