/// Whole nodes of a group on one thread, joined by loopback links: each has a reactor and a clock, and its
/// GroupNode's fibers dial. Hellos and answers take a turn each; nodes end and start anew, links are cut.
/// Thread:   one
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/group_node.h>

#include "loopback_link.h"
#include "reactor/null_io.h"
#include "shadow_applier.h"

namespace tidelock::test {

class GroupRig {
 public:
  struct Shape {
    std::uint32_t nodes = 3;
    std::uint32_t c = 1;
    bool stands = false;
    std::uint64_t seed = 1;
  };
  explicit GroupRig(const Shape& shape) : shape_(shape), cut_(shape.nodes + 1), nodes_(shape.nodes) {
    for (std::uint32_t i = 1; i <= shape.nodes; ++i) start(i);
  }
  ~GroupRig() {
    for (std::uint32_t i = 1; i <= shape_.nodes; ++i) kill(i);
  }
  GroupRig(const GroupRig&) = delete;
  GroupRig& operator=(const GroupRig&) = delete;

  [[nodiscard]] bool up(std::uint32_t i) const { return nodes_[i - 1] != nullptr; }
  GroupNode& node(std::uint32_t i) { return *at(i).node; }
  Member& member(std::uint32_t i) { return at(i).node->member(); }
  ShadowApplier& table(std::uint32_t i) { return at(i).table; }
  std::vector<std::string>& notes(std::uint32_t i) { return at(i).notes; }
  Reactor& reactor(std::uint32_t i) { return *at(i).side.reactor; }

  /// With nothing but its number.
  void start(std::uint32_t i) {
    REQUIRE_FALSE(up(i));
    nodes_[i - 1] = std::make_unique<One>(*this, i);
    nodes_[i - 1]->side.clock.advance_to(now_);
    nodes_[i - 1]->open(shape_, ++lives_);
  }
  /// Its links are gone in that moment, and so is what it had.
  void kill(std::uint32_t i) {
    if (!up(i)) return;
    One& one = at(i);
    for (const Wired& each : wires_) {  // nothing that it says now leaves
      const auto wire = each.wire.lock();
      if (wire && (each.from == i || each.to == i)) wire->primary_closed = wire->replica_closed = true;
    }
    one.frozen = false;
    one.node->stop();
    one.node->member().close("the node was ended");
    for (int turns = 0; turns < 1000 && !(one.node->stopped() && one.node->member().departed()); ++turns)
      one.side.reactor->turn();
    REQUIRE(one.node->stopped());
    std::erase_if(calls_,
                  [&](const std::shared_ptr<Dialing>& call) { return call->from == i || call->to == i; });
    one.side.end();
    one.node.reset();
    nodes_[i - 1].reset();
  }
  /// It stands still; its links live on. Its clock goes on, as if it were stopped by a signal.
  void freeze(std::uint32_t i, bool is) { at(i).frozen = is; }
  [[nodiscard]] bool frozen(std::uint32_t i) const { return up(i) && nodes_[i - 1]->frozen; }
  /// Hellos do not reach the other side, and the links that there are end.
  void cut(std::uint32_t a, std::uint32_t b, bool is) {
    cut_[a][b] = cut_[b][a] = is;
    for (const Wired& each : wires_) {
      const auto wire = each.wire.lock();
      const bool between = (each.from == a && each.to == b) || (each.from == b && each.to == a);
      if (is && between && wire) wire->primary_closed = wire->replica_closed = true;
    }
  }

  void turn() {
    for (int i = 0; i < 2; ++i) {
      for (const auto& one : nodes_) {
        if (one && !one->frozen) one->side.reactor->turn();
      }
      answer_calls();
    }
  }
  void pass(Duration span) {
    for (const Instant until = now_ + span; now_ < until;) {
      now_ = now_ + pace;
      for (const auto& one : nodes_) {
        if (one) one->side.clock.advance_to(now_);
      }
      turn();
      if (watch) watch();
    }
  }
  template <class Predicate>
  bool pass_until(Duration limit, Predicate&& reached) {
    for (const Instant until = now_ + limit; now_ < until; pass(pace)) {
      if (reached()) return true;
    }
    return reached();
  }
  Duration pace = milliseconds(1);
  /// Called after each of these.
  std::function<void()> watch;

  /// The one that leads the newest epoch; 0: none does.
  std::uint32_t primary() {
    std::uint32_t found = 0;
    for (std::uint32_t i = 1; i <= shape_.nodes; ++i) {
      if (!up(i) || member(i).role() != MemberRole::leading) continue;
      if (found == 0 || member(found).lineage().epoch < member(i).lineage().epoch) found = i;
    }
    return found;
  }
  /// One leads, has committed in its epoch, and all others that are up follow it and count.
  bool whole() {
    const std::uint32_t leader = primary();
    if (leader == 0 || member(leader).log().commit_lsn() < member(leader).log().last_lsn()) return false;
    std::size_t others = 0;
    for (std::uint32_t i = 1; i <= shape_.nodes; ++i) others += up(i) ? 1 : 0;
    return member(leader).primary().nodes() + 1 == others;
  }
  /// Empty: refused.
  std::optional<Lsn> put(std::uint32_t i, const std::string& key, const std::string& value) {
    const auto lsn = member(i).primary().try_append(EntryKind::put, as_bytes(key), as_bytes(value));
    if (!lsn) return std::nullopt;
    table(i).map[key] = {value, lsn->value};
    return *lsn;
  }

