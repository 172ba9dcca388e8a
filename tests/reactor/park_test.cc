// The park protocol in every interleaving: the template of park.h, the code that production runs, over a
// modelled memory in which each thread's stores wait in a buffer and reach memory whenever it suits (x86's
// total store order). A thread's run is a function of what its operations returned, so a thread is moved one
// step by running it anew: the operations done before answer from a record, the next one is carried out and
// ends the run. A state is then plain data, and a depth-first search visits each one once.
#include <array>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/park.h>

namespace {

using tidelock::ParkProtocol;

constexpr std::size_t kWakersMax = 2;
constexpr std::size_t kThreadsMax = 1 + kWakersMax;  // thread 0 sleeps

/// What is left out or done wrong, to see that the search would notice.
struct Variant {
  std::size_t wakers = 1;
  bool sleeper_fence = true;
  bool waker_fence = true;
  bool recheck = true;
  bool claim_clears = true;
  bool sends_may_fail = false;
  bool failed_sends_are_repeated = true;
  bool failed_sends_restore_the_flag = true;
};

enum Address : std::uint8_t { kParked = 0, kMessages = 1 };  // a word of messages for each waker follows
constexpr std::size_t kWords = kMessages + kWakersMax;

struct Store {
  std::uint8_t address;
  std::uint8_t value;
};

struct State {
  std::array<std::uint8_t, kWords> memory{};
  std::array<std::deque<Store>, kThreadsMax> buffers;
  std::array<std::vector<std::uint8_t>, kThreadsMax> records;  // what each thread's operations returned
  std::array<bool, kThreadsMax> done{};
  std::uint8_t wakeups = 0;  // sent, and not yet taken by the sleeper
  std::uint8_t wakeups_sent = 0;
  std::uint8_t parks = 0;  // times the flag was raised by the sleeper

  [[nodiscard]] std::string key() const {
    std::string text(memory.begin(), memory.end());
    for (const auto& buffer : buffers) {
      text += static_cast<char>(0xf0 + static_cast<int>(buffer.size()));
      for (const Store& store : buffer)
        text.append({static_cast<char>(store.address), static_cast<char>(store.value)});
    }
    for (const auto& record : records) {
      text += static_cast<char>(record.size());
      text.append(record.begin(), record.end());
    }
    for (const bool thread_done : done) text += thread_done ? 'd' : 'r';
    text.append({static_cast<char>(wakeups), static_cast<char>(wakeups_sent), static_cast<char>(parks)});
    return text;
  }
};

struct Suspended {};  // the one new operation of this run was carried out, or cannot be yet

/// One thread's view of the machine. With a `choice`, an operation that has several outcomes takes that one.
class Machine {
 public:
  Machine(State& state, std::size_t thread, const Variant& chosen, std::uint8_t choice)
      : variant(chosen), state_(state), thread_(thread), choice_(choice) {}

  const Variant& variant;
  bool moved = false;
  bool had_choice = false;

  void store(std::uint8_t address, std::uint8_t value) {
    operation([&] { return state_.buffers[thread_].push_back({address, value}), 0; });
  }
  std::uint8_t load(std::uint8_t address) {
    return operation([&] { return read(address); });
  }
  /// Locked: the buffer has to be empty, as for a fence.
  std::uint8_t exchange(std::uint8_t address, std::uint8_t value) {
    return operation(
        [&] {
          const std::uint8_t old = state_.memory[address];
          if (value != kNoStore) state_.memory[address] = value;
          return old;
        },
        state_.buffers[thread_].empty());
  }
  void fence() {
    operation([] { return 0; }, state_.buffers[thread_].empty());
  }
  /// Sleeps until a wakeup is there and takes it. The kernel keeps them until then.
  void sleep() {
    operation([&] { return --state_.wakeups, 0; }, state_.wakeups > 0);
  }
  /// False: the kernel refused.
  bool send_wakeup(bool may_fail) {
    return operation([&] {
             had_choice = may_fail;
             if (may_fail && choice_ == 1) return 0;
             ++state_.wakeups;
             ++state_.wakeups_sent;
             return 1;
           }) != 0;
  }
  void note_park() {
    if (next_ == state_.records[thread_].size()) ++state_.parks;
  }

  static constexpr std::uint8_t kNoStore = 0xff;

