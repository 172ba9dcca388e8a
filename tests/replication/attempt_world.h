/// A group in virtual time in which every node runs attempts, follows, and founds when there is nothing:
/// messages take their time or are lost, links are cut, nodes restart without memory. It names what broke.
/// Thread:   one
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/attempt.h>
#include <tidelock/replication/handover.h>
#include <tidelock/replication/lease.h>

#include "membership_rig.h"

namespace tidelock::test {

/// What is left out, to see that the tests find it out.
enum class AttemptUnheeded : std::uint8_t {
  nothing,
  looking_round,  ///< a primary that has too few followers asks nobody
  epochs_end,     ///< who says `lead` goes on in its epoch
};

struct AttemptNode {
  std::unique_ptr<Membership> member;
  std::uint64_t life = 0;
  std::vector<Epoch> log;  ///< an entry is its epoch: one has one writer, which appends in order
  std::unique_ptr<Attempt> attempt;
  std::map<std::uint32_t, Instant> asked_until;  ///< an answer is waited for until then
  std::map<std::uint32_t, std::uint64_t> gave;   ///< lives of who promised
  std::pair<std::uint32_t, Epoch> promise_to{};  ///< the link by which it promised last
  std::uint32_t follows = 0;
  Instant heard_at{};  ///< of whom it follows; without: since when it has nobody
  Instant patience{};  ///< then it stands itself
  Instant looks_at{};
  // as a primary
  bool primary = false;
  Epoch epoch{};
  std::size_t noop = 0, commit = 0;
  std::map<std::uint32_t, std::size_t> applied;
  std::map<std::uint32_t, std::uint64_t> link_life;
  std::unique_ptr<Leases> leases;
  Instant beats_at{};
  [[nodiscard]] LogEnd end() const { return log.empty() ? LogEnd{} : LogEnd{log.back(), Lsn{log.size()}}; }
};

class AttemptWorld {
 public:
  static constexpr Duration kTimeout = milliseconds(300);

  AttemptWorld(std::uint32_t nodes, std::uint32_t c, std::uint64_t seed)
      : count_(nodes), c_(c), random_(seed), nodes_(nodes + 1), cut_(nodes + 1) {
    clock_.advance(seconds(5));
    for (std::uint32_t i = 1; i <= nodes; ++i) start(i);
  }

  [[nodiscard]] const std::string& fault() const { return fault_; }
  [[nodiscard]] Instant now() { return clock_.now(); }
  void run_for(Duration duration) {
    for (const Instant until = now() + duration; now() < until && fault_.empty();) step();
  }
  /// False: not within that time.
  bool run_until(Duration limit, const std::function<bool()>& reached) {
    for (const Instant until = now() + limit; now() < until && fault_.empty(); step()) {
      if (reached()) return true;
    }
    return reached();
  }
  /// One leads, serves, and all others follow it with memory and all that it has.
  [[nodiscard]] bool whole() const {
    for (std::uint32_t i = 1; i <= count_; ++i) {
      const AttemptNode& node = nodes_[i];
      if (!node.primary || node.commit <= node.noop) continue;
      std::uint32_t others = 0;
      for (std::uint32_t other = 1; other <= count_; ++other) {
        const AttemptNode& each = nodes_[other];
        others += each.follows == i && each.member->memory() && each.member->promised() == node.epoch ? 1 : 0;
      }
      if (others + 1 == count_) return true;
    }
    return false;
  }
  [[nodiscard]] std::uint32_t primary() const {
    std::uint32_t found = 0;
    for (std::uint32_t i = 1; i <= count_; ++i) {
      if (nodes_[i].primary && (found == 0 || nodes_[found].epoch < nodes_[i].epoch)) found = i;
    }
    return found;
  }

