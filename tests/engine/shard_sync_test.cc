// What readers of a replica's shard see while a snapshot comes, and when it takes the place of what was
// there. The primary is played by the test, frame by frame.
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/errc.h>

#include "reactor/null_io.h"
#include "replication/played_sender.h"
#include "shard.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr std::uint64_t kSyncSeed = 77;
using Sent = PlayedSender;

std::uint64_t sync_hash(std::string_view key) { return hash_key(kSyncSeed, as_bytes(key)); }

/// Answers each dial with the other end of a played link.
class PlayedDialer final : public Dialer {
 public:
  explicit PlayedDialer(PlayedSender& sender) : sender_(sender) {}
  Result<ConnectedPeer> dial(const std::string&, const Hello& ours, Instant,
                             std::optional<Refusal>*) override {
    hellos.push_back(ours);
    Hello theirs;
    theirs.role = NodeRole::primary;
    theirs.shard_count = ours.shard_count;
    theirs.history = kPlayedHistory;
    theirs.routing_seed = kSyncSeed;
    theirs.epoch = kPlayedEpoch;
    return ConnectedPeer{sender_.link(), theirs};
  }
  std::vector<Hello> hellos;

 private:
  PlayedSender& sender_;
};

struct ShardRig : private FollowingObserver {
  explicit ShardRig(std::uint64_t memory_bytes_max = 0) {
    options.role = NodeRole::replica;
    options.primary = "played";
    options.memory_bytes_max = memory_bytes_max;
    auto made = Shard::create(*side.reactor, options, ShardConfig{});
    REQUIRE(made);
    shard = *std::move(made);
    Following& following = shard->pursue(dialer, *this);
    REQUIRE(side.reactor->spawn_detached("start",
                                         [&following] { CHECK(following.start({}, Instant::never())); }));
    await_link(1);
  }
  ~ShardRig() override {
    shard->shut();
    shard->close_links("the test is over");
    side.end();
    CHECK(shard->quiet());
    shard->destroy();
  }

