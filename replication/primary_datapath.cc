// What happens every turn: acknowledgements in, batches out.
#include <algorithm>
#include <array>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {
std::uint32_t Primary::poll(std::uint32_t budget) { return state_->poll(budget); }
void Primary::flush() { state_->flush(); }
void Primary::arm() {
  for (State::Peer& peer : state_->peers) peer.link->arm();
  for (State::Departing& peer : state_->departing) peer.link->arm();
}
void Primary::disarm() {
  for (State::Peer& peer : state_->peers) peer.link->disarm();
  for (State::Departing& peer : state_->departing) peer.link->disarm();
}
bool Primary::has_work() const {
  if (state_->unsent || state_->acks_came) return true;
  const auto& departing = state_->departing;
  if (std::any_of(departing.begin(), departing.end(), [](const State::Departing& peer) {
        return peer.link->has_work() || peer.link->drained();
      })) {
    return true;
  }
  return std::any_of(state_->peers.begin(), state_->peers.end(), [](const State::Peer& peer) {
    return peer.link->has_work() || peer.link->state() == LinkState::closed;
  });
}

std::uint32_t Primary::State::poll(std::uint32_t budget) {
  admitted_bytes = 0;
  std::uint32_t done = 0;
  bool completed = false;
  bool any_closed = false;
  iterating = true;
  for (Peer& peer : peers) {
    const std::uint32_t taken = peer.link->poll(budget) + take_controls(peer, budget);
    if (taken > 0) peer.range_refused = false;
    peer.range_left = false;
    done += taken;
    completed = take_completions(peer) || completed;
    any_closed = any_closed || peer.link->state() == LinkState::closed;
  }
  for (Departing& peer : departing) done += peer.link->poll(budget);
  iterating = false;
  if (!departing.empty() && reap()) ++done;
  if (unsent) ++done;
  if (completed || options.policy != nullptr) release_log();
  if (std::exchange(acks_came, false)) {
    measure_all();
    wake_reached();
  }
  if (room_head != nullptr || fragment_waiter != nullptr) {
    make_room_for_next();
    wake_room();  // the one before may have given up, or written nothing
  }
  if (any_closed) {
    sweep();
    ++done;
  }
  return done;
}

