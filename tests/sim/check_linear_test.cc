// Histories with their verdicts, and a brute-force search that must agree on many small ones.
#include "check_linear.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>

using namespace tidelock;
using namespace tidelock::sim;

namespace {

using Calls = std::vector<LinearCall>;
constexpr std::uint64_t kOpen = LinearCall::kUnknown;

LinearCall put(std::uint64_t value, std::uint64_t start, std::uint64_t end) {
  return {true, value, start, end};
}
LinearCall erase(std::uint64_t start, std::uint64_t end) { return {true, 0, start, end}; }
LinearCall get(std::uint64_t value, std::uint64_t start, std::uint64_t end) {
  return {false, value, start, end};
}

struct Case {
  const char* what;
  Calls calls;
  bool holds;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"nothing", {}, true},
      {"a read of nothing", {get(0, 1, 2)}, true},
      {"a read of what nobody wrote", {get(7, 1, 2)}, false},
      {"a read after a write", {put(1, 1, 2), get(1, 3, 4)}, true},
      {"nothing after a write", {put(1, 1, 2), get(0, 3, 4)}, false},
      {"a read before the write", {get(1, 1, 2), put(1, 3, 4)}, false},
      {"a read during the write: new", {put(1, 1, 4), get(1, 2, 3)}, true},
      {"a read during the write: old", {put(1, 1, 4), get(0, 2, 3)}, true},
      {"new, then old, during one write", {put(1, 1, 6), get(1, 2, 3), get(0, 4, 5)}, false},
      {"old, then new, during one write", {put(1, 1, 6), get(0, 2, 3), get(1, 4, 5)}, true},
      {"a stale read", {put(1, 1, 2), put(2, 3, 4), get(1, 5, 6)}, false},
      {"two writes at once: either", {put(1, 1, 4), put(2, 2, 3), get(1, 5, 6)}, true},
      {"two writes at once: the other", {put(1, 1, 4), put(2, 2, 3), get(2, 5, 6)}, true},
      {"two writes at once: both orders seen",
       {put(1, 1, 4), put(2, 2, 3), get(1, 5, 6), get(2, 7, 8)},
       false},
      {"two readers disagree",
       {put(1, 1, 10), put(2, 2, 11), get(1, 3, 4), get(2, 5, 6), get(1, 7, 8)},
       false},
      {"erased", {put(1, 1, 2), erase(3, 4), get(0, 5, 6)}, true},
      {"seen after it was erased", {put(1, 1, 2), erase(3, 4), get(1, 5, 6)}, false},
      {"an unknown put seen", {put(1, 1, kOpen), get(1, 5, 6)}, true},
      {"an unknown put never seen", {put(1, 1, kOpen), get(0, 5, 6), get(0, 7, 8)}, true},
      {"an unknown put seen late", {put(1, 1, kOpen), get(0, 2, 3), get(1, 4, 5)}, true},
      {"an unknown put seen, then gone", {put(1, 1, kOpen), get(1, 2, 3), get(0, 4, 5)}, false},
      {"an unknown put seen before its start", {get(1, 1, 2), put(1, 3, kOpen)}, false},
      {"an unknown put takes effect once",
       {put(1, 1, kOpen), get(1, 2, 3), put(2, 4, 5), get(1, 6, 7)},
       false},
      {"an unknown put overwrites a later one",
       {put(1, 1, kOpen), put(2, 2, 3), get(2, 4, 5), get(1, 6, 7)},
       true},
      {"an unknown erase takes effect", {put(1, 1, 2), erase(3, kOpen), get(0, 4, 5)}, true},
      {"an unknown erase never happens", {put(1, 1, 2), erase(3, kOpen), get(1, 4, 5)}, true},
      {"an unknown erase late", {put(1, 1, 2), erase(3, kOpen), get(1, 4, 5), get(0, 6, 7)}, true},
      {"an unknown erase undone", {put(1, 1, 2), erase(3, kOpen), get(0, 4, 5), get(1, 6, 7)}, false},
      {"nothing found before the unknown erase began", {put(1, 1, 2), get(0, 3, 4), erase(5, kOpen)}, false},
      {"an overlap chain", {put(1, 1, 3), put(2, 2, 5), put(3, 4, 7), get(3, 6, 8), get(3, 9, 10)}, true},
      {"an overlap chain, too old", {put(1, 1, 3), put(2, 2, 5), put(3, 4, 7), get(1, 8, 9)}, false},
      {"an overlap chain, the middle", {put(1, 1, 3), put(2, 2, 5), put(3, 4, 7), get(2, 8, 9)}, true},
      {"two unknown puts, each seen", {put(1, 1, kOpen), put(2, 2, kOpen), get(2, 3, 4), get(1, 5, 6)}, true},
      {"two unknown puts, one seen twice apart",
       {put(1, 1, kOpen), put(2, 2, kOpen), get(1, 3, 4), get(2, 5, 6), get(1, 7, 8)},
       false},
      {"a split, and what follows is right", {put(1, 1, 2), get(1, 3, 4), put(2, 5, 6), get(2, 7, 8)}, true},
      {"a split, and what came before is wrong",
       {put(1, 1, 2), get(0, 3, 4), put(2, 5, 6), get(2, 7, 8)},
       false},
      {"a split by an erase", {put(1, 1, 2), erase(3, 4), get(0, 5, 6), put(2, 7, 8), get(2, 9, 10)}, true},
      {"no split across an unknown put",
       {put(1, 1, kOpen), put(2, 2, 3), get(2, 4, 5), put(3, 6, 7), get(3, 8, 9), get(1, 10, 11)},
       true},
      {"no split across a long read", {get(1, 1, 9), put(1, 2, 3), put(2, 4, 5)}, true},
      {"a long read of what is gone before", {put(1, 1, 2), put(2, 3, 4), get(1, 5, 9), put(3, 6, 7)}, false},
  };
  return all;
}