  // ---- faults ----
  std::uint64_t lost_of_64 = 0;  ///< messages
  void cut(std::uint32_t a, std::uint32_t b, bool is) { cut_[a][b] = cut_[b][a] = is; }
  void heal() {
    for (auto& row : cut_) row.fill(false);
    lost_of_64 = 0;
  }
  /// Without memory. Only as many at a time as others hold what is committed, and as leave enough to teach
  /// them, those that have yet to learn of the history included.
  bool restart(std::uint32_t i) {
    std::uint32_t without = 1;
    for (std::uint32_t other = 1; other <= count_; ++other)
      without += other != i && !nodes_[other].member->memory() ? 1 : 0;
    if (without > std::min(c_, std::max(1U, count_ - 1 - c_))) return false;
    start(i);
    return true;
  }
  /// As long as nobody holds anything, nobody can forget that.
  void restart_unfounded(std::uint32_t i) {
    const bool held = std::any_of(nodes_.begin() + 1, nodes_.end(),
                                  [](const AttemptNode& node) { return node.member->memory(); });
    if (!held) start(i);
  }
  /// The primary holds back what is written, `successor` has it all: it ends its epoch, and says so.
  bool hand_over(std::uint32_t successor) {
    const std::uint32_t from = primary();
    if (from == 0 || nodes_[successor].follows != from || nodes_[from].commit <= nodes_[from].noop)
      return false;
    AttemptNode& node = nodes_[from];
    Handover handover(successor, Lsn{node.log.size()}, now() + kTimeout);
    if (handover.applied(successor, Lsn{node.applied[successor]}) != Handover::Step::end) return false;
    if (unheeded != AttemptUnheeded::epochs_end) node.leases->end();
    send(from, successor, [this, successor, epoch = node.epoch] {
      AttemptNode& next = nodes_[successor];
      if (next.member->promised() != epoch || next.follows == 0) return;
      forget_roles(next);
      begin(next, AttemptAim::take_over);
    });
    if (unheeded != AttemptUnheeded::epochs_end) forget_roles(node);
    return true;
  }
  void read(std::uint32_t i) {
    AttemptNode& node = nodes_[i];
    if (!node.primary || node.commit <= node.noop || node.commit < node.log.size() || !node.leases->held())
      return;
    ++reads;
    if (committed_.size() > node.log.size()) fail("a stale read");
  }

  AttemptUnheeded unheeded = AttemptUnheeded::nothing;
  std::uint64_t leads = 0, commits = 0, reads = 0, fetches = 0, foundings = 0, taken_over = 0;

