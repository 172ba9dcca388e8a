/// How the members of a group agree that all of them are done, while any of them may still be given new work
/// by a message. Private to reactor/.
///
/// Each member reports, round after round, whether it rests and how many messages it has sent and received.
/// A member that rests becomes busy again only by a message, which shows in its count. So once every member
/// has reported the same twice, all of them rested at the moment of the last change; and if as much was
/// received as was sent, nothing was on its way then, and nothing will come (Mattern's four counters).
/// Thread:   any; each member reports for itself
/// Suspends: never
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace tidelock {

class StopBarrier {
 public:
  struct Standing {
    bool rests = false;          ///< no fibers, no tasks, nothing staged, nothing in the kernel
    std::uint64_t sent = 0;      ///< messages to members of the group, itself included
    std::uint64_t received = 0;  ///< messages whose handlers have returned
    friend bool operator==(const Standing&, const Standing&) = default;
  };

  explicit StopBarrier(std::uint32_t members) : entries_(members) {}

  /// True once nobody can get any more work; it stays true.
  bool report(std::uint32_t member, const Standing& standing) {
    const std::lock_guard lock(mutex_);
    if (open_) return true;
    Entry& entry = entries_[member];
    if (entry.standing != standing) {
      entry.standing = standing;
      ++changes_;
      confirmed_ = 0;
    } else if (entry.confirmed_at != changes_) {
      entry.confirmed_at = changes_;
      ++confirmed_;
      open_ = confirmed_ == entries_.size() && all_done();
    }
    return open_;
  }

 private:
  struct Entry {
    Standing standing;
    std::uint64_t confirmed_at = ~0ULL;  ///< the value of changes_ when it last reported the same again
  };

  [[nodiscard]] bool all_done() const {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (const Entry& entry : entries_) {
      if (!entry.standing.rests) return false;
      sent += entry.standing.sent;
      received += entry.standing.received;
    }
    return sent == received;
  }

  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::uint64_t changes_ = 0;
  std::size_t confirmed_ = 0;  ///< members that have confirmed what they said, since the last change
  bool open_ = false;
};

}  // namespace tidelock
