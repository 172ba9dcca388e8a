/// What happened, as a hash that one seed always gives, and the last of it as text. Never fed with addresses,
/// sizes of memory, wall time or anything else that another run of the same seed may have otherwise.
/// Thread:   one
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "shared_trace.h"

namespace tidelock::sim {

class Trace {
 public:
  /// `lines_max`: how many lines of text are kept, 0: none, and none is made.
  explicit Trace(std::size_t lines_max = 0) : lines_max_(lines_max) {}

  void mix(std::uint64_t word) {
    constexpr std::uint64_t kOdd = 0x9fb2'1c65'1e98'df25ULL;
    hash_ = std::rotl(hash_ ^ word, 27) * kOdd;
  }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  /// From now on the hash is kept as it was before each event, so that two runs can be held against each
  /// other.
  void keep_hashes() { keeps_hashes_ = true; }
  void event_begins() {
    if (keeps_hashes_) hashes_.push_back(hash_);
  }
  [[nodiscard]] const std::vector<std::uint64_t>& hashes() const { return hashes_; }

  /// `make` gives a line; it is called only if lines are kept.
  template <class Make>
  void note(Make&& make) {
    if (lines_max_ == 0 || frozen_) return;
    if (lines_.size() == lines_max_) lines_.pop_front();
    lines_.push_back(make());
    if (shared_ != nullptr) shared_->add(lines_.back());
  }
  /// Lines go there, too: it outlives this process.
  void share(SharedTrace* shared) { shared_ = shared; }
  /// The lines that are kept now are the last ones.
  void freeze() { frozen_ = true; }
  [[nodiscard]] const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::size_t lines_max_;
  SharedTrace* shared_ = nullptr;
  bool frozen_ = false;
  bool keeps_hashes_ = false;
  std::vector<std::uint64_t> hashes_;
  std::uint64_t hash_ = 0x1d8e'4e27'c47d'124fULL;
  std::deque<std::string> lines_;
};

}  // namespace tidelock::sim
