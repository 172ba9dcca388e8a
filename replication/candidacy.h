/// What a candidate counts on its way to lead an epoch: who would promise, who did, whose promise still
/// holds, and whose log it has to fetch first. One object an attempt.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include <tidelock/base/ids.h>
#include <tidelock/replication/quorum.h>

namespace tidelock {

/// Where a log ends. "Greater" compares the epoch first: a longer log of an older epoch may lack what a later
/// primary committed.
struct LogEnd {
  Epoch epoch{};
  Lsn lsn{};
  friend constexpr bool operator==(const LogEnd&, const LogEnd&) = default;
  friend constexpr bool operator<(const LogEnd& a, const LogEnd& b) {
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.lsn < b.lsn;
  }
};

class Candidacy {
 public:
  /// `founding`: of a new history, which takes more of them. `forced`: its own is enough, by an operator's
  /// word; what others have that it does not hear of is lost.
  Candidacy(const Quorum& quorum, bool founding, bool forced = false)
      : quorum_(quorum), founding_(founding), forced_(forced) {}

  /// The candidate's own counts in every round. To lead it takes more when somebody names a smaller c: what
  /// was committed under that is on fewer nodes. (Nodes whose c differs refuse each other, so nobody does.)
  [[nodiscard]] std::uint32_t needed() const {
    if (forced_) return 1;
    return founding_ ? quorum_.founders_needed() : quorum_.promises_needed();
  }

  /// First round: it would promise. Deposes nobody.
  void would(std::uint32_t node) { others_.try_emplace(node); }
  [[nodiscard]] bool enough_would() const { return others_.size() + 1 >= needed(); }

  /// Second round: it has, and its log ends there. `c`: of its group, as it was told.
  void promised(std::uint32_t node, const LogEnd& end, std::uint32_t c) {
    others_[node].end = end;
    quorum_.c = std::min(quorum_.c, c);
    // What was confirmed for a set of promises without this one is not for the set with it: another of the
    // givers may have restarted since, and its promise been one of those that made this one's worth asking.
    for (auto& [each, other] : others_) other.confirmed = false;
    ++round_;
  }
  [[nodiscard]] bool enough_promised() const { return count(&Other::gave) + 1 >= needed(); }

  /// Third round, which begins anew with each promise from enough of them on: a stamp that left in `round`
  /// was echoed by a link that has lasted since the promise. So its giver has not restarted and forgotten it.
  void confirmed(std::uint32_t node, std::uint64_t round) {
    const auto other = others_.find(node);
    if (round == round_ && enough_promised() && other != others_.end() && other->second.end)
      other->second.confirmed = true;
  }
  [[nodiscard]] std::uint64_t round() const { return round_; }
  [[nodiscard]] bool enough_confirmed() const { return count(&Other::counts) + 1 >= needed(); }

  [[nodiscard]] bool all_confirmed() const { return count(&Other::gave) == count(&Other::counts); }

  /// Its link is gone: whatever it said may be forgotten by now.
  void lost(std::uint32_t node) { others_.erase(node); }

  /// Among those confirmed, or of all promises if it is forced (what it knows of is not to be lost): who has
  /// the greatest log, if that is greater than the candidate's own.
  [[nodiscard]] std::optional<std::uint32_t> donor(LogEnd own) const {
    std::optional<std::uint32_t> found;
    for (const auto& [node, other] : others_) {
      const bool counts = other.counts() || (forced_ && other.gave());
      if (!counts || !(own < *other.end)) continue;
      own = *other.end;
      found = node;
    }
    return found;
  }
  /// Of the epoch: the least that anybody named.
  [[nodiscard]] std::uint32_t c() const { return quorum_.c; }

 private:
  struct Other {
    std::optional<LogEnd> end;  ///< with its promise
    bool confirmed = false;
    [[nodiscard]] bool gave() const { return end.has_value(); }
    [[nodiscard]] bool counts() const { return confirmed; }
  };
  [[nodiscard]] std::uint32_t count(bool (Other::*which)() const) const {
    return static_cast<std::uint32_t>(std::count_if(
        others_.begin(), others_.end(), [which](const auto& each) { return (each.second.*which)(); }));
  }

  Quorum quorum_;  ///< with the least c that was named
  bool founding_;
  bool forced_;
  std::uint64_t round_ = 0;
  std::map<std::uint32_t, Other> others_;
};

}  // namespace tidelock
