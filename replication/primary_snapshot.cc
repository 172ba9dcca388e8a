// Snapshots out: who may have one, and when a range leaves. What is in it: snapshot_sender.h.
#include <algorithm>
#include <array>
#include <optional>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {
namespace {

constexpr std::uint32_t kRangeBytesBusy =
    16 * 1024;  ///< while others write: their turn has no more than that
constexpr std::uint64_t kLiveBytesMax = 4 * kRangeBytesBusy;  ///< between two ranges

}  // namespace

Duration Primary::snapshot_wait(std::uint32_t node) const { return state_->snapshot_wait(node); }
bool Primary::sends_snapshots() const { return state_->options.snapshots != nullptr; }

Duration Primary::State::snapshot_wait(std::uint32_t node) const {
  const Duration left = back_off.left(node, reactor.now());
  if (left > Duration{}) return left;
  // The link may still read the buffers after the last range was published, and after it was closed.
  const auto uses_buffers = [](const Peer& peer) {
    return peer.sender != nullptr || peer.buffers_in_flight();
  };
  const bool taken =
      std::any_of(peers.begin(), peers.end(), uses_buffers) ||
      std::any_of(departing.begin(), departing.end(), [](const Departing& peer) { return peer.buffers; });
  return taken ? options.heartbeat : Duration{};
}

Status Primary::attach_snapshot(std::unique_ptr<Link> link, std::uint32_t node, Lsn peer_last) {
  State& state = *state_;
  const auto refuse = [&link](Error error) {
    link->close(error.message());
    return error;
  };
  if (!sends_snapshots()) {
    return refuse(Error(ReplicationErrc::gap, "this primary has no table to send a snapshot of"));
  }
  if (state.attached(node)) return refuse(State::busy(node));
  if (const Duration left = state.snapshot_wait(node); left > Duration{}) {
    return refuse(Error(ReplicationErrc::peer_busy, "no snapshot for node " + std::to_string(node) +
                                                        " within " + milliseconds_text(left) +
                                                        ": another is under way, or it had one just now"));
  }
  if (const Status taken = state.take_link(*link); !taken) return refuse(taken.error());

  State::Peer peer;
  peer.node = node;
  peer.sender = std::make_unique<SnapshotSender>(*state.options.snapshots);
  peer.syncing = true;
  peer.cursor = peer.completed = state.log->end();
  peer.sent = peer.resumed = std::min(peer_last, state.log->last_lsn());
  state.add_peer(std::move(peer), std::move(link));
  state.back_off.began(node, state.reactor.now());
  bump(state.stats.snapshots);
  return {};
}

/// Live entries have precedence, but for so many bytes and a heartbeat at most: however much is written, the
/// snapshot has its share of the link and comes to an end.
void Primary::State::publish_with_ranges(Peer& peer) {
  const bool due = !peer.sender->begun() || peer.live_bytes >= kLiveBytesMax ||
                   reactor.now() - peer.range_at >= options.heartbeat;
  if (due) publish_range(peer);
  if (peer.sender != nullptr && !peer.sender->begun()) return release_log();  // it keeps nothing yet
  if (peer.cursor != log->end()) publish_pending(peer);
  if (peer.sender != nullptr && !due && log->end() - peer.cursor < log->capacity() / 8) publish_range(peer);
}

/// Builds the next range and publishes it: in one go, so that no live entry which it does not know of leaves
/// before it. If the link does not take it now it is thrown away. One a turn.
void Primary::State::publish_range(Peer& peer) {
  if (peer.range_left || peer.range_refused || peer.link->state() == LinkState::closed) return;
  if (peer.batches_published - peer.batches_completed == kBatchesInFlightMax) return;
  const auto buffer = free_buffer(peer);
  if (!buffer) return;
  const Lsn last = log->last_lsn();
  // The stream goes on from here. Pieces of a put that is not whole yet are part of it.
  const auto begin = log->position_after(last);
  if (last == Lsn{} || (!peer.sender->begun() && !begin)) {
    peer.progress_at = reactor.now();  // there is nothing yet that it could take
    return;
  }

  const bool others_write = peer.range_end != log->end() || room_head != nullptr || fragmenting;
  const std::uint32_t bytes_max = std::min(
      {others_write ? kRangeBytesBusy : SnapshotSender::kRangeBytesMax, peer.link->batch_bytes_max()});
  FrameHeader header;
  header.history = options.history;
  header.epoch = options.epoch;
  header.shard = options.shard;
  header.commit_lsn = commit_lsn();
  const MutableBytes memory =
      log->buffers().subspan(*buffer * std::size_t{SnapshotSender::kRangeBytesMax}, bytes_max);
  const std::array<Bytes, 1> payload{peer.sender->build(memory, {last, options.epoch, line}, header)};
  const Status published = peer.link->publish(header, payload);
  if (!published) {
    peer.range_refused = true;
    close_unless_passing(*peer.link, published.error());
    return;
  }
  if (!peer.sender->begun()) {
    peer.cursor = peer.completed = *begin;
    peer.sent = last;
  }
  peer.sender->left();
  peer.batch_ends[peer.batches_published++ % kBatchesInFlightMax] = peer.cursor;
  peer.buffer_batches[*buffer] = peer.batches_published;
  peer.range_left = true;
  peer.range_end = log->end();
  peer.live_bytes = 0;
  peer.sent_at = peer.progress_at = peer.range_at = reactor.now();
  bump(stats.ranges);
  bump(stats.range_bytes, header.payload_bytes);
  if (peer.sender->complete()) {
    peer.whole_lsn = peer.sender->lsn();
    peer.sender.reset();
  } else {
    unsent = true;
  }
  static_cast<void>(take_completions(peer));  // a link that copies is done with the buffer already
  release_log();  // after the first range that also takes back the pieces of a put that is not whole yet
}

std::optional<std::size_t> Primary::State::free_buffer(const Peer& peer) {
  for (std::size_t i = 0; i < peer.buffer_batches.size(); ++i) {
    if (peer.buffer_batches[i] <= peer.batches_completed) return i;
  }
  return std::nullopt;
}

/// Its old state is what it acknowledges until the snapshot has replaced it.
void Primary::State::accept_whole(Peer& peer) {
  if (!peer.syncing || peer.sender != nullptr || peer.applied < peer.whole_lsn) return;
  peer.syncing = false;
  bump(stats.snapshots_applied);
  count_nodes();
}

std::size_t Primary::State::replicas() const {
  return static_cast<std::size_t>(
      std::count_if(peers.begin(), peers.end(), [](const Peer& peer) { return !peer.syncing; }));
}

}  // namespace tidelock
