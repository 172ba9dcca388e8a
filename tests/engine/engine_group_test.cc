// Groups of engines: a history begins, a primary goes and another one is promoted, who comes back learns.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/clock.h>

#include "engine/group_fixture.h"
#include "group_seed.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

std::string group_key(int i) { return "key" + std::to_string(i); }

constexpr int kGroupWrites = 50;

/// What was acknowledged is there.
void check_all(Engine& engine, int writes, ReadLevel level = ReadLevel::standard) {
  std::string value;
  for (int i = 0; i < writes; ++i) {
    CAPTURE(i);
    const auto read = engine.get(group_key(i), value, {{}, {}, {}, kPatience, level});
    if (!read) MESSAGE(read.error().message());
    REQUIRE(read.has_value());
    CHECK(value == "of " + group_key(i));
  }
}

/// All shards are led by that node. Whoever follows does not count at once, so it may take several calls.
void bring_together(EngineGroup& group, std::uint32_t node) {
  REQUIRE(eventually([&] {
    bool all = true;
    for (const ShardRole& role : group[node].roles()) {
      const std::uint32_t leader = group.leader(role.shard.value);
      if (leader == node) continue;
      all = false;
      if (leader != 0) static_cast<void>(group[leader].switch_over(node, kPatience));
    }
    return all && group.whole();
  }));
}

}  // namespace

TEST_SUITE_BEGIN("engine/group");

TEST_CASE("a group begins a history, loses its primary, and goes on with the one that is promoted") {
  GroupShape shape;
  SUBCASE("of one shard") {}
  SUBCASE("of two shards") { shape.shards = 2; }
  EngineGroup group(shape);
  REQUIRE(group.whole());
  const std::uint32_t first = group.leader();
  REQUIRE(first != 0);
  bring_together(group, first);
  std::vector<Receipt> receipts;
  for (int i = 0; i < kGroupWrites; ++i) {
    Engine& leading = group[group.leader(group[first].shard_of(group_key(i)).value)];
    const auto put = leading.put(group_key(i), "of " + group_key(i));
    if (!put) MESSAGE(put.error().message());
    REQUIRE(put.has_value());
    receipts.push_back(*put);
  }
  const std::uint32_t second = first % 3 + 1;
  const std::uint32_t third = second % 3 + 1;
  // At the others: whatever a receipt stands for, and what is committed.
  std::string value;
  CHECK(group[second].get(group_key(7), value, ReadOptions::after(receipts[7], kPatience)).has_value());
  // An LSN by itself is of whatever epoch.
  const auto plain = group[first].get(group_key(7), value);
  REQUIRE(plain.has_value());
  CHECK(value == "of " + group_key(7));
  check_all(group[third], kGroupWrites, ReadLevel::committed);

  group.close(first);
  const Status promoted = group[second].promote(kPatience);
  if (!promoted) {
    MESSAGE(promoted.error().message());
    group.show_events();
  }
  REQUIRE(promoted.has_value());
  for (std::uint16_t shard = 0; shard < shape.shards; ++shard) CHECK(group.leader(shard) == second);
  check_all(group[second], kGroupWrites);
  for (int i = kGroupWrites; i < 2 * kGroupWrites; ++i)
    REQUIRE(group[second].put(group_key(i), "of " + group_key(i)).has_value());
  // Receipts of the epoch before stay good, at whoever has their entries, and so do plain LSNs.
  ReadOptions by_number;
  by_number.min_lsn = *plain;
  by_number.timeout = kPatience;
  CHECK(group[second].get(group_key(7), value, by_number).has_value());
  CHECK(group[third].get(group_key(7), value, by_number).has_value());
  CHECK(group[second].wait(receipts[3], AckLevel::applied, kPatience).has_value());
  CHECK(group[third].get(group_key(3), value, ReadOptions::after(receipts[3], kPatience)).has_value());

  group.open_node(first);
  CHECK(eventually([&] { return group.whole(); }));
  check_all(group[first], 2 * kGroupWrites, ReadLevel::committed);
  check_equal(group[second], group[first]);
  check_equal(group[second], group[third]);
}