/// All orders, one call after the other; what is unknown may be left out.
bool brute_force(const Calls& calls, std::vector<bool>& taken, std::uint64_t state) {
  bool all_known_taken = true;
  std::uint64_t first_end = kOpen;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (taken[i]) continue;
    if (calls[i].end != kOpen) all_known_taken = false;
    first_end = std::min(first_end, calls[i].end);
  }
  if (all_known_taken) return true;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (taken[i] || calls[i].start > first_end) continue;
    if (!calls[i].write && calls[i].value != state) continue;
    taken[i] = true;
    if (brute_force(calls, taken, calls[i].write ? calls[i].value : state)) return true;
    taken[i] = false;
  }
  return false;
}

/// Calls of three clients on a real register, so that the history holds; `spoil`: then one read is changed.
Calls random_history(Random& random, std::size_t count, std::size_t clients, bool spoil) {
  Calls calls;
  std::vector<std::uint64_t> free_at(clients, 0);
  std::uint64_t state = 0;
  std::uint64_t clock = 1;
  // Each takes effect at a moment between its start and its end.
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t client = random.below(clients);
    const std::uint64_t effect = 1'000'000 * (i + 1);
    const std::uint64_t reach = 1'000'000 * (1 + random.below(3));
    LinearCall call;
    call.start = std::max(free_at[client], effect > reach ? effect - reach : 0) * 16 + client * 2 + 1;
    call.end = (effect + 1'000'000 * random.below(3)) * 16 + client * 2 + 8;
    if (call.start > effect * 16) continue;  // this client is still in its last call
    free_at[client] = call.end / 16 + 1;
    const std::uint64_t kind = random.below(10);
    call.write = kind < 5;
    if (call.write) {
      call.value = kind == 0 ? 0 : ++clock;
      const bool unknown = random.below(5) == 0;
      if (unknown) call.end = kOpen;
      if (!unknown || random.below(2) == 0) state = call.value;
    } else {
      call.value = state;
    }
    calls.push_back(call);
  }
  if (spoil && !calls.empty()) {
    LinearCall& changed = calls[random.below(calls.size())];
    if (!changed.write) changed.value = random.below(clock + 1);
  }
  return calls;
}

}  // namespace

TEST_CASE("sim/check_linear: histories by hand") {
  for (const Case& one : cases()) {
    CAPTURE(one.what);
    CHECK(check_linear(one.calls) == (one.holds ? LinearVerdict::holds : LinearVerdict::violated));
    Calls reversed(one.calls.rbegin(), one.calls.rend());
    CHECK(check_linear(reversed) == (one.holds ? LinearVerdict::holds : LinearVerdict::violated));
  }
}

TEST_CASE("sim/check_linear: agrees with a search over all orders on 100,000 small histories") {
  Random random(11);
  std::uint64_t violated = 0;
  std::uint64_t disagree = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Calls calls = random_history(random, 1 + random.below(8), 3, i % 2 == 0);
    std::vector<bool> taken(calls.size(), false);
    const bool holds = brute_force(calls, taken, 0);
    violated += holds ? 0 : 1;
    disagree += check_linear(calls) == (holds ? LinearVerdict::holds : LinearVerdict::violated) ? 0 : 1;
    if (i % 2 != 0) CHECK_MESSAGE(holds, "a history of a real register holds");
  }
  CHECK(disagree == 0);
  CHECK(violated > 5'000);
}

TEST_CASE("sim/check_linear: a long history is decided, and a search beyond its bound says undecided") {
  Random random(12);
  const Calls calls = random_history(random, 10'000, 8, false);
  CHECK(check_linear(calls) == LinearVerdict::holds);
  // Writes that all overlap, and a read that none of their orders explains: all sets are tried.
  Calls hard;
  for (std::uint64_t i = 1; i <= 24; ++i) hard.push_back(put(i, i, 100 + i));
  hard.push_back(get(99, 200, 201));
  CHECK(check_linear(hard, 1'000) == LinearVerdict::undecided);
}
