// The protocol of a group of nodes, searched: exhaustively within bounds for up to three nodes, at random for
// up to five. No committed entry may be lost, no two primaries commit in conflict, no read is stale, and no
// two histories are held at once. A part of the design left out (Rules) must be found out, else the search
// would prove nothing: by walks from the start, or from a state set up where that part matters.
#include "protocol_model.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>

#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::model;

namespace {

/// 64 bits of a state stand for it: among ten million states, the chance that any two share them is 3 in a
/// million, and then a part of the search is lost, never a false alarm given.
std::uint64_t hash_of(const ModelState& state) {
  std::array<std::uint64_t, (sizeof(ModelState) + 7) / 8> words{};
  std::memcpy(words.data(), &state, sizeof(state));
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0xd6e8feb86659fd93;
    hash ^= hash >> 32;
  }
  return hash == 0 ? 1 : hash;
}

/// A set of hashes; open addressing.
class Seen {
 public:
  [[nodiscard]] std::size_t size() const { return size_; }
  /// False if it was there.
  bool insert(std::uint64_t hash) {
    if (size_ * 2 >= slots_.size()) grow();
    if (!place(hash)) return false;
    ++size_;
    return true;
  }

 private:
  bool place(std::uint64_t hash) {
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at] != 0) {
      if (slots_[at] == hash) return false;
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = hash;
    return true;
  }
  void grow() {
    std::vector<std::uint64_t> old(slots_.size() * 2);
    old.swap(slots_);
    for (const std::uint64_t hash : old) {
      if (hash != 0) place(hash);
    }
  }
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(1 << 12);
  std::size_t size_ = 0;
};

/// With sanitizers a search ends early: the states are seen for faults of the program, not of the protocol.
constexpr std::uint64_t kStatesMax = test::kSanitized ? 5'000 : 1'000'000;
constexpr std::uint64_t kWalksMax = 20'000;  ///< a mutant's; it ends at the fault

struct Outcome {
  std::string fault;  ///< empty: none found
  std::string story;  ///< the steps that led to it
  std::uint64_t states = 0;
  bool complete = true;
};

/// Depth first, each state once.
class Exhaustive {
 public:
  Exhaustive(const Bounds& bounds, const Rules& rules, std::uint64_t states_max)
      : model(bounds, rules), states_max_(states_max) {}

  Outcome run(const ModelState& start) {
    visit(start);
    outcome_.states = seen_.size();
    return outcome_;
  }
  Model model;

 private:
  /// True if the search is over.
  bool visit(ModelState state) {
    if (!seen_.insert(hash_of(state))) return false;
    if (seen_.size() >= states_max_) return outcome_.complete = false, true;
    for (const Move& move : model.moves(state)) {
      const ModelState next = model.after(state, move);
      const bool broken = model.fault() != nullptr;
      if (broken) outcome_.fault = model.fault();
      if (broken || visit(next)) {
        if (!outcome_.fault.empty()) outcome_.story.insert(0, "\n  " + Model::describe(state, move));
        return true;
      }
    }
    return false;
  }
  Seen seen_;
  Outcome outcome_;
  std::uint64_t states_max_;
};

/// The state that these steps lead to, each of which the model must allow.
ModelState begin_at(Model& model, const std::vector<Move>& steps) {
  ModelState state = model.start();
  for (const Move& step : steps) {
    const std::vector<Move> moves = model.moves(state);
    INFO(Model::describe(state, step));
    REQUIRE(std::any_of(moves.begin(), moves.end(), [&](const Move& move) {
      return move.step == step.step && move.a == step.a && move.b == step.b;
    }));
    state = model.after(state, step);
    REQUIRE(model.fault() == nullptr);
  }
  return state;
}

