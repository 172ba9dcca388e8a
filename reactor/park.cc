#include <tidelock/reactor/park.h>

namespace tidelock {

static_assert(sizeof(ParkFlag) == kCacheLineBytes, "neighbouring flags must not share a line");

}  // namespace tidelock
