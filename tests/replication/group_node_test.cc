// Nodes of a group that find each other: a history begins, a primary dies and another one is told to lead,
// who comes back empty learns again; then groups in which anything happens at random.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>

#include "group_rig.h"
#include "sanitized.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr Duration kGroupPatience = seconds(60);
constexpr std::uint64_t kStorms = test::kSanitized ? 6 : 60;

/// promote() runs in a fiber there; its outcome, once there is one.
std::shared_ptr<std::optional<Status>> promote(GroupRig& rig, std::uint32_t i,
                                               Duration limit = kGroupPatience,
                                               const PromoteOptions& options = {}) {
  const auto outcome = std::make_shared<std::optional<Status>>();
  GroupNode& node = rig.node(i);
  const Instant deadline = rig.reactor(i).now() + limit;
  REQUIRE(rig.reactor(i).spawn_detached(
      "promote", [outcome, &node, options, deadline] { *outcome = node.promote(options, deadline); }));
  return outcome;
}

bool committed(GroupRig& rig, std::uint32_t i, Lsn lsn) { return rig.member(i).log().commit_lsn() >= lsn; }

Lsn put_and_commit(GroupRig& rig, std::uint32_t i, const std::string& key, const std::string& value = {}) {
  const auto lsn = rig.put(i, key, value.empty() ? "of " + key : value);
  REQUIRE(lsn);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return committed(rig, i, *lsn); }));
  return *lsn;
}

/// Anything happens to a group, within what it is to survive; names what broke.
class GroupStorm {
 public:
  GroupStorm(const GroupRig::Shape& shape, std::uint64_t seed) : shape_(shape), random_(seed), rig_(shape) {
    rig_.watch = [this] { look(); };
  }

  void run() {
    REQUIRE(rig_.pass_until(kGroupPatience, [&] { return rig_.whole(); }));
    for (int step = 0; step < 150 && fault_.empty(); ++step) {
      act();
      rig_.pass(milliseconds(static_cast<std::int64_t>(random_.below(200))));
    }
    heal();
    CHECK_MESSAGE(fault_.empty(), fault_);
  }
  std::uint64_t commits = 0, leads = 0, kills = 0;

 private:
  std::uint32_t any() { return 1 + static_cast<std::uint32_t>(random_.below(shape_.nodes)); }
  void fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  void act() {
    switch (random_.below(16)) {
      case 0:
        return kill(any());
      case 1:
        if (const std::uint32_t i = any(); !rig_.up(i)) rig_.start(i);
        return;
      case 2: {
        const std::uint32_t a = any(), b = any();
        if (a != b) rig_.cut(a, b, random_.below(2) == 0);
        return;
      }
      case 3:
        if (const std::uint32_t i = any(); rig_.up(i)) tell_to_lead(i);
        return;
      case 4:
        if (const std::uint32_t i = any(); rig_.up(i)) rig_.freeze(i, !rig_.frozen(i));
        return;
      default:
        for (int i = 0; i < 5; ++i) write();
    }
  }
  /// Not more without memory at a time than others hold what is committed, and than the rest can teach.
  void kill(std::uint32_t i) {
    std::uint32_t without = 1;
    for (std::uint32_t other = 1; other <= shape_.nodes; ++other) {
      if (other == i) continue;
      without += rig_.up(other) && rig_.member(other).membership().memory() ? 0 : 1;
    }
    if (!rig_.up(i) || without > std::min(shape_.c, std::max(1U, shape_.nodes - 1 - shape_.c))) return;
    rig_.kill(i);
    ++kills;
  }
  void tell_to_lead(std::uint32_t i) {
    GroupNode& node = rig_.node(i);
    const Instant deadline = rig_.reactor(i).now() + seconds(2);
    static_cast<void>(rig_.reactor(i).spawn_detached(
        "promote", [&node, deadline] { static_cast<void>(node.promote({}, deadline)); }));
  }
  void write() {
    const std::uint32_t i = random_.below(2) == 0 ? any() : rig_.primary();
    if (i == 0 || !rig_.up(i) || rig_.frozen(i) || rig_.member(i).role() != MemberRole::leading) return;
    const std::string key = std::to_string(random_.below(20));
    rig_.put(i, key, std::to_string(++values_) + std::string(random_.below(300), 'v'));
  }