/// Walks from a state, each with its own preferences among the kinds of steps, so that rare orders of steps
/// are not rare in all walks.
Outcome walk_at_random(Model& model, const ModelState& start, std::uint64_t walks) {
  constexpr std::uint64_t kStepsMax = 120;
  Outcome outcome;
  for (std::uint64_t walk = 0; walk < walks; ++walk) {
    Random random(1 + walk);
    std::array<std::uint64_t, static_cast<std::size_t>(Step::count)> weights{};
    for (std::uint64_t& weight : weights) weight = 1ULL << random.below(7);
    ModelState state = start;
    std::vector<Move> story;
    for (std::uint64_t step = 0; step < kStepsMax; ++step) {
      const std::vector<Move> moves = model.moves(state);
      if (moves.empty()) break;
      std::uint64_t all = 0;
      for (const Move& move : moves) all += weights[static_cast<std::size_t>(move.step)];
      std::uint64_t chosen = random.below(all);
      const Move* move = moves.data();
      while (chosen >= weights[static_cast<std::size_t>(move->step)]) {
        chosen -= weights[static_cast<std::size_t>(move->step)];
        ++move;
      }
      story.push_back(*move);
      state = model.after(state, *move);
      ++outcome.states;
      if (model.fault() == nullptr) continue;
      outcome.fault = model.fault();
      ModelState again = start;
      for (const Move& told : story) {
        outcome.story += "\n  " + Model::describe(again, told);
        again = model.after(again, told);
      }
      return outcome;
    }
  }
  return outcome;
}

Bounds bounds_of(Byte nodes, Byte c, bool founded) {
  Bounds bounds{.nodes = nodes, .c = c, .founded = founded};
  bounds.writes = 3, bounds.crashes = 2, bounds.candidacies = 3, bounds.ticks = 6, bounds.reads = 2;
  bounds.handovers = 1, bounds.foundings = founded ? 0 : 2;
  bounds.losses = c;
  bounds.parts = 2, bounds.repeats = 1;
  return bounds;
}

constexpr Byte kLast = kBagMax - 1;  ///< the greatest message: `lead` before all, else the one that there is

/// A promiser restarts, asks two that have not promised, and follows the old primary again.
const std::vector<Move> kPromiserRestarts{
    {Step::stand, 3, 2},    {Step::promise, 1, 3},  {Step::deliver, kLast}, {Step::crash, 1},
    {Step::tick},           {Step::tick},           {Step::answer, 0, 1},   {Step::deliver, kLast},
    {Step::answer, 2, 1},   {Step::deliver, kLast}, {Step::attach, 1, 0},   {Step::promise, 2, 3},
    {Step::deliver, kLast}, {Step::write, 0}};
/// An entry of the old primary only; another leads, with an entry of its own at that LSN.
const std::vector<Move> kForkedTail{{Step::write, 0},       {Step::stand, 1, 2},   {Step::promise, 2, 1},
                                    {Step::deliver, kLast}, {Step::confirm, 2, 1}, {Step::lead, 1}};
/// A lease was granted, echoed, and has run out; another is about to lead.
const std::vector<Move> kLeaseRanOut{{Step::send, 0, 1},    {Step::deliver, kLast}, {Step::deliver, kLast},
                                     {Step::tick},          {Step::tick},           {Step::stand, 2, 2},
                                     {Step::promise, 1, 2}, {Step::deliver, kLast}, {Step::confirm, 1, 2}};
/// Who was to hand over asks for an epoch anew and gets a lease, before the successor hears of it.
const std::vector<Move> kLateHandover{
    {Step::hand_over, 0, 1},    {Step::stand, 0, 2},   {Step::promise, 2, 0},
    {Step::deliver, kLast - 1}, {Step::confirm, 2, 0}, {Step::lead, 0},
    {Step::attach, 2, 0},       {Step::send, 0, 2},    {Step::deliver, kLast - 1},
    {Step::deliver, kLast - 1}, {Step::send, 0, 2},    {Step::deliver, kLast - 1},
    {Step::deliver, kLast - 1}};
/// ... and node 0, whose promise is lost, leads again with the entry that it alone had; node 2 follows and
/// has that, but not the no-op after it (Raft's figure 8).
const std::vector<Move> kOldEntry{{Step::write, 0},       {Step::stand, 1, 2},    {Step::promise, 2, 1},
                                  {Step::deliver, kLast}, {Step::promise, 0, 1},  {Step::confirm, 2, 1},
                                  {Step::lead, 1},        {Step::stand, 0, 3},    {Step::promise, 1, 0},
                                  {Step::promise, 2, 0},  {Step::deliver, kLast}, {Step::confirm, 2, 0},
                                  {Step::lead, 0},        {Step::attach, 2, 0},   {Step::send_part, 0, 2},
                                  {Step::deliver, kLast}, {Step::deliver, kLast}};
