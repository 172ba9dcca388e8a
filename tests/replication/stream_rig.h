/// A primary and a replica, each on a reactor of its own that the test turns by hand, joined by a loopback
/// link.
/// Thread:   one
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>

#include "loopback_link.h"
#include "reactor/null_io.h"

namespace tidelock::test {

inline PrimaryOptions small_log(std::optional<std::uint32_t> c = {}) {
  PrimaryOptions options;
  options.log_bytes = 64 * 1024;
  options.c = c;
  return options;
}

inline std::string text(Bytes bytes) { return std::string(as_text(bytes)); }

/// A table that a test can look into.
class MapApplier final : public Applier {
 public:
  Status apply(std::span<const EntryView> entries) override {
    if (refuse) return ReplicationErrc::too_large;
    if (before_apply) before_apply();
    largest_slice = std::max(largest_slice, entries.size());
    for (const EntryView& entry : entries) {
      switch (entry.kind) {
        case EntryKind::put:
          map[text(entry.key)] = text(entry.value);
          break;
        case EntryKind::erase:
          map.erase(text(entry.key));
          break;
        case EntryKind::noop:
          break;
        case EntryKind::fragment:
          fragment(entry);
          continue;
      }
      lsns.push_back(entry.lsn.value);
    }
    return {};
  }
  void abandon_fragments() override {
    ++abandoned;
    half_abandoned += assembly.empty() ? 0 : 1;
    assembly.clear();
  }

  std::map<std::string, std::string> map;
  std::vector<std::uint64_t> lsns;  ///< of whole entries, in the order in which they became visible
  std::string assembly;
  std::size_t fragments = 0;
  std::size_t largest_slice = 0;
  int abandoned = 0;
  int half_abandoned = 0;
  bool refuse = false;
  std::function<void()> before_apply;

 private:
  void fragment(const EntryView& entry) {
    CHECK(entry.offset == assembly.size());
    assembly += as_text(entry.value);
    ++fragments;
    if (!entry.last_fragment()) return;
    CHECK(assembly.size() == std::size_t{entry.key_bytes} + entry.value_bytes);
    map[assembly.substr(0, entry.key_bytes)] = assembly.substr(entry.key_bytes);
    assembly.clear();
    lsns.push_back(entry.lsn.value);
  }
};

inline constexpr HistoryId kHistory{0x1157};
inline constexpr Epoch kEpoch{3, 1};
inline constexpr std::uint32_t kReplicaNode = 2;

inline ControlFrame acknowledgement(std::uint64_t received, std::uint64_t applied) {
  ControlFrame frame;
  frame.history = kHistory;
  frame.epoch = kEpoch;
  frame.received_lsn = {received};
  frame.applied_lsn = {applied};
  return frame;
}

struct StreamRig {
  static PrimaryOptions one_mebibyte() {
    PrimaryOptions options;
    options.log_bytes = 1 << 20;
    return options;
  }

  explicit StreamRig(PrimaryOptions primary_options = one_mebibyte(), ReplicaOptions replica_options = {}) {
    primary_options.history = kHistory;
    primary_options.epoch = kEpoch;
    auto made = Primary::create(*primary_side.reactor, primary_options);
    REQUIRE(made);
    primary = *std::move(made);
    primary->on_link_lost(
        [this](std::uint32_t, const std::string& reason) { primary_lost.push_back(reason); });
    make_replica(replica_options);
  }
  ~StreamRig() {
    primary->close("the test is over");
    primary_side.end();
    replica_side.end();
    primary.reset();
    replica.reset();
  }

  void make_replica(const ReplicaOptions& options) {
    replica.reset();
    auto made = Replica::create(*replica_side.reactor, applier, options);
    REQUIRE(made);
    replica = *std::move(made);
    replica->on_link_lost([this](const std::string& reason) { replica_lost.push_back(reason); });
  }

  /// A new link between the two; each end may be left out by tests that play it themselves.
  Status connect(const LoopbackOptions& options = {}) {
    wire =
        std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{++generation}, ShardId{}}, options);
    auto far = std::make_unique<LoopbackLink>(wire, NodeRole::replica, replica_side.clock);
    const Status followed = replica->attach(std::move(far), kHistory, kEpoch);
    REQUIRE(followed);
    return attach(std::make_unique<LoopbackLink>(wire, NodeRole::primary, primary_side.clock));
  }
  /// The primary's end of a link whose other end the replica has.
  Status attach(std::unique_ptr<Link> link) {
    Link* const its = link.get();
    const Status attached = primary->attach(std::move(link), kReplicaNode, replica->applied_lsn());
    near = attached ? its : nullptr;
    return attached;
  }
  /// The replica's end is the test's: it sees batches and sends acknowledgements as it likes.
  /// 0: a node of its own.
  std::unique_ptr<LoopbackLink> connect_by_hand(const LoopbackOptions& options = {}, Lsn peer_last = {},
                                                std::uint32_t node = 0) {
    wire =
        std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{++generation}, ShardId{}}, options);
    REQUIRE(primary->attach(std::make_unique<LoopbackLink>(wire, NodeRole::primary, primary_side.clock),
                            node == 0 ? 100 + generation : node, peer_last));
    return std::make_unique<LoopbackLink>(wire, NodeRole::replica, replica_side.clock);
  }

  Lsn put(const std::string& key, const std::string& value) {
    const auto lsn = primary->try_append(EntryKind::put, as_bytes(key), as_bytes(value));
    REQUIRE(lsn);
    return *lsn;
  }
  void turn_primary() { primary_side.reactor->turn(); }
  void turn_replica() { replica_side.reactor->turn(); }
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      turn_primary();
      turn_replica();
    }
  }
  /// Turns both until neither finds anything to do; time stands still.
  void settle() {
    for (int i = 0; i < 1'000'000; ++i) {
      turns(1);
      if (!primary_side.reactor->has_work() && !replica_side.reactor->has_work()) return turns(1);
    }
    FAIL("the two never came to rest");
  }
  void advance(Duration by) {
    primary_side.clock.advance(by);
    replica_side.clock.advance(by);
  }
  /// Lets time pass in small steps in which both turn.
  void run_for(Duration span, Duration step = milliseconds(10)) {
    for (Duration passed{}; passed < span; passed = passed + step) {
      advance(step);
      turns(2);
    }
  }
  [[nodiscard]] Instant in(Duration duration) { return primary_side.clock.now() + duration; }

  template <class F>
  void spawn(F&& body) {
    REQUIRE(primary_side.reactor->spawn_detached("test", std::forward<F>(body)));
  }

  Rig primary_side;
  Rig replica_side;
  MapApplier applier;
  std::unique_ptr<Primary> primary;
  std::unique_ptr<Replica> replica;
  std::shared_ptr<LoopbackWire> wire;
  Link* near = nullptr;  ///< the primary's end of the newest link between the two, while it is ready
  std::uint32_t generation = 0;
  std::vector<std::string> primary_lost, replica_lost;
};

}  // namespace tidelock::test
