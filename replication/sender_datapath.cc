// What happens every turn: acknowledgements in, batches out.
#include <algorithm>
#include <array>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/ack_policy.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/sender.h>

#include "link_errors.h"

namespace tidelock {
namespace {

/// One flush gives a link no more than that; a longer backlog goes on in the next turn.
constexpr std::uint32_t kFlushBytesMax = 4 * Sender::kBatchBytesTarget;
constexpr const char* kFalseEcho = "the replica echoes a stamp that it was not sent";

}  // namespace

void Sender::arm() {
  for (Peer& peer : peers_) peer.link->arm();
  for (Departing& peer : departing_) peer.link->arm();
}

void Sender::disarm() {
  for (Peer& peer : peers_) peer.link->disarm();
  for (Departing& peer : departing_) peer.link->disarm();
}

bool Sender::has_work() const {
  if (unsent_ || acknowledged_) return true;
  if (std::any_of(departing_.begin(), departing_.end(),
                  [](const Departing& peer) { return peer.link->has_work() || peer.link->drained(); })) {
    return true;
  }
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.link->has_work() || peer.link->state() == LinkState::closed;
  });
}

std::uint32_t Sender::poll(std::uint32_t budget) {
  std::uint32_t done = 0;
  bool completed = false;
  iterating_ = true;
  for (Peer& peer : peers_) {
    const std::uint32_t taken = peer.link->poll(budget) + take_controls(peer, budget);
    if (taken > 0) peer.range_refused = false;
    peer.range_left = false;
    done += taken;
    completed = take_completions(peer) || completed;
    any_closed_ = any_closed_ || peer.link->state() == LinkState::closed;
  }
  for (Departing& peer : departing_) done += peer.link->poll(budget);
  iterating_ = false;
  if (!departing_.empty() && reap()) ++done;
  if (unsent_) ++done;
  if (completed || options_.policy != nullptr) release_log();
  return done;
}

std::uint32_t Sender::take_controls(Peer& peer, std::uint32_t budget) {
  std::uint32_t taken = 0;
  while (taken < budget) {
    const auto frame = peer.link->receive_control();
    if (!frame) break;
    ++taken;
    accept_ack(peer, *frame);
  }
  return taken;
}

/// The peer may lie: nothing is believed that it cannot know.
void Sender::accept_ack(Peer& peer, const ControlFrame& frame) {
  if (frame.epoch != peer.follower.epoch) {
    return peer.link->close(frame.epoch > peer.follower.epoch ? "the replica follows a newer epoch"
                                                              : "the replica acknowledges an older epoch");
  }
  if (const Status said = check_sender(frame, NodeRole::replica); !said) {
    return peer.link->close(said.error().message());
  }
  // Whoever only asked for the hello says nothing: that costs no back-off.
  if (std::exchange(peer.unheard, false)) back_off_.began(peer.node(), reactor_.now());
  // A busy one soon brings down what an idle one's heartbeat has made of it.
  const Duration pause = reactor_.now() - peer.said_at;
  peer.pause = std::max(pause, peer.pause - Duration{(peer.pause - pause).ns / 8});
  peer.said_at = reactor_.now();
  if (options_.whole_is_said && !frame.whole) {  // what it has may be of another line
    if (!owner_.heard(peer.node(), frame.echo(), false)) return peer.link->close(kFalseEcho);
    if (frame.closing) peer.link->close("the replica said goodbye");
    return;
  }
  if (!peer.may_acknowledge(frame)) {
    return peer.link->close("the replica acknowledges what it was not sent");
  }
  // Cumulative: an older frame has nothing to say.
  peer.received = std::max(peer.received, frame.received_lsn);
  peer.applied = std::max(peer.applied, frame.applied_lsn);
  acknowledged_ = true;
  if (!std::exchange(peer.whole, true)) owner_.peers_changed();
  accept_whole(peer);
  if (!owner_.heard(peer.node(), frame.echo(), peer.counts())) return peer.link->close(kFalseEcho);
  if (frame.closing) peer.link->close("the replica said goodbye");
}

bool Sender::take_completions(Peer& peer) {
  const std::uint64_t count = peer.link->batches_completed() - peer.batches_before;
  if (count == peer.batches_completed) return false;
  TL_ASSERT(count > peer.batches_completed && count <= peer.batches_published,
            "a link completes what was published, in order");
  peer.batches_completed = count;
  peer.completed = peer.batch_ends[(count - 1) % kBatchesInFlightMax];
  peer.progress_at = reactor_.now();
  return true;
}

/// Gives the log what no link needs any more.
void Sender::release_log() {
  std::uint64_t needed = log_.end();
  for (const Peer& peer : peers_) needed = std::min(needed, peer.needs_from());
  for (const Departing& peer : departing_) needed = std::min(needed, peer.completed);
  if (options_.policy != nullptr) needed = needed_by_policy();
  log_.release_to(needed);
  owner_.log_released();
}

std::uint64_t Sender::departing_needs_from() const {
  std::uint64_t needed = ~0ULL;
  for (const Departing& peer : departing_) needed = std::min(needed, peer.completed);
  return needed;
}

