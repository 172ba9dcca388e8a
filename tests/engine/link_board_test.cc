// The list of a node's links, beyond what a pair of engines brings about.
#include "link_board.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/clock.h>

#include "replication/loopback_link.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr ShardId kShard{0};
constexpr std::uint32_t kMore = 1'500;  ///< than the board keeps of links that are gone

/// A board, and links that look alike.
struct BoardRig {
  BoardRig() : wire(std::make_shared<LoopbackWire>(FrameContext{}, LoopbackOptions{})) {}
  const Link& attach(std::uint32_t node) {
    links.push_back(std::make_unique<LoopbackLink>(wire, NodeRole::primary, clock));
    board.attached(kShard, node, {1}, *links.back());
    return *links.back();
  }
  [[nodiscard]] bool shows(std::uint32_t node, const char* state) const {
    const auto list = board.list();
    return std::any_of(list.begin(), list.end(),
                       [&](const LinkInfo& info) { return info.peer_node == node && info.state == state; });
  }
  SystemClock clock;
  std::shared_ptr<LoopbackWire> wire;
  std::vector<std::unique_ptr<Link>> links;
  LinkBoard board;
};

}  // namespace

TEST_SUITE_BEGIN("engine/link_board");

TEST_CASE("a link that is there stays on the board, however many came and went since") {
  BoardRig rig;
  const Link& there = rig.attach(1);
  for (std::uint32_t node = 2; node < kMore; ++node) {
    rig.attach(node);
    rig.board.lost(kShard, {&there}, "gone");
  }
  CHECK(rig.shows(1, "attached"));
  CHECK(rig.shows(kMore - 1, "closed"));
  CHECK(rig.board.list().size() < kMore - 1);
}

TEST_CASE("of links that are gone the board keeps those that went last, not those that came last") {
  BoardRig rig;
  const Link& long_lived = rig.attach(1);
  for (std::uint32_t node = 2; node < kMore; ++node) {
    rig.attach(node);
    rig.board.lost(kShard, {&long_lived}, "gone");
  }
  rig.board.lost(kShard, {}, "gone, too");
  rig.attach(kMore);
  CHECK(rig.shows(1, "closed"));
  CHECK(rig.shows(kMore - 1, "closed"));
  CHECK_FALSE(rig.shows(2, "closed"));
}

TEST_CASE("links that are all there are all on the board, and make room once they are gone") {
  BoardRig rig;
  for (std::uint32_t node = 1; node <= kMore; ++node) rig.attach(node);
  CHECK(rig.board.list().size() == kMore);
  rig.board.close_all("the primary is closing");
  rig.attach(kMore + 1);
  CHECK(rig.board.list().size() < kMore);
  CHECK(rig.shows(kMore + 1, "attached"));
  CHECK(rig.shows(kMore, "closed"));
}

TEST_SUITE_END();
