// What a node of a group may say of epochs: each rule by itself, then whole groups at random, with nodes that
// lose their memory, messages that are late or lost, and leases. A rule that is not heeded must be found out.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/candidacy.h>
#include <tidelock/replication/membership.h>

#include "sanitized.h"

using namespace tidelock;

namespace {

constexpr HistoryId kLine{7};
constexpr Duration kLease = seconds(2);

GroupOptions group_of(std::uint32_t node, std::uint32_t nodes = 3, std::uint32_t c = 1) {
  GroupOptions options;
  options.node = node;
  for (std::uint32_t i = 1; i <= nodes; ++i) options.nodes.push_back(i);
  options.c = c;
  options.lease = kLease;
  return options;
}

Hello hello_of(std::uint32_t node, NodeRole role, Epoch epoch, HistoryId history = kLine) {
  Hello hello;
  hello.role = role;
  hello.node = node;
  hello.epoch = epoch;
  hello.history = history;
  hello.group_sum = group_of(1).sum();
  hello.flags.memory = true;
  return hello;
}

Hello candidate(std::uint32_t node, std::uint32_t counter, bool promise = true) {
  Hello hello = hello_of(node, NodeRole::candidate, {counter, node});
  hello.flags.promise = promise;
  return hello;
}

Hello founder(std::uint32_t node, std::uint32_t counter, HistoryId history) {
  Hello hello = candidate(node, counter);
  hello.history = history;
  hello.flags.founding = true;
  return hello;
}

RefusalReason reason(const std::optional<Refusal>& refusal) {
  return refusal ? refusal->reason : RefusalReason::none;
}

/// Node 1, long after its start, which follows node 2 in epoch 5.
struct FollowerRig {
  FollowerRig() {
    CHECK(node.answered(2, kLine, {5, 2}, 1, now));
    CHECK(node.answered(3, kLine, {4, 3}, 1, now));
    const Hello primary = hello_of(2, NodeRole::primary, {5, 2});
    CHECK(reason(node.may_follow(primary, now)) == RefusalReason::none);
    node.follow(primary);
    node.applied(Lsn{});
    REQUIRE(node.memory());
  }
  Membership node{group_of(1), Instant{}};
  Instant now = Instant{} + kLease;
};

}  // namespace

TEST_SUITE_BEGIN("replication/membership");

TEST_CASE("a promise is kept: nothing below it is promised or followed") {
  FollowerRig rig;
  CHECK(reason(rig.node.asked(candidate(3, 5), false, rig.now)) == RefusalReason::none);  // {5, 3} > {5, 2}
  CHECK(rig.node.promised() == Epoch{5, 3});
  CHECK(reason(rig.node.asked(candidate(2, 5), false, rig.now)) == RefusalReason::promised);
  CHECK(reason(rig.node.may_follow(hello_of(2, NodeRole::primary, {5, 2}), rig.now)) ==
        RefusalReason::promised);
  // To whom it was given it may be given again, until that one leads.
  CHECK(reason(rig.node.asked(candidate(3, 5), false, rig.now)) == RefusalReason::none);
  const Hello primary = hello_of(3, NodeRole::primary, {5, 3});
  CHECK(reason(rig.node.may_follow(primary, rig.now)) == RefusalReason::none);
  rig.node.follow(primary);
  CHECK(reason(rig.node.asked(candidate(3, 5), false, rig.now)) == RefusalReason::promised);
}

TEST_CASE("to be asked whether it would promise binds nobody") {
  FollowerRig rig;
  CHECK(reason(rig.node.asked(candidate(3, 9, false), false, rig.now)) == RefusalReason::none);
  CHECK(rig.node.promised() == Epoch{5, 2});
}

