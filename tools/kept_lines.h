/// Lines that a run keeps and shows. Another machine may have a say in how many there are, so there is an
/// end.
/// Thread:   the list's owner
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tidelock::tools {

inline constexpr std::size_t kKeptLinesMax = 256;

/// Whether there is a new last line: `line`, or that the rest is left out.
inline bool keep_line(std::vector<std::string>& lines, std::string line) {
  if (lines.size() >= kKeptLinesMax) return false;
  const bool last = lines.size() + 1 == kKeptLinesMax;
  lines.push_back(last ? "there is more, which is left out" : std::move(line));
  return true;
}

}  // namespace tidelock::tools
