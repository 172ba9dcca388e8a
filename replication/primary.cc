// Set-up, links coming and going. The data path is in primary_datapath.cc.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

Result<std::unique_ptr<Primary>> Primary::create(Reactor& reactor, const PrimaryOptions& options) {
  TL_TRY(check_liveness(options.heartbeat, options.link_timeout));
  if (options.c.value_or(0) > kAckReplicasMax) {
    return Error::from_errno(
        EINVAL, "c is " + std::to_string(*options.c) + ": give 0 to " + std::to_string(kAckReplicasMax));
  }
  TL_TRY(auto log, Log::create(options.log_bytes, options.snapshots != nullptr ? kSnapshotBufferBytes : 0));
  auto state = std::make_unique<State>(reactor, options, std::move(log));
  std::unique_ptr<Primary> primary(new Primary(std::move(state)));
  reactor.add_source(*primary);
  return primary;
}

Primary::Primary(std::unique_ptr<State> state) : state_(std::move(state)) {}

Primary::~Primary() {
  close("the primary has ended");
  TL_ASSERT(state_->room_head == nullptr && !state_->fragmenting, "a fiber still waits for room in the log");
  state_->reactor.remove_source(*this);
}

/// The log's memory is the link's to read from then on.
Status Primary::State::take_link(Link& link) {
  const std::uint32_t batch_bytes_least = std::max(kEntryBytesMax, group_bytes_max());
  if (link.batch_bytes_max() < batch_bytes_least) {
    return Error(ReplicationErrc::bad_length,
                 "the link takes batches of " + std::to_string(link.batch_bytes_max()) +
                     " bytes, an entry or a group has up to " + std::to_string(batch_bytes_least) +
                     ": give it a larger ring");
  }
  return link.attach(log->memory());
}

void Primary::State::add_peer(Peer peer, std::unique_ptr<Link> link) {
  peer.batches_before = link->batches_completed();
  peer.link = std::move(link);
  peer.sent_at = peer.progress_at = peer.range_at = peer.owes_since = reactor.now();
  peers.push_back(std::move(peer));
  send_control(peers.back(), false);  // tells the replica that it is on this core from now on
  count_nodes();
  release_log();
  arm_tick();
}

Status Primary::attach(std::unique_ptr<Link> link, std::uint32_t node, Lsn peer_last) {
  State& state = *state_;
  const auto refuse = [&link](Error error) {
    link->close(error.message());
    return error;
  };
  if (state.attached(node)) return refuse(State::busy(node));
  const auto position = state.log->position_after(peer_last);
  if (!position) return refuse(position.error());
  if (const Status taken = state.take_link(*link); !taken) return refuse(taken.error());

  State::Peer peer;
  peer.node = node;
  peer.cursor = peer.completed = *position;
  peer.sent = peer.resumed = peer_last;
  state.add_peer(std::move(peer), std::move(link));
  return {};
}

void Primary::each_link(const std::function<void(const Link&)>& visit) const {
  for (const State::Peer& peer : state_->peers) visit(*peer.link);
}
bool Primary::departed() const { return state_->peers.empty() && state_->departing.empty(); }

bool Primary::attached(std::uint32_t node) const { return state_->attached(node); }
std::size_t Primary::replicas() const { return state_->replicas(); }
std::size_t Primary::nodes() const { return state_->nodes; }
std::uint32_t Primary::replicas_needed() const { return state_->replicas_needed; }
std::uint64_t Primary::backlog() const {
  const Lsn last = state_->log->last_lsn();
  Lsn behind = last;
  for (const State::Peer& peer : state_->peers) {
    const Lsn applied = std::max(peer.applied, peer.resumed);
    if (peer.link->state() == LinkState::ready && !peer.syncing) behind = std::min(behind, applied);
  }
  return last.value - behind.value;
}
void Primary::on_link_lost(std::function<void(const std::string& reason)> handler) {
  state_->link_lost = std::move(handler);
}
Lsn Primary::last_lsn() const { return state_->log->last_lsn(); }
Epoch Primary::epoch() const { return state_->options.epoch; }
Lsn Primary::commit_lsn() const { return state_->commit_lsn(); }
const PrimaryOptions& Primary::options() const { return state_->options; }
const Log& Primary::log() const { return *state_->log; }
const PrimaryStats& Primary::stats() const { return state_->stats; }
bool Primary::fragmenting() const { return state_->fragmenting; }

