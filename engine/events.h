/// What went wrong lately, for people: a bounded list of lines.
/// Thread:   any. Takes a lock, so it is for the control path only
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tidelock {

class EventLog {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() == kLines) lines_.pop_front();
    lines_.push_back(std::move(line));
  }
  [[nodiscard]] std::vector<std::string> list() const {
    const std::lock_guard lock(mutex_);
    return {lines_.begin(), lines_.end()};
  }

 private:
  static constexpr std::size_t kLines = 64;
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;
};

}  // namespace tidelock