 private:
  void fail(const char* what) {
    if (fault_.empty()) fault_ = what;
  }
  std::uint32_t index(const AttemptNode& node) const {
    return static_cast<std::uint32_t>(&node - nodes_.data());
  }
  bool serves(const AttemptNode& node) const { return node.primary && node.commit > node.noop; }
  Duration a_while(std::int64_t ms) {
    return milliseconds(ms) +
           milliseconds(static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(ms))));
  }

  void start(std::uint32_t i) {
    AttemptNode node;
    node.life = ++lives_;
    node.member = std::make_unique<Membership>(group_of(i, count_, c_), now());
    node.heard_at = now();
    node.patience = now() + kLease + a_while(600);
    nodes_[i] = std::move(node);
  }

  /// All events of the next millisecond, then each node's turn.
  void step() {
    clock_.advance(milliseconds(1));
    while (!events_.empty() && events_.begin()->first <= now()) {
      auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
    }
    for (std::uint32_t i = 1; i <= count_; ++i) turn(nodes_[i]);
  }
  /// It arrives if the link is not cut then, and neither end has restarted since.
  void send(std::uint32_t from, std::uint32_t to, std::function<void()> event) {
    if (random_.below(64) < lost_of_64) return;
    const Instant at = now() + milliseconds(1 + static_cast<std::int64_t>(random_.below(12)));
    events_.emplace(at, [this, from, to, from_life = nodes_[from].life, to_life = nodes_[to].life,
                         event = std::move(event)] {
      if (!cut_[from][to] && nodes_[from].life == from_life && nodes_[to].life == to_life) event();
    });
  }
  /// What `to` says of it arrives in the same way.
  template <class Answer>
  void request(std::uint32_t from, std::uint32_t to, Answer&& answer) {
    send(from, to, [this, from, to, answer = std::forward<Answer>(answer)] {
      std::function<void()> reply = answer();
      if (reply) send(to, from, std::move(reply));
    });
  }

  void turn(AttemptNode& node) {
    if (node.primary) return lead_on(node);
    if (node.follows != 0) {
      if (now() - node.heard_at < kTimeout) return;
      forget_roles(node);
    }
    if (node.attempt) return attempt(node);
    look(node);
    if (now() < node.patience) return;
    if (node.member->memory()) return begin(node, AttemptAim::lead);
    if (node.member->history() == HistoryId{} && node.member->heard() == HistoryId{})
      begin(node, AttemptAim::found);
  }
  /// Its links are closed.
  void forget_roles(AttemptNode& node) {
    if (node.follows != 0) node.member->unfollow();
    node.attempt.reset();
    node.primary = false;
    node.applied.clear();
    node.link_life.clear();
    node.follows = 0;
    node.heard_at = now();
    node.patience = now() + a_while(400);
  }

  // ---- attempts ----

  void begin(AttemptNode& node, AttemptAim aim) {
    AttemptOptions options;
    options.round = milliseconds(200);
    node.asked_until.clear();
    node.gave.clear();
    node.attempt = std::make_unique<Attempt>(*node.member, aim, options, random_, node.end(), now());
  }
  void attempt(AttemptNode& node) {
    Attempt& attempt = *node.attempt;
    if (attempt.phase() != AttemptPhase::ready) attempt.turn(now());
    if (attempt.phase() == AttemptPhase::over) return forget_roles(node);
    if (attempt.phase() == AttemptPhase::pausing) {
      node.gave.clear();
      node.asked_until.clear();
      return look(node);
    }
    for (std::uint32_t other = 1; other <= count_ && node.attempt; ++other) ask(node, other);
    if (attempt.phase() == AttemptPhase::ready) lead(node);
  }
  void ask(AttemptNode& node, std::uint32_t to) {
    Attempt& attempt = *node.attempt;
    const AttemptAsk what = attempt.wanted(to);
    if (what == AttemptAsk::nothing) return;
    if (const auto until = node.asked_until.find(to);
        until != node.asked_until.end() && now() < until->second)
      return;
    node.asked_until[to] = now() + milliseconds(60);
    const std::uint32_t from = index(node);
    const Epoch epoch = attempt.epoch();
    // An answer to an attempt that is over, or in another phase, is judged by the attempt itself.
    const auto answered = [this, from, to, epoch](auto&& then) {
      return std::function<void()>([this, from, to, epoch, then] {
        AttemptNode& asker = nodes_[from];
        asker.asked_until.erase(to);
        if (asker.attempt && asker.attempt->epoch() == epoch) then(*asker.attempt);
      });
    };
    if (what == AttemptAsk::would || what == AttemptAsk::promise) {
      Hello hello = candidate(from, epoch.counter, what == AttemptAsk::promise);
      hello.group_sum = node.member->options().sum();
      hello.history = attempt.history();
      hello.flags.founding = attempt.founding();
      hello.flags.released = attempt.released();
      hello.last_epoch = node.end().epoch;
      return request(from, to, [this, to, from, hello, answered]() -> std::function<void()> {
        AttemptNode& other = nodes_[to];
        const auto refusal = other.member->asked(hello, serves(other), now());
        if (refusal)
          return answered([this, to, refusal](Attempt& theirs) { theirs.refused(to, *refusal, now()); });
        if (!hello.flags.promise) return answered([this, to](Attempt& theirs) { theirs.would(to, now()); });
        forget_roles(other);
        other.promise_to = {from, hello.epoch};
        const LogEnd end = other.member->memory() ? other.end() : LogEnd{};
        return answered([this, to, from, end, life = other.life](Attempt& theirs) {
          nodes_[from].gave[to] = life;
          theirs.promised(to, end, c_, now());
        });
      });
    }
    // The others go by the link of the promise. Who has restarted, or promised another since, has closed it.
    if (nodes_[to].life != node.gave[to] || nodes_[to].promise_to != std::pair{from, epoch})
      return attempt.gone(to, now());
    if (what == AttemptAsk::stamp) {
      return request(
          from, to,
          [this, to, epoch, history = attempt.history(), from, round = attempt.round(),
           answered]() -> std::function<void()> {
            AttemptNode& other = nodes_[to];
            if (other.promise_to != std::pair{from, epoch}) return {};
            if (!other.member->echo(epoch, history)) return {};
            return answered([this, to, round](Attempt& theirs) { theirs.echoed(to, round, now()); });
          });
    }
    request(from, to, [this, to, from, epoch, answered]() -> std::function<void()> {
      AttemptNode& other = nodes_[to];
      if (other.promise_to != std::pair{from, epoch}) return {};
      return answered([this, from, log = other.log](Attempt& theirs) {
        if (theirs.phase() != AttemptPhase::fetching) return;
        nodes_[from].log = log;
        ++fetches;
        theirs.fetched(nodes_[from].end(), now());
      });
    });
  }

  void lead(AttemptNode& node) {
    const std::uint32_t c = node.attempt->c();
    const bool founding = node.attempt->founding(), released = node.attempt->released();
    node.attempt->led();
    node.attempt.reset();
    if (founding) node.log.clear();  // without memory what it had counts for nothing
    node.primary = true;
    node.epoch = node.member->promised();
    node.noop = node.log.size();
    node.commit = 0;
    node.leases = std::make_unique<Leases>(Quorum{count_ - 1, c}, kLease, kTimeout, clock_);
    node.beats_at = now();
    ++leads;
    foundings += founding ? 1 : 0;
    taken_over += released ? 1 : 0;
    // With c = n it may stand, lead and restart unheard: then that epoch is as if it had never been.
    const auto won = epochs_.emplace(node.epoch, node.life);
    const bool heard = std::any_of(nodes_.begin(), nodes_.end(), [&](const AttemptNode& other) {
      return &other != &node && std::find(other.log.begin(), other.log.end(), node.epoch) != other.log.end();
    });
    if (!won.second && (won.first->second == node.life || heard || c_ + 1 < count_))
      fail("an epoch was won twice");
    for (std::size_t i = 0; i < committed_.size(); ++i) {
      if (committed_[i] < node.epoch && (i >= node.log.size() || node.log[i] != committed_[i]))
        fail("a committed entry is not in the log of a later primary");
    }
    append(node);
  }

  // ---- a primary ----

  void append(AttemptNode& node) {
    node.log.push_back(node.epoch);
    commit(node);
  }
  void commit(AttemptNode& node) {
    std::vector<AppliedLsn> applied;
    for (const auto& [other, lsn] : node.applied) applied.push_back({other, Lsn{lsn}});
    const std::size_t to = c_ == 0 ? node.log.size() : kth_applied(applied, c_).value;
    if (to <= node.commit || to <= node.noop) return;
    for (std::size_t i = 0; i < to; ++i) {
      if (i < committed_.size() && committed_[i] != node.log[i]) fail("two commit in conflict");
      if (i < committed_.size()) continue;
      committed_.push_back(node.log[i]);
      ++commits;
    }
    node.commit = to;
  }
  void lead_on(AttemptNode& node) {
    if (node.member->promised() != node.epoch) return forget_roles(node);
    // Two that lead and have not enough followers would else never hear of one another.
    if (!node.leases->followed() && unheeded != AttemptUnheeded::looking_round) look(node);
    if (!node.primary || now() < node.beats_at) return;
    node.beats_at = now() + milliseconds(40);
    if (serves(node) && node.log.size() < 300 && random_.below(8) == 0) append(node);
    const std::uint32_t from = index(node);
    for (const auto& [to, life] : node.link_life) {
      if (nodes_[to].life != life) continue;
      const std::uint64_t stamp = node.leases->stamp(serves(node));
      send(from, to, [this, from, to = to, epoch = node.epoch, log = node.log, stamp] {
        AttemptNode& other = nodes_[to];
        if (other.follows != from || other.member->promised() != epoch) return;
        other.heard_at = now();
        const bool late = other.log.size() > log.size() && other.end().epoch == epoch;
        if (!late) other.log = log;
        other.member->applied(Lsn{other.log.size()});
        if (stamp != 0) other.member->stamped(now());
        acknowledge(to, from, epoch, stamp);
      });
    }
  }
  void acknowledge(std::uint32_t from, std::uint32_t to, Epoch epoch, std::uint64_t stamp) {
    const AttemptNode& node = nodes_[from];
    send(from, to, [this, from, to, epoch, stamp, lsn = node.member->memory() ? node.log.size() : 0] {
      AttemptNode& other = nodes_[to];
      if (!other.primary || other.epoch != epoch || !other.link_life.contains(from)) return;
      if (!other.leases->heard(from, stamp)) fail("an echo of what was never stamped");
      auto& applied = other.applied[from];
      applied = std::max(applied, lsn);
      commit(other);
    });
  }

  // ---- who has no primary ----

  /// Asks one of the others: its hello, if it leads, else what it has promised.
  void look(AttemptNode& node) {
    if (now() < node.looks_at) return;
    node.looks_at = now() + a_while(20);
    const std::uint32_t from = index(node), to = 1 + static_cast<std::uint32_t>(random_.below(count_));
    if (to == from) return;
    Hello ours = hello_of(from, NodeRole::replica, node.member->promised(), node.member->history());
    ours.group_sum = node.member->options().sum();
    ours.flags.memory = node.member->memory();
    const Said said = node.member->say(ours);
    request(from, to, [this, from, to, said]() -> std::function<void()> {
      AttemptNode& other = nodes_[to];
      (void)other.member->visited(said);
      Hello hello = hello_of(to, other.primary ? NodeRole::primary : NodeRole::replica,
                             other.member->promised(), other.member->history());
      hello.group_sum = other.member->options().sum();
      hello.flags.memory = other.member->memory();
      hello.last_epoch = other.end().epoch;
      hello.last_lsn = other.end().lsn;
      return [this, from, to, hello, said] { meet(nodes_[from], to, hello, said); };
    });
  }
  void meet(AttemptNode& node, std::uint32_t to, const Hello& hello, const Said& said) {
    if (node.primary && hello.epoch > node.epoch) forget_roles(node);
    if (node.follows != 0 || node.primary) return;
    const auto answer = [&] {
      if (hello.flags.memory) node.member->answered(to, hello.history, hello.epoch, c_, said, now());
    };
    if (hello.role != NodeRole::primary) return answer();
    const auto refusal = node.member->may_follow(hello, said, now());
    if (refusal) {
      answer();
      if (refusal->reason != RefusalReason::promised) return;
      return send(index(node), to, [this, to, epoch = hello.epoch] {
        if (nodes_[to].primary && nodes_[to].epoch == epoch) forget_roles(nodes_[to]);  // a higher one exists
      });
    }
    node.attempt.reset();
    node.member->follow(hello);
    node.follows = to;
    node.heard_at = now();
    send(index(node), to, [this, from = index(node), to, epoch = hello.epoch, life = node.life] {
      AttemptNode& other = nodes_[to];
      if (!other.primary || other.epoch != epoch) return;
      other.link_life[from] = life;
      other.applied.erase(from);
    });
  }

  std::uint32_t count_, c_;
  Random random_;
  ManualClock clock_;
  std::vector<AttemptNode> nodes_;  ///< from 1
  std::vector<std::array<bool, 10>> cut_;
  std::multimap<Instant, std::function<void()>> events_;
  std::vector<Epoch> committed_;
  std::map<Epoch, std::uint64_t> epochs_;  ///< that were won
  std::uint64_t lives_ = 0;
  std::string fault_;
};

}  // namespace tidelock::test