  /// Waits for the back-off, too, and lets the replica hear of its new primary.
  void await_link(std::size_t dials) {
    for (int i = 0; i < 100 && dialer.hellos.size() < dials; ++i) {
      side.clock.advance(milliseconds(60));
      side.reactor->turn();
    }
    REQUIRE(dialer.hellos.size() == dials);
    ControlFrame frame;
    frame.history = kPlayedHistory;
    frame.epoch = kPlayedEpoch;
    frame.whole = true;
    REQUIRE(primary.near->send_control(frame));
    side.clock.advance(milliseconds(1));
    side.reactor->turn();
    reasons.clear();
  }
  /// Puts "k0", "k1", ... with LSNs from 1 on, as many as `count`.
  void fill(int count, const std::string& value) {
    for (int i = 0; i < count; ++i)
      primary.live_put(static_cast<std::uint64_t>(i) + 1, "k" + std::to_string(i), value);
  }
  /// The key that was written with `lsn`, in pieces.
  void live_large(std::uint64_t lsn, const std::string& whole) {
    for (std::size_t at = 0; at < whole.size(); at += 30'000) {
      primary.live({Sent::piece(lsn, whole, at, 30'000, kPlayedEpoch)});
    }
  }
  /// Breaks the link, so that the next one may bring a snapshot.
  void reconnect() {
    primary.hang_up();
    await_link(dialer.hellos.size() + 1);
  }

  [[nodiscard]] Receipt written_at(std::uint64_t lsn) const {
    return {ShardId{}, kPlayedHistory, kPlayedEpoch, {lsn}};
  }
  /// In a fiber that is still at work when this returns, if it has to wait or to copy much.
  struct Get {
    std::string value;
    std::optional<Result<Lsn>> outcome;
  };
  void start_get(Get& get, const std::string& key, const Receipt& after = {}) {
    REQUIRE(side.reactor->spawn_detached("get", [this, &get, key, after] {
      get.outcome =
          shard->get(sync_hash(key), as_bytes(key), get.value, after, ReadLevel::standard, Instant::never());
    }));
    side.reactor->turn();
  }
  /// So many at once that none comes to its end within several turns.
  std::vector<std::unique_ptr<Get>> start_gets(const std::string& key, int readers = 24) {
    std::vector<std::unique_ptr<Get>> gets;
    for (int i = 0; i < readers; ++i) {
      gets.push_back(std::make_unique<Get>());
      REQUIRE(side.reactor->spawn_detached("get", [this, get = gets.back().get(), key] {
        get->outcome =
            shard->get(sync_hash(key), as_bytes(key), get->value, {}, ReadLevel::standard, Instant::never());
      }));
    }
    side.reactor->turn();
    for (const auto& get : gets) REQUIRE_FALSE(get->outcome);
    return gets;
  }
  std::string get(const std::string& key) {
    Get get;
    start_get(get, key);
    for (int turns = 0; turns < 1000 && !get.outcome; ++turns) side.reactor->turn();
    REQUIRE(get.outcome);
    if (*get.outcome) return get.value;
    REQUIRE(get.outcome->error() == EngineErrc::not_found);
    return "<absent>";
  }
  using Digested = std::optional<Result<std::pair<Digest, Lsn>>>;
  void start_digest(Digested& digested) {
    REQUIRE(side.reactor->spawn_detached("digest",
                                         [this, &digested] { digested = shard->digest(Instant::never()); }));
    side.reactor->turn();
  }
  std::pair<Digest, Lsn> digest() {
    Digested digested;
    start_digest(digested);
    return await(digested);
  }
  std::pair<Digest, Lsn> await(const Digested& digested) {
    for (int turns = 0; turns < 1000 && !digested; ++turns) side.reactor->turn();
    REQUIRE(digested);
    REQUIRE(*digested);
    return **digested;
  }
  [[nodiscard]] std::uint64_t memory_bytes() const {
    return shard->counters().memory_bytes.load(std::memory_order_relaxed);
  }
  void rest() {
    do {
      side.run();
    } while (side.reactor->has_work());
  }

  void follows(const Lineage& lineage) override {
    shard->follow(lineage.history, lineage.routing_seed, lineage.epoch);
  }
  void attached(const Hello&, const Link&) override {}
  void lost(const std::string& reason, AfterLoss) override { reasons.push_back(reason); }
  void failed(const std::string& why) override { FAIL(why); }
  void given_up(const std::string& why) override { FAIL(why); }

  Rig side;
  Options options;
  PlayedSender primary{*side.reactor, side.clock};
  PlayedDialer dialer{primary};
  std::unique_ptr<Shard> shard;
  std::vector<std::string> reasons;
};

}  // namespace

TEST_SUITE("engine/shard_sync") {
  TEST_CASE("engine/shard_sync: the old state is served until the swap, and a read that waits looks again") {
    ShardRig rig;
    rig.primary.live(
        {Sent::entry(EntryKind::put, 1, "stays", "old"), Sent::entry(EntryKind::put, 2, "goes", "old")});
    rig.reconnect();
    ShardRig::Get waiting, beyond;
    rig.start_get(waiting, "stays", rig.written_at(7));
    rig.start_get(beyond, "comes", rig.written_at(12));
    rig.primary.range(0, 100, 10, {Sent::record(7, "stays", "new"), Sent::record(8, "comes", "range")});
    rig.primary.live_put(11, "comes", "live");
    CHECK(rig.get("stays") == "old");
    CHECK(rig.get("goes") == "old");
    CHECK(rig.get("comes") == "<absent>");
    CHECK(rig.shard->visible_lsn() == Lsn{2});
    CHECK_FALSE(waiting.outcome);
    rig.primary.range(100, 0, 11, {});
    rig.side.reactor->turn();
    CHECK(rig.shard->visible_lsn() == Lsn{11});
    REQUIRE(waiting.outcome);
    REQUIRE(*waiting.outcome);
    CHECK(**waiting.outcome == Lsn{7});
    CHECK(waiting.value == "new");
    CHECK_FALSE(beyond.outcome);
    CHECK(rig.get("stays") == "new");
    CHECK(rig.get("comes") == "live");
    CHECK(rig.get("goes") == "<absent>");
    // The stream goes on in the new table.
    rig.primary.live_put(12, "comes", "later");
    rig.side.reactor->turn();
    REQUIRE(beyond.outcome);
    CHECK(beyond.value == "later");
    CHECK(rig.reasons.empty());
  }

  TEST_CASE("engine/shard_sync: a scan over the swap sees every key that stayed") {
    ShardRig rig;
    constexpr int kKeys = 1500;
    const std::string value(300, 'v');
    rig.fill(kKeys, value);
    for (const int steps_before : {1, 3, 6}) {
      CAPTURE(steps_before);
      rig.reconnect();
      std::set<std::string> seen;
      ScanCursor cursor;
      int steps = 0;
      const auto step = [&] {
        bool done = false;
        REQUIRE(rig.side.reactor->spawn_detached("scan", [&] {
          CHECK(rig.shard->scan(
              cursor, 1,
              [&seen](std::string_view key, std::string_view, Lsn) { seen.insert(std::string(key)); },
              Instant::never()));
          done = true;
        }));
        rig.side.reactor->turn();
        REQUIRE(done);
        ++steps;
      };
      while (steps < steps_before) step();
      REQUIRE_FALSE(cursor.done);
      // All keys but every third come again, in another order, with others between them.
      const std::uint64_t lsn = kKeys * static_cast<std::uint64_t>(steps_before + 1);
      std::uint64_t position = 0;
      std::vector<EntryView> records;
      std::vector<std::string> keys;
      for (int i = kKeys; i-- > 0;) keys.push_back((i % 3 == 0 ? "other" : "k") + std::to_string(i));
      for (const std::string& key : keys) {
        records.push_back(Sent::record(lsn, key, value));
        if (records.size() < 100) continue;
        rig.primary.range(position, position + 1, lsn, records);
        ++position;
        records.clear();
      }
      rig.primary.range(position, 0, lsn, records);
      CHECK(rig.shard->visible_lsn() == Lsn{lsn});
      while (!cursor.done) step();
      for (int i = 0; i < kKeys; ++i) {
        if (i % 3 != 0) REQUIRE(seen.count("k" + std::to_string(i)) == 1);
      }
    }
  }

  TEST_CASE("engine/shard_sync: a digest over the swap repeats, also if the LSN is the same") {
    ShardRig rig;
    const std::string large = "l" + std::string(1 << 20, 'x');
    rig.live_large(1, large);
    rig.primary.live_put(2, "k", "old");
    const auto before = rig.digest();
    rig.reconnect();
    const auto others = rig.start_gets("l");
    ShardRig::Digested digested;
    rig.start_digest(digested);
    REQUIRE_FALSE(digested);  // it is amid the large value
    rig.primary.range(0, 0, 2, {Sent::record(1, "k", "new")});
    CHECK(rig.shard->visible_lsn() == Lsn{2});
    REQUIRE_FALSE(digested);
    const auto over = rig.await(digested);
    CHECK(over == rig.digest());
    CHECK(over.first.keys == 1);
    CHECK(over.second == Lsn{2});
    CHECK(over.first != before.first);
  }

  TEST_CASE(
      "engine/shard_sync: a value that is being read stays whole, and with it the table, which then goes") {
    ShardRig rig;
    const std::string large = "l" + std::string(1 << 20, 'x');
    rig.live_large(1, large);
    const std::uint64_t old_bytes = rig.memory_bytes();
    CHECK(old_bytes > large.size());
    rig.reconnect();
    const auto reads = rig.start_gets("l");
    rig.primary.range(0, 0, 5, {Sent::record(5, "l", "small now")});
    CHECK(rig.shard->visible_lsn() == Lsn{5});
    CHECK(rig.memory_bytes() > old_bytes);
    rig.side.reactor->turn();
    for (const auto& read : reads) REQUIRE_FALSE(read->outcome);
    CHECK(rig.memory_bytes() > old_bytes);
    rig.rest();
    for (const auto& read : reads) {
      REQUIRE(read->outcome);
      REQUIRE(*read->outcome);
      CHECK(**read->outcome == Lsn{1});
      CHECK(read->value == large.substr(1));
    }
    CHECK(rig.memory_bytes() < 1 << 20);
    CHECK(rig.get("l") == "small now");
  }

  TEST_CASE("engine/shard_sync: large records come in pieces beside live ones, void or whole") {
    ShardRig rig;
    const std::string record = "r" + std::string(200'000, 'r');
    const std::string live = "v" + std::string(150'000, 'v');
    rig.primary.live_put(1, "x", "1");
    rig.reconnect();
    rig.primary.range(0, 0 + 1, 9, {});
    rig.primary.range(1, 1, 9, {Sent::piece(5, record, 0, 30'000)});
    rig.primary.live({Sent::piece(10, live, 0, 30'000, kPlayedEpoch)});
    rig.primary.range(1, 1, 9, {Sent::piece(5, record, 30'000, 30'000)});
    for (std::size_t at = 30'000; at < live.size(); at += 30'000) {
      rig.primary.live({Sent::piece(10, live, at, 30'000, kPlayedEpoch)});
    }
    rig.primary.live_put(11, "r", "replaced");
    rig.primary.range(1, 2, 11, {}, true);
    rig.primary.pieces(2, 11, 3, "w" + std::string(100'000, 'w'));
    // A live put that the swap comes amid.
    const std::string across = "a" + std::string(100'000, 'a');
    rig.primary.live({Sent::piece(12, across, 0, 30'000, kPlayedEpoch)});
    rig.primary.range(2, 0, 11, {});
    CHECK(rig.shard->visible_lsn() == Lsn{11});
    CHECK(rig.get("v") == live.substr(1));
    CHECK(rig.get("r") == "replaced");
    CHECK(rig.get("w") == std::string(100'000, 'w'));
    for (std::size_t at = 30'000; at < across.size(); at += 30'000) {
      rig.primary.live({Sent::piece(12, across, at, 30'000, kPlayedEpoch)});
    }
    CHECK(rig.shard->visible_lsn() == Lsn{12});
    CHECK(rig.get("a") == across.substr(1));
    CHECK(rig.digest().first.keys == 4);
  }

  TEST_CASE(
      "engine/shard_sync: what one turn would resurrect or take back stays as the newest write has it") {
    ShardRig rig;
    rig.reconnect();
    rig.primary.range(0, 10, 10, {Sent::record(4, "erased", "4"), Sent::record(5, "put", "5")});
    rig.primary.live(
        {Sent::entry(EntryKind::erase, 11, "erased", ""), Sent::entry(EntryKind::put, 12, "put", "12"),
         Sent::entry(EntryKind::put, 13, "later", "13"), Sent::entry(EntryKind::put, 14, "again", "14")});
    rig.primary.live(
        {Sent::entry(EntryKind::erase, 15, "again", ""), Sent::entry(EntryKind::put, 16, "again", "16")});
    // It overtakes what is live, up to LSN 20.
    rig.primary.range(10, 0, 20, {Sent::record(18, "later", "18"), Sent::record(20, "put too", "20")});
    rig.primary.live(
        {Sent::entry(EntryKind::put, 17, "later", "17"), Sent::entry(EntryKind::put, 18, "later", "18"),
         Sent::entry(EntryKind::erase, 19, "put too", ""), Sent::entry(EntryKind::put, 20, "put too", "20")});
    CHECK(rig.shard->visible_lsn() == Lsn{20});
    CHECK(rig.get("erased") == "<absent>");
    CHECK(rig.get("put") == "12");
    CHECK(rig.get("later") == "18");
    CHECK(rig.get("again") == "16");
    CHECK(rig.get("put too") == "20");
  }

  TEST_CASE("engine/shard_sync: a shadow without memory is dropped with a reason, and the old state stays") {
    ShardRig rig(1 << 20);
    rig.fill(100, std::string(500, 'o'));
    const auto before = rig.digest();
    const std::uint64_t bytes = rig.memory_bytes();
    rig.reconnect();
    std::uint64_t position = 0;
    const std::string value(20'000, 'n');
    for (; rig.reasons.empty() && position < 1000; ++position) {
      const std::string first = "n" + std::to_string(position);
      const std::string second = "m" + std::to_string(position);
      rig.primary.range(position, position + 1, 200,
                        {Sent::record(150, first, value), Sent::record(151, second, value)});
    }
    CHECK(position > 10);
    REQUIRE(rig.reasons.size() == 1);
    CHECK(rig.reasons[0].find("of a snapshot: the shard's table takes") != std::string::npos);
    CHECK(rig.reasons[0].find("memory_bytes_max = 1048576") != std::string::npos);
    rig.rest();
    CHECK(rig.digest() == before);
    CHECK(rig.memory_bytes() == bytes);
    // And the next, which is smaller, is taken.
    rig.reconnect();
    rig.primary.range(0, 0, 200, {Sent::record(150, "n", value)});
    CHECK(rig.get("n") == value);
    CHECK(rig.shard->visible_lsn() == Lsn{200});
  }

  TEST_CASE(
      "engine/shard_sync: a replaced table goes although the one that is served has much to free, too") {
    ShardRig rig;
    rig.live_large(1, "l" + std::string(4 << 20, 'x'));
    rig.reconnect();
    rig.primary.range(0, 1, 10, {});
    // 1. Large values come and go, so that the new table has more than 200 slices to free.
    constexpr int kKeys = 250;
    std::uint64_t lsn = 10;
    std::vector<std::string> keys;
    for (int i = 0; i < kKeys; ++i) {
      keys.push_back(std::string(1, static_cast<char>(i)));
      rig.live_large(++lsn, keys.back() + std::string(70'000, 'v'));
    }
    std::vector<EntryView> erases;
    for (const std::string& key : keys) erases.push_back(Sent::entry(EntryKind::erase, ++lsn, key, ""));
    rig.primary.live(erases);
    rig.primary.range(1, 0, lsn, {});
    REQUIRE(rig.shard->visible_lsn() == Lsn{lsn});
    int turns = 0;
    std::string reason;
    SUBCASE("in time for the snapshot after the next") { turns = 160; }
    SUBCASE("not at once, and that is the reason") {
      reason = "2 tables that earlier snapshots replaced are not yet unmapped";
    }
    for (int i = 0; i < turns; ++i) rig.side.reactor->turn();
    // 2. The next snapshot replaces that one, too.
    rig.reconnect();
    rig.primary.range(0, 0, lsn + 1, {});
    REQUIRE(rig.shard->visible_lsn() == Lsn{lsn + 1});
    // 3. One more.
    rig.reconnect();
    rig.primary.range(0, 0, lsn + 2, {});
    CHECK((rig.shard->visible_lsn() == Lsn{lsn + 2}) == reason.empty());
    REQUIRE(rig.reasons.empty() == reason.empty());
    if (!reason.empty()) CHECK(rig.reasons[0].find(reason) != std::string::npos);
    rig.rest();
    CHECK(rig.memory_bytes() < 1 << 20);
  }

  TEST_CASE("engine/shard_sync: tables that readers keep are at most two beside the one that is served") {
    ShardRig rig;
    const std::string large = "l" + std::string(1 << 20, 'x');
    rig.live_large(1, large);
    rig.reconnect();
    rig.primary.range(0, 1, 10, {});
    rig.primary.pieces(1, 10, 9, large);
    const auto first = rig.start_gets("l", 40);
    rig.primary.range(1, 0, 10, {});
    const auto second = rig.start_gets("l", 40);
    rig.reconnect();
    rig.primary.range(0, 0, 20, {});
    CHECK(rig.shard->visible_lsn() == Lsn{20});
    rig.reconnect();
    rig.primary.range(0, 1, 30, {});
    REQUIRE(rig.reasons.size() == 1);
    CHECK(rig.reasons[0].find("readers of large values still hold 2 of 2 tables") != std::string::npos);
    CHECK(rig.shard->visible_lsn() == Lsn{20});
    rig.rest();
    for (const auto& read : first) CHECK(read->value == large.substr(1));
    for (const auto& read : second) CHECK(read->value == large.substr(1));
    rig.reconnect();
    rig.primary.range(0, 0, 30, {});
    CHECK(rig.reasons.empty());
    CHECK(rig.shard->visible_lsn() == Lsn{30});
  }
}