  /// What anybody takes for committed is one line of entries, and whoever leads has all of it.
  void look() {
    for (std::uint32_t i = 1; i <= shape_.nodes; ++i) {
      if (!rig_.up(i)) continue;
      const GroupLog& log = rig_.member(i).log();
      for (Lsn lsn = {std::min<std::uint64_t>(log.commit_lsn().value, committed_.size()) + 1};
           lsn <= log.commit_lsn(); lsn = lsn.next()) {
        committed_.push_back(log.line().epoch_of(lsn).value_or(Epoch{}));
        ++commits;
      }
      if (!committed_.empty()) agree(i, log, log.commit_lsn());
      const Epoch epoch = rig_.member(i).lineage().epoch;
      if (rig_.member(i).role() != MemberRole::leading || !led_.insert(epoch).second) continue;
      ++leads;
      // Of two at a time the one with the lower epoch may lack what the other has committed.
      if (epoch == *led_.rbegin() && !committed_.empty()) agree(i, log, Lsn{committed_.size()});
    }
  }
  void agree(std::uint32_t i, const GroupLog& log, Lsn to) {
    if (to == Lsn{}) return;
    const auto ours = log.last_lsn() < to ? std::nullopt : log.line().epoch_of(to);
    if (ours && *ours == committed_[to.value - 1]) return;
    fail("node " + std::to_string(i) + " disagrees about entry " + std::to_string(to.value));
  }

  void heal() {
    for (std::uint32_t a = 1; a <= shape_.nodes; ++a) {
      for (std::uint32_t b = 1; b < a; ++b) rig_.cut(a, b, false);
      if (!rig_.up(a)) rig_.start(a);
      rig_.freeze(a, false);
    }
    // Who has had many snapshots waits for the next one, up to ten minutes.
    rig_.pace = milliseconds(10);
    const bool whole = rig_.pass_until(seconds(1200), [&] {
      if (rig_.whole()) return true;
      if (!shape_.stands && rig_.primary() == 0 && random_.below(200) == 0) tell_to_lead(any());
      return !fault_.empty();
    });
    if (!fault_.empty()) return;
    if (!whole) return fail("a group that is left in peace does not become whole");
    const std::uint32_t leader = rig_.primary();
    put_and_commit(rig_, leader, "last");
    for (std::uint32_t i = 1; i <= shape_.nodes; ++i) {
      if (!rig_.pass_until(kGroupPatience, [&] { return rig_.table(i).map == rig_.table(leader).map; }))
        fail("node " + std::to_string(i) + " does not have what the primary has");
    }
  }

  GroupRig::Shape shape_;
  Random random_;
  GroupRig rig_;
  std::vector<Epoch> committed_;  ///< by LSN, from 1
  std::set<Epoch> led_;
  std::uint64_t values_ = 0;
  std::string fault_;
};

}  // namespace

TEST_SUITE_BEGIN("replication/group_node");