 private:
  struct Dialing {
    std::uint32_t from = 0, to = 0;
    Hello said;
    std::optional<Result<ConnectedPeer>> outcome;
    std::optional<Refusal> refusal;
    bool given_up = false;
    WaitQueue answered;
  };
  struct One final : Dialer, GroupNodeObserver {
    One(GroupRig& its, std::uint32_t its_number) : rig(its), number(its_number) {}
    void open(const Shape& shape, std::uint64_t life) {
      GroupNodeOptions options;
      options.member.group.node = number;
      for (std::uint32_t i = 1; i <= shape.nodes; ++i) {
        options.member.group.nodes.push_back(i);
        if (i != number) options.peers.push_back({i, std::to_string(i)});
      }
      options.member.group.c = shape.c;
      options.member.group.lease = milliseconds(500);
      options.member.group.group_bytes_max = 16 * 1024;
      options.member.log_bytes = 64 * 1024;
      options.member.heartbeat = milliseconds(20);
      options.member.link_timeout = milliseconds(300);
      options.member.routing_seed = life;
      options.stands = shape.stands;
      auto made =
          GroupNode::create(*side.reactor, side.clock, {table, &table, &source}, *this, *this, options);
      REQUIRE(made);
      node = *std::move(made);
      REQUIRE(node->start());
    }
    Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline,
                               std::optional<Refusal>* refusal) override {
      const auto call = std::make_shared<Dialing>();
      call->from = number;
      call->to = static_cast<std::uint32_t>(std::stoul(address));
      call->said = ours;
      rig.calls_.push_back(call);
      const Wakeup wakeup = call->answered.wait(deadline);
      call->given_up = true;
      if (!call->outcome) return to_status(wakeup).error();
      if (refusal != nullptr) *refusal = call->refusal;
      return *std::move(call->outcome);
    }
    void role_changed(MemberRole, const std::string& why) override { notes.push_back(why); }
    void note(const std::string& what) override { notes.push_back(what); }

    GroupRig& rig;
    std::uint32_t number;
    bool frozen = false;
    ReactorOptions fibers = Rig::small();
    Rig side{fibers};
    ShadowApplier table;
    ShadowSource source{table};
    std::unique_ptr<GroupNode> node;
    std::vector<std::string> notes;
  };

  struct Wired {
    std::uint32_t from = 0, to = 0;
    std::weak_ptr<LoopbackWire> wire;
  };
  One& at(std::uint32_t i) {
    if (!up(i)) FAIL("a node that is down");
    return *nodes_[i - 1];
  }
  /// Outside of all reactors' turns, as if a control thread did it.
  void answer_calls() {
    std::vector<std::shared_ptr<Dialing>> calls = std::exchange(calls_, {});
    for (const auto& call : calls) {
      if (call->given_up) continue;
      if (!up(call->to) || frozen(call->to) || frozen(call->from) || cut_[call->from][call->to]) {
        calls_.push_back(call);  // unheard until its deadline
        continue;
      }
      answer(*call);
      call->answered.notify_all();
    }
  }
  void answer(Dialing& call) {
    const Verdict verdict = member(call.to).judge(call.said);
    if (const auto* const refusal = std::get_if<Refusal>(&verdict)) {
      call.refusal = *refusal;
      call.outcome = to_error(*refusal);
      return;
    }
    const Hello& theirs = std::get<Hello>(verdict);
    const auto wire = std::make_shared<LoopbackWire>(
        FrameContext{theirs.history, theirs.generation, ShardId{}}, LoopbackOptions{});
    std::erase_if(wires_, [](const Wired& each) { return each.wire.expired(); });
    wires_.push_back({call.from, call.to, wire});
    // Whoever has the door sends, if anybody does.
    call.outcome = ConnectedPeer{
        std::make_unique<LoopbackLink>(wire, NodeRole::replica, at(call.from).side.clock), theirs};
    // What fails has closed the link.
    static_cast<void>(member(call.to).attach(
        std::make_unique<LoopbackLink>(wire, NodeRole::primary, at(call.to).side.clock), call.said, theirs));
  }

  Shape shape_;
  Instant now_{};
  std::uint64_t lives_ = 0;
  std::vector<std::array<bool, 10>> cut_;
  std::vector<std::unique_ptr<One>> nodes_;
  std::vector<std::shared_ptr<Dialing>> calls_;
  std::vector<Wired> wires_;
};

}  // namespace tidelock::test
