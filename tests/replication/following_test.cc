#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/sync.h>
#include <tidelock/replication/admission.h>
#include <tidelock/replication/following.h>

#include "has.h"
#include "stream_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// Dials the rig's primary through its door, as far as the test lets it.
class RigDialer final : public Dialer {
 public:
  explicit RigDialer(StreamRig& rig)
      : door(*rig.primary_side.reactor, *rig.primary, {4 << 20, kValueBytesMax}), rig_(rig) {}

  Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline,
                             std::optional<Refusal>*) override {
    CHECK(address == "there");
    hellos.push_back(ours);
    dialed_at.push_back(rig_.replica_side.clock.now());
    if (hold) {
      const Wakeup wakeup = released.wait(deadline);
      if (wakeup != Wakeup::notified) return to_status(wakeup).error();
    }
    if (rig_.replica_side.clock.now() >= deadline) return Error(ReactorErrc::deadline_exceeded, "too late");
    if (failure) return *failure;
    const Verdict verdict = door.judge(ours);
    if (const auto* const refusal = std::get_if<Refusal>(&verdict)) {
      return Error(ReplicationErrc::refused, describe(*refusal));
    }
    Hello theirs = std::get<Hello>(verdict);
    rig_.wire = std::make_shared<LoopbackWire>(FrameContext{kHistory, theirs.generation, ShardId{}},
                                               LoopbackOptions{});
    if (attaches) {
      CHECK(door.attach(std::make_unique<LoopbackLink>(rig_.wire, NodeRole::primary, rig_.primary_side.clock),
                        ours, theirs));
    }
    if (change_answer) change_answer(theirs);
    return ConnectedPeer{
        std::make_unique<LoopbackLink>(rig_.wire, NodeRole::replica, rig_.replica_side.clock), theirs};
  }

  Admission door;
  std::vector<Hello> hellos;
  std::vector<Instant> dialed_at;
  bool hold = false;
  Condition released;
  bool attaches = true;  ///< else the primary accepts, and does not come to take the link
  std::optional<Error> failure;
  std::function<void(Hello&)> change_answer;

 private:
  StreamRig& rig_;
};

struct Diary final : FollowingObserver {
  void follows(const Lineage& lineage) override { lineages.push_back(lineage); }
  void attached(const Hello&, const Link&) override { lines.emplace_back("attached"); }
  void lost(const std::string&, AfterLoss next) override {
    lines.emplace_back(next == AfterLoss::again   ? "lost, again"
                       : next == AfterLoss::never ? "lost, never"
                                                  : "lost, ending");
  }
  void failed(const std::string& why) override { lines.push_back("failed: " + why); }
  void given_up(const std::string& why) override { lines.push_back("given up: " + why); }

  std::vector<std::string> lines;
  std::vector<Lineage> lineages;
};

struct FollowingRig {
  explicit FollowingRig(FollowingOptions options = {}) {
    options.primary = "there";
    options.node = 7;
    following = std::make_unique<Following>(*rig.replica_side.reactor, *rig.replica, dialer, diary, options);
  }
  ~FollowingRig() {
    following->stop();
    rig.turns(3);
    CHECK(following->stopped());
    following.reset();
  }

  /// Runs start() in a fiber for at most `patience`, and returns how it ended.
  std::optional<Status> start(Duration patience, const Lineage& known = {}) {
    std::optional<Status> outcome;
    REQUIRE(rig.replica_side.reactor->spawn_detached(
        "start", [&] { outcome = following->start(known, rig.in(patience)); }));
    for (int i = 0; i < 100'000 && !outcome; ++i) rig.run_for(milliseconds(1), milliseconds(1));
    return outcome;
  }
  void lose_link() {
    rig.wire->closed_by_primary = "the test cut it";
    rig.wire->primary_closed = true;
  }
  [[nodiscard]] long count(const std::string& line) const {
    return std::count(diary.lines.begin(), diary.lines.end(), line);
  }

  StreamRig rig;
  RigDialer dialer{rig};
  Diary diary;
  std::unique_ptr<Following> following;
};

}  // namespace

