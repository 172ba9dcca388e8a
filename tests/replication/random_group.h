/// A whole group of members and candidacies, with nodes that lose their memory, messages that are late or
/// lost, and leases. It walks at random, or step by step as a test says, and names what broke.
/// Thread:   one
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/candidacy.h>

#include "membership_rig.h"

namespace tidelock::test {

/// What is not heeded, to see that it is found out.
enum class Unheeded : std::uint8_t {
  nothing,
  no_memory,     ///< a refusal for want of memory is taken for a promise
  lease,         ///< a refusal for a lease likewise
  old_primary,   ///< a primary below the promise is followed
  confirmation,  ///< promises count without the third round
  one_promise,   ///< one too few is enough
  donor,         ///< nobody's log is fetched
  all_found,     ///< a founder leads with as many promises as any candidate
  founder_echo,  ///< who has memory by now echoes a founder all the same
  stamp,         ///< a founder's hello gives memory although no stamp followed, however late it comes
  follow_lease,  ///< the primary of another epoch is followed in spite of a lease
  late,          ///< what answers a hello is acted on, whatever was told since that was said
};

struct GroupEntry {
  Epoch epoch;
  std::uint64_t id;
  friend bool operator==(const GroupEntry&, const GroupEntry&) = default;
};

struct GroupNode {
  std::unique_ptr<Membership> member;
  std::uint64_t life = 0;
  std::vector<GroupEntry> log;
  std::optional<Candidacy> candidacy;
  std::map<std::uint32_t, std::uint64_t> promised_life;
  bool primary = false;
  Epoch epoch{};  ///< that it leads
  std::size_t noop = 0, commit = 0;
  std::map<std::uint32_t, std::uint64_t> link_life;  ///< of who follows it
  std::map<std::uint32_t, std::size_t> applied;
  std::map<std::uint32_t, Instant> echo;
  std::uint32_t follows = 0;
  std::uint64_t follows_life = 0;
  Epoch follows_epoch{};
  bool had_memory = false;
  std::optional<Hello> founder_said;  ///< the last that asked it
  std::uint32_t heard = 0;            ///< the highest counter that refused it
  [[nodiscard]] LogEnd end() const {
    return log.empty() ? LogEnd{} : LogEnd{log.back().epoch, Lsn{log.size()}};
  }
};

/// Batches and acknowledgements, as late as they like.
struct GroupMessage {
  bool ack = false;
  std::uint32_t from = 0, to = 0;
  std::uint64_t from_life = 0, to_life = 0;
  Epoch epoch{};
  std::vector<GroupEntry> log;  ///< of a batch: all of the primary's
  std::size_t applied = 0;
  Instant stamp{};
};

/// What a node answers, until the one that dialed acts on it.
struct GroupDial {
  std::uint32_t from = 0, to = 0;
  std::uint64_t from_life = 0, to_life = 0;
  Said said;
  Hello answer;
};

class RandomGroup {
 public:
  RandomGroup(std::uint32_t nodes, std::uint32_t c, Unheeded unheeded, std::uint64_t seed)
      : count_(nodes), c_(c), unheeded_(unheeded), random_(seed), nodes_(nodes + 1) {
    for (std::uint32_t i = 1; i <= nodes; ++i) start(i);
    if (seed % 4 != 0) found();
  }

  /// Returns what broke, or nothing.
  std::string run(int steps) {
    for (int i = 0; i < steps && fault_.empty(); ++i) {
      step();
      check_one_history();
    }
    check_one_history();
    return fault_;
  }

