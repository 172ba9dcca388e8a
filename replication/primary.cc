// Set-up, links coming and going. The data path is in primary_datapath.cc.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {
namespace {

std::string milliseconds_text(Duration duration) { return std::to_string(duration.ns / 1'000'000) + " ms"; }

}  // namespace

Result<std::unique_ptr<Primary>> Primary::create(Reactor& reactor, const PrimaryOptions& options) {
  if (options.heartbeat < microseconds(1) || options.link_timeout <= options.heartbeat) {
    return Error::from_errno(EINVAL, "heartbeat " + milliseconds_text(options.heartbeat) + ", link_timeout " +
                                         milliseconds_text(options.link_timeout) +
                                         ": give a heartbeat above 0 and a timeout of several heartbeats");
  }
  TL_TRY(auto log, Log::create(options.log_bytes));
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

Status Primary::attach(std::unique_ptr<Link> link, Lsn peer_last) {
  State& state = *state_;
  const auto refuse = [&link](Error error) {
    link->close(error.message());
    return error;
  };
  const std::uint32_t batch_bytes_least = std::max(kEntryBytesMax, group_bytes_max());
  if (link->batch_bytes_max() < batch_bytes_least) {
    return refuse(Error(ReplicationErrc::bad_length,
                        "the link takes batches of " + std::to_string(link->batch_bytes_max()) +
                            " bytes, an entry or a group has up to " + std::to_string(batch_bytes_least) +
                            ": give it a larger ring"));
  }
  const auto position = state.log->position_after(peer_last);
  if (!position) return refuse(position.error());
  if (const Status attached = link->attach(state.log->memory()); !attached) return refuse(attached.error());

  State::Peer peer;
  peer.batches_before = link->batches_completed();
  peer.link = std::move(link);
  peer.cursor = peer.completed = *position;
  peer.sent = peer.received = peer.applied = peer_last;
  peer.sent_at = peer.progress_at = state.reactor.now();
  state.peers.push_back(std::move(peer));
  state.send_control(state.peers.back(), false);  // tells the replica that it is counted from now on
  set_gauge(state.stats.replicas, state.peers.size());
  state.resumed = true;
  state.release_log();
  state.arm_tick();
  return {};
}

void Primary::each_link(const std::function<void(const Link&)>& visit) const {
  for (const State::Peer& peer : state_->peers) visit(*peer.link);
}
bool Primary::departed() const { return state_->peers.empty() && state_->departing.empty(); }

std::size_t Primary::replicas() const { return state_->peers.size(); }
std::uint64_t Primary::backlog() const {
  const Lsn last = state_->log->last_lsn();
  Lsn behind = last;
  for (const State::Peer& peer : state_->peers) {
    if (peer.link->state() == LinkState::ready) behind = std::min(behind, peer.applied);
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
    departing.push_back({std::move(peers[i].link), peers[i].completed});
    peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
    set_gauge(stats.replicas, peers.size());
    reap();
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
    if (peer.cursor != log->end()) publish_pending(peer);
    if (peer.completed == log->end()) peer.progress_at = now;
    if (now - peer.link->last_heard() > options.link_timeout) {
      peer.link->close("the replica said nothing for " + milliseconds_text(options.link_timeout));
    } else if (now - peer.progress_at > options.link_timeout) {
      peer.link->close("the replica took nothing for " + milliseconds_text(options.link_timeout) +
                       " although there is something to take");
    }
  }
  sweep();
  reap();
  arm_tick();
}

}  // namespace tidelock