TEST_CASE("who granted a lease neither promises, follows another epoch nor stands before it ends") {
  FollowerRig rig;
  rig.node.stamped(rig.now);
  const auto refusal = rig.node.asked(candidate(3, 6), false, rig.now + milliseconds(500));
  REQUIRE(reason(refusal) == RefusalReason::lease);
  CHECK(refusal->ours == 1'500);
  CHECK(reason(rig.node.may_follow(hello_of(3, NodeRole::primary, {6, 3}), rig.now)) == RefusalReason::lease);
  CHECK(reason(rig.node.may_follow(hello_of(2, NodeRole::primary, {5, 2}), rig.now)) == RefusalReason::none);
  CHECK(reason(rig.node.stand(0, false, rig.now)) == RefusalReason::lease);
  CHECK(rig.node.promised() == Epoch{5, 2});
  CHECK(reason(rig.node.asked(candidate(3, 6), false, rig.now + kLease)) == RefusalReason::none);
}

TEST_CASE("a primary that hands over ends the leases of its own epoch, and of no other") {
  FollowerRig rig;
  rig.node.stamped(rig.now);
  Hello successor = candidate(3, 6);
  successor.flags.released = true;
  successor.last_epoch = {4, 9};
  CHECK(reason(rig.node.asked(successor, false, rig.now)) == RefusalReason::lease);
  successor.last_epoch = {5, 2};
  CHECK(reason(rig.node.asked(successor, false, rig.now)) == RefusalReason::none);
  FollowerRig other;
  other.node.stamped(other.now);
  CHECK(reason(other.node.stand(5, true, other.now)) == RefusalReason::none);
  CHECK(other.node.promised() == Epoch{6, 1});
}

TEST_CASE("a primary that serves is left alone") {
  FollowerRig rig;
  const auto refusal = rig.node.asked(candidate(3, 6), true, rig.now);
  CHECK(reason(refusal) == RefusalReason::lease);
  CHECK(refusal->ours == 2'000);
}

TEST_CASE("only who is of the group is listened to") {
  FollowerRig rig;
  Hello other = candidate(3, 6);
  other.group_sum ^= 1;
  CHECK(reason(rig.node.asked(other, false, rig.now)) == RefusalReason::group);
  CHECK(reason(rig.node.may_follow(other, rig.now)) == RefusalReason::group);
  CHECK(reason(rig.node.asked(candidate(4, 6), false, rig.now)) == RefusalReason::malformed);
  CHECK(reason(rig.node.asked(candidate(1, 6), false, rig.now)) == RefusalReason::malformed);
  Hello borrowed = candidate(3, 6);
  borrowed.epoch.node = 2;
  CHECK(reason(rig.node.asked(borrowed, false, rig.now)) == RefusalReason::malformed);
  Hello elsewhere = candidate(3, 6);
  elsewhere.history = HistoryId{8};
  CHECK(reason(rig.node.asked(elsewhere, false, rig.now)) == RefusalReason::history);
  CHECK_FALSE(rig.node.answered(9, kLine, {9, 9}, 1, rig.now));
}

TEST_CASE("nobody uses up the counter of epochs in one step") {
  FollowerRig rig;
  CHECK(reason(rig.node.asked(candidate(3, 0xffff'ffff), false, rig.now)) == RefusalReason::malformed);
  CHECK(reason(rig.node.may_follow(hello_of(3, NodeRole::primary, {0xffff'ffff, 3}), rig.now)) ==
        RefusalReason::malformed);
  CHECK(rig.node.promised() == Epoch{5, 2});
  // What it is told by a refusal is heeded only so far that the others still take what it makes of it.
  CHECK(reason(rig.node.stand(0xffff'ffff, false, rig.now)) == RefusalReason::none);
  FollowerRig other;
  CHECK(reason(other.node.asked(candidate(3, rig.node.promised().counter), false, other.now)) ==
        RefusalReason::none);
  CHECK(reason(other.node.may_follow(hello_of(2, NodeRole::primary, {6, 3}), other.now)) ==
        RefusalReason::malformed);
}

TEST_CASE("group sums differ with nodes, lease and largest group, and with nothing else") {
  GroupOptions options = group_of(1);
  const std::uint32_t sum = options.sum();
  CHECK(sum != 0);
  CHECK(group_of(2).sum() == sum);
  CHECK(group_of(1, 3, 2).sum() == sum);
  CHECK(group_of(1, 4).sum() != sum);
  options.lease = kLease + microseconds(1);
  CHECK(options.sum() != sum);
  options = group_of(1);
  ++options.group_bytes_max;
  CHECK(options.sum() != sum);
}

TEST_CASE("without memory a node waits a lease, hears enough others, and applies what a primary had") {
  Membership node(group_of(1), Instant{});
  const Hello primary = [] {
    Hello hello = hello_of(2, NodeRole::primary, {5, 2});
    hello.last_lsn = Lsn{40};
    return hello;
  }();
  CHECK(reason(node.may_follow(primary, Instant{})) == RefusalReason::lease);
  const Instant later = node.fresh_until();
  CHECK(reason(node.may_follow(primary, later)) == RefusalReason::no_memory);
  CHECK(node.answered(2, kLine, {5, 2}, 1, later));
  CHECK(node.answered(2, kLine, {5, 2}, 1, later));  // the same node counts once
  CHECK_FALSE(node.answers_suffice());
  CHECK_FALSE(node.answered(3, HistoryId{8}, {6, 3}, 1, later));
  CHECK(node.answered(3, kLine, {6, 3}, 1, later));
  CHECK(node.answers_suffice());
  CHECK(node.promised() == Epoch{6, 3});  // it may have been its own promise
  CHECK(reason(node.may_follow(primary, later)) == RefusalReason::promised);
  Hello newer = primary;
  newer.node = 3;
  newer.epoch = {6, 3};
  CHECK(reason(node.may_follow(newer, later)) == RefusalReason::none);
  node.follow(newer);
  CHECK(reason(node.asked(candidate(2, 7), false, later)) == RefusalReason::no_memory);
  CHECK(reason(node.stand(6, false, later)) == RefusalReason::no_memory);
  node.applied(Lsn{39});
  CHECK_FALSE(node.memory());
  node.applied(Lsn{40});
  CHECK(node.memory());
}

TEST_CASE("what a link that broke had brought is no memory") {
  Membership node(group_of(1), Instant{});
  const Instant later = node.fresh_until();
  CHECK(node.answered(2, kLine, {5, 2}, 1, later));
  CHECK(node.answered(3, kLine, {5, 2}, 1, later));
  Hello primary = hello_of(2, NodeRole::primary, {5, 2});
  primary.last_lsn = Lsn{40};
  CHECK(reason(node.may_follow(primary, later)) == RefusalReason::none);
  node.follow(primary);
  node.unfollow();
  node.applied(Lsn{40});
  CHECK_FALSE(node.memory());
}

TEST_CASE("a founding: who promised it has memory once it hears that it came to be") {
  Membership node(group_of(1), Instant{});
  CHECK(reason(node.asked(founder(2, 1, HistoryId{20}), false, Instant{})) == RefusalReason::lease);
  const Instant later = node.fresh_until();
  CHECK(reason(node.asked(founder(2, 1, HistoryId{20}), false, later)) == RefusalReason::none);
  CHECK_FALSE(node.memory());
  CHECK(reason(node.asked(founder(3, 2, HistoryId{30}), false, later)) == RefusalReason::none);
  CHECK(reason(node.asked(founder(2, 1, HistoryId{20}), false, later)) == RefusalReason::promised);
  CHECK(reason(node.asked(candidate(2, 7), false, later)) == RefusalReason::no_memory);
  SUBCASE("from its primary") {
    Hello primary = hello_of(3, NodeRole::primary, {2, 3}, HistoryId{30});
    CHECK(reason(node.may_follow(primary, later)) == RefusalReason::none);
    node.follow(primary);
    CHECK(node.memory());
  }
  SUBCASE("of an earlier one, from another") {
    CHECK(node.answered(3, HistoryId{20}, {4, 3}, 1, later));
    CHECK(node.memory());
    CHECK(node.promised() == Epoch{4, 3});
  }
  SUBCASE("of one that it did not promise") {
    CHECK(node.answered(3, HistoryId{40}, {4, 3}, 1, later));
    CHECK_FALSE(node.memory());
    CHECK(reason(node.asked(founder(2, 9, HistoryId{50}), false, later)) == RefusalReason::history);
  }
}

TEST_CASE("a founder that hears of a history joins that") {
  Membership node(group_of(1), Instant{});
  CHECK(reason(node.found(HistoryId{10}, 0, Instant{})) == RefusalReason::lease);
  CHECK(reason(node.found(HistoryId{10}, 3, node.fresh_until())) == RefusalReason::none);
  CHECK(node.founding() == HistoryId{10});
  CHECK(node.promised() == Epoch{4, 1});
  SUBCASE("it leads") {
    node.lead();
    CHECK(node.memory());
    CHECK(node.history() == HistoryId{10});
  }
  SUBCASE("it joins") {
    CHECK(node.answered(2, kLine, {9, 2}, 1, node.fresh_until()));
    CHECK(node.founding() == HistoryId{});
    CHECK(reason(node.found(HistoryId{11}, 9, node.fresh_until())) == RefusalReason::history);
  }
}

TEST_CASE("a hostile founder does not fill the memory of who promises") {
  Membership node(group_of(1), Instant{});
  std::uint32_t refused = 0;
  for (std::uint32_t i = 1; i <= 3'000; ++i) {
    refused += node.asked(founder(2, i, HistoryId{i}), false, node.fresh_until()) ? 1 : 0;
  }
  CHECK(refused == 3'000 - 1'024);
  CHECK(reason(node.asked(founder(2, 3'001, HistoryId{7}), false, node.fresh_until())) ==
        RefusalReason::none);
}

TEST_SUITE_END();

TEST_SUITE_BEGIN("replication/candidacy");

TEST_CASE("a promise counts once its link has echoed, and as long as the link lasts") {
  Candidacy candidacy(Quorum{4, 2}, false);
  CHECK(candidacy.needed() == 3);
  candidacy.would(2);
  CHECK_FALSE(candidacy.enough_would());
  candidacy.would(3);
  CHECK(candidacy.enough_would());
  CHECK_FALSE(candidacy.enough_promised());
  candidacy.promised(2, {{3, 1}, Lsn{9}}, 2);
  candidacy.confirmed(2, candidacy.round());  // before there are enough
  candidacy.promised(4, {{4, 1}, Lsn{5}}, 2);
  CHECK(candidacy.enough_promised());
  candidacy.confirmed(2, candidacy.round());
  candidacy.confirmed(3, candidacy.round());  // it would have, but did not promise
  CHECK_FALSE(candidacy.enough_confirmed());
  candidacy.confirmed(4, candidacy.round());
  CHECK(candidacy.enough_confirmed());
  CHECK(candidacy.donor({{3, 1}, Lsn{20}}) == 4U);  // a later epoch, though a smaller LSN
  CHECK(candidacy.donor({{4, 1}, Lsn{4}}) == 4U);
  CHECK_FALSE(candidacy.donor({{4, 1}, Lsn{5}}));
  candidacy.lost(4);
  CHECK_FALSE(candidacy.enough_confirmed());
}

TEST_CASE("with each promise the confirmations begin anew") {
  Candidacy candidacy(Quorum{4, 2}, false);
  candidacy.promised(2, {}, 2);
  candidacy.promised(3, {}, 2);
  const auto round = candidacy.round();
  candidacy.confirmed(3, round);
  candidacy.lost(2);
  candidacy.promised(4, {}, 2);
  candidacy.confirmed(4, candidacy.round());
  CHECK_FALSE(candidacy.enough_confirmed());  // 3 may have restarted since
  candidacy.confirmed(3, round);              // an echo of a stamp from before
  CHECK_FALSE(candidacy.enough_confirmed());
  candidacy.confirmed(3, candidacy.round());
  CHECK(candidacy.enough_confirmed());
}

TEST_CASE("who names a smaller c makes it take more promises") {
  Candidacy candidacy(Quorum{4, 2}, false);
  candidacy.promised(2, {}, 2);
  candidacy.promised(3, {}, 1);
  CHECK(candidacy.c() == 1);
  CHECK(candidacy.needed() == 4);
  CHECK_FALSE(candidacy.enough_promised());
  candidacy.promised(4, {}, 2);
  CHECK(candidacy.enough_promised());
}

TEST_CASE("a founding takes more promises") {
  CHECK(Candidacy(Quorum{4, 2}, true).needed() == Quorum{4, 2}.founders_needed());
  CHECK(Candidacy(Quorum{2, 1}, true).needed() == 3);
}

TEST_SUITE_END();

// ---- whole groups ---------------------------------------------------------------------------------------

namespace {

/// What is not heeded, to see that it is found out.
enum class Unheeded : std::uint8_t {
  nothing,
  no_memory,      ///< a refusal for want of memory is taken for a promise
  lease,          ///< a refusal for a lease likewise
  old_primary,    ///< a primary below the promise is followed
  confirmation,   ///< promises count without the third round
  one_promise,    ///< one too few is enough
  donor,          ///< nobody's log is fetched
  founders_hold,  ///< a founder commits before enough hold its history
  follow_lease,   ///< the primary of another epoch is followed in spite of a lease
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
  bool founder = false;  ///< of a history that too few hold as yet
  Epoch epoch{};         ///< that it leads
  std::size_t noop = 0, commit = 0;
  std::map<std::uint32_t, std::uint64_t> link_life;  ///< of who follows it
  std::map<std::uint32_t, std::size_t> applied;
  std::map<std::uint32_t, Instant> echo;
  std::uint32_t follows = 0;
  Epoch follows_epoch{};
  bool had_memory = false;
  std::uint32_t heard = 0;  ///< the highest counter that refused it
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

class RandomGroup {
 public:
  RandomGroup(std::uint32_t nodes, std::uint32_t c, Unheeded unheeded, std::uint64_t seed)
      : count_(nodes), c_(c), unheeded_(unheeded), random_(seed), nodes_(nodes + 1) {
    for (std::uint32_t i = 1; i <= nodes; ++i) start(i);
    if (seed % 4 != 0) found();
  }

  /// Returns what broke, or nothing.
  std::string run(int steps) {
    for (int i = 0; i < steps && fault_.empty(); ++i) step();
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
  /// It follows, has all, and its acknowledgement arrives.
  void follow(std::uint32_t node, std::uint32_t primary) {
    if (nodes_[node].follows != primary) follow(nodes_[node], nodes_[primary]);
    if (nodes_[node].follows != primary || !nodes_[primary].primary) return;
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
  void fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  void start(std::uint32_t i) {
    GroupNode node;
    node.life = ++lives_;
    node.member = std::make_unique<Membership>(group_of(i, count_, c_), now_);
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
      case 10:
        follow(any(), any());
        break;
      case 11:
        answer(any(), any());
        break;
      case 12:
        append(any());
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
  }

  void stand(GroupNode& node) {
    if (node.primary) return;
    const bool calm = std::none_of(nodes_.begin(), nodes_.end(),
                                   [](const auto& each) { return each.primary || each.candidacy; });
    if (!calm && random_.below(12) != 0) return;
    const std::uint32_t heard = node.heard;
    const bool founds = node.member->history() == HistoryId{};
    const auto refusal = founds ? node.member->found(HistoryId{++histories_}, heard, now_)
                                : node.member->stand(heard, false, now_);
    if (refusal) return;
    rest(node);
    node.candidacy.emplace(quorum(), founds);
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
      if (from.member->answered(index(to), to.member->history(), to.member->promised(), c_, now_)) rest(from);
      return;
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
    if (random_.below(8) == 0) return;  // the answer is lost
    from.candidacy->promised(index(to), to.end(), c_);
    from.promised_life[index(to)] = to.life;
    if (unheeded_ != Unheeded::confirmation) return;
    for (const auto& [each, life] : from.promised_life)
      from.candidacy->confirmed(each, from.candidacy->round());
  }

  void confirm(GroupNode& node, GroupNode& other) {
    if (!node.candidacy || !node.candidacy->enough_promised()) return;
    const auto promised = node.promised_life.find(index(other));
    if (promised == node.promised_life.end()) return;
    if (promised->second == other.life)
      return node.candidacy->confirmed(index(other), node.candidacy->round());
    if (unheeded_ == Unheeded::confirmation) return;
    node.candidacy->lost(index(other));
    node.promised_life.erase(promised);
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
    node.founder = node.member->founding() != HistoryId{};
    node.member->lead();
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

  void push(GroupNode& node) {
    node.log.push_back({node.epoch, ++ids_});
    commit(node);
  }
  void append(GroupNode& node) {
    if (node.primary && node.commit > node.noop && node.log.size() < 200) push(node);
  }

  void commit(GroupNode& node) {
    if (node.founder && unheeded_ != Unheeded::founders_hold) {
      if (node.applied.size() + 1 < Quorum{count_ - 1, c_}.founders_needed()) return;
      node.founder = false;
    }
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

  void follow(GroupNode& node, GroupNode& primary) {
    if (!primary.primary || &node == &primary || node.primary) return;
    const Hello theirs = hello(primary, NodeRole::primary);
    const auto refusal = node.member->may_follow(theirs, now_);
    const bool ignored =
        refusal && ((refusal->reason == RefusalReason::lease && unheeded_ == Unheeded::follow_lease &&
                     now_ >= node.member->fresh_until()) ||
                    (refusal->reason == RefusalReason::promised && unheeded_ == Unheeded::old_primary));
    if (refusal && !ignored) {
      if (refusal->reason == RefusalReason::promised) rest(primary);  // it hears of a higher epoch
      if (primary.member->memory()) {
        node.member->answered(index(primary), primary.member->history(), primary.member->promised(), c_,
                              now_);
      }
      return;
    }
    rest(node);
    node.member->follow(theirs);
    node.follows = index(primary);
    node.follows_epoch = primary.epoch;
    primary.link_life[index(node)] = node.life;
    primary.applied.erase(index(node));
    primary.echo.erase(index(node));
  }

  void answer(GroupNode& node, GroupNode& other) {
    if (&node == &other || node.member->memory() || !other.member->memory() ||
        now_ < node.member->fresh_until()) {
      return;
    }
    const bool founds = node.candidacy.has_value();
    if (node.member->answered(index(other), other.member->history(), other.member->promised(), c_, now_) &&
        founds)
      rest(node);
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
    if (node.follows != message.from || node.follows_epoch != message.epoch) return;
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
  std::vector<GroupEntry> committed_;
  Instant now_ = Instant{} + seconds(1);
  std::uint64_t lives_ = 0, ids_ = 0, histories_ = 0;
  std::string fault_;
};

struct GroupShape {
  std::uint32_t nodes, c;
};
constexpr std::array kShapes{GroupShape{2, 1}, GroupShape{3, 1}, GroupShape{3, 2}, GroupShape{4, 1},
                             GroupShape{4, 2}, GroupShape{5, 1}, GroupShape{5, 2}};

}  // namespace

TEST_SUITE_BEGIN("replication/membership");

TEST_CASE("groups at random lose nothing that was committed, and read nothing stale") {
  const std::uint64_t seeds = test::kSanitized ? 6 : 60;
  for (const GroupShape& shape : kShapes) {
    CAPTURE(shape.nodes);
    CAPTURE(shape.c);
    std::uint64_t leads = 0, commits = 0, reads = 0, regained = 0, fetched = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(seed);
      RandomGroup group(shape.nodes, shape.c, Unheeded::nothing, seed);
      CHECK(group.run(20'000).empty());
      leads += group.leads;
      commits += group.commits;
      reads += group.reads;
      regained += group.regained;
      fetched += group.fetched;
    }
    CHECK(leads >= seeds);
    CHECK(commits >= seeds);
    CHECK(reads >= seeds / 3);
    if (shape.nodes > 2) CHECK(regained >= seeds / 6);
    MESSAGE(shape.nodes << " nodes, c = " << shape.c << ": " << leads << " led, " << commits << " committed, "
                        << reads << " read, " << regained << " regained memory, " << fetched << " fetched");
  }
}

TEST_CASE("in groups at random what is not heeded is found out" * doctest::skip(test::kSanitized)) {
  for (const Unheeded unheeded :
       {Unheeded::no_memory, Unheeded::old_primary, Unheeded::one_promise, Unheeded::donor}) {
    CAPTURE(static_cast<int>(unheeded));
    bool found = false;
    for (std::uint64_t seed = 1; seed <= 400 && !found; ++seed) {
      for (const GroupShape& shape : kShapes) {
        found = found || !RandomGroup(shape.nodes, shape.c, unheeded, seed).run(10'000).empty();
      }
    }
    CHECK(found);
  }
}

namespace {

constexpr std::uint64_t kFounded = 1;    ///< a seed with which node 1 is the primary of all
constexpr std::uint64_t kUnfounded = 4;  ///< one with which nobody holds anything

/// The first primary and one that follows it have a lease; the others lead without them.
RandomGroup lease_ignored(std::uint32_t nodes, std::uint32_t c, Unheeded unheeded) {
  RandomGroup group(nodes, c, unheeded, kFounded);
  for (std::uint32_t i = 2; i <= nodes; ++i) group.follow(i, 1);
  group.append(1);
  for (std::uint32_t i = 2; i <= nodes; ++i) group.follow(i, 1);
  group.wait(kLease);
  group.follow(2, 1);  // a stamp that only this one gets
  group.stand(3);
  return group;
}

}  // namespace

TEST_CASE("a founder that commits before enough hold its history may find another beside it") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::founders_hold}) {
    RandomGroup group(4, 1, unheeded, kUnfounded);
    group.wait(kLease);
    for (int life = 1; life <= 2; ++life) {
      group.stand(1);
      group.ask(1, life == 1 ? 2 : 4);
      group.ask(1, 3);
      group.confirm_and_lead(1);
      CHECK(group.leads == static_cast<std::uint64_t>(life));
      group.follow(life == 1 ? 2 : 4, 1);
      if (life == 1) group.crash_now(1);
      group.wait(kLease);
    }
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "two commit in conflict"));
  }
}

TEST_CASE("a promise in spite of a lease gives a stale read") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::lease}) {
    RandomGroup group = lease_ignored(5, 1, unheeded);
    for (const std::uint32_t other : {4, 5, 2}) group.ask(3, other);
    group.confirm_and_lead(3);
    group.follow(4, 3);
    group.read(1);
    CHECK(group.reads == 1);
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "a stale read"));
  }
}

TEST_CASE("to follow another epoch in spite of a lease gives a stale read") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::follow_lease}) {
    RandomGroup group = lease_ignored(4, 2, unheeded);
    group.ask(3, 4);
    group.confirm_and_lead(3);
    CHECK(group.leads == 2);
    group.follow(4, 3);
    group.follow(2, 3);
    group.read(1);
    CHECK(group.reads == 1);
    CHECK(group.fault() == (unheeded == Unheeded::nothing ? "" : "a stale read"));
  }
}

TEST_CASE("a promise whose giver has forgotten it, counted all the same, loses what was committed") {
  for (const Unheeded unheeded : {Unheeded::nothing, Unheeded::confirmation}) {
    RandomGroup group(5, 1, unheeded, kFounded);
    for (std::uint32_t i = 2; i <= 5; ++i) group.follow(i, 1);
    group.wait(kLease);
    group.stand(3);
    group.ask(3, 2);
    group.crash_now(2);
    group.wait(kLease);
    group.answer(2, 4);
    group.answer(2, 5);
    group.follow(2, 1);
    CHECK(group.regained == 1);
    group.append(1);
    group.follow(2, 1);
    group.ask(3, 4);
    group.ask(3, 5);
    group.confirm_and_lead(3);
    CHECK(group.leads == (unheeded == Unheeded::nothing ? 1 : 2));
    CHECK(group.fault() ==
          (unheeded == Unheeded::nothing ? "" : "a committed entry is not in the log of a later primary"));
  }
}

TEST_SUITE_END();
