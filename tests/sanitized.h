// Whether this is a sanitizer's build: tests whose size a sanitizer multiplies are smaller there.
#pragma once

namespace tidelock::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tidelock::test