  // What a test may do step by step.
  [[nodiscard]] const std::string& fault() const { return fault_; }
  void wait(Duration duration) { now_ = now_ + duration; }
  void crash_now(std::uint32_t node) {
    start(node);
    nodes_[node].had_memory = true;
  }
  void stand(std::uint32_t node) {
    for (int i = 0; i < 200 && !nodes_[node].candidacy; ++i) stand(nodes_[node]);
  }
  void ask(std::uint32_t node, std::uint32_t other) {
    for (int i = 0; i < 200 && nodes_[node].candidacy; ++i) {
      if (nodes_[node].promised_life.contains(other)) return;
      ask(nodes_[node], nodes_[other]);
    }
  }
  void confirm_and_lead(std::uint32_t node) {
    for (std::uint32_t other = 1; other <= count_; ++other) confirm(nodes_[node], nodes_[other]);
    for (int i = 0; i < 3 && !nodes_[node].primary; ++i) lead(nodes_[node]);
  }
  void answer(std::uint32_t node, std::uint32_t other) { answer(nodes_[node], nodes_[other]); }
  /// The answer is under way until act_now().
  void dial(std::uint32_t node, std::uint32_t other) { dial(nodes_[node], nodes_[other]); }
  /// A batch leaves, and is under way until deliver_now().
  void send_now(std::uint32_t node, std::uint32_t to) {
    send(nodes_[node], to);
    held_.push_back(std::move(messages_.back()));
    messages_.pop_back();
  }
  void act_now() {
    for (const GroupDial& each : std::exchange(dials_, {})) act(each);
  }
  void deliver_now() {
    for (const GroupMessage& message : std::exchange(held_, {})) take(message);
  }
  /// What a founder last said to it arrives again.
  void again(std::uint32_t node) { again(nodes_[node]); }
  /// It follows, has all, and its acknowledgement arrives.
  void follow(std::uint32_t node, std::uint32_t primary) {
    if (nodes_[node].follows != primary || nodes_[node].follows_life != nodes_[primary].life)
      follow(nodes_[node], nodes_[primary]);
    if (nodes_[node].follows != primary && !nodes_[node].member->memory()) {
      ask_round(nodes_[node]);
      follow(nodes_[node], nodes_[primary]);
    }
    if (nodes_[node].follows != primary || !nodes_[primary].link_life.contains(node)) return;
    send(nodes_[primary], node);
    while (!messages_.empty()) {
      const GroupMessage message = std::move(messages_.front());
      messages_.erase(messages_.begin());
      take(message);
    }
  }
  void append(std::uint32_t node) { append(nodes_[node]); }
  void read(std::uint32_t node) { read(nodes_[node]); }

  std::uint64_t leads = 0, commits = 0, reads = 0, regained = 0, fetched = 0;

 private:
  GroupNode& any() { return nodes_[1 + random_.below(count_)]; }
  std::uint32_t index(const GroupNode& node) const {
    return static_cast<std::uint32_t>(&node - nodes_.data());
  }
  static HistoryId stands_for(const GroupNode& node) {
    return node.member->founding() != HistoryId{} ? node.member->founding() : node.member->history();
  }
  Hello hello(const GroupNode& node, NodeRole role) const {
    Hello hello =
        hello_of(index(node), role, role == NodeRole::primary ? node.epoch : node.member->promised(),
                 node.member->history());
    hello.group_sum = node.member->options().sum();
    hello.flags.memory = node.member->memory();
    hello.last_epoch = node.end().epoch;
    hello.last_lsn = node.end().lsn;
    return hello;
  }
  /// None begins beside one that anybody holds.
  void check_one_history() {
    HistoryId held{};
    for (std::uint32_t i = 1; i <= count_; ++i) {
      if (!nodes_[i].member->memory()) continue;
      if (held != HistoryId{} && nodes_[i].member->history() != held) fail("two histories are held at once");
      held = nodes_[i].member->history();
    }
  }
  void fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  void start(std::uint32_t i) {
    GroupNode node;
    node.life = ++lives_;
    node.member = std::make_unique<Membership>(group_of(i, count_, c_), now_);
    node.founder_said = nodes_[i].founder_said;
    nodes_[i] = std::move(node);
  }

  /// The first history, without trouble: at random that takes its time.
  void found() {
    now_ = now_ + kLease;
    stand(nodes_[1]);
    while (!nodes_[1].primary) {
      ask(nodes_[1], any());
      confirm(nodes_[1], any());
      lead(nodes_[1]);
    }
  }

