/// What only the lab can do (tests/lab): cut links, and take them down.
/// Thread:   any
#pragma once

#include <cstdlib>
#include <string>

#include <doctest/doctest.h>

namespace tidelock::test {

/// False elsewhere, and then the test says that it is skipped.
inline bool in_lab(const char* what) {
  if (std::getenv("TIDELOCK_LAB_ADDRESS") != nullptr) return true;
  MESSAGE("skipped: only the lab can ", what);
  return false;
}

/// "cut", "heal", "down", "up": both ends.
inline void lab_link(const std::string& action) { CHECK(std::system(("lab-link " + action).c_str()) == 0); }

/// Heals at the end, however the test ends.
struct LabLink {
  explicit LabLink(const char* mend) : mend_(mend) {}
  ~LabLink() { lab_link(mend_); }
  LabLink(const LabLink&) = delete;
  LabLink& operator=(const LabLink&) = delete;

 private:
  const char* mend_;
};

}  // namespace tidelock::test