TEST_CASE("who does not lead refuses writes and names who does") {
  EngineGroup group({});
  const std::uint32_t leader = group.leader();
  REQUIRE(leader != 0);
  Engine& other = group[leader % 3 + 1];
  const auto put = other.put("key", "value", {AckLevel::local, kPatience});
  REQUIRE_FALSE(put.has_value());
  CHECK(put.error() == EngineErrc::read_only);
  CHECK(put.error().message().find("node " + std::to_string(leader) + " leads") != std::string::npos);
  std::string value;
  CHECK(other.get("key", value, {{}, {}, {}, kPatience, ReadLevel::linearizable}).error() ==
        ReplicationErrc::not_primary);
  CHECK(other.get("key", value, {{}, {}, {}, kPatience, ReadLevel::committed}).error() ==
        EngineErrc::not_found);
  CHECK(has_event(other, "follows node " + std::to_string(leader)));
  CHECK(has_event(group[leader], "shard 0: leads"));
  const auto roles = other.roles();
  REQUIRE(roles.size() == 1);
  CHECK(roles[0].leader == leader);
  CHECK(roles[0].role == GroupRole::following);
}

TEST_CASE("a group of one begins and serves alone") {
  EngineGroup group({1, 2, 0, false});
  CHECK(group.leader(0) == 1);
  CHECK(group.leader(1) == 1);
  for (int i = 0; i < kGroupWrites; ++i) CHECK(group[1].put(group_key(i), "of " + group_key(i)).has_value());
  check_all(group[1], kGroupWrites);
}

TEST_CASE("with c = 0 the primary goes on when the other node is gone") {
  EngineGroup group({2, 1, 0, false});
  const std::uint32_t leader = group.leader();
  REQUIRE(leader != 0);
  CHECK(group[leader].put("a", "1").has_value());
  group.close(3 - leader);
  CHECK(group[leader].put("b", "2").has_value());
  std::string value;
  CHECK(group[leader].get("b", value).has_value());
}

TEST_CASE("with c = 1 and nobody to follow, writes are refused and reads of what is not committed wait") {
  EngineGroup group({2, 1, 1, false});
  const std::uint32_t leader = group.leader();
  REQUIRE(leader != 0);
  REQUIRE(group[leader].put("a", "1").has_value());
  Engine& alone = group[leader];
  group.close(3 - leader);
  CHECK(eventually([&] {
    const auto put = alone.put("b", "2", {AckLevel::local, kPatience});
    return !put && put.error() == ReplicationErrc::no_replica;
  }));
  std::string value;
  CHECK(alone.get("a", value).has_value());
  CHECK(value == "1");
  group.open_all();
  CHECK(eventually([&] { return alone.put("b", "2").has_value(); }));
}

TEST_CASE("of two nodes the one that is left writes alone if it is told to, with c = 0") {
  EngineGroup group({2, 1, 1, false});
  const std::uint32_t leader = group.leader();
  REQUIRE(leader != 0);
  REQUIRE(group[leader].put("a", "1").has_value());
  group.close(leader);
  Engine& left = group[3 - leader];
  PromotionOptions how;
  how.timeout = kPatience;
  how.force = true;
  how.c = 0;
  const Status promoted = left.promote(how);
  if (!promoted) MESSAGE(promoted.error().message());
  REQUIRE(promoted.has_value());
  CHECK(left.put("b", "2").has_value());
  std::string value;
  CHECK(left.get("a", value).has_value());
  CHECK(value == "1");
}

TEST_CASE("nodes that are allowed to stand need no operator") {
  GroupShape shape;
  shape.failover = true;
  EngineGroup group(shape);
  const std::uint32_t leader = group.leader();
  REQUIRE(leader != 0);
  REQUIRE(group[leader].put("a", "1").has_value());
  group.close(leader);
  CHECK(eventually([&] { return group.leader() != 0 && group.whole(); }));
  std::string value;
  CHECK(group[group.leader()].get("a", value).has_value());
}