 private:
  [[nodiscard]] std::uint8_t read(std::uint8_t address) const {
    const auto& buffer = state_.buffers[thread_];
    for (auto it = buffer.rbegin(); it != buffer.rend(); ++it) {
      if (it->address == address) return it->value;
    }
    return state_.memory[address];
  }
  template <class Effect>
  std::uint8_t operation(Effect&& effect, bool enabled = true) {
    auto& record = state_.records[thread_];
    if (next_ < record.size()) return record[next_++];
    if (!enabled) throw Suspended{};
    record.push_back(static_cast<std::uint8_t>(effect()));
    moved = true;
    throw Suspended{};
  }

  State& state_;
  std::size_t thread_;
  std::uint8_t choice_;
  std::size_t next_ = 0;
};

/// The Memory of ParkProtocol.
struct ModelMemory {
  Machine& machine;
  void store_parked(std::uint8_t value) {
    if (value == 1) machine.note_park();
    machine.store(kParked, value);
  }
  std::uint8_t load_parked() { return machine.load(kParked); }
  std::uint8_t exchange_parked(std::uint8_t value) {
    return machine.exchange(kParked, machine.variant.claim_clears ? value : Machine::kNoStore);
  }
  void sleeper_fence() {
    if (machine.variant.sleeper_fence) machine.fence();
  }
  void waker_fence() {
    if (machine.variant.waker_fence) machine.fence();
  }
};
using Protocol = ParkProtocol<ModelMemory>;

/// As a driver does it: poll, and park when nothing was found, until each waker's message was seen.
void sleeper(Machine& machine) {
  ModelMemory memory{machine};
  const std::size_t wakers = machine.variant.wakers;
  std::array<bool, kWakersMax> seen{};
  const auto has_new = [&](std::size_t i) {
    return !seen[i] && machine.load(static_cast<std::uint8_t>(kMessages + i)) != 0;
  };
  for (;;) {
    std::size_t left = 0;
    for (std::size_t i = 0; i < wakers; ++i) {
      seen[i] = seen[i] || has_new(i);
      left += seen[i] ? 0 : 1;
    }
    if (left == 0) return;
    const bool asleep = Protocol::prepare(memory, [&] {
      if (!machine.variant.recheck) return false;
      bool any = false;
      for (std::size_t i = 0; i < wakers && !any; ++i) any = has_new(i);
      return any;
    });
    if (!asleep) continue;
    machine.sleep();
    Protocol::finish(memory);
  }
}

/// As Mailbox::flush and GroupMember::wake do it.
void waker(Machine& machine, std::size_t index) {
  ModelMemory memory{machine};
  machine.store(static_cast<std::uint8_t>(kMessages + index), 1);
  Protocol::fence_after_publication(memory);
  if (!Protocol::claim(memory)) return;
  if (machine.send_wakeup(machine.variant.sends_may_fail)) return;
  const auto fallback = [&] {
    if (machine.variant.failed_sends_are_repeated) machine.send_wakeup(false);
  };
  if (machine.variant.failed_sends_restore_the_flag) {
    Protocol::repeat(memory, fallback);
  } else {
    fallback();
  }
}

struct Outcome {
  double schedules = 0;  // whole interleavings from the start to an end
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::uint64_t ends = 0;          // every thread done, nothing buffered
  std::uint64_t lost_wakeups = 0;  // nothing can move, and the sleeper sleeps beside its message
  bool several_wakeups_for_one_park = false;
};

class Explorer {
 public:
  explicit Explorer(const Variant& variant) : variant_(variant) {}

  Outcome run() {
    outcome_.schedules = visit(State{});
    return outcome_;
  }

 private:
  /// Returns how many interleavings lead on from here.
  double visit(const State& state) {
    const auto [place, is_new] = seen_.try_emplace(state.key(), 0);
    if (!is_new) return place->second;
    double& schedules = place->second;  // a map's elements stay where they are
    ++outcome_.states;
    if (state.wakeups_sent > state.parks) outcome_.several_wakeups_for_one_park = true;
    const std::uint64_t before = outcome_.transitions;
    for (std::size_t thread = 0; thread <= variant_.wakers; ++thread) {
      schedules += drain_one_store(state, thread);
      schedules += step(state, thread);
    }
    if (outcome_.transitions != before) return schedules;
    bool all_done = true;
    for (std::size_t thread = 0; thread <= variant_.wakers; ++thread)
      all_done = all_done && state.done[thread];
    ++(all_done ? outcome_.ends : outcome_.lost_wakeups);
    return schedules = 1;
  }