TEST_CASE("empty nodes begin one history by themselves, and all keep what is written") {
  GroupRig::Shape shape;
  SUBCASE("three, c = 1") {}
  SUBCASE("two, c = 1") { shape.nodes = 2; }
  SUBCASE("two, c = 0") {
    shape.nodes = 2;
    shape.c = 0;
  }
  SUBCASE("five, c = 2") {
    shape.nodes = 5;
    shape.c = 2;
  }
  SUBCASE("alone") {
    shape.nodes = 1;
    shape.c = 0;
  }
  GroupRig rig(shape);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const std::uint32_t leader = rig.primary();
  CHECK(leader == 1);  // whose turn is the first, if nothing is lost
  const Lsn lsn = put_and_commit(rig, leader, "a");
  for (std::uint32_t i = 1; i <= shape.nodes; ++i) {
    CHECK(rig.pass_until(kGroupPatience, [&] { return rig.member(i).log().last_lsn() == lsn; }));
    CHECK(rig.table(i).map["a"].value == "of a");
    CHECK(rig.member(i).lineage().history == rig.member(leader).lineage().history);
    CHECK(rig.member(i).lineage().routing_seed == rig.member(leader).lineage().routing_seed);
  }
}

TEST_CASE("a group that does not found waits for one that does") {
  // Expect: with a node missing nothing begins; once it is there, it does.
  GroupRig rig({3, 1});
  rig.kill(3);
  rig.pass(seconds(8));
  CHECK(rig.primary() == 0);
  rig.start(3);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
}

TEST_CASE("the primary dies, another one is told to lead, and the first one comes back empty") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const Lsn lsn = put_and_commit(rig, 1, "a");
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(2).log().last_lsn() == lsn; }));
  rig.kill(1);
  rig.pass(seconds(3));
  CHECK(rig.primary() == 0);  // nobody stands unasked
  const auto promoted = promote(rig, 2);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK(promoted->value());
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  CHECK(rig.primary() == 2);
  put_and_commit(rig, 2, "b");
  rig.start(1);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole() && rig.member(1).membership().memory(); }));
  CHECK(rig.table(1).map["a"].value == "of a");
  CHECK(rig.table(1).map["b"].value == "of b");
}

TEST_CASE("who is told to lead first fetches what another one has and it has not") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  put_and_commit(rig, 1, "a");
  rig.cut(1, 2, true);
  bool snapshot = false;
  SUBCASE("from its log") {}
  SUBCASE("by a snapshot") { snapshot = true; }
  const std::string large(400, 'x');
  // The log has 64 KiB.
  for (int i = 0; i < (snapshot ? 300 : 3); ++i) put_and_commit(rig, 1, "b" + std::to_string(i % 3), large);
  REQUIRE(rig.member(2).log().last_lsn() < rig.member(3).log().last_lsn());
  rig.kill(1);
  const auto promoted = promote(rig, 2);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK(promoted->value());
  CHECK(rig.table(2).map == rig.table(3).map);
  CHECK(rig.table(2).map.size() == 4);
  CHECK(rig.table(2).swapped_at.empty() == !snapshot);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  put_and_commit(rig, 2, "c");
  rig.cut(1, 2, false);
  rig.start(1);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  CHECK(rig.table(1).map == rig.table(2).map);
  CHECK(rig.table(3).map == rig.table(2).map);
}

TEST_CASE("who is told to lead beside a primary that serves does not, and says why") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const Epoch epoch = rig.member(1).lineage().epoch;
  const auto promoted = promote(rig, 2, seconds(4));
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  REQUIRE_FALSE(promoted->value());
  CHECK(promoted->value().error() == ReactorErrc::deadline_exceeded);
  CHECK(promoted->value().error().message().find("lease") != std::string::npos);
  // Expect: nobody was disturbed by it.
  CHECK(rig.whole());
  CHECK(rig.primary() == 1);
  CHECK(rig.member(1).lineage().epoch == epoch);
  CHECK(rig.member(2).role() == MemberRole::following);
}

TEST_CASE("a primary that stands still is replaced once its leases have ended, and then follows") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  put_and_commit(rig, 1, "a");
  rig.freeze(1, true);
  REQUIRE(rig.member(2).role() == MemberRole::following);
  const auto promoted = promote(rig, 2);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK(promoted->value());
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(2).primary().nodes() == 1; }));
  put_and_commit(rig, 2, "b");
  rig.freeze(1, false);
  CHECK_FALSE(rig.member(1).primary().lease_held());
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  CHECK(rig.primary() == 2);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.table(1).map == rig.table(2).map; }));
}