TEST_CASE("following: it dials, follows, and follows again from where it stood") {
  FollowingRig f;
  const auto started = f.start(seconds(5));
  REQUIRE((started && *started));
  CHECK(f.dialer.hellos.front().history == HistoryId{});
  CHECK(f.dialer.hellos.front().node == 7);
  CHECK(f.following->lineage().history == kHistory);
  CHECK(f.following->lineage().epoch == kEpoch);
  REQUIRE(f.diary.lineages.size() == 1);
  f.rig.put("a", "1");
  f.rig.put("b", "2");
  f.rig.settle();
  f.lose_link();
  f.rig.run_for(seconds(1));
  CHECK(f.diary.lines == std::vector<std::string>{"attached", "lost, again", "attached"});
  REQUIRE(f.dialer.hellos.size() == 2);
  CHECK(f.dialer.hellos.back().history == kHistory);
  CHECK(f.dialer.hellos.back().epoch == kEpoch);
  CHECK(f.dialer.hellos.back().last_lsn == Lsn{2});
  f.rig.put("a", "3");
  f.rig.settle();
  CHECK(f.rig.applier.map == std::map<std::string, std::string>{{"a", "3"}, {"b", "2"}});
}

TEST_CASE("following: start() tries until its deadline, then names the address and the last error") {
  FollowingRig f;
  f.dialer.failure = Error(ReplicationErrc::peer_busy, "not now");
  const auto started = f.start(seconds(3));
  REQUIRE((started && !*started));
  CHECK(started->error() == ReplicationErrc::peer_busy);
  CHECK(has(started->error().message(), "cannot follow the primary at there: not now"));
  CHECK(f.dialer.hellos.size() >= 5);
  CHECK(f.following->stopped());
}

TEST_CASE("following: a refusal ends start() at once") {
  FollowingRig f;
  const auto started = f.start(seconds(3), {HistoryId{99}, 0, Epoch{1, 1}});
  REQUIRE((started && !*started));
  CHECK(started->error() == ReplicationErrc::refused);
  CHECK(f.dialer.hellos.size() == 1);
}

TEST_CASE("following: a primary that accepts and does not come to count this replica is not followed") {
  FollowingRig f;
  f.dialer.attaches = false;
  const auto started = f.start(seconds(1));
  REQUIRE((started && !*started));
  CHECK(started->error() == ReactorErrc::deadline_exceeded);
  CHECK(has(started->error().message(), "did not come to count it"));
}

TEST_CASE("following: a link that is dropped before this replica counts is none") {
  FollowingOptions options;
  options.reconnect = false;
  FollowingRig f(options);
  int dropped = 0;
  int drops = 1'000;
  f.dialer.change_answer = [&](Hello&) {
    if (dropped < drops) f.lose_link();
    ++dropped;
  };
  SUBCASE("start() does not take it for success") {
    const auto started = f.start(seconds(1));
    REQUIRE((started && !*started));
    CHECK(has(started->error(), "the primary took the link and dropped it: "));
  }
  SUBCASE("start() goes on until one counts") {
    drops = 3;
    const auto started = f.start(seconds(5));
    REQUIRE((started && *started));
    CHECK(dropped == 4);
    f.rig.put("a", "1");
    f.rig.settle();
    CHECK(f.rig.applier.map.at("a") == "1");
  }
}

TEST_CASE("following: a fiber that somebody cancelled is no secret") {
  FollowingRig f;
  REQUIRE(*f.start(seconds(5)));
  f.rig.replica_side.reactor->cancel_all();
  f.rig.turns(3);
  CHECK(f.following->stopped());
  CHECK(f.diary.lines.back() == "given up: its fiber was cancelled");
}