TEST_CASE("a node alone says what is missing, and its calls end by their deadlines") {
  std::vector<NodeAddress> nodes{{1, unique_path()}, {2, unique_path()}, {3, unique_path()}};
  Options options = node_options(nodes, 2, {});
  options.connect_timeout = milliseconds(50);
  const auto engine = open(options);
  CHECK(has_event(*engine, "no primary was found, and no history"));
  std::string value;
  CHECK(engine->get("key", value, {{}, {}, {}, milliseconds(20), ReadLevel::any}).error() ==
        EngineErrc::not_ready);
  CHECK(engine->put("key", "value", {AckLevel::local, milliseconds(20)}).error() == EngineErrc::not_ready);
  CHECK(engine->put_async("key", "value", {}, nullptr, nullptr).error() == EngineErrc::not_ready);
  CHECK(engine->promote(milliseconds(20)).error() == ReactorErrc::deadline_exceeded);
  CHECK(engine->close(kPatience).has_value());
}

TEST_CASE("shard 0 alone draws a seed, the others begin once one is known, and a second one is refused") {
  GroupSeed seed(7);
  CHECK(seed.to_found({0}, Instant{1}) == 7);
  CHECK(seed.to_found({1}, Instant{1}) == 0);
  CHECK(seed.takes(9));
  CHECK(seed.set(9, Instant{1}));
  CHECK(seed.value() == 9);
  CHECK(seed.to_found({0}, Instant{2}) == 9);
  // Expect: first where shard 0 leads, elsewhere later.
  CHECK(seed.to_found({1}, Instant{2}) == 0);
  CHECK(seed.to_found({1}, Instant{2} + seconds(3)) == 9);
  seed.leads(true);
  CHECK(seed.to_found({1}, Instant{2}) == 9);
  CHECK(seed.set(9, Instant{3}));
  CHECK_FALSE(seed.set(7, Instant{3}));
  CHECK_FALSE(seed.takes(7));
  CHECK(seed.value() == 9);
}

TEST_CASE("reads of a level that there is in groups only are refused outside of them") {
  const auto engine = open(small_options());
  std::string value;
  CHECK(engine->get("key", value, {{}, {}, {}, kPatience, ReadLevel::committed}).error() ==
        EngineErrc::bad_option);
  CHECK(engine->promote(kPatience).error() == EngineErrc::bad_option);
  CHECK(engine->roles().empty());
}

TEST_CASE("options that make no group are refused, with the reason") {
  const std::vector<NodeAddress> nodes{{1, "@a"}, {2, "@b"}, {3, "@c"}};
  const auto refused = [](const Options& options, const std::string& part) {
    const Status valid = options.validate();
    CAPTURE(part);
    REQUIRE_FALSE(valid.has_value());
    CHECK(valid.error() == EngineErrc::bad_option);
    CAPTURE(valid.error().message());
    CHECK(valid.error().message().find(part) != std::string::npos);
  };
  Options options = node_options(nodes, 1, {});
  CHECK(options.validate().has_value());
  options.c.reset();
  CHECK(options.group_c() == 1);
  CHECK(options.listen_address() == "@a");
  const auto with = [&](const auto& change) {
    Options changed = node_options(nodes, 1, {});
    change(changed);
    return changed;
  };
  refused(with([](Options& o) { o.nodes[1].node = 1; }), "node 1 twice");
  refused(with([](Options& o) { o.nodes[1].node = 0; }), "node 0");
  refused(with([](Options& o) { o.nodes[1].address = "@a"; }), "address \"@a\" twice");
  refused(with([](Options& o) { o.nodes[1].address.clear(); }), "without its address");
  refused(with([](Options& o) { o.node = 4; }), "without node 4");
  refused(with([](Options& o) { o.c = 3; }), "c is 3");
  refused(with([](Options& o) { o.listen = "@x"; }), "listen");
  refused(with([](Options& o) { o.primary = "@x"; }), "primary");
  refused(with([](Options& o) {
            o.role = NodeRole::replica;
            o.primary = "@x";
          }),
          "role");
  refused(with([](Options& o) { o.lease = milliseconds(1); }), "lease");
}

