#include <ctime>

#include <tidelock/reactor/clock.h>

namespace tidelock {

Instant SystemClock::now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return {std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec};
}

}  // namespace tidelock
