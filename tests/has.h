/// For checks of what a text says.
#pragma once

#include <string>

#include <tidelock/base/result.h>

namespace tidelock::test {

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
inline bool has(const Error& error, const std::string& part) { return has(error.message(), part); }

}  // namespace tidelock::test
