#include <cstdio>
#include <cstdlib>

#include <tidelock/base/check.h>

namespace tidelock::detail {

void check_failed(const char* expression, const char* file, int line, const char* message) noexcept {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, expression, message);
  std::abort();
}

}  // namespace tidelock::detail