TEST_CASE("following: links that are of no use are asked for ever less often, up to every two seconds") {
  FollowingRig f;
  REQUIRE(*f.start(seconds(5)));
  const auto gap_of_next = [&] {
    const std::size_t dials = f.dialer.dialed_at.size();
    const Instant lost_at = f.rig.replica_side.clock.now();
    f.lose_link();
    while (f.dialer.dialed_at.size() == dials) f.rig.run_for(milliseconds(1), milliseconds(1));
    f.rig.run_for(milliseconds(2), milliseconds(1));
    return f.dialer.dialed_at.back() - lost_at;
  };
  for (int i = 0; i < 8; ++i) {
    const Duration whole = std::min(seconds(2), milliseconds(50) * (std::int64_t{1} << (i + 1)));
    const Duration gap = gap_of_next();
    CHECK(gap >= Duration{whole.ns / 2});
    CHECK(gap <= whole + milliseconds(3));
  }
  f.rig.put("k", "v");
  f.rig.settle();
  CHECK(gap_of_next() <= milliseconds(53));
}

TEST_CASE("following: what keeps it from coming back is told once for each cause") {
  FollowingRig f;
  REQUIRE(*f.start(seconds(5)));
  f.dialer.failure = Error(ReplicationErrc::peer_busy, "not within 4,000 ms");
  f.lose_link();
  f.rig.run_for(seconds(5));
  f.dialer.failure = Error(ReplicationErrc::peer_busy, "not within 3,000 ms");
  f.rig.run_for(seconds(5));
  const auto dials = f.dialer.hellos.size();
  CHECK(dials >= 5);
  CHECK(f.diary.lines.size() == 3);
  CHECK(has(f.diary.lines.back(), "failed: not within 4,000 ms"));
  f.dialer.failure = Error(ReactorErrc::deadline_exceeded, "no answer");
  f.rig.run_for(seconds(10));
  CHECK(f.diary.lines.size() == 4);
  CHECK(has(f.diary.lines.back(), "failed: no answer"));
  f.dialer.failure.reset();
  f.rig.run_for(seconds(3));
  CHECK(f.diary.lines.back() == "attached");
}

TEST_CASE("following: what will not change by itself is given up, and what is here stays") {
  FollowingRig f;
  REQUIRE(*f.start(seconds(5)));
  f.rig.put("k", "v");
  f.rig.settle();
  SUBCASE("refused") { f.dialer.failure = Error(ReplicationErrc::refused, "never"); }
  SUBCASE("another history") {
    f.dialer.change_answer = [](Hello& theirs) { theirs.history = HistoryId{5}; };
  }
  SUBCASE("another routing seed") {
    f.dialer.change_answer = [](Hello& theirs) { ++theirs.routing_seed; };
  }
  SUBCASE("an older epoch") {
    f.dialer.change_answer = [](Hello& theirs) { theirs.epoch = {2, 9}; };
  }
  SUBCASE("another shard") {
    f.dialer.change_answer = [](Hello& theirs) { theirs.shard = ShardId{3}; };
  }
  SUBCASE("another count of shards") {
    f.dialer.change_answer = [](Hello& theirs) { theirs.shard_count = 2; };
  }
  SUBCASE("no primary") {
    f.dialer.change_answer = [](Hello& theirs) { theirs.role = NodeRole::replica; };
  }
  f.lose_link();
  f.rig.run_for(seconds(10));
  CHECK(f.dialer.hellos.size() == 2);
  CHECK(has(f.diary.lines.back(), "given up: "));
  CHECK(f.following->lineage().history == kHistory);
  CHECK(f.rig.applier.map.at("k") == "v");
}