/// Of kForkedTail, node 0 follows node 1: a snapshot has to come.
const std::vector<Move> kForkFollows = [] {
  std::vector<Move> steps = kForkedTail;
  steps.push_back({Step::attach, 0, 1});
  return steps;
}();
/// All three hold what node 0 founded; node 1 promised node 2, and restarts; node 2 leads.
const std::vector<Move> kFounderRepeats{
    {Step::found, 0},       {Step::promise, 1, 0},  {Step::deliver, kLast}, {Step::promise, 2, 0},
    {Step::deliver, kLast}, {Step::confirm, 1, 0},  {Step::confirm, 2, 0},  {Step::lead, 0},
    {Step::attach, 1, 0},   {Step::send, 0, 1},     {Step::deliver, kLast}, {Step::deliver, kLast},
    {Step::attach, 2, 0},   {Step::send, 0, 2},     {Step::deliver, kLast}, {Step::deliver, kLast},
    {Step::send, 0, 1},     {Step::deliver, kLast}, {Step::deliver, kLast}, {Step::stand, 2, 2},
    {Step::promise, 1, 2},  {Step::deliver, kLast}, {Step::confirm, 1, 2},  {Step::crash, 1},
    {Step::tick},           {Step::tick},           {Step::lead, 2}};

/// Node 0 founded, and told only node 2, which has not acted on that. Node 1 would found, too.
const std::vector<Move> kFounderUnheard{{Step::found, 0},      {Step::promise, 1, 0},  {Step::deliver, kLast},
                                        {Step::promise, 2, 0}, {Step::deliver, kLast}, {Step::confirm, 1, 0},
                                        {Step::confirm, 2, 0}, {Step::lead, 0},        {Step::found, 1},
                                        {Step::promise, 2, 1}, {Step::deliver, kLast}, {Step::answer, 0, 2}};

/// Node 3 of five stands with the promises of nodes 1 and 2, which restart one after the other. Node 2 hears
/// of that and follows node 3, and when that restarts, too, node 1 has heard of it from nobody: who had
/// promised answered while it had no memory. The first primary goes on with node 1.
const std::vector<Move> kRestartsInTurn{
    {Step::stand, 3, 2},    {Step::promise, 1, 3},  {Step::deliver, kLast}, {Step::promise, 2, 3},
    {Step::deliver, kLast}, {Step::confirm, 1, 3},  {Step::confirm, 2, 3},  {Step::crash, 1},
    {Step::tick},           {Step::tick},           {Step::answer, 0, 1},   {Step::deliver, kLast},
    {Step::answer, 4, 1},   {Step::deliver, kLast}, {Step::crash, 2},       {Step::answer, 2, 1},
    {Step::deliver, kLast}, {Step::tick},           {Step::tick},           {Step::answer, 0, 2},
    {Step::deliver, kLast}, {Step::answer, 4, 2},   {Step::deliver, kLast}, {Step::answer, 3, 2},
    {Step::deliver, kLast}, {Step::lead, 3},        {Step::attach, 2, 3},   {Step::send, 3, 2},
    {Step::deliver, kLast}, {Step::deliver, kLast}, {Step::crash, 3},       {Step::answer, 3, 1},
    {Step::deliver, kLast}, {Step::attach, 1, 0},   {Step::send, 0, 1},     {Step::deliver, kLast},
    {Step::deliver, kLast}, {Step::write, 0},       {Step::send, 0, 1},     {Step::deliver, kLast},
    {Step::deliver, kLast}, {Step::send, 0, 4},     {Step::deliver, kLast}, {Step::deliver, kLast}};