TEST_CASE("with too few nodes left it takes force to lead, and a smaller c to write") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const Lsn lsn = put_and_commit(rig, 1, "a");
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(2).log().last_lsn() == lsn; }));
  rig.kill(1);
  rig.kill(3);
  const auto lead = [&](const PromoteOptions& options, Duration limit) {
    const auto promoted = promote(rig, 2, limit, options);
    REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
    return **promoted;
  };
  CHECK_FALSE(lead({}, seconds(3)));
  CHECK_FALSE(lead({false, 0}, seconds(3)));  // a smaller c is no promise
  CHECK(lead({true, {}}, kGroupPatience));
  CHECK_FALSE(rig.put(2, "b", "1"));
  const Epoch forced = rig.member(2).lineage().epoch;
  CHECK(lead({true, 0}, kGroupPatience));
  CHECK(rig.member(2).lineage().epoch > forced);
  put_and_commit(rig, 2, "b");
  CHECK(lead({true, 2}, seconds(3)).error().code().value() == EINVAL);
  // Expect: it says so, for each.
  const auto said = [&](const std::string& what) {
    const auto& notes = rig.notes(2);
    return std::any_of(notes.begin(), notes.end(),
                       [&](const std::string& note) { return note.find(what) != std::string::npos; });
  };
  CHECK(said("FORCED to lead"));
  CHECK(said("leads with c = 0 instead of 1"));
  rig.start(1);
  rig.start(3);
  const auto alike = [&] { return rig.table(1).map == rig.table(2).map; };
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole() && alike(); }));
}

TEST_CASE("force does not lead beside a primary of which anybody hears") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const auto promoted = promote(rig, 2, seconds(4), {true, {}});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK_FALSE(promoted->value());
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  CHECK(rig.primary() == 1);
}

TEST_CASE("two that lead apart, each by its own promise, hear of one another soon after they may") {
  GroupRig rig({2, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  rig.cut(1, 2, true);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(2).role() == MemberRole::none; }));
  const auto promoted = promote(rig, 2);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK(promoted->value());
  CHECK(rig.member(1).role() == MemberRole::leading);
  rig.pass(seconds(2));
  rig.cut(1, 2, false);
  CHECK(rig.pass_until(seconds(8), [&] { return rig.whole(); }));
}

TEST_CASE("what was not reached by the call's deadline does not come true later") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  PromoteOptions options;
  SUBCASE("") {}
  SUBCASE("forced") { options.force = true; }
  const auto promoted = promote(rig, 2, seconds(2), options);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK_FALSE(promoted->value());
  rig.freeze(1, true);
  rig.pass(seconds(5));
  CHECK(rig.member(2).role() != MemberRole::leading);
  rig.freeze(1, false);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
}

TEST_CASE("who is told to lead while it still follows keeps what it acknowledges meanwhile") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  put_and_commit(rig, 1, "a");
  const auto promoted = promote(rig, 2);
  rig.pass(milliseconds(200));
  REQUIRE_FALSE(promoted->has_value());
  const Lsn all_have = put_and_commit(rig, 1, "b");
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(3).log().last_lsn() == all_have; }));
  // Node 3 lags: what follows is committed by node 2 alone.
  rig.cut(1, 3, true);
  const auto lsn = rig.put(1, "c", "of c");
  REQUIRE(lsn);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(1).log().commit_lsn() == *lsn; }));
  REQUIRE(rig.member(3).log().last_lsn() == all_have);
  rig.kill(1);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK(promoted->value());
  CHECK(rig.table(2).map["c"].value == "of c");
}

