/// Nodes of a group, joined by loopback links: each is a Member with a clock of its own. Who dials whom is
/// the test's.
/// Thread:   one
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/member.h>

#include "loopback_link.h"
#include "reactor/null_io.h"
#include "shadow_applier.h"

namespace tidelock::test {

inline constexpr HistoryId kGroupHistory{0x6a0b};
inline constexpr std::uint64_t kGroupSeed = 77;

struct MemberNode final : MemberWatcher {
  MemberNode(std::uint32_t number, const GroupOptions& group) {
    MemberOptions options;
    options.group = group;
    options.group.node = number;
    options.log_bytes = 64 * 1024;
    options.routing_seed = kGroupSeed;
    auto made = Member::create(*side.reactor, side.clock, {table, &table, &source}, options);
    REQUIRE(made);
    member = *std::move(made);
    member->watch(this);
  }
  void role_changed(MemberRole, const std::string& why) override { roles.push_back(why); }
  void promise_given(std::uint32_t to, Epoch epoch) override { given.emplace_back(to, epoch); }
  void promise_void(std::uint32_t to, Epoch epoch, const std::string&) override {
    given_in_vain.emplace_back(to, epoch);
  }
  void asked_to_lead() override { ++asked; }
  void fetched() override { ++fetches; }
  void fetch_failed(const std::string& why) override { roles.push_back(why); }
  void link_lost(std::uint32_t other, const std::string&) override { lost.push_back(other); }

  using Promised = std::vector<std::pair<std::uint32_t, Epoch>>;
  Rig side;
  ShadowApplier table;
  ShadowSource source{table};
  std::unique_ptr<Member> member;
  std::vector<std::string> roles;
  Promised given, given_in_vain;
  int asked = 0;
  int fetches = 0;
  std::vector<std::uint32_t> lost;
};

struct MemberRig {
  explicit MemberRig(std::uint32_t count, std::uint32_t c) {
    GroupOptions group;
    for (std::uint32_t i = 1; i <= count; ++i) group.nodes.push_back(i);
    group.c = c;
    group.group_bytes_max = 16 * 1024;
    for (std::uint32_t i = 1; i <= count; ++i) nodes.push_back(std::make_unique<MemberNode>(i, group));
    pass(group.lease);
  }
  ~MemberRig() {
    for (const auto& node : nodes) node->member->close("the test is over");
    turns(3);
    for (const auto& node : nodes) node->side.end();
    for (const auto& node : nodes) node->member.reset();
  }
  /// It comes back with nothing. A lease passes.
  void restart(std::uint32_t number) {
    MemberNode& old = node(number);
    const GroupOptions group = old.member->membership().options();
    old.member->close("it is started anew");
    turns(3);
    old.side.end();
    old.member.reset();
    nodes[number - 1] = std::make_unique<MemberNode>(number, group);
    pass(group.lease);
  }
  MemberNode& node(std::uint32_t number) { return *nodes[number - 1]; }
  Member& member(std::uint32_t number) { return *node(number).member; }
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      for (const auto& each : nodes) each->side.reactor->turn();
    }
  }
  void pass(Duration span) {
    for (const auto& each : nodes) each->side.clock.advance(span);
  }
  /// Whoever leads has heard nobody for long enough, and no lease of it runs any more. No link has noticed.
  void leases_end() { pass(seconds(6)); }
  void heartbeat() {
    pass(milliseconds(60));
    turns(3);
  }

  /// What the other end says; if that makes a link, its ends. The dialing one is for the caller.
  std::optional<Refusal> dial(std::uint32_t from, std::uint32_t to, const Hello& hello) {
    const Verdict verdict = member(to).judge(hello);
    if (const auto* refusal = std::get_if<Refusal>(&verdict)) return *refusal;
    answer = std::get<Hello>(verdict);
    wire = std::make_shared<LoopbackWire>(FrameContext{answer.history, answer.generation, ShardId{}},
                                          LoopbackOptions{});
    const bool candidate = hello.role == NodeRole::candidate;
    const auto end = [&](std::uint32_t whose, bool sends) {
      return std::make_unique<LoopbackLink>(wire, sends ? NodeRole::primary : NodeRole::replica,
                                            node(whose).side.clock);
    };
    near = end(from, candidate);
    attached = member(to).attach(end(to, !candidate), hello, answer);
    return std::nullopt;
  }
  Status follow(std::uint32_t from, std::uint32_t to) {
    const Said says = member(from).hello();
    if (const auto refusal = dial(from, to, says)) return Error(ReplicationErrc::refused, describe(*refusal));
    REQUIRE(attached);
    const Status followed = member(from).follow({std::move(near), answer}, says);
    turns(3);
    return followed;
  }
  /// Of a dial() with its own hello that the test has done.
  Status follow_on(std::uint32_t from) {
    return member(from).follow({std::move(near), answer}, member(from).hello());
  }
  Hello candidate(std::uint32_t number, bool founding) {
    const Lineage line = member(number).lineage();
    HelloFlags flags;
    flags.promise = true;
    flags.founding = founding;
    return member(number).candidate_hello(line.epoch, founding ? kGroupHistory : line.history, flags);
  }
  /// A promise of `giver`, confirmed by the echo of a stamp.
  void promise(std::uint32_t number, std::uint32_t giver, bool founding) {
    const Hello asks = candidate(number, founding);
    REQUIRE_FALSE(dial(number, giver, asks));
    REQUIRE(attached);
    CHECK(answer.flags.promise);
    CHECK(answer.flags.founding == founding);
    ControlFrame stamp;
    stamp.history = asks.history;
    stamp.epoch = asks.epoch;
    stamp.set_stamp(17);
    REQUIRE(near->send_control(stamp));
    turns(2);
    const auto echoed = near->receive_control();
    REQUIRE(echoed);
    CHECK(echoed->echo() == 17);
    near->close("it has it");
    turns(1);
  }
  Status lead(std::uint32_t number, std::uint32_t c) {
    return member(number).lead(member(number).lineage().epoch, c);
  }
  /// Node 1 begins the history, the others promise.
  void found(std::uint32_t c) {
    REQUIRE_FALSE(member(1).found(kGroupHistory, 0));
    for (std::uint32_t other = 2; other <= nodes.size(); ++other) promise(1, other, true);
    REQUIRE(lead(1, c));
  }
  Lsn put(std::uint32_t number, const std::string& key, const std::string& value) {
    const auto lsn = member(number).primary().try_append(EntryKind::put, as_bytes(key), as_bytes(value));
    REQUIRE(lsn);
    node(number).table.map[key] = {value, lsn->value};
    return *lsn;
  }
  Error put_fails(std::uint32_t number) {
    const auto lsn = member(number).primary().try_append(EntryKind::put, as_bytes("x"), as_bytes("y"));
    REQUIRE_FALSE(lsn);
    return lsn.error();
  }
  Lsn committed(std::uint32_t number) { return member(number).log().commit_lsn(); }

  std::vector<std::unique_ptr<MemberNode>> nodes;
  std::shared_ptr<LoopbackWire> wire;
  std::unique_ptr<Link> near;
  Hello answer;
  Status attached;
};

/// Two nodes, c = 1: node 1 leads, node 2 follows it.
struct TwoMembers : MemberRig {
  TwoMembers() : MemberRig(2, 1) {
    found(1);
    REQUIRE(follow(2, 1));
    heartbeat();
  }
};

}  // namespace tidelock::test