/// Node 1 granted a lease, and node 0 heard its echo.
const std::vector<Move> kLeased{{Step::send, 0, 1}, {Step::deliver, kLast}, {Step::deliver, kLast}};
/// ... node 2, which granted none, promised node 3.
const std::vector<Move> kLeasedPromised{{Step::send, 0, 1},  {Step::deliver, kLast}, {Step::deliver, kLast},
                                        {Step::stand, 3, 2}, {Step::promise, 2, 3},  {Step::deliver, kLast}};
/// ... which leads (c = 2: two promises do).
const std::vector<Move> kLeasedLed{{Step::send, 0, 1},    {Step::deliver, kLast}, {Step::deliver, kLast},
                                   {Step::stand, 3, 2},   {Step::promise, 2, 3},  {Step::deliver, kLast},
                                   {Step::confirm, 2, 3}, {Step::lead, 3},        {Step::attach, 2, 3},
                                   {Step::send, 3, 2},    {Step::deliver, kLast}, {Step::deliver, kLast}};

/// ... and who granted the lease restarted.
const std::vector<Move> kLeasedLost = [] {
  std::vector<Move> steps = kLeasedLed;
  steps.push_back({Step::crash, 1});
  return steps;
}();

/// Node 1 promised node 2, was confirmed, and restarted: of the two others only one knows.
const std::vector<Move> kConfirmedRestarts{{Step::stand, 2, 2},
                                           {Step::promise, 1, 2},
                                           {Step::deliver, kLast},
                                           {Step::confirm, 1, 2},
                                           {Step::crash, 1}};
/// Node 2 granted node 0 a lease, and promised node 1, to which node 0 hands over.
const std::vector<Move> kHandedOver{{Step::send, 0, 2},      {Step::deliver, kLast}, {Step::deliver, kLast},
                                    {Step::hand_over, 0, 1}, {Step::deliver, kLast}, {Step::promise, 2, 1},
                                    {Step::deliver, kLast},  {Step::confirm, 2, 1},  {Step::lead, 1}};

/// A rule left out, and the states from which it is searched on: all that the bounds allow.
struct Guided {
  const char* name;
  bool Rules::*rule;
  Bounds bounds;
  const std::vector<Move>* begin;
};
const std::array kGuided{
    Guided{"second_round",
           &Rules::second_round,
           {.nodes = 4, .writes = 1, .crashes = 1, .candidacies = 1, .ticks = 2},
           &kPromiserRestarts},
    Guided{"hello_counts_not", &Rules::hello_counts_not, {.writes = 1, .candidacies = 2}, &kForkedTail},
    Guided{
        "lease_is_timed", &Rules::lease_is_timed, {.candidacies = 1, .ticks = 2, .reads = 1}, &kLeaseRanOut},
    Guided{"echo_after_capture",
           &Rules::echo_after_capture,
           {.candidacies = 1, .ticks = 2, .reads = 1},
           &kLeaseRanOut},
    Guided{"release_of_own_epoch",
           &Rules::release_of_own_epoch,
           {.candidacies = 1, .reads = 1, .handovers = 1},
           &kLateHandover},
    Guided{"promise_heeds_lease",
           &Rules::promise_heeds_lease,
           {.nodes = 4, .candidacies = 1, .reads = 1},
           &kLeasedPromised},
    Guided{"follow_heeds_lease",
           &Rules::follow_heeds_lease,
           {.nodes = 4, .c = 2, .candidacies = 1, .reads = 1},
           &kLeasedLed},
    Guided{"candidate_heeds_lease", &Rules::candidate_heeds_lease, {.candidacies = 1, .reads = 1}, &kLeased},
    Guided{"fresh_waits_lease",
           &Rules::fresh_waits_lease,
           {.nodes = 4, .c = 2, .crashes = 1, .candidacies = 1, .reads = 1},
           &kLeasedLost},
    Guided{"asks_enough",
           &Rules::asks_enough,
           {.writes = 1, .crashes = 1, .candidacies = 1, .ticks = 2},
           &kConfirmedRestarts},
    Guided{
        "leases_suffice", &Rules::leases_suffice, {.candidacies = 1, .ticks = 2, .reads = 1}, &kLeaseRanOut},
    Guided{"commit_needs_noop",
           &Rules::commit_needs_noop,
           {.writes = 1, .candidacies = 3, .parts = 1},
           &kOldEntry},
    Guided{"only_whole_count", &Rules::only_whole_count, {.writes = 1, .candidacies = 2}, &kForkFollows},
    Guided{"founding_is_stamped",
           &Rules::founding_is_stamped,
           {.founded = false,
            .writes = 1,
            .crashes = 1,
            .candidacies = 1,
            .ticks = 2,
            .foundings = 1,
            .losses = 1,
            .repeats = 1},
           &kFounderRepeats},
    Guided{"memory_ends_promise",
           &Rules::memory_ends_promise,
           {.founded = false, .crashes = 1, .candidacies = 1, .ticks = 2, .foundings = 2, .losses = 1},
           &kFounderUnheard},
    Guided{"echo_voids_answers",
           &Rules::echo_voids_answers,
           {.founded = false, .crashes = 1, .candidacies = 1, .ticks = 2, .foundings = 2, .losses = 1},
           &kFounderUnheard},
    Guided{"handover_ends_epoch", &Rules::handover_ends_epoch, {.reads = 1, .handovers = 1}, &kHandedOver},
};

}  // namespace