TEST_CASE("following: a newer epoch of its history is taken, and told before the link brings anything") {
  FollowingRig f;
  REQUIRE(*f.start(seconds(5)));
  f.dialer.change_answer = [](Hello& theirs) { theirs.epoch = {4, 2}; };
  f.lose_link();
  f.rig.run_for(milliseconds(200));
  CHECK(f.following->lineage().epoch == Epoch{4, 2});
  REQUIRE(f.diary.lineages.size() == 2);
  CHECK(f.diary.lineages.back().epoch == Epoch{4, 2});
  CHECK(f.rig.replica->epoch() == Epoch{4, 2});
}

TEST_CASE("following: without reconnect a lost link is the end") {
  FollowingOptions options;
  options.reconnect = false;
  FollowingRig f(options);
  REQUIRE(*f.start(seconds(5)));
  f.lose_link();
  f.rig.run_for(seconds(10));
  CHECK(f.diary.lines == std::vector<std::string>{"attached", "lost, never"});
  CHECK(f.dialer.hellos.size() == 1);
}

TEST_CASE("following: stop() ends it in a turn, whatever it waits for") {
  FollowingRig f;
  SUBCASE("the first attempt") {
    f.dialer.hold = true;
    std::optional<Status> outcome;
    auto fiber = f.rig.replica_side.reactor->spawn(
        "start", [&] { outcome = f.following->start({}, f.rig.in(seconds(60))); });
    REQUIRE(fiber);
    f.rig.turns(2);
    REQUIRE(f.dialer.hellos.size() == 1);
    CHECK_FALSE(f.following->stopped());
    f.following->stop();
    f.dialer.failure = Error(ReactorErrc::closed, "the dialer has ended");
    f.dialer.released.notify_all();
    f.rig.turns(3);
    CHECK((outcome && !*outcome));
  }
  SUBCASE("a link to be lost") { REQUIRE(*f.start(seconds(5))); }
  SUBCASE("the next attempt") {
    REQUIRE(*f.start(seconds(5)));
    f.dialer.failure = Error(ReplicationErrc::peer_busy, "not now");
    f.lose_link();
    f.rig.run_for(seconds(2));
  }
  SUBCASE("an answer") {
    REQUIRE(*f.start(seconds(5)));
    f.dialer.hold = true;
    f.lose_link();
    f.rig.run_for(seconds(1));
    CHECK(f.dialer.hellos.size() == 2);
  }
  f.following->stop();
  f.rig.turns(3);
  CHECK(f.following->stopped());
  const auto dials = f.dialer.hellos.size();
  f.rig.run_for(seconds(5));
  CHECK(f.dialer.hellos.size() == dials);
}

// ---- the door -------------------------------------------------------------------------------------------

namespace {

Hello replica_hello() {
  Hello hello;
  hello.node = 2;
  hello.shard_count = 1;
  return hello;
}

RefusalReason reason_of(const Verdict& verdict) {
  const auto* const refusal = std::get_if<Refusal>(&verdict);
  return refusal == nullptr ? RefusalReason::none : refusal->reason;
}

}  // namespace