void Primary::close(const std::string& reason) {
  flush();
  state_->dismiss_all(reason);
  state_->closed = true;  // before the waiters hear of it: they may come back
  state_->fail_waiters();
  state_->refuse_room();
}

/// Links of which the peer has not seen the end count, too: it may still speak on them.
bool Primary::State::attached(std::uint32_t node) const {
  return options.c.has_value() &&
         std::any_of(peers.begin(), peers.end(), [node](const Peer& peer) { return peer.node == node; });
}

Error Primary::State::busy(std::uint32_t node) {
  return Error(ReplicationErrc::peer_busy,
               "node " + std::to_string(node) + " has a link that is not yet gone: try again");
}

/// Whole ones.
void Primary::State::count_nodes() {
  set_gauge(stats.replicas, replicas());
  nodes = 0;
  for (auto peer = peers.begin(); peer != peers.end(); ++peer) {
    const auto counted = [&](const Peer& other) { return other.node == peer->node && !other.syncing; };
    nodes += !peer->syncing && std::none_of(peers.begin(), peer, counted);
  }
}

void Primary::State::dismiss_all(const std::string& reason) {
  for (Peer& peer : peers) {
    if (peer.link->state() == LinkState::ready) {
      send_control(peer, true);
      peer.link->flush();
    }
    peer.link->close(reason);
    peer.dismissed = true;
  }
  if (!iterating) sweep();
}

/// Without replicas the log has room for everything, once no link reads it any more.
void Primary::State::drop_all(const std::string& reason) {
  for (Peer& peer : peers) peer.link->close(reason);
  sweep();
}

/// Removes closed links: they are no replicas any more, but the log waits for them until they are drained.
/// Only ever called while nobody walks the peers.
void Primary::State::sweep() {
  for (std::size_t i = 0; i < peers.size();) {
    if (peers[i].link->state() == LinkState::ready) {
      ++i;
      continue;
    }
    // Out of the list before the handler runs: it may attach or close.
    const bool dismissed = peers[i].dismissed;
    const std::string reason = peers[i].link->close_reason();
    const std::uint64_t needed = peers[i].waits_for_range() ? log->end() : peers[i].completed;
    departing.push_back({std::move(peers[i].link), needed, peers[i].buffers_in_flight()});
    peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
    count_nodes();
    reap();
    if (too_few()) refuse_room();
    if (dismissed) continue;
    bump(stats.links_lost);
    if (link_lost) link_lost(reason);
    i = 0;
  }
}

/// Destroys the closed links that are drained, then gives the log what they kept. Whether there were any.
bool Primary::State::reap() {
  const std::size_t before = departing.size();
  std::erase_if(departing, [](const Departing& peer) { return peer.link->drained(); });
  if (departing.size() == before) return false;
  release_log();
  return true;
}

void Primary::State::arm_tick() {
  // Half of the heartbeat, so that two ticks never leave more than a whole one between two frames.
  if ((peers.empty() && departing.empty()) || heartbeat.armed()) return;
  reactor.timers().arm(heartbeat, reactor.now() + Duration{options.heartbeat.ns / 2});
}

/// Drops peers that are silent or that take nothing. Heartbeats leave in the flush of the same turn.
void Primary::State::tick() {
  const Instant now = reactor.now();
  for (Peer& peer : peers) {
    // Ask once more before judging: it may be this node that stood still.
    peer.range_refused = false;
    publish(peer);
    if (peer.has_all(log->end())) peer.progress_at = now;
    if (!peer.owes_whole()) peer.owes_since = now;
    if (now - peer.link->last_heard() > options.link_timeout) {
      peer.link->close("the replica said nothing for " + milliseconds_text(options.link_timeout));
    } else if (now - peer.progress_at > options.link_timeout) {
      peer.link->close("the replica took nothing for " + milliseconds_text(options.link_timeout) +
                       " although there is something to take");
    } else if (now - peer.owes_since > options.link_timeout) {
      peer.link->close("the replica had a whole snapshot for " + milliseconds_text(options.link_timeout) +
                       " and did not acknowledge it");
    }
  }
  sweep();
  reap();
  make_room_for_next();
  arm_tick();
}

}  // namespace tidelock