TEST_CASE("model: whatever the bounds allow, nothing committed is lost and no read is stale") {
  const std::array kSmall{
      Bounds{.nodes = 2, .c = 0, .writes = 2, .crashes = 1, .candidacies = 2, .losses = 0},
      Bounds{.nodes = 2,
             .founded = false,
             .crashes = 1,
             .candidacies = 1,
             .ticks = 2,
             .foundings = 2,
             .losses = 1},
      Bounds{.nodes = 2, .writes = 1, .candidacies = 1, .ticks = 1, .reads = 1},
      Bounds{.nodes = 3, .founded = false, .foundings = 2, .losses = 1},
      Bounds{.nodes = 3, .crashes = 1, .candidacies = 1, .ticks = 2, .losses = 1},
      Bounds{.nodes = 3, .c = 2, .crashes = 1, .candidacies = 1, .ticks = 2, .losses = 1},
  };
  for (const Bounds& bounds : kSmall) {
    CAPTURE(int{bounds.nodes});
    CAPTURE(int{bounds.c});
    CAPTURE(bounds.founded);
    Exhaustive search(bounds, {}, kStatesMax);
    const Outcome outcome = search.run(search.model.start());
    INFO(outcome.story);
    CHECK(outcome.fault == "");
    CHECK((outcome.complete || test::kSanitized));
    CHECK(outcome.states > (test::kSanitized ? 4'000 : 10'000));
    CHECK(search.model.reached().leads > 0);
    CHECK(search.model.reached().commits > 0);
  }
}

TEST_CASE("model: walks through groups of up to five nodes lose nothing and come by everything") {
  Reached all;
  std::array<std::uint64_t, static_cast<std::size_t>(Step::count)> steps{};
  for (const auto& group : std::vector<std::array<Byte, 3>>{{2, 1, 1},
                                                            {2, 0, 1},
                                                            {3, 1, 1},
                                                            {3, 2, 1},
                                                            {4, 1, 1},
                                                            {4, 2, 1},
                                                            {5, 1, 1},
                                                            {5, 2, 1},
                                                            {5, 3, 1},
                                                            {2, 1, 0},
                                                            {3, 1, 0},
                                                            {3, 2, 0},
                                                            {4, 1, 0},
                                                            {4, 2, 0},
                                                            {5, 1, 0},
                                                            {5, 2, 0}}) {
    const Byte nodes = group[0], c = group[1], founded = group[2];
    CAPTURE(int{nodes});
    CAPTURE(int{c});
    CAPTURE(int{founded});
    Model model(bounds_of(nodes, c, founded != 0), {});
    const Outcome outcome = walk_at_random(model, model.start(), test::kSanitized ? 150 : 3'000);
    INFO(outcome.story);
    CHECK(outcome.fault == "");
    const Reached& reached = model.reached();
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] += reached.steps[i];
    all.commits += reached.commits;
    all.commits_of_later_epochs += reached.commits_of_later_epochs;
    all.leads += reached.leads;
    all.fetches += reached.fetches;
    all.forks += reached.forks;
    all.regained += reached.regained;
    all.founded += reached.founded;
    all.reads_leased += reached.reads_leased;
    all.reads_echoed += reached.reads_echoed;
    all.handovers += reached.handovers;
    all.void_promises += reached.void_promises;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(i);
    CHECK(steps[i] > 100);
  }
  CHECK(all.commits > 0);
  CHECK(all.commits_of_later_epochs > 0);
  CHECK(all.leads > 0);
  CHECK(all.fetches > 0);
  CHECK(all.forks > 0);
  CHECK(all.regained > 0);
  CHECK(all.founded > 0);
  CHECK(all.reads_leased > 0);
  CHECK(all.reads_echoed > 0);
  CHECK(all.handovers > 0);
  CHECK(all.void_promises > 0);
}

