// Set-up, and which replicas there are. The data path is in primary_datapath.cc.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {
namespace {

Status check_options(const PrimaryOptions& options) {
  TL_TRY(check_liveness(options.heartbeat, options.link_timeout));
  if (options.c.value_or(0) <= kAckReplicasMax) return {};
  return Error::from_errno(
      EINVAL, "c is " + std::to_string(*options.c) + ": give 0 to " + std::to_string(kAckReplicasMax));
}

std::uint32_t buffer_bytes(const PrimaryOptions& options) {
  return options.snapshots != nullptr ? Sender::kSnapshotBufferBytes : 0;
}

Status check_buffers(const PrimaryOptions& options, Log& log) {
  if (log.buffers().size() >= buffer_bytes(options)) return {};
  return Error::from_errno(EINVAL, "the log has " + std::to_string(log.buffers().size()) +
                                       " bytes of buffers, snapshots need " +
                                       std::to_string(buffer_bytes(options)));
}

}  // namespace

Result<std::unique_ptr<Primary>> Primary::create(Reactor& reactor, const PrimaryOptions& options) {
  TL_TRY(check_options(options));
  TL_TRY(auto log, Log::create(options.log_bytes, buffer_bytes(options)));
  auto state = std::make_unique<State>(reactor, options, std::move(log));
  std::unique_ptr<Primary> primary(new Primary(std::move(state)));
  reactor.add_source(*primary);
  return primary;
}

Result<std::unique_ptr<Primary>> Primary::create(Reactor& reactor, const PrimaryOptions& options, Log& log,
                                                 const EpochLine& line) {
  TL_TRY(check_options(options));
  TL_TRY(check_buffers(options, log));
  std::unique_ptr<Primary> primary(new Primary(std::make_unique<State>(reactor, options, log, &line)));
  reactor.add_source(*primary);
  return primary;
}

Result<std::unique_ptr<Primary>> Primary::create(Reactor& reactor, const PrimaryOptions& options,
                                                 GroupLog& group) {
  TL_ASSERT(options.c.has_value(), "a group has a c");
  TL_TRY(check_options(options));
  TL_TRY(check_buffers(options, group.log()));
  std::unique_ptr<Primary> primary(
      new Primary(std::make_unique<State>(reactor, options, group.log(), &group.line(), &group)));
  reactor.add_source(*primary);
  return primary;
}

Primary::Primary(std::unique_ptr<State> state) : state_(std::move(state)) {}

Primary::~Primary() {
  close("the primary has ended");
  TL_ASSERT(state_->room_head == nullptr && !state_->fragmenting, "a fiber still waits for room in the log");
  state_->reactor.remove_source(*this);
}

SenderOptions Primary::State::sender_options(bool foreign_log) const {
  SenderOptions chosen;
  chosen.shard = options.shard;
  chosen.group_bytes_max = group_bytes_max();
  chosen.heartbeat = options.heartbeat;
  chosen.link_timeout = options.link_timeout;
  chosen.one_link_a_node = options.c.has_value();
  chosen.judges_line = foreign_log;
  chosen.whole_is_said = group != nullptr;
  chosen.snapshots = options.snapshots;
  chosen.policy = options.policy;
  return chosen;
}

Follower Primary::State::follower(std::uint32_t node, Lsn last, Epoch last_epoch) const {
  return {node, last, options.history, options.epoch, true, last_epoch};
}

Status Primary::attach(std::unique_ptr<Link> link, std::uint32_t node, Lsn peer_last, Epoch peer_last_epoch) {
  return state_->sender.attach(std::move(link), state_->follower(node, peer_last, peer_last_epoch));
}
Status Primary::attach_snapshot(std::unique_ptr<Link> link, std::uint32_t node, Lsn peer_last) {
  return state_->sender.attach_snapshot(std::move(link), state_->follower(node, peer_last, {}));
}
Duration Primary::snapshot_wait(std::uint32_t node) const { return state_->sender.snapshot_wait(node); }
bool Primary::sends_snapshots() const { return state_->sender.sends_snapshots(); }
Sender& Primary::sender() { return state_->sender; }

void Primary::each_link(const std::function<void(const Link&)>& visit) const {
  for (const Sender::Peer& peer : state_->sender.peers()) visit(*peer.link);
}
bool Primary::departed() const { return state_->sender.departed(); }

bool Primary::attached(std::uint32_t node) const { return state_->sender.attached(node); }
std::size_t Primary::replicas() const { return state_->replicas(); }
std::size_t Primary::nodes() const { return state_->nodes; }
std::uint32_t Primary::replicas_needed() const { return state_->replicas_needed; }
std::uint64_t Primary::backlog() const {
  const Lsn last = state_->log.last_lsn();
  Lsn behind = last;
  for (const Sender::Peer& peer : state_->sender.peers()) {
    const Lsn applied = std::max(peer.applied, peer.follower.last);
    if (peer.link->state() == LinkState::ready && peer.counts()) behind = std::min(behind, applied);
  }
  return last.value - behind.value;
}
void Primary::on_link_lost(std::function<void(std::uint32_t node, const std::string& reason)> handler) {
  state_->on_link_lost = std::move(handler);
}
Lsn Primary::last_lsn() const { return state_->log.last_lsn(); }
Epoch Primary::epoch() const { return state_->options.epoch; }
Lsn Primary::commit_lsn() const { return state_->commit_lsn(); }
const PrimaryOptions& Primary::options() const { return state_->options; }
const Log& Primary::log() const { return state_->log; }
const PrimaryStats& Primary::stats() const { return state_->stats; }
bool Primary::fragmenting() const { return state_->fragmenting; }

void Primary::close(const std::string& reason) {
  flush();
  state_->sender.dismiss_all(reason);
  state_->closed = true;  // before the waiters hear of it: they may come back
  state_->end_leases();
  state_->end_handover();
  state_->fail_waiters();
  state_->refuse_room();
  if (state_->fragment_waiter != nullptr) state_->fragment_waiter->queue.notify_one();
}

/// Whole ones.
void Primary::State::count_nodes() {
  const std::vector<Peer>& peers = sender.peers();
  set_gauge(stats.replicas, replicas());
  nodes = 0;
  for (auto peer = peers.begin(); peer != peers.end(); ++peer) {
    const auto counted = [&](const Peer& other) { return other.node() == peer->node() && other.counts(); };
    nodes += peer->counts() && std::none_of(peers.begin(), peer, counted);
  }
}

std::size_t Primary::State::replicas() const {
  const std::vector<Peer>& peers = sender.peers();
  return static_cast<std::size_t>(
      std::count_if(peers.begin(), peers.end(), [](const Peer& peer) { return peer.counts(); }));
}

void Primary::State::peers_changed() {
  count_nodes();
  if (too_few()) refuse_room();
}

void Primary::State::link_lost(std::uint32_t node, const std::string& reason) {
  if (on_link_lost) on_link_lost(node, reason);
}

}  // namespace tidelock
