/// Words for the person at the terminal.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <tidelock/base/result.h>

#include "exit_code.h"

namespace tidelock::tools {

/// To standard error. A terminal that is gone, or a full disk behind it, ends no run: unlike fmt::print this
/// ignores what goes wrong.
/// Thread:   any
inline void say(const std::string& text) noexcept { static_cast<void>(std::fputs(text.c_str(), stderr)); }

/// The one line of a subcommand that could not run as asked, and the exit status that goes with it.
inline int fail(const char* command, const std::string& text) {
  say(std::string("tidelock ") + command + ": " + text + "\n");
  return kExitUsage;
}
inline int fail(const char* command, const Error& error) { return fail(command, error.message()); }

/// A result, to standard output. False, with errno, if it did not arrive there.
inline bool print_result(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

/// The same; what stops it is told in the command's line.
inline bool print_or_complain(const char* command, const std::string& text) {
  if (print_result(text)) return true;
  fail(command, std::string("cannot write to standard output: ") + std::strerror(errno));
  return false;
}

}  // namespace tidelock::tools
