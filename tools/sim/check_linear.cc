#include "check_linear.h"

#include <algorithm>
#include <cstddef>
#include <unordered_set>
#include <vector>

#include <tidelock/reactor/random.h>

namespace tidelock::sim {
namespace {

/// A set of calls and the state after them. The set is named by the sum of its members' 128 random bits.
struct Tried {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::uint64_t state = 0;
  friend bool operator==(const Tried&, const Tried&) = default;
};
struct TriedHash {
  std::size_t operator()(const Tried& tried) const {
    return tried.low ^ (tried.state * 0x9e37'79b9'7f4a'7c15ULL);
  }
};

/// The search over one piece of a history.
class Search {
 public:
  explicit Search(std::span<const LinearCall> calls) : calls_(calls), names_(calls.size()) {
    Random random(calls.size());
    for (Tried& name : names_) name = {random.next(), random.next(), 0};
    std::vector<Entry> order;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      order.push_back({calls[i].start, i, true, 0, 0});
      order.push_back({calls[i].end, i, false, 0, 0});
    }
    // Ends that never come are last.
    std::sort(order.begin(), order.end(),
              [](const Entry& a, const Entry& b) { return a.at != b.at ? a.at < b.at : a.call < b.call; });
    // A ring of links, its head first, so that taking out and putting back need no case of their own.
    entries_.push_back({0, 0, false, 0, 0});
    entries_.insert(entries_.end(), order.begin(), order.end());
    return_of_.resize(calls.size());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].next = (i + 1) % entries_.size();
      entries_[i].previous = (i + entries_.size() - 1) % entries_.size();
      if (i > 0 && !entries_[i].is_call) return_of_[entries_[i].call] = i;
    }
  }

  LinearVerdict run(std::uint64_t state, std::uint64_t& memo_left) {
    struct Done {
      std::size_t entry;
      std::uint64_t state;
    };
    std::vector<Done> done;
    Tried set;
    std::size_t at = entries_[0].next;
    while (at != 0) {
      const Entry& entry = entries_[at];
      const LinearCall& call = calls_[entry.call];
      const Tried& name = names_[entry.call];
      if (entry.is_call) {
        const std::uint64_t after = call.write ? call.value : state;
        const bool may_be_next = call.write || call.value == state;
        if (may_be_next && memo_.insert({set.low + name.low, set.high + name.high, after}).second) {
          if (memo_left-- == 0) return LinearVerdict::undecided;
          done.push_back({at, state});
          set.low += name.low;
          set.high += name.high;
          state = after;
          take_out(return_of_[entry.call]);
          take_out(at);
          at = entries_[0].next;
        } else {
          at = entry.next;
        }
        continue;
      }
      if (call.end == LinearCall::kUnknown) return LinearVerdict::holds;  // what is left never happened
      if (done.empty()) return LinearVerdict::violated;
      const Done last = done.back();
      done.pop_back();
      state = last.state;
      const std::size_t its = entries_[last.entry].call;
      set.low -= names_[its].low;
      set.high -= names_[its].high;
      put_back(last.entry);
      put_back(return_of_[its]);
      at = entries_[last.entry].next;
    }
    return LinearVerdict::holds;
  }

 private:
  struct Entry {
    std::uint64_t at;
    std::size_t call;
    bool is_call;
    std::size_t next;
    std::size_t previous;
  };
  void take_out(std::size_t i) {
    entries_[entries_[i].previous].next = entries_[i].next;
    entries_[entries_[i].next].previous = entries_[i].previous;
  }
  void put_back(std::size_t i) {
    entries_[entries_[i].previous].next = i;
    entries_[entries_[i].next].previous = i;
  }

  std::span<const LinearCall> calls_;
  std::vector<Tried> names_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> return_of_;
  std::unordered_set<Tried, TriedHash> memo_;
};

/// Without the unknown writes that no read can need: any order that holds does without them.
std::vector<LinearCall> without_needless(std::span<const LinearCall> calls) {
  std::unordered_set<std::uint64_t> found;
  std::uint64_t nothing_found_at = 0;
  for (const LinearCall& call : calls) {
    if (call.write) continue;
    if (call.value != 0) {
      found.insert(call.value);
    } else {
      nothing_found_at = std::max(nothing_found_at, call.end);
    }
  }
  std::vector<LinearCall> kept;
  for (const LinearCall& call : calls) {
    const bool unknown = call.write && call.end == LinearCall::kUnknown;
    const bool needed = call.value != 0 ? found.contains(call.value) : nothing_found_at > call.start;
    if (!unknown || needed) kept.push_back(call);
  }
  return kept;
}

}  // namespace

LinearVerdict check_linear(std::span<const LinearCall> calls, std::uint64_t memo_max) {
  std::vector<LinearCall> kept = without_needless(calls);
  std::sort(kept.begin(), kept.end(),
            [](const LinearCall& a, const LinearCall& b) { return a.start < b.start; });
  bool undecided = false;
  std::uint64_t memo_left = memo_max;
  std::uint64_t state = 0;
  std::size_t from = 0;
  std::uint64_t open_until = 0;  // the latest end of all calls so far
  for (std::size_t i = 0; i <= kept.size(); ++i) {
    // A known write that overlaps nothing: what came before is judged by itself, what follows starts from it.
    const bool alone = i < kept.size() && kept[i].write && kept[i].end != LinearCall::kUnknown &&
                       open_until < kept[i].start &&
                       (i + 1 == kept.size() || kept[i].end < kept[i + 1].start);
    if (i < kept.size()) open_until = std::max(open_until, kept[i].end);
    if (!alone && i < kept.size()) continue;
    const LinearVerdict piece = Search(std::span(kept).subspan(from, i - from)).run(state, memo_left);
    if (piece == LinearVerdict::violated) return piece;
    if (piece == LinearVerdict::undecided) {
      undecided = true;
      memo_left = memo_max;
    }
    if (i < kept.size()) state = kept[i].value;
    from = i + 1;
  }
  return undecided ? LinearVerdict::undecided : LinearVerdict::holds;
}

}  // namespace tidelock::sim