// What comes of a rule left out is the protocol's matter; sanitizers have seen the walks by now.
TEST_CASE("model: a rule left out is found out by walks from the start" * doctest::skip(test::kSanitized)) {
  struct Mutant {
    const char* name;
    bool Rules::*rule;
    Byte nodes = 3, c = 1;
    bool founded = true;
    bool Rules::*other = nullptr;  ///< which would make up for it
  };
  for (const Mutant& mutant :
       {Mutant{"memory_is_lost", &Rules::memory_is_lost},
        Mutant{"memory_needs_log", &Rules::memory_needs_log, 2, 1},
        Mutant{"promises_suffice", &Rules::promises_suffice},
        Mutant{"all_found", &Rules::all_found, 3, 1, false},

        Mutant{"fork_by_epoch", &Rules::fork_by_epoch}, Mutant{"commit_of_prefix", &Rules::commit_of_prefix},
        Mutant{"old_epoch_refused", &Rules::old_epoch_refused},
        Mutant{"promise_deposes", &Rules::promise_deposes},
        Mutant{"greatest_adopted", &Rules::greatest_adopted},
        Mutant{"epoch_before_lsn", &Rules::epoch_before_lsn, 4, 2},
        Mutant{"reads_wait_for_commit", &Rules::reads_wait_for_commit}}) {
    INFO(std::string(mutant.name));
    Rules rules;
    rules.*mutant.rule = false;
    if (mutant.other != nullptr) rules.*mutant.other = false;
    Model model(bounds_of(mutant.nodes, mutant.c, mutant.founded), rules);
    CHECK(walk_at_random(model, model.start(), kWalksMax).fault != "");
  }
}

TEST_CASE(
    "model: a rule left out is found out from where it matters, and with it nothing is, whatever follows") {
  for (const Guided& guided : kGuided) {
    INFO(std::string(guided.name));
    if (!test::kSanitized) {
      Rules rules;
      rules.*guided.rule = false;
      Model broken(guided.bounds, rules);
      CHECK(walk_at_random(broken, begin_at(broken, *guided.begin), kWalksMax).fault != "");
    }
    // Several rules matter from one state, with the same bounds: that is searched once.
    if (std::any_of(kGuided.data(), &guided,
                    [&](const Guided& other) { return other.begin == guided.begin; }))
      continue;
    Exhaustive search(guided.bounds, {}, kStatesMax);
    const Outcome outcome = search.run(begin_at(search.model, *guided.begin));
    INFO(outcome.story);
    CHECK(outcome.fault == "");
    CHECK((outcome.complete || test::kSanitized));
  }
}

TEST_CASE("model: that all others have answered is not enough if some of them had no memory then" *
          doctest::skip(test::kSanitized)) {
  Rules rules;
  rules.only_memory_answers = false;
  Model broken({.nodes = 5, .c = 2, .writes = 1, .crashes = 3, .candidacies = 2, .ticks = 4, .losses = 2},
               rules);
  CHECK(walk_at_random(broken, begin_at(broken, kRestartsInTurn), kWalksMax).fault ==
        "a committed entry is not in the log of a later primary");
}
