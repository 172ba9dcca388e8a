/// How the program ends.
#pragma once

namespace tidelock::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  ///< it ran, and what it was to prove does not hold
inline constexpr int kExitUsage = 2;   ///< it could not run as asked: input, flags, the machine
inline constexpr int kExitInterrupted = 130;
inline constexpr int kExitTerminated = 143;

}  // namespace tidelock::tools
