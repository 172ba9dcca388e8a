#include <algorithm>

#include <tidelock/replication/lease.h>

namespace tidelock {

Leases::Leases(const Quorum& quorum, Duration lease, Duration link_timeout, Clock& clock)
    : quorum_(quorum), lease_(lease), link_timeout_(link_timeout), clock_(clock) {}

bool Leases::followed() const {
  const Instant now = clock_.now();
  const auto there = std::count_if(peers_.begin(), peers_.end(), [&](const auto& peer) {
    return now - peer.second.heard_at < link_timeout_;
  });
  return static_cast<std::uint32_t>(there) >= quorum_.c;
}

std::uint64_t Leases::stamp(bool serves) {
  if (!serves || ended_ || !followed()) return 0;
  const Instant now = clock_.now();
  if (now.ns <= 0) return 0;
  last_stamp_ = std::max(last_stamp_, static_cast<std::uint64_t>(now.ns));
  return last_stamp_;
}

bool Leases::heard(std::uint32_t node, std::uint64_t echo) {
  if (echo > last_stamp_) return false;
  Peer& peer = peers_[node];
  peer.heard_at = clock_.now();
  if (echo <= peer.echo) return true;
  peer.echo = echo;
  const std::uint64_t since = reached();
  if (since != 0) held_until_ = Instant{static_cast<std::int64_t>(since)} + usable(lease_);
  return true;
}

std::uint64_t Leases::reached() const {
  std::uint64_t found = 0;
  for (const auto& [node, peer] : peers_) {
    if (peer.echo > found && confirmed(peer.echo - 1)) found = peer.echo;
  }
  return found;
}

bool Leases::stamped_lately() const {
  return !ended_ && last_stamp_ != 0 &&
         clock_.now() - Instant{static_cast<std::int64_t>(last_stamp_)} < lease_;
}

bool Leases::held() const {
  // Where nobody can lead without this node's promise, or commit without it, no other's word is needed.
  if (quorum_.leases_needed() == 0) return !ended_;
  return !ended_ && clock_.now() < held_until_;
}

bool Leases::confirmed(std::uint64_t mark) const {
  const auto later =
      std::count_if(peers_.begin(), peers_.end(), [&](const auto& peer) { return peer.second.echo > mark; });
  return !ended_ && static_cast<std::uint32_t>(later) >= quorum_.leases_needed();
}

}  // namespace tidelock