  void step() {
    switch (random_.below(20)) {
      case 0:
        // Much happens in a moment, then nothing for longer than a lease.
        now_ =
            now_ + milliseconds(static_cast<std::int64_t>(random_.below(random_.below(6) == 0 ? 3'000 : 30)));
        break;
      case 1:
        if (random_.below(6) == 0) crash(any());
        break;
      case 2:
        stand(any());
        break;
      case 3:
      case 4:
      case 5:
        ask(any(), any());
        break;
      case 6:
      case 7:
        confirm(any(), any());
        break;
      case 8:
        lead(any());
        break;
      case 9:
        if (dials_.size() < 4 || random_.below(2) == 0) {
          dial(any(), any());
        } else {
          const auto at = dials_.begin() + static_cast<long>(random_.below(dials_.size()));
          const GroupDial late = *at;
          dials_.erase(at);
          act(late);
        }
        break;
      case 10:
        follow(any(), any());
        break;
      case 11:
        ask_round(any());
        break;
      case 12:
        random_.below(8) == 0 ? again(any()) : append(any());
        break;
      case 13:
        read(any());
        break;
      case 14:
      case 15:
      case 16:
        send(any());
        break;
      default:
        deliver();
    }
  }

  /// As many memories may be lost at a time as others hold what is committed.
  void crash(GroupNode& node) {
    std::uint32_t lost = 0;
    for (std::uint32_t i = 1; i <= count_; ++i) lost += nodes_[i].had_memory && !nodes_[i].member->memory();
    // With more than one lost at a time the rest may be too few to teach them: that stays rare.
    const std::uint32_t most = random_.below(16) == 0 ? c_ : std::min(c_, 1U);
    if (node.member->memory() && lost >= most) return;
    const bool had = node.had_memory || node.member->memory();
    const std::uint32_t i = index(node);
    start(i);
    nodes_[i].had_memory = had;
  }

  void rest(GroupNode& node) {
    node.candidacy.reset();
    node.promised_life.clear();
    node.primary = false;
    node.link_life.clear();
    node.applied.clear();
    node.echo.clear();
    node.follows = 0;
    node.follows_life = 0;
  }

  void stand(GroupNode& node) {
    if (node.primary) return;
    const bool calm = std::none_of(nodes_.begin(), nodes_.end(),
                                   [](const auto& each) { return each.primary || each.candidacy; });
    if (!calm && random_.below(12) != 0) return;
    const std::uint32_t heard = node.heard;
    const bool founds = node.member->history() == HistoryId{};
    const auto refusal =
        founds ? node.member->found(HistoryId{++histories_}, heard) : node.member->stand(heard, false, now_);
    if (refusal) return;
    rest(node);
    node.candidacy.emplace(quorum(), founds && unheeded_ != Unheeded::all_found);
  }
  [[nodiscard]] Quorum quorum() const {
    // A group of the same nodes in which one more had to apply asks one promise less.
    return unheeded_ == Unheeded::one_promise && c_ + 1 < count_ ? Quorum{count_ - 1, c_ + 1}
                                                                 : Quorum{count_ - 1, c_};
  }

  void ask(GroupNode& from, GroupNode& to) {
    if (!from.candidacy || &from == &to) return;
    Hello ours = hello(from, NodeRole::candidate);
    ours.flags.promise = random_.below(4) != 0;
    if (from.member->founding() != HistoryId{}) {
      ours.flags.founding = true;
      ours.history = from.member->founding();
    }
    const bool serves = to.primary && to.commit > to.noop;
    const auto refusal = to.member->asked(ours, serves, now_);
    if (refusal && refusal->reason == RefusalReason::history && ours.flags.founding && to.member->memory()) {
      return answer(from, to);
    }
    const bool ignored = refusal && !ours.flags.founding &&
                         ((refusal->reason == RefusalReason::no_memory && unheeded_ == Unheeded::no_memory) ||
                          (refusal->reason == RefusalReason::lease && unheeded_ == Unheeded::lease));
    if (refusal && !ignored) {
      if (refusal->reason != RefusalReason::promised) return;
      from.heard = std::max(from.heard, epoch_of_value(refusal->ours).counter);
      return rest(from);
    }
    if (!ours.flags.promise) return from.candidacy->would(index(to));
    rest(to);
    if (ours.flags.founding) to.founder_said = ours;
    if (random_.below(8) == 0) return;  // the answer is lost
    from.candidacy->promised(index(to), to.end(), c_);
    from.promised_life[index(to)] = to.life;
    if (unheeded_ != Unheeded::confirmation) return;
    for (const auto& [each, life] : from.promised_life) {
      (void)nodes_[each].member->echo(ours.epoch, ours.history);
      from.candidacy->confirmed(each, from.candidacy->round());
    }
  }

  void confirm(GroupNode& node, GroupNode& other) {
    if (!node.candidacy || !node.candidacy->enough_promised()) return;
    const auto promised = node.promised_life.find(index(other));
    if (promised == node.promised_life.end()) return;
    if (promised->second == other.life) {
      const bool taken = unheeded_ == Unheeded::no_memory || unheeded_ == Unheeded::lease ||
                         (unheeded_ == Unheeded::founder_echo && other.member->memory());
      if (other.member->echo(node.member->promised(), stands_for(node)) || taken)
        return node.candidacy->confirmed(index(other), node.candidacy->round());
    }
    if (unheeded_ == Unheeded::confirmation) return;
    node.candidacy->lost(index(other));
    node.promised_life.erase(promised);
  }

  void again(GroupNode& node) {
    if (!node.founder_said || node.member->asked(*node.founder_said, node.primary, now_)) return;
    rest(node);
    if (unheeded_ == Unheeded::stamp)
      (void)node.member->echo(node.founder_said->epoch, node.founder_said->history);
  }

  void lead(GroupNode& node) {
    if (!node.candidacy || !node.candidacy->enough_confirmed()) return;
    if (const auto from = node.candidacy->donor(node.end()); from && unheeded_ != Unheeded::donor) {
      GroupNode& donor = nodes_[*from];
      if (donor.life != node.promised_life[*from] || donor.member->promised() != node.member->promised()) {
        return rest(node);
      }
      node.log = donor.log;
      ++fetched;
      return;
    }
    rest(node);
    node.member->lead(node.member->promised(), stands_for(node));
    node.primary = true;
    node.had_memory = true;
    node.epoch = node.member->promised();
    node.noop = node.log.size();
    node.commit = 0;
    ++leads;
    for (std::size_t i = 0; i < committed_.size(); ++i) {
      if (committed_[i].epoch < node.epoch && (i >= node.log.size() || node.log[i] != committed_[i])) {
        fail("a committed entry is not in the log of a later primary");
      }
    }
    push(node);
  }

  /// An epoch is written by one life of its node, as far as anybody hears of it.
  void check_writers(HistoryId history, const std::vector<GroupEntry>& log) {
    for (std::size_t i = 0; i < log.size(); ++i) {
      if (i > 0 && log[i].epoch == log[i - 1].epoch) continue;
      const auto first = writers_.emplace(std::pair{history.value, log[i].epoch}, log[i].id).first;
      if (first->second != log[i].id) fail("two wrote in one epoch");
    }
  }
  void push(GroupNode& node) {
    node.log.push_back({node.epoch, ++ids_});
    commit(node);
  }
  void append(GroupNode& node) {
    if (node.primary && node.commit > node.noop && node.log.size() < 200) push(node);
  }

  void commit(GroupNode& node) {
    std::vector<AppliedLsn> applied;
    for (const auto& [other, lsn] : node.applied) applied.push_back({other, Lsn{lsn}});
    const std::size_t to = c_ == 0 ? node.log.size() : kth_applied(applied, c_).value;
    if (to <= node.commit || to <= node.noop) return;
    for (std::size_t i = 0; i < to; ++i) {
      if (i < committed_.size()) {
        if (committed_[i] != node.log[i]) fail("two commit in conflict");
        continue;
      }
      committed_.push_back(node.log[i]);
      ++commits;
    }
    node.commit = to;
  }

  /// A node asks another, which answers at once: its hello, if it leads and takes this one, or else what it
  /// has promised.
  void dial(GroupNode& node, GroupNode& other) {
    if (&node == &other || dials_.size() > 16) return;
    if (node.follows == index(other) && other.link_life.contains(index(node))) return;  // it is busy
    const Said said = node.member->say(hello(node, NodeRole::replica));
    if (other.primary && said.hello().epoch > other.epoch && unheeded_ != Unheeded::old_primary)
      rest(other);  // it hears of a higher epoch
    if (other.member->visited(said)) return;
    if (other.primary) {
      other.link_life[index(node)] = node.life;
      other.applied.erase(index(node));
      other.echo.erase(index(node));
    }
    dials_.push_back({index(node), index(other), node.life, other.life, said,
                      hello(other, other.primary ? NodeRole::primary : NodeRole::replica)});
  }
  void act(const GroupDial& dial) {
    GroupNode& node = nodes_[dial.from];
    if (node.life != dial.from_life) return;
    const Said said =
        unheeded_ == Unheeded::late ? node.member->say(hello(node, NodeRole::replica)) : dial.said;
    const HistoryId founding = node.member->founding();
    const bool followed = node.member->following();
    node.member->answered(dial.to, dial.answer.history, dial.answer.epoch, c_, said, now_);
    if (node.member->founding() != founding || node.member->following() != followed) rest(node);
    if (dial.answer.role != NodeRole::primary || (node.primary && dial.answer.epoch <= node.epoch)) return;
    const auto refusal = node.member->may_follow(dial.answer, said, now_);
    const bool ignored =
        refusal && ((refusal->reason == RefusalReason::lease && unheeded_ == Unheeded::follow_lease &&
                     now_ >= node.member->fresh_until()) ||
                    (refusal->reason == RefusalReason::promised && unheeded_ == Unheeded::old_primary));
    if (refusal && !ignored) return;
    rest(node);
    node.member->follow(dial.answer);
    node.follows = dial.to;
    node.follows_life = dial.to_life;
    node.follows_epoch = dial.answer.epoch;
  }
  void follow(GroupNode& node, GroupNode& primary) {
    if (!primary.primary || node.primary) return;
    answer(node, primary);
  }

  void answer(GroupNode& node, GroupNode& other) {
    const std::size_t before = dials_.size();
    dial(node, other);
    if (dials_.size() == before) return;
    const GroupDial now = dials_.back();
    dials_.pop_back();
    act(now);
  }

  /// Without memory it asks round the list, and some do not hear it.
  void ask_round(GroupNode& node) {
    for (std::uint32_t other = 1; other <= count_; ++other) {
      if (random_.below(4) != 0) answer(node, nodes_[other]);
    }
  }

  void send(GroupNode& node) {
    if (!node.primary || node.link_life.empty() || messages_.size() > 30) return;
    auto link = node.link_life.begin();
    std::advance(link, static_cast<long>(random_.below(node.link_life.size())));
    send(node, link->first);
  }
  void send(GroupNode& node, std::uint32_t to) {
    GroupMessage message;
    message.from = index(node);
    message.from_life = node.life;
    message.to = to;
    message.to_life = node.link_life.at(to);
    message.epoch = node.epoch;
    message.log = node.log;
    message.stamp = node.commit > node.noop ? now_ : Instant{};
    messages_.push_back(std::move(message));
  }

  void deliver() {
    if (messages_.empty()) return;
    const auto at = messages_.begin() + static_cast<long>(random_.below(messages_.size()));
    const GroupMessage message = std::move(*at);
    messages_.erase(at);
    if (random_.below(10) != 0) take(message);  // else its link broke
  }
  void take(const GroupMessage& message) {
    GroupNode& to = nodes_[message.to];
    if (to.life != message.to_life) return;
    message.ack ? take_ack(to, message) : take_batch(to, message);
  }

  void take_batch(GroupNode& node, const GroupMessage& message) {
    if (node.follows != message.from || node.follows_life != message.from_life ||
        node.follows_epoch != message.epoch) {
      return;
    }
    check_writers(node.member->history(), message.log);
    const bool older = node.log.size() > message.log.size() &&
                       std::equal(message.log.begin(), message.log.end(), node.log.begin());
    if (!older || node.end().epoch != message.epoch) node.log = message.log;
    const bool had = node.member->memory();
    node.member->applied(Lsn{node.log.size()});
    if (!had && node.member->memory()) ++regained;
    if (node.member->memory()) node.had_memory = true;
    if (message.stamp != Instant{}) node.member->stamped(now_);
    GroupMessage ack;
    ack.ack = true;
    ack.from = message.to;
    ack.from_life = node.life;
    ack.to = message.from;
    ack.to_life = message.from_life;
    ack.epoch = message.epoch;
    ack.applied = node.member->memory() ? node.log.size() : 0;
    ack.stamp = message.stamp;
    messages_.push_back(std::move(ack));
  }

  void take_ack(GroupNode& node, const GroupMessage& message) {
    if (!node.primary || node.epoch != message.epoch) return;
    const auto link = node.link_life.find(message.from);
    if (link == node.link_life.end() || link->second != message.from_life) return;
    auto& applied = node.applied[message.from];
    applied = std::max(applied, message.applied);
    auto& echo = node.echo[message.from];
    echo = std::max(echo, message.stamp);
    commit(node);
  }

  /// A read under leases, of all that is there.
  void read(GroupNode& node) {
    if (!node.primary || node.commit <= node.noop || node.commit < node.log.size()) return;
    const auto young = std::count_if(node.echo.begin(), node.echo.end(), [&](const auto& echo) {
      return echo.second != Instant{} && now_ < echo.second + kLease;
    });
    if (static_cast<std::uint32_t>(young) < Quorum{count_ - 1, c_}.leases_needed()) return;
    ++reads;
    if (committed_.size() > node.log.size()) fail("a stale read");
  }

  std::uint32_t count_, c_;
  Unheeded unheeded_;
  Random random_;
  std::vector<GroupNode> nodes_;  ///< from 1
  std::vector<GroupMessage> messages_;
  std::vector<GroupMessage> held_;
  std::vector<GroupDial> dials_;
  std::vector<GroupEntry> committed_;
  /// Of each history's epochs of which another node heard: the first entry.
  std::map<std::pair<std::uint64_t, Epoch>, std::uint64_t> writers_;
  Instant now_ = Instant{} + seconds(1);
  std::uint64_t lives_ = 0, ids_ = 0, histories_ = 0;
  std::string fault_;
};

}  // namespace tidelock::test
