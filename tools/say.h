/// Words for the person at the terminal.
#pragma once

#include <cstdio>
#include <string>

namespace tidelock::tools {

/// To standard error. A terminal that is gone, or a full disk behind it, ends no run: unlike fmt::print this
/// ignores what goes wrong.
/// Thread:   any
inline void say(const std::string& text) noexcept { static_cast<void>(std::fputs(text.c_str(), stderr)); }

}  // namespace tidelock::tools
