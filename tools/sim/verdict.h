/// What the checkers found in one run: the first violation of each.
/// Thread:   one
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/base/time.h>

namespace tidelock::sim {

struct Failure {
  std::string checker;
  Instant at{};             ///< world time
  std::uint64_t event = 0;  ///< the number of the event in which it was found
  std::string text;
};

class Verdict {
 public:
  void add(Failure failure) {
    const auto same = [&](const Failure& other) { return other.checker == failure.checker; };
    if (std::none_of(failures_.begin(), failures_.end(), same)) failures_.push_back(std::move(failure));
  }
  /// In the order in which they were found.
  [[nodiscard]] const std::vector<Failure>& failures() const { return failures_; }
  [[nodiscard]] bool passed() const { return failures_.empty(); }

 private:
  std::vector<Failure> failures_;
};

}  // namespace tidelock::sim