TEST_CASE("admission: what a replica says is held against what this primary is") {
  StreamRig rig;
  Admission door(*rig.primary_side.reactor, *rig.primary, {4 << 20, 1000});
  rig.put("a", "1");
  Hello hello = replica_hello();
  SUBCASE("welcome") {
    const Verdict verdict = door.judge(hello);
    REQUIRE(std::holds_alternative<Hello>(verdict));
    const Hello& ours = std::get<Hello>(verdict);
    CHECK(ours.role == NodeRole::primary);
    CHECK(ours.history == kHistory);
    CHECK(ours.epoch == kEpoch);
    CHECK(ours.last_lsn == Lsn{1});
    CHECK(ours.first_lsn == Lsn{1});
    CHECK(ours.ring_bytes == 4 << 20);
    CHECK(std::get<Hello>(door.judge(hello)).generation != ours.generation);
  }
  SUBCASE("versions") {
    hello.version_min = hello.version_max = 9;
    CHECK(reason_of(door.judge(hello)) == RefusalReason::version);
  }
  SUBCASE("role") {
    hello.role = NodeRole::primary;
    CHECK(reason_of(door.judge(hello)) == RefusalReason::role);
  }
  SUBCASE("shard count") {
    hello.shard_count = 2;
    CHECK(reason_of(door.judge(hello)) == RefusalReason::shard_count);
  }
  SUBCASE("shard") {
    hello.shard = ShardId{1};
    CHECK(reason_of(door.judge(hello)) == RefusalReason::malformed);
  }
  SUBCASE("another history") {
    hello.history = HistoryId{5};
    CHECK(reason_of(door.judge(hello)) == RefusalReason::history);
  }
  SUBCASE("LSNs of no history") {
    hello.last_lsn = Lsn{1};
    CHECK(reason_of(door.judge(hello)) == RefusalReason::history);
  }
  SUBCASE("a later epoch") {
    hello.history = kHistory;
    hello.epoch = {4, 2};
    CHECK(reason_of(door.judge(hello)) == RefusalReason::epoch);
  }
  SUBCASE("keys too small") {
    hello.key_bytes_max = 100;
    CHECK(reason_of(door.judge(hello)) == RefusalReason::limits);
  }
  SUBCASE("values too small") {
    hello.value_bytes_max = 999;
    CHECK(reason_of(door.judge(hello)) == RefusalReason::limits);
  }
  SUBCASE("ahead of its primary") {
    hello.history = kHistory;
    hello.last_lsn = Lsn{2};
    CHECK(reason_of(door.judge(hello)) == RefusalReason::malformed);
  }
}

TEST_CASE("admission: a verdict that no longer holds when the link comes is not acted on") {
  StreamRig rig(small_log());
  Admission door(*rig.primary_side.reactor, *rig.primary, {4 << 20, kValueBytesMax});
  const Hello theirs = replica_hello();
  const Verdict verdict = door.judge(theirs);
  REQUIRE(std::holds_alternative<Hello>(verdict));
  // Nobody else holds the log back, so meanwhile it goes on without the newcomer.
  const std::string value(1000, 'v');
  for (int i = 0; i < 200; ++i) rig.put("key", value);
  REQUIRE(reason_of(door.judge(theirs)) == RefusalReason::behind_log);
  rig.wire =
      std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{1}, ShardId{}}, LoopbackOptions{});
  const Status attached =
      door.attach(std::make_unique<LoopbackLink>(rig.wire, NodeRole::primary, rig.primary_side.clock), theirs,
                  std::get<Hello>(verdict));
  REQUIRE_FALSE(attached);
  CHECK(attached.error() == ReplicationErrc::refused);
  CHECK(rig.primary->replicas() == 0);
  CHECK(rig.wire->primary_closed);
}

namespace {

/// A table that is never looked into.
struct NoRecords final : SnapshotSource {
  std::uint64_t walk(std::uint64_t, std::size_t, Visit, void*) const override { return 0; }
  bool find(Bytes, Record&) const override { return false; }
};

}  // namespace

TEST_CASE("admission: who was told of a stream gets no snapshot, and dials again") {
  NoRecords records;
  PrimaryOptions options = small_log();
  options.snapshots = &records;
  StreamRig rig(options);
  Admission door(*rig.primary_side.reactor, *rig.primary, {4 << 20, kValueBytesMax});
  Hello theirs = replica_hello();
  theirs.flags.snapshot = true;
  const Verdict verdict = door.judge(theirs);
  REQUIRE(std::holds_alternative<Hello>(verdict));
  CHECK_FALSE(std::get<Hello>(verdict).flags.snapshot);
  const std::string value(1000, 'v');
  for (int i = 0; i < 200; ++i) rig.put("key", value);
  const Verdict later = door.judge(theirs);
  REQUIRE(std::holds_alternative<Hello>(later));
  CHECK(std::get<Hello>(later).flags.snapshot);
  rig.wire =
      std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{1}, ShardId{}}, LoopbackOptions{});
  const Status attached =
      door.attach(std::make_unique<LoopbackLink>(rig.wire, NodeRole::primary, rig.primary_side.clock), theirs,
                  std::get<Hello>(verdict));
  REQUIRE_FALSE(attached);
  CHECK(attached.error() == ReplicationErrc::peer_busy);
  CHECK(rig.wire->primary_closed);
}