TEST_CASE(
    "a table that ran out of memory amid entries shows none of them to who asks for what is committed") {
  GroupShape shape;
  shape.last_memory = 512 << 10;
  EngineGroup group(shape);
  REQUIRE(group.whole());
  const std::uint32_t first = group.leader() == 3 ? 1 : group.leader();
  bring_together(group, first);
  REQUIRE(group[first].put("small", "1").has_value());
  std::string value;
  REQUIRE(eventually([&] {
    return group[3].get("small", value, {{}, {}, {}, kPatience, ReadLevel::committed}).has_value();
  }));
  // Many in a turn, so that they are applied several at a time.
  const std::string filler(128, 'x');
  std::atomic<int> under_way{0};
  int key = 0;
  const auto done = [](void* context, const Result<Receipt>&) { --*static_cast<std::atomic<int>*>(context); };
  REQUIRE(eventually([&] {
    for (int i = 0; i < 200; ++i) {
      ++under_way;
      if (!group[first].put_async(group_key(key++), filler, {AckLevel::local, kPatience, 0}, done,
                                  &under_way))
        --under_way;
    }
    return group[3].roles()[0].role == GroupRole::none;
  }));
  CHECK(eventually([&] { return under_way == 0; }));
  // Expect: an answer by the deadline, from host threads, too, and what the node has can still be looked at.
  const auto committed = group[3].get("small", value, {{}, {}, {}, milliseconds(200), ReadLevel::committed});
  REQUIRE_FALSE(committed.has_value());
  CHECK(committed.error() == ReactorErrc::deadline_exceeded);
  CHECK(group[3].get("small", value, {{}, {}, {}, kPatience, ReadLevel::any}).has_value());
}

TEST_CASE("a planned switch-over under load: nothing that was acknowledged is lost, and writes go on") {
  GroupShape shape;
  shape.shards = 2;
  EngineGroup group(shape);
  REQUIRE(group.whole());
  const std::uint32_t first = group.leader();
  REQUIRE(first != 0);
  // Both shards at one node, so that one call hands both over.
  const std::uint32_t from = first % 3 + 1;
  bring_together(group, from);
  const std::uint32_t to = from % 3 + 1;

  std::atomic<int> acknowledged{0};
  std::atomic<bool> over{false};
  std::int64_t longest_ns = 0;
  std::thread writer([&] {
    Instant last = SystemClock().now();
    while (!over) {
      const int i = acknowledged;
      // Whoever leads by now: a key is written again until it is acknowledged.
      for (const std::uint32_t node : {from, to}) {
        WriteOptions how;
        how.timeout = kPatience;
        if (!group[node].put(group_key(i), "of " + group_key(i), how)) continue;
        ++acknowledged;
        const Instant now = SystemClock().now();
        longest_ns = std::max(longest_ns, (now - last).ns);
        last = now;
        break;
      }
    }
  });
  CHECK(eventually([&] { return acknowledged >= 100; }));
  const Status switched = group[from].switch_over(to, kPatience);
  if (!switched) MESSAGE(switched.error().message());
  CHECK(switched.has_value());
  const int until_then = acknowledged;
  CHECK(eventually([&] { return acknowledged >= until_then + 100; }));
  over = true;
  writer.join();
  MESSAGE("the longest pause between two acknowledgements: " << longest_ns / 1'000 << " us");
  CHECK(group.leader(0) == to);
  CHECK(group.leader(1) == to);
  check_all(group[to], acknowledged);
  REQUIRE(eventually([&] { return group.whole(); }));
  CHECK(group[to].switch_over(9, kPatience).error() == EngineErrc::bad_option);
  CHECK(group[from].switch_over(to, kPatience).has_value());  // it leads nothing: there is nothing to do
}

TEST_SUITE_END();
