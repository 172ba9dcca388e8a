// A shard of a group: its node's roles, what they mean for reads and writes, and what others may know of
// them. See shard.h and replication/group_node.h.
#include <algorithm>
#include <utility>

#include <tidelock/engine/errc.h>

#include "inside.h"
#include "shard.h"

namespace tidelock {
namespace {

std::string epoch_text(Epoch epoch) {
  return std::to_string(epoch.counter) + "." + std::to_string(epoch.node);
}

constexpr Duration kLookAgain = milliseconds(1);

Error lost(const std::string& what) { return {EngineErrc::history_lost, what}; }

}  // namespace

Status Shard::create_group_node() {
  GroupNodeOptions options;
  MemberOptions& member = options.member;
  member.group.node = options_.node;
  for (const NodeAddress& node : options_.nodes) {
    member.group.nodes.push_back(node.node);
    if (node.node != options_.node) options.peers.push_back({node.node, node.address});
  }
  std::sort(member.group.nodes.begin(), member.group.nodes.end());
  member.group.c = options_.group_c();
  member.group.lease = options_.lease;
  member.group.group_bytes_max = options_.batch_bytes_max();
  member.shard = config_.id;
  member.shard_count = static_cast<std::uint16_t>(options_.shards);
  member.log_bytes = options_.log_bytes;
  member.ring_bytes = options_.ring_bytes;
  member.value_bytes_max = options_.value_bytes_max;
  member.heartbeat = options_.heartbeat;
  member.link_timeout = options_.link_timeout;
  member.seeds = config_.seed;
  options.founds = options_.found;
  options.stands = options_.failover;
  Clock& clock = config_.clock != nullptr ? *config_.clock : boot_clock_;
  TL_TRY(node_, GroupNode::create(reactor_, clock, MemberTable{*this, this, this}, dialer_, *this, options));
  primary_ = &node_->member().primary();
  replica_ = &node_->member().replica();
  return {};
}

Status Shard::join(Dialer& dialer, GroupNodeObserver& watch) {
  dialer_.real = &dialer;
  watch_ = &watch;
  publish_group();
  return node_->start();
}

Status Shard::promote(const PromoteOptions& how, Instant deadline) {
  if (shut_) return EngineErrc::closed;
  const Inside inside(inside_);
  TL_TRY(node_->promote(how, deadline));
  // An epoch serves once its beginning is committed.
  const auto serves = [this] { return group_commit() >= member().log().line().starts().back().first_lsn; };
  const Status waited = group_changed_.wait_until([&] { return shut_ || !leads() || serves(); }, deadline);
  if (shut_) return EngineErrc::closed;
  if (!leads()) return Error(ReplicationErrc::not_primary, "it has led, and was deposed at once");
  if (waited) return {};
  return Error(waited.error().code(),
               "it leads, but too few of the others follow it for anything to be "
               "committed");
}

Status Shard::switch_over(std::uint32_t node, Instant deadline) {
  if (shut_) return EngineErrc::closed;
  const Inside inside(inside_);
  if (!leads()) return {};
  return node_->switch_over(node, deadline);
}

// ---- what its node is -----------------------------------------------------------------------------------

/// What comes from here on is of that line: its keys are hashed with its seed.
void Shard::role_changed(MemberRole role, const std::string& why) {
  const Lineage lineage = member().lineage();
  if (role != MemberRole::none) follow(lineage.history, lineage.routing_seed, lineage.epoch);
  // An epoch begins with an entry that nobody here has written.
  if (role == MemberRole::leading) wrote(member().log().last_lsn());
  if (config_.id == ShardId{}) config_.seed->leads(role == MemberRole::leading);
  group_.role_count.fetch_add(1, std::memory_order_relaxed);
  publish_group();
  if (watch_ != nullptr) watch_->role_changed(role, why);
}

void Shard::takes_line(const Lineage& lineage) {
  follow(lineage.history, lineage.routing_seed, lineage.epoch);
}

void Shard::note(const std::string& what) {
  if (watch_ != nullptr) watch_->note(what);
}

bool Shard::has_group_news() const {
  return node_ != nullptr &&
         (group_.commit_lsn.load(std::memory_order_relaxed) != group_commit().value ||
          group_.epoch.load(std::memory_order_relaxed) != epoch_value(member().lineage().epoch) ||
          group_.memory.load(std::memory_order_relaxed) != has_memory());
}

void Shard::publish_group() {
  const Lineage lineage = member().lineage();
  GroupRole role = GroupRole::none;
  std::uint32_t leader = 0;
  if (member().role() != MemberRole::none) {
    role = member().role() == MemberRole::leading ? GroupRole::leading : GroupRole::following;
    leader = lineage.epoch.node;
  }
  group_.role.store(role, std::memory_order_relaxed);
  group_.leader.store(leader, std::memory_order_relaxed);
  group_.history.store(lineage.history.value, std::memory_order_relaxed);
  group_.epoch.store(epoch_value(lineage.epoch), std::memory_order_relaxed);
  group_.commit_lsn.store(group_commit().value, std::memory_order_relaxed);
  group_.memory.store(has_memory(), std::memory_order_release);
  group_changed_.notify_all();
  // A history that began and came to nothing sets no seed: it is there to stay once something is committed.
  if (!has_memory() || group_commit() == Lsn{} || config_.seed->value() == lineage.routing_seed) return;
  const Instant now = config_.clock != nullptr ? config_.clock->now() : boot_clock_.now();
  if (config_.seed->set(lineage.routing_seed, now) || std::exchange(seed_refused_, true)) return;
  note(other_seed().message());
}

ShardRole Shard::role() const {
  ShardRole role;
  role.shard = config_.id;
  role.memory = group_.memory.load(std::memory_order_acquire);
  role.role = group_.role.load(std::memory_order_relaxed);
  role.history = {group_.history.load(std::memory_order_relaxed)};
  role.epoch = epoch_of_value(group_.epoch.load(std::memory_order_relaxed));
  role.leader = group_.leader.load(std::memory_order_relaxed);
  role.commit_lsn = {group_.commit_lsn.load(std::memory_order_relaxed)};
  role.role_count = group_.role_count.load(std::memory_order_relaxed);
  return role;
}

// ---- what that means for calls --------------------------------------------------------------------------

Error Shard::not_leading() const {
  const std::string shard = "shard " + std::to_string(config_.id.value) + ": ";
  if (member().role() != MemberRole::following) {
    return {EngineErrc::read_only,
            shard + "this node knows of no primary; wait until one is there, or promote one"};
  }
  return {EngineErrc::read_only, shard + "node " + std::to_string(config_.epoch.node) + " leads (epoch " +
                                     epoch_text(config_.epoch) + "); write there"};
}

Error Shard::other_seed() const {
  return {EngineErrc::not_ready,
          "shard " + std::to_string(config_.id.value) +
              ": its history spreads keys by another seed than this node's other shards do: restart this "
              "node, it then takes all that it has from the others"};
}

Status Shard::await_memory(Instant deadline) {
  if (node_ == nullptr || has_memory()) return {};
  Status waited = group_changed_.wait_until([this] { return shut_ || has_memory(); }, deadline);
  if (shut_) return EngineErrc::closed;
  if (waited || waited.error() == ReactorErrc::cancelled) return waited;
  return Error(
      EngineErrc::not_ready,
      "shard " + std::to_string(config_.id.value) +
          ": this node has not yet learned what its group has; enough of the others have to be there");
}

/// Of a receipt, at a primary: whether its entry is in what this node has.
Status Shard::check_group_receipt(const Receipt& receipt) const {
  const HistoryId history = member().lineage().history;
  if (receipt.history != HistoryId{} && receipt.history != history) {
    return lost("the receipt is of history " + std::to_string(receipt.history.value) + ", this node's is " +
                std::to_string(history.value));
  }
  const GroupLog& log = member().log();
  if (receipt.lsn == Lsn{} || stands_for(receipt)) return {};
  // It may not have heard yet that another leads.
  if (receipt.epoch > log.line().last_epoch()) {
    return Error(EngineErrc::read_only, "the receipt is of epoch " + epoch_text(receipt.epoch) +
                                            ", this node leads " + epoch_text(log.line().last_epoch()) +
                                            ": ask the node that gave it");
  }
  return lost("LSN " + std::to_string(receipt.lsn.value) + " of epoch " + epoch_text(receipt.epoch) +
              " is not in what this node has");
}

/// Without an epoch an LSN is only a number: whatever this node has there is taken for it.
bool Shard::stands_for(const Receipt& receipt) const {
  const GroupLog& log = member().log();
  if (receipt.epoch == Epoch{}) return receipt.lsn <= log.last_lsn();
  return log.line().holds(receipt.epoch, receipt.lsn, log.last_lsn());
}

/// Then it has memory, in the turn of the return, and what the receipt stands for.
Status Shard::await_group_visible(const Receipt& after, Instant deadline) {
  GroupLog& log = member().log();
  for (;;) {
    TL_TRY(await_memory(deadline));
    if (!seed_fits()) return other_seed();
    if (after.lsn == Lsn{}) return {};
    if (after.history != HistoryId{} && after.history != member().lineage().history)
      return check_group_receipt(after);
    if (stands_for(after)) return {};
    const bool any_epoch = after.epoch == Epoch{};
    const Status waited =
        log.wait_visible(any_epoch ? log.line().last_epoch() : after.epoch, after.lsn, deadline);
    if (!waited && waited.error() == ReplicationErrc::history_lost) {
      if (!any_epoch) return lost(waited.error().message());
      TL_TRY(pause(deadline));  // another epoch has begun: its entries count as well
      continue;
    }
    TL_TRY(waited);
  }
}

Result<ReadLevel> Shard::asked_level(ReadLevel level) const {
  switch (level) {
    case ReadLevel::standard:
      return node_ != nullptr && leads() ? ReadLevel::linearizable : ReadLevel::any;
    case ReadLevel::any:
      return level;
    case ReadLevel::linearizable:
      if (node_ != nullptr && !leads()) return Error(ReplicationErrc::not_primary, not_leading().message());
      [[fallthrough]];
    case ReadLevel::committed:
      if (node_ != nullptr) return level;
      return Error(
          EngineErrc::bad_option,
          "ReadOptions::level committed and linearizable are for groups (Options::nodes): outside of "
          "one nobody knows what later primaries lack");
  }
  return Error(EngineErrc::bad_option, "ReadOptions::level is none of those that there are");
}

/// In the turn in which it was captured: the log may be another's after that.
Shard::Seen Shard::seen_of(Lsn lsn) const {
  const GroupLog& log = member().log();
  if (lsn <= log.commit_lsn()) return {{}, lsn, true};
  return {log.line().epoch_of(lsn).value_or(log.line().last_epoch()), lsn, false};
}

/// A commit takes the epoch's c, and nothing less is an acknowledgement.
AckNeed Shard::need_now(AckNeed ack) const {
  if (node_ != nullptr && ack.replicas != 0 && ack.replicas < primary_->options().c.value_or(0))
    ack.replicas = 0;
  return ack;
}

/// Where the epoch's c is 0 what is appended is committed, so an acknowledgement waits for nobody.
AckLevel Shard::level_now(AckNeed ack) const {
  const bool at_once = node_ != nullptr && ack.replicas == 0 && primary_->options().c.value_or(0) == 0;
  return at_once ? AckLevel::local : ack.level;
}

/// What was captured counts once what made it is committed. If that is cut instead, what is there now is
/// looked at. Leases are asked for after the capture: it was the newest then if nobody else has led since.
Result<Lsn> Shard::get_committed(std::uint64_t hash, Bytes key, std::string& value, const Receipt& after,
                                 ReadLevel level, Instant deadline) {
  for (;;) {
    TL_TRY(await_group_visible(after, deadline));
    if (level == ReadLevel::linearizable) TL_TRY(asked_level(level));
    // What the table shows then may be of entries that are in no log. A snapshot mends it, if there is
    // memory.
    if (member().log().spoiled()) {
      if (this_fiber::sleep_for(kLookAgain) == Wakeup::cancelled) return ReactorErrc::cancelled;
      if (reactor_.now() < deadline) continue;
      return Error(
          ReactorErrc::deadline_exceeded,
          "this node's table ran out of memory amid entries, and no snapshot has mended it yet: give it "
          "more (Options::memory_bytes_max), or ask another node");
    }
    const Epoch led = primary_->epoch();
    Seen seen;
    auto read = get_here(hash, key, value, seen);
    if (!read && !(read.error() == EngineErrc::not_found)) return read;
    // A large value is copied over many turns, and a lease says nothing of who led before its epoch.
    if (level == ReadLevel::linearizable && (!leads() || primary_->epoch() != led)) {
      TL_TRY(pause(deadline));
      continue;
    }
    if (level == ReadLevel::linearizable && !primary_->lease_held()) {
      const Status leased = primary_->wait_lease(deadline);
      if (!leased && leased.error() == ReactorErrc::deadline_exceeded) {
        return Error(ReactorErrc::deadline_exceeded,
                     "too few of the others have answered by the deadline to know that nobody else leads; "
                     "ReadLevel::committed needs no answer");
      }
      TL_TRY(leased);
    }
    if (seen.committed) return read;
    const Status committed = member().log().wait_committed(seen.epoch, seen.lsn, deadline);
    if (committed) return read;
    if (committed.error() == ReplicationErrc::history_lost) {
      TL_TRY(pause(deadline));
      continue;
    }
    if (!(committed.error() == ReactorErrc::deadline_exceeded)) return committed.error();
    return Error(
        ReactorErrc::deadline_exceeded,
        "what this node holds of that key was not committed by the deadline; ReadLevel::any shows it");
  }
}

}  // namespace tidelock