TEST_CASE("a primary hands over to one of the others, and nothing that was written is lost") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const Epoch before = rig.member(1).lineage().epoch;
  for (int i = 0; i < 20; ++i) REQUIRE(rig.put(1, "a" + std::to_string(i), "b"));
  const auto outcome = std::make_shared<std::optional<Status>>();
  GroupNode& node = rig.node(1);
  const Instant deadline = rig.reactor(1).now() + kGroupPatience;
  REQUIRE(rig.reactor(1).spawn_detached(
      "switch over", [outcome, &node, deadline] { *outcome = node.switch_over(3, deadline); }));
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return outcome->has_value(); }));
  CHECK(outcome->value());
  CHECK(rig.primary() == 3);
  CHECK(rig.member(3).lineage().epoch > before);
  CHECK(rig.table(3).map.size() == 20);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole() && rig.table(1).map == rig.table(3).map; }));
  put_and_commit(rig, 3, "c");
}

TEST_CASE("who came by its memory without ever following learns by which seed keys are spread") {
  GroupRig rig({3, 1});
  rig.cut(1, 3, true);
  // Node 1 cannot found without node 3, so it hears of it until the history has begun, and no longer.
  rig.cut(1, 3, false);
  REQUIRE(rig.pass_until(kGroupPatience, [&] {
    if (rig.member(1).role() == MemberRole::leading) rig.cut(1, 3, true);
    return rig.primary() == 1;
  }));
  rig.cut(1, 3, true);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(1).primary().nodes() == 1; }));
  put_and_commit(rig, 1, "a");
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.member(3).membership().memory(); }));
  const std::uint64_t seed = rig.member(1).lineage().routing_seed;
  rig.kill(1);
  const auto promoted = promote(rig, 3);
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
  CHECK(promoted->value());
  CHECK(rig.member(3).lineage().routing_seed == seed);
  CHECK(rig.table(3).map["a"].value == "of a");
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.member(3).primary().nodes() == 1; }));
}

TEST_CASE("a c that was lowered can be raised again while all is well") {
  GroupRig rig({3, 1});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  put_and_commit(rig, 1, "a");
  for (const std::uint32_t c : {0U, 1U}) {
    PromoteOptions options;
    options.c = c;
    const auto promoted = promote(rig, 1, kGroupPatience, options);
    REQUIRE(rig.pass_until(kGroupPatience, [&] { return promoted->has_value(); }));
    CHECK(promoted->value());
    CHECK(rig.member(1).primary().options().c == c);
    CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
    CHECK(rig.primary() == 1);
    put_and_commit(rig, 1, "b");
  }
}

TEST_CASE("nodes that stand by themselves need nobody to tell them") {
  GroupRig rig({3, 1, true});
  REQUIRE(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  put_and_commit(rig, 1, "a");
  rig.kill(1);
  CHECK(rig.pass_until(kGroupPatience, [&] { return rig.whole(); }));
  const std::uint32_t leader = rig.primary();
  CHECK(leader != 0);
  CHECK(rig.table(leader).map["a"].value == "of a");
}

TEST_CASE(
    "whatever happens to a group, nothing that is committed is lost, and left in peace it becomes whole") {
  GroupRig::Shape shape;
  SUBCASE("three, c = 1") {}
  SUBCASE("three, c = 1, they stand by themselves") { shape.stands = true; }
  SUBCASE("three, c = 2") { shape.c = 2; }
  SUBCASE("two, c = 1") { shape.nodes = 2; }
  SUBCASE("four, c = 2") {
    shape.nodes = 4;
    shape.c = 2;
    shape.stands = true;
  }
  std::uint64_t commits = 0, leads = 0, kills = 0;
  for (std::uint64_t seed = 1; seed <= kStorms; ++seed) {
    CAPTURE(seed);
    GroupStorm storm(shape, seed);
    storm.run();
    commits += storm.commits;
    leads += storm.leads;
    kills += storm.kills;
  }
  // Else nothing was shown.
  CHECK(commits > 8 * kStorms);
  CHECK(leads > kStorms);
  CHECK(kills > 0);
}

TEST_SUITE_END();
