// The program with little patience for another machine: how long a run on two may take is a matter of
// seconds.
#include "sanitized.h"
#include "tool_main.h"

int main(int argc, char** argv) {
  tidelock::tools::RunLimits limits;
  limits.base = tidelock::milliseconds(tidelock::test::kSanitized ? 6000 : 3000);
  limits.mebibyte = limits.record = tidelock::Duration{0};
  limits.finish = tidelock::seconds(4);
  limits.start = tidelock::seconds(30);
  return tidelock::tools::tool_main(argc, argv, nullptr, limits);
}
