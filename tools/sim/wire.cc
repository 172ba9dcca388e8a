// What goes well. What does not is in wire_faults.cc.
#include "wire.h"

#include <algorithm>
#include <utility>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>

#include "sim_link.h"

namespace tidelock::sim {
namespace {

// The streams of delays: one for each lane, so that a frame more on one moves nothing on another.
constexpr std::uint64_t kDataLane = 0;
constexpr std::uint64_t kControlLane = 1;  ///< and 2, by side
constexpr std::uint64_t kCreditLane = 3;   ///< and 4
constexpr std::uint64_t kCompletionLane = 5;

constexpr Duration kDestroyLeast = microseconds(10);
constexpr Duration kDestroyMost = seconds(1);

}  // namespace

std::shared_ptr<Wire> Wire::make(World& world, FaultCounts& counts, std::uint64_t number,
                                 const FrameContext& context, const WireOptions& options) {
  return std::shared_ptr<Wire>(new Wire(world, counts, number, context, options));
}

Wire::Wire(World& world, FaultCounts& counts, std::uint64_t number, const FrameContext& context,
           const WireOptions& options)
    : world_(world),
      counts_(counts),
      number_(number),
      context_(context),
      options_(options),
      target_(world.add(*this)),
      ring_(options.ring_bytes) {
  // Fresh memory is never inherited from the process: what a receiver reads too early is the seed's, too.
  Random fill = world.stream("ring", number);
  for (std::size_t at = 0; at < ring_.size(); at += sizeof(std::uint64_t))
    store(ring_.data() + at, fill.next());
}

Wire::~Wire() { world_.remove(target_); }

std::unique_ptr<SimLink> Wire::take(Side side, Core* core) {
  TL_ASSERT(!end(side).taken, "each end has one link");
  auto link = std::make_unique<SimLink>(shared_from_this(), side);
  end(side).taken = true;
  end(side).link = link.get();
  end(side).core = core;
  return link;
}

void Wire::detach(Side side) {
  end(side).link = nullptr;
  end(side).core = nullptr;
  // Whoever lets go of a link that is not drained may have let go of the log, too: it is not looked at.
  if (side == Side::primary) log_released_ = true;
}

Duration Wire::latency(std::uint64_t lane, std::uint64_t frame) {
  Random random = stream("latency", lane, frame);
  return draw(random, options_.latency_least, options_.latency_most);
}

Random Wire::stream(const char* purpose, std::uint64_t lane, std::uint64_t frame) const {
  return world_.stream(purpose, number_ << 36 | lane << 32 | (frame & 0xffff'ffffU));
}

void Wire::tell(Side side) {
  if (end(side).core != nullptr) end(side).core->notify();
}

// ---- out ------------------------------------------------------------------------------------------------

bool Wire::has_room(std::uint64_t frame_bytes) const {
  if (published_ - credited_ >= options_.batch_slots) return false;
  const std::uint64_t bytes = align_up(frame_bytes, kAlignment);
  const std::uint64_t tail = options_.ring_bytes - (written_position_ & (options_.ring_bytes - 1));
  const std::uint64_t skipped = bytes > tail ? tail : 0;
  return written_position_ + skipped + bytes - credited_position_ <= options_.ring_bytes;
}

/// There is room.
void Wire::add(const FrameHeader& header, std::span<const Bytes> ranges, std::uint64_t payload_bytes) {
  const std::uint64_t bytes = align_up(kFrameHeaderBytes + payload_bytes, kAlignment);
  const std::uint64_t tail = options_.ring_bytes - (written_position_ & (options_.ring_bytes - 1));
  if (bytes > tail) written_position_ += tail;
  Parcel parcel;
  parcel.header = header;
  parcel.header.generation = context_.generation;
  parcel.header.sequence = ++published_;
  parcel.header.payload_bytes = static_cast<std::uint32_t>(payload_bytes);
  parcel.payload_bytes = payload_bytes;
  for (const Bytes& range : ranges) {
    if (!range.empty()) parcel.ranges.push_back(range);
  }
  parcel.hash = hash_of(parcel);
  parcel.position = written_position_ & (options_.ring_bytes - 1);
  written_position_ += bytes;
  parcel.end = written_position_;
  world_.trace().mix(parcel.hash);
  parcels_.push_back(std::move(parcel));
}

std::uint64_t Wire::hash_of(const Parcel& parcel) const {
  std::uint64_t hash = parcel.header.sequence;
  for (const Bytes& range : parcel.ranges) hash = XXH3_64bits_withSeed(range.data(), range.size(), hash);
  return hash;
}

void Wire::check_unchanged(const Parcel& parcel, const char* when) {
  if (hash_of(parcel) == parcel.hash) return;
  world_.fail("link_contract", fmt::format("link {}: the log's bytes of batch {} were changed {}", number_,
                                           parcel.header.sequence, when));
}

void Wire::check_answered() const {
  if (answered_) return;
  world_.fail("link_contract", fmt::format("link {}: data is sent before the hello was answered", number_));
}

void Wire::ring_doorbell() {
  for (; rung_ < published_; ++rung_) {
    parcel(rung_ + 1).rung_at = world_.now();
    const bool slow = world_.now() < armed_.slow_until;
    const std::uint64_t rate = std::max<std::uint64_t>(options_.bytes_a_second / (slow ? 1'000 : 1), 1'000);
    const std::uint64_t bytes = parcel(rung_ + 1).payload_bytes + kFrameHeaderBytes;
    Instant start = std::max(world_.now(), line_free_);
    if (const Duration wait = std::exchange(armed_.not_ready, Duration{}); wait.ns > 0) {
      counts_.hit(FaultKind::receiver_not_ready);
      start = start + wait;
      if (std::exchange(armed_.not_ready_fails, false)) {
        break_way(Side::replica, FaultKind::receiver_not_ready);
        end(Side::replica).loss_counted = true;  // counted just now
        world_.schedule(start, target_, primary_learns);
      }
    }
    line_free_ = start + Duration{static_cast<std::int64_t>(bytes * 1'000'000'000 / rate)};
    world_.schedule(line_free_, target_, gather, rung_ + 1);
  }
}

void Wire::gather_bytes(Parcel& parcel) {
  parcel.bytes.resize(kFrameHeaderBytes + parcel.payload_bytes);
  encode_frame_header(parcel.header,
                      std::span<std::byte, kFrameHeaderBytes>(parcel.bytes.data(), kFrameHeaderBytes));
  std::byte* to = parcel.bytes.data() + kFrameHeaderBytes;
  for (const Bytes& range : parcel.ranges) to = std::copy(range.begin(), range.end(), to);
  gathered_ = parcel.header.sequence;
}

Instant Wire::landing(Instant last, Duration takes) {
  const Instant undisturbed = std::max(last, world_.now() + takes);
  if (armed_.delayed_frames == 0) return undisturbed;
  --armed_.delayed_frames;
  const Instant lands = std::max(last, world_.now() + takes + armed_.delayed_by);
  if (lands > undisturbed && !std::exchange(armed_.delay_hit, true)) counts_.hit(FaultKind::delay);
  return lands;
}

void Wire::on_gather(std::uint64_t sequence) {
  if (log_released_) return;  // its end was destroyed: this one never leaves
  Parcel& next = parcel(sequence);
  check_unchanged(next, "before they had left");
  gather_bytes(next);
  if (armed_.corrupt_batches > 0) damage(next);
  last_landing_ = landing(last_landing_, latency(kDataLane, sequence));
  world_.schedule(last_landing_, target_, land, sequence);
}

// ---- in -------------------------------------------------------------------------------------------------

/// The first `bytes` of it.
void Wire::write_to_ring(const Parcel& parcel, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i == parcel.stale_from && parcel.stale_to > i) i = parcel.stale_to;
    if (i < bytes) ring_[parcel.position + i] = parcel.bytes[i];
  }
}

void Wire::on_land(std::uint64_t sequence) {
  if (lost(Side::replica)) return;
  Parcel& arriving = parcel(sequence);
  if (armed_.early_batches > 0) {
    --armed_.early_batches;
    arriving.early = true;
    // Some of it is there: its header, say, and nothing of what it speaks of.
    Random random = stream("early", kDataLane, sequence);
    write_to_ring(arriving, random.below(arriving.bytes.size()));
    world_.schedule(world_.now() + armed_.early_by, target_, bytes_come, sequence);
  } else {
    write_to_ring(arriving, arriving.bytes.size());
  }
  arrived_ = sequence;
  world_.trace().mix(XXH3_64bits(arriving.bytes.data(), arriving.bytes.size()));
  if (armed_.lose_completion) {
    armed_.lose_completion = false;
    completions_lost_ = arriving.late_completion = true;
  }
  if (!completions_lost_) {
    Duration late{};
    if (armed_.late_completions > 0) {
      --armed_.late_completions;
      arriving.late_completion = true;
      late = armed_.late_by;
    }
    last_completion_ = std::max(last_completion_, world_.now() + latency(kCompletionLane, sequence) + late);
    world_.schedule(last_completion_, target_, complete, sequence);
  }
  tell(Side::replica);
  if (end(Side::replica).peer_closes) on_closed(Side::replica);
}

/// Read from what landed, not from what the replica says of it.
void Wire::note_released(const Parcel& parcel) {
  if (parcel.corrupted) {
    world_.fail("intact", fmt::format("link {}: batch {} was damaged on its way, and was taken", number_,
                                      parcel.header.sequence));
  }
  const bool counts = !parcel.corrupted && !parcel.early && !peer_.syncing;
  if (!watch_.released || !counts || parcel.header.kind != FrameKind::entries) return;
  Lsn whole{};
  for (EntryReader reader(Bytes(parcel.bytes).subspan(kFrameHeaderBytes)); !reader.at_end();) {
    const auto entry = reader.next();
    TL_ASSERT(entry, "a batch that nothing has damaged");
    if (entry->kind != EntryKind::fragment || entry->last_fragment()) whole = entry->lsn;
  }
  watch_.released(whole);
}

void Wire::on_complete(std::uint64_t sequence) {
  if (log_released_) return;
  check_unchanged(parcel(sequence), "before its completion");
  completed_ = sequence;
  tell(Side::primary);
  destroy_if_complete();
  forget_done();
}

void Wire::forget_done() {
  while (!parcels_.empty() && forgotten_ < std::min(credited_, completed_)) {
    parcels_.pop_front();
    ++forgotten_;
  }
}

// ---- control and credits --------------------------------------------------------------------------------

void Wire::send_staged_control(Side from) {
  const Side to = other(from);
  Lane& lane = end(to).lane;
  if (!lane.staged.has_value() || lane.sent - lane.credited >= options_.control_slots) return;
  ControlFrame frame = *std::exchange(lane.staged, std::nullopt);
  frame.generation = context_.generation;
  frame.sequence = ++lane.sent;
  Letter letter;
  encode_control(frame, letter.bytes);
  if (const std::uint32_t bits = std::exchange(armed_.corrupt_control_bits[index_of(to)], 0U); bits > 0) {
    Random random = stream("damage", kControlLane + index_of(to), lane.sent);
    flip_bits(random, letter.bytes, bits);
    letter.corrupted = true;
  }
  world_.trace().mix(XXH3_64bits(letter.bytes.data(), letter.bytes.size()));
  letter.sent_at = world_.now();
  lane.in_flight.push_back(letter);
  lane.last_landing = landing(lane.last_landing, latency(kControlLane + index_of(to), lane.sent));
  world_.schedule(lane.last_landing, target_, towards(to, control_to_primary), lane.sent);
  if (end(from).link != nullptr) end(from).link->count_control_out();
}

void Wire::on_control(Side to) {
  Lane& lane = end(to).lane;
  const Letter letter = lane.in_flight.front();
  lane.in_flight.pop_front();
  const std::uint64_t number = lane.sent - lane.in_flight.size();
  if (number > lane.cut_after || lost(to)) return;
  lane.arrived.push_back(letter);
  tell(to);
}

/// What this end has released and consumed goes back to the sender as a cumulative count.
void Wire::tell_credits(Side from) {
  Lane& lane = end(from).lane;
  const bool batches = from == Side::replica && released_ != released_told_;
  if (!batches && lane.consumed == lane.told) return;
  if (from == Side::replica) released_told_ = released_;
  lane.told = lane.consumed;
  End& to = end(other(from));
  to.credits_sent_at.push_back(world_.now());
  to.last_credit = std::max(
      to.last_credit, world_.now() + latency(kCreditLane + index_of(from), released_told_ * 31 + lane.told));
  world_.schedule(to.last_credit, target_, towards(other(from), credit_to_primary), released_told_,
                  lane.told);
}

void Wire::on_credit(Side to, std::uint64_t batches, std::uint64_t controls) {
  const Instant sent_at = end(to).credits_sent_at.front();
  end(to).credits_sent_at.pop_front();
  if (lost(to) || (end(other(to)).dead && sent_at > end(other(to)).died_at)) return;
  if (to == Side::primary && batches > credited_) {
    // Where the peer has given a batch back and its completion is still out, only that keeps the log's bytes.
    for (std::uint64_t sequence = std::max(credited_, completed_) + 1; sequence <= batches; ++sequence) {
      if (!std::exchange(parcel(sequence).late_completion, false)) continue;
      if (completions_lost_) {
        counts_.hit(FaultKind::completion_missing);
      } else if (!std::exchange(armed_.late_hit, true)) {
        counts_.hit(FaultKind::completion_late);
      }
    }
    credited_ = batches;
    credited_position_ = parcel(batches).end;
    forget_done();
  }
  end(other(to)).lane.credited = controls;
  send_staged_control(to);
  tell(to);
}

// ---- the end --------------------------------------------------------------------------------------------

void Wire::close(Side from) {
  const Side to = other(from);
  if (from == Side::primary) {
    ring_doorbell();
    closed_by_primary_ = true;
    if (completed_ < published_) {
      Random random = stream("destroy", kDataLane, 0);
      const Duration patience = draw_magnitude(random, kDestroyLeast, kDestroyMost);
      world_.schedule(std::max(world_.now() + patience, last_landing_), target_, destroyed);
    }
    destroy_if_complete();
  }
  send_staged_control(from);
  const Instant after = std::max(end(to).lane.last_landing, world_.now());
  world_.schedule(after + options_.latency_most, target_, towards(to, closed_to_primary));
}

void Wire::destroy_if_complete() {
  if (closed_by_primary_ && completed_ == published_)
    world_.schedule(world_.now() + kDestroyLeast, target_, destroyed);
}

/// Of the primary's end: what has not left by now never will.
void Wire::on_destroyed() {
  if (log_released_) return;
  log_released_ = true;
  for (std::uint64_t sequence = completed_ + 1; sequence <= published_; ++sequence)
    check_unchanged(parcel(sequence), "before its link was destroyed");
  tell(Side::primary);
  if (end(Side::replica).peer_closes) on_closed(Side::replica);
}

bool Wire::nothing_to_land() const { return arrived_ == gathered_ && (gathered_ == rung_ || log_released_); }

void Wire::on_closed(Side to) {
  if (lost(to)) return;
  if (to == Side::replica && !nothing_to_land()) {
    end(to).peer_closes = true;
    return;
  }
  end(to).peer_closes = false;
  learn(to, "closed by the peer");
}

void Wire::learn(Side side, const std::string& reason) {
  End& to = end(side);
  if (to.gone) return;
  to.gone = true;
  to.gone_reason = reason;
  tell(side);
}

void Wire::on_event(const Event& event) {
  switch (event.kind) {
    case gather:
      return on_gather(event.a);
    case land:
      return on_land(event.a);
    case bytes_come: {
      Parcel& late = parcel(event.a);
      if (!late.early) return;
      late.early = false;
      return write_to_ring(late, late.bytes.size());
    }
    case complete:
      return on_complete(event.a);
    case control_to_primary:
      return on_control(Side::primary);
    case control_to_replica:
      return on_control(Side::replica);
    case credit_to_primary:
      return on_credit(Side::primary, event.a, event.b);
    case credit_to_replica:
      return on_credit(Side::replica, event.a, event.b);
    case closed_to_primary:
      return on_closed(Side::primary);
    case closed_to_replica:
      return on_closed(Side::replica);
    case primary_learns:
      return learn(Side::primary, "the peer does not answer");
    case replica_learns:
      return learn(Side::replica, "the peer does not answer");
    case destroyed:
      return on_destroyed();
    default:
      TL_ASSERT(false, "an event that no wire has");
  }
}

std::string Wire::describe(const Event& event) const {
  constexpr const char* kNames[] = {"gather",
                                    "land",
                                    "bytes come",
                                    "complete",
                                    "control to primary",
                                    "control to replica",
                                    "credit to primary",
                                    "credit to replica",
                                    "close to primary",
                                    "close to replica",
                                    "primary learns of the break",
                                    "replica learns of the break",
                                    "destroyed"};
  return fmt::format("link {} {} {}", number_, kNames[event.kind], event.a);
}

}  // namespace tidelock::sim