  double drain_one_store(const State& state, std::size_t thread) {
    if (state.buffers[thread].empty()) return 0;
    State next = state;
    const Store store = next.buffers[thread].front();
    next.buffers[thread].pop_front();
    next.memory[store.address] = store.value;
    ++outcome_.transitions;
    return visit(next);
  }

  double step(const State& state, std::size_t thread) {
    double schedules = 0;
    if (state.done[thread]) return schedules;
    for (std::uint8_t choice = 0; choice < 2; ++choice) {
      State next = state;
      Machine machine(next, thread, variant_, choice);
      try {
        if (thread == 0) {
          sleeper(machine);
        } else {
          waker(machine, thread - 1);
        }
        next.done[thread] = true;
        machine.moved = true;
      } catch (const Suspended&) {
      }
      if (!machine.moved) break;
      ++outcome_.transitions;
      schedules += visit(next);
      if (!machine.had_choice) break;
    }
    return schedules;
  }

  Variant variant_;
  Outcome outcome_;
  std::map<std::string, double> seen_;
};

Outcome explore(const char* what, const Variant& variant) {
  const Outcome outcome = Explorer(variant).run();
  std::printf("park: %s, %zu waker(s): %.3g schedules, %llu states, %llu of them lost wakeups\n", what,
              variant.wakers, outcome.schedules, static_cast<unsigned long long>(outcome.states),
              static_cast<unsigned long long>(outcome.lost_wakeups));
  CHECK(outcome.ends > 0);
  return outcome;
}

}  // namespace

TEST_CASE("reactor/park: no interleaving loses a wakeup") {
  const Outcome one = explore("the protocol", {});
  CHECK(one.lost_wakeups == 0);
  CHECK(one.schedules > 1e4);
  CHECK_FALSE(one.several_wakeups_for_one_park);
  const Outcome two = explore("the protocol", {.wakers = 2});
  CHECK(two.lost_wakeups == 0);
  CHECK(two.schedules > 1e12);
  CHECK_FALSE(two.several_wakeups_for_one_park);
}

TEST_CASE("reactor/park: a wakeup that the kernel refuses is repeated") {
  const Outcome one = explore("refused sends", {.sends_may_fail = true});
  CHECK(one.lost_wakeups == 0);
  const Outcome two = explore("refused sends", {.wakers = 2, .sends_may_fail = true});
  CHECK(two.lost_wakeups == 0);
  CHECK(two.schedules > 1e12);
}

TEST_CASE("reactor/park: the search finds the lost wakeup of every step that is left out") {
  CHECK(explore("no fence in the sleeper", {.sleeper_fence = false}).lost_wakeups > 0);
  CHECK(explore("no fence in the waker", {.waker_fence = false}).lost_wakeups > 0);
  CHECK(explore("no fence at all", {.sleeper_fence = false, .waker_fence = false}).lost_wakeups > 0);
  CHECK(explore("sources not asked again", {.recheck = false}).lost_wakeups > 0);
  CHECK(explore("refused send not repeated", {.sends_may_fail = true, .failed_sends_are_repeated = false})
            .lost_wakeups > 0);
  CHECK(explore("no fence in the waker", {.wakers = 2, .waker_fence = false}).lost_wakeups > 0);
}

TEST_CASE("reactor/park: a waker that leaves the flag up wakes one sleeper twice") {
  const Outcome outcome = explore("flag left up", {.wakers = 2, .claim_clears = false});
  CHECK(outcome.lost_wakeups == 0);
  CHECK(outcome.several_wakeups_for_one_park);
}

TEST_CASE("reactor/park: one of several wakers claims a sleep, and a running reactor is not claimed") {
  tidelock::ParkFlag flag;
  CHECK_FALSE(flag.claim());
  CHECK_FALSE(flag.prepare([] { return true; }));
  CHECK_FALSE(flag.raised());
  CHECK(flag.prepare([] { return false; }));
  CHECK(flag.claim());
  CHECK_FALSE(flag.claim());
  bool repeated = false;
  flag.repeat([&] { repeated = flag.raised(); });
  CHECK(repeated);
  flag.finish();
  CHECK_FALSE(flag.claim());
}
