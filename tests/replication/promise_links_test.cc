// A candidate's ends of the links by which it was promised; the givers' are the test's.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/promise_links.h>

#include "loopback_link.h"
#include "reactor/null_io.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr HistoryId kPromisedHistory{0x9a11};
constexpr Epoch kPromisedEpoch{4, 1};

struct PromiseOwner final : PromiseLinks::Owner {
  void echoed(std::uint32_t node, std::uint64_t round) override { echoes.emplace_back(node, round); }
  void gone(std::uint32_t node, const std::string& reason) override {
    lost.push_back(node);
    why = reason;
  }
  std::vector<std::pair<std::uint32_t, std::uint64_t>> echoes;
  std::vector<std::uint32_t> lost;
  std::string why;
};

struct PromiseRig {
  PromiseRig() : links(std::make_unique<PromiseLinks>(*side.reactor, options(), owner)) {}
  static PromiseLinksOptions options() {
    PromiseLinksOptions chosen;
    chosen.node = kPromisedEpoch.node;
    return chosen;
  }
  Hello promise(std::uint32_t node) const {
    Hello hello;
    hello.role = NodeRole::replica;
    hello.node = node;
    hello.flags.promise = true;
    hello.history = kPromisedHistory;
    hello.epoch = kPromisedEpoch;
    return hello;
  }
  /// The giver's end.
  std::unique_ptr<Link> give(const Hello& hello) {
    const auto wire = std::make_shared<LoopbackWire>(
        FrameContext{kPromisedHistory, Generation{++generation}, ShardId{}}, LoopbackOptions{});
    added = links->add({std::make_unique<LoopbackLink>(wire, NodeRole::primary, side.clock), hello});
    return std::make_unique<LoopbackLink>(wire, NodeRole::replica, side.clock);
  }
  static void echo(Link& giver, std::uint64_t round, Epoch epoch = kPromisedEpoch) {
    ControlFrame frame;
    frame.history = kPromisedHistory;
    frame.epoch = epoch;
    frame.set_echo(round);
    REQUIRE(giver.send_control(frame));
  }
  Rig side;
  PromiseOwner owner;
  std::unique_ptr<PromiseLinks> links;
  Status added;
  std::uint32_t generation = 0;
};

}  // namespace

TEST_CASE("replication/promise_links: stamps leave by the links that are there, and echoes are told once") {
  PromiseRig rig;
  const auto two = rig.give(rig.promise(2));
  REQUIRE(rig.added);
  rig.links->stamp(1);
  const auto three = rig.give(rig.promise(3));
  rig.side.run();
  const auto to_two = two->receive_control();
  const auto to_three = three->receive_control();
  REQUIRE((to_two && to_three));
  CHECK(to_two->stamp() == 1);
  CHECK(to_two->epoch == kPromisedEpoch);
  CHECK(to_three->stamp() == 0);  // it has given its promise after that round
  PromiseRig::echo(*two, 1);
  rig.side.run();
  PromiseRig::echo(*two, 1);
  rig.side.run();
  rig.links->stamp(2);
  rig.side.run();
  PromiseRig::echo(*three, 2);
  rig.side.run();
  CHECK(rig.owner.echoes == std::vector<std::pair<std::uint32_t, std::uint64_t>>{{2, 1}, {3, 2}});
  CHECK(rig.owner.lost.empty());
  CHECK(rig.links->size() == 2);
}

TEST_CASE("replication/promise_links: who closes, is silent or echoes what was not stamped is gone") {
  PromiseRig rig;
  auto two = rig.give(rig.promise(2));
  const auto three = rig.give(rig.promise(3));
  const auto four = rig.give(rig.promise(4));
  const auto five = rig.give(rig.promise(5));
  rig.links->stamp(1);
  PromiseRig::echo(*three, 2);
  PromiseRig::echo(*four, 1, {5, 1});
  two.reset();
  rig.side.run();
  std::sort(rig.owner.lost.begin(), rig.owner.lost.end());
  CHECK(rig.owner.lost == std::vector<std::uint32_t>{2, 3, 4});
  CHECK(rig.owner.echoes.empty());
  // Expect: with nothing coming in the timer alone sends heartbeats, and finds who is silent.
  for (int i = 0; i < 10; ++i) {
    while (five->receive_control()) continue;
    rig.side.run_for(milliseconds(100));
    CHECK(five->receive_control());
  }
  CHECK(rig.owner.lost.size() == 3);
  rig.side.run_for(seconds(3));
  CHECK(rig.owner.lost.back() == 5);
  CHECK(rig.owner.why == "it said nothing for 3000 ms");
  CHECK(rig.links->size() == 0);
}

TEST_CASE("replication/promise_links: only promises of this candidate's are taken, the newest of a node") {
  PromiseRig rig;
  Hello none = rig.promise(2);
  none.flags.promise = false;
  const auto refused = rig.give(none);
  CHECK(rig.added.error() == ReplicationErrc::malformed);
  CHECK(refused->state() == LinkState::closed);
  Hello others = rig.promise(2);
  others.epoch = {4, 3};
  static_cast<void>(rig.give(others));
  CHECK(rig.added.error() == ReplicationErrc::malformed);

  const auto older = rig.give(rig.promise(2));
  rig.links->stamp(1);
  PromiseRig::echo(*older, 1);
  const auto newer = rig.give(rig.promise(2));
  rig.side.run();
  CHECK(older->state() == LinkState::closed);
  CHECK(newer->state() == LinkState::ready);
  CHECK(rig.owner.echoes.empty());
  CHECK(rig.owner.lost.empty());
  rig.links->close("it leads");
  rig.side.run();
  while (newer->receive_control()) continue;
  CHECK(newer->state() == LinkState::closed);
  CHECK(rig.owner.lost.empty());
}
