/// The program's entry, apart from main() so that tests can build it with a planted fault, or in a hurry.
#pragma once

#include "run_limits.h"

namespace tidelock {
class ApplyPolicy;
}

namespace tidelock::tools {

/// `planted` is null in production.
int tool_main(int argc, char** argv, const ApplyPolicy* planted, const RunLimits& limits = {});

}  // namespace tidelock::tools