std::uint32_t Primary::State::take_controls(Peer& peer, std::uint32_t budget) {
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
void Primary::State::accept_ack(Peer& peer, const ControlFrame& frame) {
  if (frame.epoch != options.epoch) {
    return peer.link->close(frame.epoch > options.epoch ? "the replica follows a newer epoch"
                                                        : "the replica acknowledges an older epoch");
  }
  if (const Status said = check_sender(frame, NodeRole::replica); !said) {
    return peer.link->close(said.error().message());
  }
  if (frame.echo() != 0) return peer.link->close("the replica echoes a stamp that it was not sent");
  if (!peer.may_acknowledge(frame)) {
    return peer.link->close("the replica acknowledges what it was not sent");
  }
  // Cumulative: an older frame has nothing to say.
  peer.received = std::max(peer.received, frame.received_lsn);
  peer.applied = std::max(peer.applied, frame.applied_lsn);
  acks_came = true;
  accept_whole(peer);
  if (frame.closing) peer.link->close("the replica said goodbye");
}

bool Primary::State::take_completions(Peer& peer) {
  const std::uint64_t count = peer.link->batches_completed() - peer.batches_before;
  if (count == peer.batches_completed) return false;
  TL_ASSERT(count > peer.batches_completed && count <= peer.batches_published,
            "a link completes what was published, in order");
  peer.batches_completed = count;
  peer.completed = peer.batch_ends[(count - 1) % kBatchesInFlightMax];
  peer.progress_at = reactor.now();
  return true;
}

/// Gives the log what no link needs any more.
void Primary::State::release_log() {
  std::uint64_t needed = log->end();
  for (const Peer& peer : peers) {
    if (!peer.waits_for_range()) needed = std::min(needed, peer.completed);
  }
  for (const Departing& peer : departing) needed = std::min(needed, peer.completed);
  if (options.policy != nullptr) needed = needed_by_policy();
  log->release_to(needed);
  wake_room();
}

/// Of a planted AckPolicy only.
std::uint64_t Primary::State::needed_by_policy() const {
  const AckPolicy& policy = *options.policy;
  std::uint64_t needed = log->end();
  for (const Peer& peer : peers) {
    if (peer.waits_for_range()) continue;
    const auto acknowledged = log->position_after(std::max(peer.received, peer.resumed));
    needed = std::min(needed, policy.releases_on_ack() && acknowledged ? *acknowledged : peer.completed);
  }
  for (const Departing& peer : departing) {
    if (!policy.releases_on_ack() && !policy.forgets_closed_links())
      needed = std::min(needed, peer.completed);
  }
  return std::max(needed, log->begin());
}

void Primary::State::flush() {
  const Instant now = reactor.now();
  unsent = false;
  set_gauge(stats.commit_lsn, commit_lsn().value);
  iterating = true;
  for (Peer& peer : peers) {
    if (peer.link->state() == LinkState::closed) continue;
    publish(peer);
    const bool heartbeat_due = now - peer.sent_at >= Duration{options.heartbeat.ns / 2};
    // A commit LSN beyond what the peer has leaves with the batch that it is still to get.
    if (peer.commit_sent < std::min(commit_lsn(), peer.sent) || heartbeat_due) send_control(peer, false);
    peer.link->flush();
    follow(stats.peer_wakeups, peer.link->counters().peer_wakeups, peer.wakeups_seen);
  }
  iterating = false;
}

void Primary::State::publish(Peer& peer) {
  if (peer.sender != nullptr) {
    publish_with_ranges(peer);
  } else if (peer.cursor != log->end()) {
    publish_pending(peer);
  }
  const bool whole = peer.syncing && peer.sender == nullptr && peer.sent >= peer.whole_lsn;
  if (whole && peer.whole_batch == 0) peer.whole_batch = peer.batches_published;
}

void Primary::State::publish_pending(Peer& peer) {
  std::uint32_t bytes = 0;
  while (peer.cursor != log->end() && bytes < kFlushBytesMax) {
    const std::uint32_t published = publish_batch(peer);
    if (published == 0) break;
    bytes += published;
  }
  if (bytes >= kFlushBytesMax && peer.cursor != log->end()) unsent = true;
  // A link that copies is done with the bytes already.
  if (take_completions(peer)) release_log();
}

/// One batch of at most two ranges: up to the ring's end, and on from its start. A group is never cut.
/// Returns its bytes, 0 if the link takes none.
std::uint32_t Primary::State::publish_batch(Peer& peer) {
  if (peer.batches_published - peer.batches_completed == kBatchesInFlightMax) return 0;
  const std::uint32_t bytes_max = std::min(peer.link->batch_bytes_max(), kBatchBytesTarget);
  std::array<Bytes, 2> ranges;
  std::size_t used = 0;
  std::uint64_t next = peer.cursor;
  FrameHeader header;
  header.history = options.history;
  header.epoch = options.epoch;
  header.shard = options.shard;
  header.commit_lsn = commit_lsn();
  Lsn whole = peer.sent;
  while (used < ranges.size() && header.payload_bytes < bytes_max) {
    const std::uint32_t group_max = used == 0 ? peer.link->batch_bytes_max() : 0;
    const Log::Run run = log->run_at(next, bytes_max - header.payload_bytes, group_max);
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
  peer.sent_at = peer.progress_at = reactor.now();
  peer.range_refused = false;
  peer.live_bytes += header.payload_bytes;
  if (options.policy != nullptr && options.policy->counts_sent()) {
    peer.received = peer.applied = peer.sent;
    acks_came = true;
  }
  bump(stats.batches);
  bump(stats.batch_bytes, header.payload_bytes);
  return header.payload_bytes;
}

void Primary::State::send_control(Peer& peer, bool closing) {
  ControlFrame frame;
  frame.history = options.history;
  frame.epoch = options.epoch;
  frame.shard = options.shard;
  frame.closing = closing;
  frame.commit_lsn = commit_lsn();
  const Status sent = peer.link->send_control(frame);
  if (!sent) return close_unless_passing(*peer.link, sent.error());
  peer.commit_sent = frame.commit_lsn;
  peer.sent_at = reactor.now();
}

}  // namespace tidelock