TEST_CASE("admission: the primary's own number is no replica's") {
  PrimaryOptions options = small_log();
  options.node = 2;
  StreamRig rig(options);
  Admission door(*rig.primary_side.reactor, *rig.primary, {4 << 20, kValueBytesMax});
  const Verdict verdict = door.judge(replica_hello());
  REQUIRE(reason_of(verdict) == RefusalReason::node);
  CHECK(has(describe(std::get<Refusal>(verdict)), "give each node a number of its own"));
}

namespace {

/// A node that has a link already, and whoever says hello by its number.
struct ClaimRig {
  explicit ClaimRig(std::optional<std::uint32_t> c) : rig(small_log(c)) {}
  Refusal ask() {
    const Verdict verdict = door.judge(replica_hello());
    return std::holds_alternative<Refusal>(verdict) ? std::get<Refusal>(verdict) : Refusal{};
  }
  void pass(Duration span, bool speaks) {
    for (Duration passed{}; passed < span; passed = passed + milliseconds(20)) {
      rig.advance(milliseconds(20));
      if (speaks) REQUIRE(far->send_control(acknowledgement(0, 0)));
      rig.turns(1);
    }
  }
  StreamRig rig;
  Admission door{*rig.primary_side.reactor, *rig.primary, {4 << 20, kValueBytesMax}};
  std::unique_ptr<LoopbackLink> far = rig.connect_by_hand({}, {}, 2);
};

}  // namespace

TEST_CASE("admission: two nodes by one number: the second is refused for as long as the first is there") {
  std::optional<std::uint32_t> c;
  SUBCASE("without c") {}
  SUBCASE("with c") { c = 1; }
  ClaimRig f(c);
  f.pass(milliseconds(100), true);
  for (int round = 0; round < 3; ++round) {
    // 1. Not known yet. Expect: to come again.
    const Refusal first = f.ask();
    CHECK(first.reason == RefusalReason::busy);
    CHECK(first.ours > 0);
    CHECK(first.ours <= 200);
    // 2. The first goes on speaking.
    f.pass(milliseconds(300), true);
    const Refusal second = f.ask();
    CHECK(second.reason == RefusalReason::busy);
    CHECK(second.ours == 0);
    CHECK(has(describe(second), "give each node a number of its own"));
  }
  CHECK(f.rig.primary_lost.empty());
  CHECK(f.rig.primary->nodes() == 1);
}

TEST_CASE("admission: a node that was started anew waits for its old link no longer than two heartbeats") {
  std::optional<std::uint32_t> c;
  SUBCASE("without c") {}
  SUBCASE("with c") { c = 1; }
  ClaimRig f(c);
  f.pass(milliseconds(100), true);
  // A last word that was under way when it died is no sign of life.
  REQUIRE(f.far->send_control(acknowledgement(0, 0)));
  const Refusal first = f.ask();
  CHECK(first.reason == RefusalReason::busy);
  REQUIRE(first.ours > 0);
  f.pass(milliseconds(100), false);
  CHECK(f.ask().reason == RefusalReason::busy);
  f.pass(milliseconds(100), false);
  CHECK(f.ask().reason == RefusalReason::none);
  REQUIRE(f.rig.primary_lost.size() == 1);
  CHECK(has(f.rig.primary_lost[0], "its node asks for another link"));
  CHECK(f.rig.primary->nodes() == 0);
  const auto again = f.rig.connect_by_hand({}, {}, 2);
  CHECK(f.rig.primary->nodes() == 1);
}