/// Of a planted AckPolicy only.
std::uint64_t Sender::needed_by_policy() const {
  const AckPolicy& policy = *options_.policy;
  std::uint64_t needed = log_.end();
  for (const Peer& peer : peers_) {
    if (peer.waits_for_range()) continue;
    const auto acknowledged = log_.position_after(std::max(peer.received, peer.follower.last));
    needed = std::min(needed, policy.releases_on_ack() && acknowledged ? *acknowledged : peer.completed);
  }
  for (const Departing& peer : departing_) {
    if (!policy.releases_on_ack() && !policy.forgets_closed_links())
      needed = std::min(needed, peer.completed);
  }
  return std::max(needed, log_.begin());
}

void Sender::flush() {
  const Instant now = reactor_.now();
  unsent_ = false;
  iterating_ = true;
  for (Peer& peer : peers_) {
    if (peer.link->state() == LinkState::closed) continue;
    publish(peer);
    // In a group only control frames renew its leases, so one leaves even if batches do all the time.
    const Instant since = options_.whole_is_said ? peer.told_at : peer.sent_at;
    const bool heartbeat_due = now - since >= Duration{options_.heartbeat.ns / 2};
    // A commit LSN beyond what the peer has leaves with the batch that it is still to get.
    const bool news =
        peer.commit_sent < std::min(owner_.commit_lsn(), peer.sent) || peer.counts_sent != peer.counts();
    if (news || heartbeat_due || peer.asked) send_control(peer, false);
    peer.link->flush();
    follow(stats_.peer_wakeups, peer.link->counters().peer_wakeups, peer.wakeups_seen);
  }
  iterating_ = false;
}

void Sender::publish(Peer& peer) {
  if (peer.snapshot != nullptr) {
    publish_with_ranges(peer);
  } else if (peer.cursor != log_.end()) {
    publish_pending(peer);
  }
  const bool whole = peer.syncing && peer.snapshot == nullptr && peer.sent >= peer.whole_lsn;
  if (whole && peer.whole_batch == 0) peer.whole_batch = peer.batches_published;
}

void Sender::publish_pending(Peer& peer) {
  std::uint32_t bytes = 0;
  while (peer.cursor != log_.end() && bytes < kFlushBytesMax) {
    const std::uint32_t published = publish_batch(peer);
    if (published == 0) break;
    bytes += published;
  }
  if (bytes >= kFlushBytesMax && peer.cursor != log_.end()) unsent_ = true;
  // A link that copies is done with the bytes already.
  if (take_completions(peer)) release_log();
}

FrameHeader Sender::frame_for(const Peer& peer) const {
  FrameHeader header;
  header.history = peer.follower.history;
  header.epoch = peer.follower.epoch;
  header.shard = options_.shard;
  header.commit_lsn = owner_.commit_lsn();
  return header;
}

/// One batch of at most two ranges: up to the ring's end, and on from its start. A group is never cut.
/// Returns its bytes, 0 if the link takes none.
std::uint32_t Sender::publish_batch(Peer& peer) {
  if (peer.batches_published - peer.batches_completed == kBatchesInFlightMax) return 0;
  const std::uint32_t bytes_max = std::min(peer.link->batch_bytes_max(), kBatchBytesTarget);
  std::array<Bytes, 2> ranges;
  std::size_t used = 0;
  std::uint64_t next = peer.cursor;
  FrameHeader header = frame_for(peer);
  Lsn whole = peer.sent;
  while (used < ranges.size() && header.payload_bytes < bytes_max) {
    const std::uint32_t group_max = used == 0 ? peer.link->batch_bytes_max() : 0;
    const Log::Run run = log_.run_at(next, bytes_max - header.payload_bytes, group_max);
    if (run.entries == 0) break;
    if (used == 0) header.first_lsn = run.first_lsn;
    header.last_lsn = run.last_lsn;
    header.entries += run.entries;
    header.payload_bytes += static_cast<std::uint32_t>(run.bytes.size());
    whole = run.whole_lsn;
    next = run.next;
    ranges[used++] = run.bytes;
  }
  TL_ASSERT(used > 0, "every entry and every group fits a batch");
  const Status published = peer.link->publish(header, std::span(ranges.data(), used));
  if (!published) {
    close_unless_passing(*peer.link, published.error());
    return 0;
  }
  peer.batch_ends[peer.batches_published++ % kBatchesInFlightMax] = next;
  peer.cursor = next;
  peer.sent = whole;
  peer.commit_sent = header.commit_lsn;
  peer.sent_at = peer.progress_at = reactor_.now();
  peer.range_refused = false;
  peer.live_bytes += header.payload_bytes;
  if (options_.policy != nullptr && options_.policy->counts_sent()) {
    peer.received = peer.applied = peer.sent;
    acknowledged_ = true;
  }
  bump(stats_.batches);
  bump(stats_.batch_bytes, header.payload_bytes);
  return header.payload_bytes;
}

void Sender::send_control(Peer& peer, bool closing, bool lead) {
  ControlFrame frame;
  frame.history = peer.follower.history;
  frame.epoch = peer.follower.epoch;
  frame.shard = options_.shard;
  frame.closing = closing;
  frame.lead = lead;
  frame.whole = peer.counts();
  frame.commit_lsn = owner_.commit_lsn();
  if (!closing) frame.set_stamp(owner_.stamp());
  const Status sent = peer.link->send_control(frame);
  if (!sent) return close_unless_passing(*peer.link, sent.error());
  peer.commit_sent = frame.commit_lsn;
  peer.counts_sent = frame.whole;
  peer.asked = false;
  peer.sent_at = peer.told_at = reactor_.now();
}

}  // namespace tidelock
