// Links coming and going. The data path is in sender_datapath.cc.
#include <algorithm>
#include <utility>

#include <tidelock/base/counter.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/sender.h>

#include "liveness.h"

namespace tidelock {

Sender::Sender(Reactor& reactor, Log& log, const EpochLine& line, const SenderOptions& options, Owner& owner,
               SenderStats& stats)
    : reactor_(reactor), log_(log), line_(line), options_(options), owner_(owner), stats_(stats) {
  peers_.reserve(16);
}

/// The log's memory is the link's to read from then on.
Status Sender::take_link(Link& link) {
  const std::uint32_t batch_bytes_least = std::max(kEntryBytesMax, options_.group_bytes_max);
  if (link.batch_bytes_max() < batch_bytes_least) {
    return Error(ReplicationErrc::bad_length,
                 "the link takes batches of " + std::to_string(link.batch_bytes_max()) +
                     " bytes, an entry or a group has up to " + std::to_string(batch_bytes_least) +
                     ": give it a larger ring");
  }
  return link.attach(log_.memory());
}

void Sender::add_peer(Peer peer, std::unique_ptr<Link> link) {
  peer.batches_before = link->batches_completed();
  peer.link = std::move(link);
  peer.whole = !options_.whole_is_said;
  peer.sent_at = peer.progress_at = peer.range_at = peer.owes_since = peer.said_at = reactor_.now();
  peers_.push_back(std::move(peer));
  send_control(peers_.back(), false);  // tells the replica that it is on this core from now on
  owner_.peers_changed();
  release_log();
  arm_tick();
}

Status Sender::attach(std::unique_ptr<Link> link, const Follower& follower) {
  const auto refuse = [&link](Error error) {
    link->close(error.message());
    return error;
  };
  if (attached(follower.node)) return refuse(busy(follower.node));
  if (options_.judges_line && !line_.prefix(follower.last_epoch, follower.last, log_.last_lsn())) {
    return refuse(Error(ReplicationErrc::gap, "the peer's log, up to LSN " +
                                                  std::to_string(follower.last.value) +
                                                  ", is no prefix of this one: a snapshot mends it"));
  }
  const auto position = log_.position_after(follower.last);
  if (!position) return refuse(position.error());
  if (const Status taken = take_link(*link); !taken) return refuse(taken.error());

  Peer peer;
  peer.follower = follower;
  peer.cursor = peer.completed = *position;
  peer.sent = follower.last;
  add_peer(std::move(peer), std::move(link));
  return {};
}

/// Links of which the peer has not seen the end count, too: it may still speak on them.
bool Sender::attached(std::uint32_t node) const {
  return options_.one_link_a_node &&
         std::any_of(peers_.begin(), peers_.end(), [node](const Peer& peer) { return peer.node() == node; });
}

Error Sender::busy(std::uint32_t node) {
  return Error(ReplicationErrc::peer_busy,
               "node " + std::to_string(node) + " has a link that is not yet gone: try again");
}

Sender::Claim Sender::claim(std::uint32_t node, Duration& left) {
  const Instant now = reactor_.now();
  left = {};
  bool taken = false;
  bool closed = false;
  for (Peer& peer : peers_) {
    if (peer.node() != node || peer.link->state() == LinkState::closed) continue;
    if (peer.claimed_at == Instant{}) peer.claimed_at = now;
    const Duration wait = silence_max(peer);
    if (now - peer.claimed_at < wait) {
      left = std::max(left, wait - (now - peer.claimed_at));
    } else if (peer.said_at - peer.claimed_at >= options_.heartbeat) {  // before that it may be an old word
      taken = true;
      peer.claimed_at = {};
    } else {
      peer.link->close("its node asks for another link and said nothing on this one for " +
                       milliseconds_text(now - peer.claimed_at));
      closed = true;
    }
  }
  if (closed && !iterating_) sweep();
  if (taken) return Claim::taken;
  return left > Duration{} ? Claim::wait : Claim::free;
}

/// No longer than a link lives in silence, whatever a peer has made of its pauses.
Duration Sender::silence_max(const Peer& peer) const {
  return std::min(std::max(options_.heartbeat, peer.pause) * 2, options_.link_timeout);
}

bool Sender::keeps_up(const Peer& peer) const {
  return peer.link->state() == LinkState::ready &&
         reactor_.now() - peer.progress_at <= options_.heartbeat * 2 &&
         reactor_.now() - peer.link->last_heard() <= silence_max(peer);
}

void Sender::drop_for_room(std::size_t peer, const std::string& reason) {
  back_off_.excuse(peers_[peer].node());
  peers_[peer].link->close(reason);
  sweep();
}

void Sender::count_held(std::uint64_t position, Duration by) {
  for (Peer& peer : peers_) {
    if (peer.syncing && peer.needs_from() < position) peer.held = peer.held + by;
  }
}

void Sender::dismiss_all(const std::string& reason, std::uint32_t successor) {
  for (Peer& peer : peers_) {
    if (peer.link->state() == LinkState::ready) {
      send_control(peer, true, successor != 0 && peer.node() == successor);
      peer.link->flush();
    }
    peer.link->close(reason);
    peer.dismissed = true;
  }
  if (!iterating_) sweep();
}

void Sender::drop_all(const std::string& reason) {
  for (Peer& peer : peers_) peer.link->close(reason);
  sweep();
}

void Sender::sweep() {
  for (std::size_t i = 0; i < peers_.size();) {
    if (peers_[i].link->state() == LinkState::ready) {
      ++i;
      continue;
    }
    // Out of the list before the owner hears of it: it may attach or close.
    const bool dismissed = peers_[i].dismissed;
    const std::uint32_t node = peers_[i].node();
    const std::string reason = peers_[i].link->close_reason();
    const std::uint64_t needed = peers_[i].waits_for_range() ? log_.end() : peers_[i].completed;
    departing_.push_back({std::move(peers_[i].link), needed, peers_[i].buffers_in_flight()});
    peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i));
    reap();
    owner_.peers_changed();
    if (dismissed) continue;
    bump(stats_.links_lost);
    owner_.link_lost(node, reason);
    i = 0;
  }
}

