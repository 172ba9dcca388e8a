// Snapshots out: who may have one, and when a range leaves. What is in it: snapshot_sender.h.
#include <algorithm>
#include <array>
#include <optional>

#include <tidelock/base/counter.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/ack_policy.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/sender.h>

#include "link_errors.h"
#include "liveness.h"

namespace tidelock {
namespace {

constexpr std::uint32_t kRangeBytesBusy =
    16 * 1024;  ///< while others write: their turn has no more than that
constexpr std::uint64_t kLiveBytesMax = 4 * kRangeBytesBusy;  ///< between two ranges

}  // namespace

Duration Sender::snapshot_wait(std::uint32_t node) const {
  const Duration left = owner_.short_of_replicas() ? Duration{} : back_off_.left(node, reactor_.now());
  if (left > Duration{}) return left;
  // The link may still read the buffers after the last range was published, and after it was closed.
  const auto uses_buffers = [](const Peer& peer) {
    return peer.snapshot != nullptr || peer.buffers_in_flight();
  };
  const bool taken =
      std::any_of(peers_.begin(), peers_.end(), uses_buffers) ||
      std::any_of(departing_.begin(), departing_.end(), [](const Departing& peer) { return peer.buffers; });
  return taken ? options_.heartbeat : Duration{};
}

Status Sender::attach_snapshot(std::unique_ptr<Link> link, Follower follower) {
  const auto refuse = [&link](Error error) {
    link->close(error.message());
    return error;
  };
  if (!sends_snapshots()) {
    return refuse(Error(ReplicationErrc::gap, "this primary has no table to send a snapshot of"));
  }
  if (attached(follower.node)) return refuse(busy(follower.node));
  if (const Duration left = snapshot_wait(follower.node); left > Duration{}) {
    return refuse(Error(ReplicationErrc::peer_busy, "no snapshot for node " + std::to_string(follower.node) +
                                                        " within " + milliseconds_text(left) +
                                                        ": another is under way, or it had one just now"));
  }
  if (const Status taken = take_link(*link); !taken) return refuse(taken.error());

  follower.last = std::min(follower.last, log_.last_lsn());
  Peer peer;
  peer.follower = follower;
  peer.snapshot = std::make_unique<SnapshotSender>(*options_.snapshots);
  peer.syncing = options_.policy == nullptr || !options_.policy->counts_syncing();
  peer.unheard = options_.whole_is_said;
  peer.cursor = peer.completed = log_.end();
  peer.sent = follower.last;
  const bool counted_later = peer.unheard;
  add_peer(std::move(peer), std::move(link));
  if (!counted_later) back_off_.began(follower.node, reactor_.now());
  bump(stats_.snapshots);
  return {};
}

/// Live entries have precedence, but for so many bytes and a heartbeat at most: however much is written, the
/// snapshot has its share of the link and comes to an end.
void Sender::publish_with_ranges(Peer& peer) {
  const bool due = !peer.snapshot->begun() || peer.live_bytes >= kLiveBytesMax ||
                   reactor_.now() - peer.range_at >= options_.heartbeat;
  if (due) publish_range(peer);
  if (peer.snapshot != nullptr && !peer.snapshot->begun()) return release_log();  // it keeps nothing yet
  if (peer.cursor != log_.end()) publish_pending(peer);
  if (peer.snapshot != nullptr && !due && log_.end() - peer.cursor < log_.capacity() / 8) publish_range(peer);
}

/// Builds the next range and publishes it: in one go, so that no live entry which it does not know of leaves
/// before it. If the link does not take it now it is thrown away. One a turn.
void Sender::publish_range(Peer& peer) {
  if (peer.range_left || peer.range_refused || peer.link->state() == LinkState::closed) return;
  if (peer.batches_published - peer.batches_completed == kBatchesInFlightMax) return;
  const auto buffer = free_buffer(peer);
  if (!buffer) return;
  const Lsn last = log_.last_lsn();
  // The stream goes on from here. Pieces of a put that is not whole yet are part of it.
  const auto begin = log_.position_after(last);
  if (last == Lsn{} || (!peer.snapshot->begun() && !begin)) {
    peer.progress_at = reactor_.now();  // there is nothing yet that it could take
    return;
  }

  const bool others_write = peer.range_end != log_.end() || owner_.hurried();
  const std::uint32_t bytes_max = std::min(
      {others_write ? kRangeBytesBusy : SnapshotSender::kRangeBytesMax, peer.link->batch_bytes_max()});
  FrameHeader header = frame_for(peer);
  const MutableBytes memory =
      log_.buffers().subspan(*buffer * std::size_t{SnapshotSender::kRangeBytesMax}, bytes_max);
  const std::array<Bytes, 1> payload{
      peer.snapshot->build(memory, {last, peer.follower.epoch, line_}, header)};
  const Status published = peer.link->publish(header, payload);
  if (!published) {
    peer.range_refused = true;
    close_unless_passing(*peer.link, published.error());
    return;
  }
  if (!peer.snapshot->begun()) {
    peer.cursor = peer.completed = *begin;
    peer.sent = last;
  }
  peer.snapshot->left();
  peer.batch_ends[peer.batches_published++ % kBatchesInFlightMax] = peer.cursor;
  peer.buffer_batches[*buffer] = peer.batches_published;
  peer.range_left = true;
  peer.range_end = log_.end();
  peer.live_bytes = 0;
  peer.sent_at = peer.progress_at = peer.range_at = reactor_.now();
  bump(stats_.ranges);
  bump(stats_.range_bytes, header.payload_bytes);
  if (peer.snapshot->complete()) {
    peer.whole_lsn = peer.snapshot->lsn();
    peer.snapshot.reset();
  } else {
    unsent_ = true;
  }
  static_cast<void>(take_completions(peer));  // a link that copies is done with the buffer already
  release_log();  // after the first range that also takes back the pieces of a put that is not whole yet
}

std::optional<std::size_t> Sender::free_buffer(const Peer& peer) {
  for (std::size_t i = 0; i < peer.buffer_batches.size(); ++i) {
    if (peer.buffer_batches[i] <= peer.batches_completed) return i;
  }
  return std::nullopt;
}

/// Its old state is what it acknowledges until the snapshot has replaced it.
void Sender::accept_whole(Peer& peer) {
  if (!peer.syncing || peer.snapshot != nullptr || peer.applied < peer.whole_lsn) return;
  peer.syncing = false;
  bump(stats_.snapshots_applied);
  owner_.peers_changed();
}

}  // namespace tidelock
