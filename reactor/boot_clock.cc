#include <ctime>

#include <tidelock/reactor/boot_clock.h>

namespace tidelock {

Instant BootClock::now() {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return {std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec};
}

}  // namespace tidelock