bool Sender::sweep_closed() {
  if (!std::exchange(any_closed_, false)) return false;
  sweep();
  return true;
}

/// Destroys the closed links that are drained, then gives the log what they kept. Whether there were any.
bool Sender::reap() {
  const std::size_t before = departing_.size();
  std::erase_if(departing_, [](const Departing& peer) { return peer.link->drained(); });
  if (departing_.size() == before) return false;
  release_log();
  return true;
}

void Sender::arm_tick() {
  // Half of the heartbeat, so that two ticks never leave more than a whole one between two frames.
  if (departed() || heartbeat_.armed()) return;
  reactor_.timers().arm(heartbeat_, reactor_.now() + Duration{options_.heartbeat.ns / 2});
}

/// Drops peers that are silent or that take nothing. Heartbeats leave in the flush of the same turn.
void Sender::tick() {
  const Instant now = reactor_.now();
  for (Peer& peer : peers_) {
    // Ask once more before judging: it may be this node that stood still.
    peer.range_refused = false;
    publish(peer);
    if (peer.has_all(log_.end())) peer.progress_at = now;
    if (!peer.owes_whole()) peer.owes_since = now;
    if (now - peer.link->last_heard() > options_.link_timeout) {
      peer.link->close("the replica said nothing for " + milliseconds_text(options_.link_timeout));
    } else if (now - peer.progress_at > options_.link_timeout) {
      peer.link->close("the replica took nothing for " + milliseconds_text(options_.link_timeout) +
                       " although there is something to take");
    } else if (now - peer.owes_since > options_.link_timeout) {
      peer.link->close("the replica had a whole snapshot for " + milliseconds_text(options_.link_timeout) +
                       " and did not acknowledge it");
    }
  }
  sweep();
  reap();
  owner_.ticked();
  arm_tick();
}

}  // namespace tidelock
