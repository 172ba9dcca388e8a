#include "stream_hosts.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <tidelock/base/check.h>

#include "sim_link.h"
#include "values.h"

namespace tidelock::sim {
namespace {

constexpr std::uint32_t kPrimaryNode = 1;
constexpr std::uint32_t kFirstReplicaNode = 2;
/// How long a replica that starts tries to follow, before its operator looks and tries again.
constexpr Duration kStartTimeout = seconds(2);
constexpr Duration kStartPause = milliseconds(100);

}  // namespace

// ---- primary --------------------------------------------------------------------------------------------

PrimaryHost::PrimaryHost(const Scene& scene)
    : scene_(scene), node_(scene.world, kPrimaryNode, scene.shape.node) {}

void PrimaryHost::start() {
  node_.start();
  life_ = std::make_unique<PrimaryLife>();
  Random ids = scene_.world.stream("history", node_.incarnation());
  life_->line = &scene_.oracle.begin(HistoryId{ids.next() | 1});
  life_->table = std::make_unique<NodeTable>(scene_.planted.table);
  life_->epoch = {2, kPrimaryNode};  // so that there is an older one
  PrimaryOptions options;
  options.history = life_->line->id();
  options.epoch = life_->epoch;
  options.node = kPrimaryNode;
  options.log_bytes = scene_.shape.log_bytes;
  options.heartbeat = scene_.shape.heartbeat;
  options.link_timeout = scene_.shape.link_timeout;
  options.c = scene_.shape.c;
  if (scene_.shape.snapshots) options.snapshots = life_->table.get();
  options.policy = scene_.planted.ack;
  auto made = Primary::create(node_.core().reactor(), options);
  TL_ASSERT(made, "a simulated primary has what it needs");
  life_->primary = *std::move(made);
  AdmissionOptions door;
  door.ring_bytes = scene_.shape.wire.ring_bytes;
  life_->admission = std::make_unique<Admission>(node_.core().reactor(), *life_->primary, door);
  node_.core().watch([&life = *life_] {
    bool waits = false;
    life.primary->each_link([&](const Link& link) { waits = waits || link.has_work(); });
    return waits;
  });
  node_.after_turn([this](Core&, Duration) { after_turn(); });
}

void PrimaryHost::kill() {
  if (!up()) return;
  life_->dying = true;
  count();
  node_.kill([this] {
    life_->admission.reset();
    life_->primary.reset();
  });
}

void PrimaryHost::after_turn() {
  PrimaryLife& life = *life_;
  scene_.check("log_prefix", "node 1", life.follower.follow(life.primary->log(), *life.line));
  const Lsn commit = life.primary->commit_lsn();
  scene_.check("one_commit", "node 1",
               check_commit(*life.line, life.commit, commit, replicas_to_commit(scene_.shape)));
  life.commit = commit;
  scene_.world.trace().mix(life.primary->last_lsn().value << 32 ^ commit.value);
}

void PrimaryHost::count() const {
  const PrimaryStats& stats = life_->primary->stats();
  scene_.syncs.snapshots += stats.snapshots.load(std::memory_order_relaxed);
  scene_.syncs.ranges += stats.ranges.load(std::memory_order_relaxed);
  scene_.syncs.drops += stats.backlog_drops.load(std::memory_order_relaxed);
}

std::size_t PrimaryHost::whole_nodes() const {
  std::vector<std::uint32_t> nodes;
  life_->primary->each_link([&](const Link& link) {
    const Wire::Peer& peer = static_cast<const SimLink&>(link).wire().peer();
    if (!peer.syncing) nodes.push_back(peer.node);
  });
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes.size();
}

// ---- replica --------------------------------------------------------------------------------------------

RecordingApplier::RecordingApplier(const Scene& scene, std::uint32_t node)
    : scene_(scene), node_(node), table_(scene.planted.table) {}

std::uint64_t RecordingApplier::at(std::uint32_t key) const {
  const auto number = table_.at(key);
  if (!number) scene_.world.fail("log_prefix", who() + ": the value of \"" + key_text(key) + "\" is damaged");
  return number.value_or(0);
}

std::optional<Written> RecordingApplier::decode(const EntryView& entry, Bytes key, Bytes value) const {
  const auto its_key = key_of(key);
  const bool erases = entry.kind == EntryKind::erase;
  const auto number = erases ? std::optional<std::uint64_t>(0) : number_of(value);
  if (its_key && *its_key < scene_.oracle.keys() && number)
    return Written{*its_key, *number, entry.epoch, value.size()};
  scene_.world.fail("log_prefix", who() + ": LSN " + std::to_string(entry.lsn.value) + " is damaged");
  return std::nullopt;
}

template <class Take>
void RecordingApplier::each_whole(std::span<const EntryView> entries, std::string& piece, const Take& take) {
  if (const auto wire = wire_.lock()) wire->scribble_now();
  for (const EntryView& entry : entries) {
    if (entry.kind != EntryKind::fragment) {
      take(entry, entry.key, entry.value);
      continue;
    }
    piece += as_text(entry.value);
    if (!entry.last_fragment()) continue;
    const Bytes whole = as_bytes(piece);
    if (whole.size() != std::size_t{entry.key_bytes} + entry.value_bytes) {
      scene_.world.fail("applied_once", who() + ": a put whose pieces do not add up");
    } else {
      take(entry, whole.first(entry.key_bytes), whole.subspan(entry.key_bytes));
    }
    piece.clear();
  }
}

Status RecordingApplier::apply(std::span<const EntryView> entries) {
  each_whole(entries, piece_,
             [this](const EntryView& entry, Bytes key, Bytes value) { take(entry, key, value); });
  return {};
}

void RecordingApplier::take(const EntryView& entry, Bytes key, Bytes value) {
  scene_.check("applied_once", who(), check_next(last_, entry.lsn));
  last_ = entry.lsn;
  const auto written = decode(entry, key, value);
  if (!written) return;
  scene_.check("log_prefix", who(), check_entry(*line_, entry.lsn, *written));
  if (entry.kind == EntryKind::erase) {
    table_.erase(key);
  } else {
    table_.put(key, value, entry.lsn);
  }
  line_->applied(node_, entry.lsn);
}

// ---- a snapshot, beside what is served ------------------------------------------------------------------

Status RecordingApplier::begin_shadow() {
  if (table_.has_shadow())
    scene_.world.fail("snapshot", who() + ": a snapshot begins while one is under way");
  table_.begin_shadow();
  shadow_last_ = Lsn{};
  return {};
}

Status RecordingApplier::apply_live(std::span<const EntryView> entries) {
  each_whole(entries, shadow_piece_,
             [this](const EntryView& entry, Bytes key, Bytes value) { take_live(entry, key, value); });
  return {};
}

void RecordingApplier::take_live(const EntryView& entry, Bytes key, Bytes value) {
  if (shadow_last_ != Lsn{}) scene_.check("applied_once", who(), check_next(shadow_last_, entry.lsn));
  shadow_last_ = entry.lsn;
  const auto written = decode(entry, key, value);
  if (!written) return;
  scene_.check("log_prefix", who(), check_entry(*line_, entry.lsn, *written));
  if (entry.kind == EntryKind::erase) {
    table_.erase_older(key, entry.lsn);
  } else {
    table_.put_newer(key, value, entry.lsn);
  }
}

Status RecordingApplier::add_records(std::span<const EntryView> entries) {
  each_whole(entries, record_piece_,
             [this](const EntryView& entry, Bytes key, Bytes value) { take_record(entry, key, value); });
  return {};
}

void RecordingApplier::take_record(const EntryView& entry, Bytes key, Bytes value) {
  const auto written = decode(entry, key, value);
  if (!written) return;
  scene_.check("snapshot", who(), check_record(*line_, entry.lsn, *written));
  table_.put_newer(key, value, entry.lsn);
}

/// It is what had been written up to `lsn`, neither more nor less.
void RecordingApplier::swap_shadow(Lsn lsn) {
  if (lsn < last_ || lsn < shadow_last_)
    scene_.world.fail("applied_once", fmt::format("{}: a snapshot takes it back to LSN {} from {}", who(),
                                                  lsn.value, std::max(last_, shadow_last_).value));
  table_.swap_shadow();
  last_ = lsn;
  piece_ = std::move(shadow_piece_);  // a put whose other fragments are to come
  shadow_piece_.clear();
  record_piece_.clear();
  for (std::uint32_t key = 0; key < scene_.oracle.keys(); ++key) {
    const std::uint64_t found = at(key);
    if (found == line_->value_at(key, lsn)) continue;
    scene_.world.fail("snapshot",
                      fmt::format("{}: a whole snapshot has write {} under \"{}\", which held {} at LSN {}",
                                  who(), found, key_text(key), line_->value_at(key, lsn), lsn.value));
    break;
  }
  line_->applied(node_, lsn);
  if (const auto wire = wire_.lock()) wire->snapshot_whole();
  ++scene_.syncs.whole;
}

void RecordingApplier::void_record() {
  record_piece_.clear();
  ++scene_.syncs.voids;
}

void RecordingApplier::drop_shadow() {
  ++scene_.syncs.broken;
  table_.drop_shadow();
  shadow_piece_.clear();
  record_piece_.clear();
}

ReplicaHost::ReplicaHost(const Scene& scene, std::uint32_t index)
    : scene_(scene), node_(scene.world, kFirstReplicaNode + index, scene.shape.node) {}

void ReplicaHost::start(Dialer& dialer) {
  node_.start();
  life_ = std::make_unique<ReplicaLife>();
  life_->applier = std::make_unique<RecordingApplier>(scene_, node_.number());
  ReplicaOptions options;
  options.heartbeat = scene_.shape.heartbeat;
  options.link_timeout = scene_.shape.link_timeout;
  options.snapshot = life_->applier.get();
  options.policy = scene_.planted.apply;
  auto made = Replica::create(node_.core().reactor(), *life_->applier, options);
  TL_ASSERT(made, "a simulated replica has what it needs");
  life_->replica = *std::move(made);
  node_.core().watch([&life = *life_] {
    const Link* const link = life.replica->link();
    return link != nullptr && link->has_work();
  });
  node_.after_turn([this](Core&, Duration) { after_turn(); });
  node_.spawn(0, "pursue", [this, &dialer] { pursue(*life_, dialer); });
}

void ReplicaHost::kill() {
  if (!up()) return;
  life_->dying = true;
  node_.kill([this] {
    life_->following.reset();
    life_->replica.reset();
  });
}

void ReplicaHost::farewell(const std::string& reason) {
  life_->ending = true;
  if (life_->following) life_->following->stop();
  life_->replica->close(reason);
}

/// What starts a replica gives up when it does not get to follow in time. An operator tries again.
void ReplicaHost::pursue(ReplicaLife& life, Dialer& dialer) {
  FollowingObserver& observer = *this;
  FollowingOptions options;
  options.primary = "node 1";
  options.node = node_.number();
  options.link_timeout = scene_.shape.link_timeout;
  for (Lineage known; !life.dying && !life.ending;
       known = life.following->lineage(), life.following.reset()) {
    life.following =
        std::make_unique<Following>(node_.core().reactor(), *life.replica, dialer, observer, options);
    life.refusal.reset();
    const Status follows = life.following->start(known, node_.clock().now() + kStartTimeout);
    if (follows || life.dying || life.ending) return;
    if (follows.error() == ReplicationErrc::refused || follows.error() == ReplicationErrc::wrong_context)
      return given_up(follows.error().message());
    life.replica->close("it cannot follow");
    if (this_fiber::sleep_for(kStartPause) == Wakeup::cancelled) return;
  }
}

void ReplicaHost::follows(const Lineage& lineage) {
  Line* const line = scene_.oracle.find(lineage.history);
  TL_ASSERT(line != nullptr, "only primaries begin histories");
  life_->applier->follow(*line);
}

void ReplicaHost::attached(const Hello&, const Link& link) {
  life_->applier->set_wire(static_cast<const SimLink&>(link).shared_wire());
}

void ReplicaHost::lost(const std::string&, AfterLoss) { life_->applier->set_wire(nullptr); }

void ReplicaHost::given_up(const std::string& why) {
  if (life_->dying) return;
  life_->given_up = true;
  if (!life_->refusal) return scene_.world.fail("refused", name() + " gives up: " + why);
  scene_.check("refused", name(), check_refusal(*life_->refusal, life_->replica->history()));
}

void ReplicaHost::after_turn() {
  ReplicaLife& life = *life_;
  const ReplicaStats& stats = life.replica->stats();
  const Lsn received{stats.received_lsn.load(std::memory_order_relaxed)};
  const Lsn commit{stats.commit_lsn.load(std::memory_order_relaxed)};
  if (const Line* const line = life.applier->line()) {
    scene_.check("one_commit", name(), check_told(*line, life.commit, commit));
    life.commit = commit;
  }
  scene_.world.trace().mix(received.value << 32 ^ life.replica->applied_lsn().value);
}

}  // namespace tidelock::sim
