#include "shard.h"

#include <tidelock/engine/errc.h>

namespace tidelock {

Result<std::unique_ptr<Shard>> Shard::create(Reactor& reactor, const Options& options,
                                             const ShardConfig& config) {
  std::unique_ptr<Shard> shard(new Shard(reactor, options, config));
  TL_TRY(shard->table_, shard->new_table());
  TL_TRY(options.in_group() ? shard->create_group_node() : shard->create_ends());
  reactor.add_source(*shard);
  return shard;
}

Shard::Shard(Reactor& reactor, const Options& options, const ShardConfig& config)
    : reactor_(reactor), options_(options), config_(config) {}

Status Shard::create_ends() {
  if (options_.role == NodeRole::primary) {
    PrimaryOptions primary;
    primary.shard = config_.id;
    primary.shard_count = static_cast<std::uint16_t>(options_.shards);
    primary.history = config_.history;
    primary.routing_seed = config_.routing_seed;
    primary.epoch = config_.epoch;
    primary.node = options_.node;
    primary.log_bytes = options_.log_bytes;
    primary.group_bytes_max = options_.batch_bytes_max();
    primary.heartbeat = options_.heartbeat;
    primary.link_timeout = options_.link_timeout;
    primary.c = options_.c;
    primary.snapshots = this;
    TL_TRY(own_primary_, Primary::create(reactor_, primary));
    primary_ = own_primary_.get();
    admission_ = std::make_unique<Admission>(reactor_, *primary_,
                                             AdmissionOptions{options_.ring_bytes, options_.value_bytes_max});
  } else {
    ReplicaOptions replica;
    replica.shard = config_.id;
    replica.heartbeat = options_.heartbeat;
    replica.link_timeout = options_.link_timeout;
    replica.policy = options_.apply_policy;
    replica.snapshot = this;
    TL_TRY(own_replica_, Replica::create(reactor_, *this, replica));
    replica_ = own_replica_.get();
  }
  return {};
}

Shard::~Shard() { TL_ASSERT(inside_ == 0, "a shard ends after its calls"); }

void Shard::follow(HistoryId history, std::uint64_t routing_seed, Epoch epoch) {
  config_.history = history;
  config_.routing_seed = routing_seed;
  config_.epoch = epoch;
}

Following& Shard::pursue(Dialer& dialer, FollowingObserver& observer) {
  FollowingOptions following;
  following.primary = options_.primary;
  following.node = options_.node;
  following.shard = config_.id;
  following.shard_count = static_cast<std::uint16_t>(options_.shards);
  following.value_bytes_max = options_.value_bytes_max;
  following.reconnect = options_.reconnect;
  following.link_timeout = options_.link_timeout;
  following_ = std::make_unique<Following>(reactor_, *own_replica_, dialer, observer, following);
  return *following_;
}

void Shard::shut() {
  shut_ = true;
  if (following_) following_->stop();
  if (!node_) return;
  node_->stop();
  group_changed_.notify_all();
}

void Shard::on_replica_lost(std::function<void(const std::string& reason)> handler) {
  primary_->on_link_lost([handler = std::move(handler)](std::uint32_t, const std::string& reason) {
    if (handler) handler(reason);
  });
}

void Shard::each_link(const std::function<void(const Link&)>& visit) const {
  if (primary_) primary_->each_link(visit);
  if (replica_ && replica_->link() != nullptr) visit(*replica_->link());
}

bool Shard::quiet() const {
  return inside_ == 0 && writes_head_ == nullptr && spawn_backlog_.empty() &&
         (following_ == nullptr || following_->stopped()) && (node_ == nullptr || node_->stopped());
}

void Shard::close_links(const std::string& reason) {
  if (node_) node_->member().close(reason);
  if (own_primary_) own_primary_->close(reason);
  if (own_replica_) own_replica_->close(reason);
}

void Shard::destroy() {
  if (table_ == nullptr) return;
  reactor_.remove_source(*this);
  overdue_.disarm();
  assembly_ = {};
  following_.reset();
  admission_.reset();
  primary_ = nullptr;
  replica_ = nullptr;
  own_primary_.reset();
  own_replica_.reset();
  node_.reset();
  drop_shadow();
  retired_.clear();
  table_.reset();
}

// ---- the replica's entries --------------------------------------------------------------------------

Status Shard::apply(std::span<const EntryView> entries) {
  for (const EntryView& entry : entries) TL_TRY(apply_one(entry));
  return {};
}

Status Shard::apply_one(const EntryView& entry) {
  switch (entry.kind) {
    case EntryKind::put: {
      const std::uint64_t hash = hash_of(entry.key);
      TL_TRY(table_->reserve(hash, entry.key, entry.value.size()));
      stand({true, hash, entry.key, entry.value}, entry.lsn);
      break;
    }
    case EntryKind::erase:
      stand({false, hash_of(entry.key), entry.key, {}}, entry.lsn);
      break;
    case EntryKind::noop:
      break;
    case EntryKind::fragment:
      TL_TRY(apply_fragment(entry));
      if (!entry.last_fragment()) return {};
      break;
  }
  wrote(entry.lsn);
  return {};
}

Status Shard::apply_fragment(const EntryView& entry) {
  TL_TRY(add_fragment(*table_, assembly_, entry));
  if (!entry.last_fragment()) return {};
  const std::uint64_t hash = hash_of(assembly_.key());
  return table_->commit(std::move(assembly_), hash, entry.lsn);
}

Status Shard::add_fragment(Table& table, Table::Assembly& assembly, const EntryView& entry) {
  if (entry.offset == 0) {
    assembly = {};
    TL_TRY(assembly, table.assemble(entry.key_bytes, entry.value_bytes));
  }
  if (!assembly.active()) return Error(ReplicationErrc::gap, "a fragment without its beginning");
  assembly.write(entry.offset, entry.value);
  return {};
}

void Shard::abandon_fragments() { assembly_ = {}; }

// ---- what others may know ---------------------------------------------------------------------------

void Shard::fill(ShardStats& stats) const {
  const auto value = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  stats.shard = config_.id;
  stats.keys = value(counters_.keys);
  stats.memory_bytes = value(counters_.memory_bytes);
  stats.puts = value(counters_.puts);
  stats.gets = value(counters_.gets);
  stats.erases = value(counters_.erases);
  stats.last_lsn = value(counters_.visible_lsn);
  stats.group = role();
  if (primary_ && (node_ == nullptr || stats.group.role == GroupRole::leading)) {
    const PrimaryStats& primary = primary_->stats();
    stats.received_lsn = value(primary.received_lsn);
    stats.applied_lsn = value(primary.applied_lsn);
    stats.replicas = value(primary.replicas);
    stats.snapshots = value(primary.snapshots_applied);
    stats.links_lost = value(primary.links_lost);
    stats.batches = value(primary.batches);
    stats.batch_bytes = value(primary.batch_bytes);
    stats.peer_wakeups = value(primary.peer_wakeups);
    stats.outcome_unknown = value(primary.outcome_unknown);
  } else {
    const ReplicaStats& replica = replica_->stats();
    stats.received_lsn = value(replica.received_lsn);
    stats.applied_lsn = value(replica.applied_lsn);
    stats.replicas = value(replica.link_up);
    stats.snapshots = value(replica.snapshots);
    stats.links_lost = value(replica.links_lost);
    stats.batches = value(replica.batches);
    stats.batch_bytes = value(replica.batch_bytes);
    stats.peer_wakeups = value(replica.peer_wakeups);
  }
  const ReactorStats& reactor = reactor_.stats();
  stats.turns = value(reactor.turns);
  stats.busy_turns = value(reactor.busy_turns);
  stats.stalls = value(reactor.stalls);
  stats.fiber_switches = value(reactor.fiber_switches);
  stats.fibers_live = value(reactor.fibers_live);
  stats.stack_bytes_peak = value(reactor.stack_bytes_peak);
}

std::uint32_t Shard::links() const {
  const auto count = [](const std::atomic<std::uint64_t>& links) {
    return static_cast<std::uint32_t>(links.load(std::memory_order_relaxed));
  };
  return (primary_ ? count(primary_->stats().replicas) : 0) +
         (replica_ ? count(replica_->stats().link_up) : 0);
}

}  // namespace tidelock
