/// The program's entry, apart from main() so that tests can build it with a planted fault.
#pragma once

namespace tidelock {
class ApplyPolicy;
}

namespace tidelock::tools {

/// `planted` is null in production.
int tool_main(int argc, char** argv, const ApplyPolicy* planted);

}  // namespace tidelock::tools
