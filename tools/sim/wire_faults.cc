// What can go wrong on a wire.
#include <algorithm>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>

#include "sim_link.h"
#include "wire.h"

namespace tidelock::sim {

void Wire::delay(std::uint32_t frames, Duration by) {
  armed_.delayed_frames = frames;
  armed_.delayed_by = by;
  armed_.delay_hit = false;
}

void Wire::break_way(Side to, FaultKind by) {
  End& way = end(to);
  if (way.broken) return;
  way.broken = true;
  way.broken_by = by;
  way.loss_counted = false;
}

/// A pipe that keeps order and has lost something gives nothing any more.
bool Wire::lost(Side to) {
  End& way = end(to);
  if (way.dead || world_.now() < way.swallows_until) {
    if (!way.broken && way.sender_learns != Duration{Instant::never().ns}) {
      world_.schedule(world_.now() + way.sender_learns, target_, towards(other(to), primary_learns));
    }
    if (way.dead) {
      way.broken = true;
    } else {
      break_way(to, way.broken_by);
    }
  }
  if (!way.broken) return false;
  if (!way.loss_counted) {
    way.loss_counted = true;
    counts_.hit(way.broken_by);
  }
  return true;
}

void Wire::cut(std::uint64_t bytes, Duration primary_learns_in, Duration replica_learns_in) {
  if (gathered_ > arrived_ && !end(Side::replica).broken) {
    const Parcel& torn = parcel(arrived_ + 1);
    const std::uint64_t count = std::min<std::uint64_t>(bytes, torn.bytes.size());
    std::copy_n(torn.bytes.begin(), count, ring_.begin() + static_cast<std::ptrdiff_t>(torn.position));
  }
  break_way(Side::primary, FaultKind::cut);
  break_way(Side::replica, FaultKind::cut);
  world_.schedule(world_.now() + primary_learns_in, target_, primary_learns);
  world_.schedule(world_.now() + replica_learns_in, target_, replica_learns);
}

void Wire::swallow(Side to, Instant until, Duration learns, FaultKind as) {
  End& way = end(to);
  if (way.broken || until <= way.swallows_until) return;
  way.swallows_until = until;
  way.sender_learns = learns;
  way.broken_by = as;
}

void Wire::corrupt_batch(Damage damage, std::uint32_t bits) {
  armed_.corrupt_batches = 1;
  armed_.damage = damage;
  armed_.corrupt_bits = bits;
}

void Wire::corrupt_control(Side to, std::uint32_t bits) { armed_.corrupt_control_bits[index_of(to)] = bits; }

void Wire::flip_bits(Random& random, std::span<std::byte> bytes, std::uint32_t bits) {
  const std::vector<std::byte> before(bytes.begin(), bytes.end());
  do {  // two flips of one bit are none
    for (std::uint32_t i = 0; i < bits; ++i) {
      const std::uint64_t at = random.below(bytes.size() * 8);
      bytes[at / 8] ^= static_cast<std::byte>(1U << (at % 8));
    }
  } while (std::equal(before.begin(), before.end(), bytes.begin()));
}

void Wire::damage(Parcel& parcel) {
  --armed_.corrupt_batches;
  Random random = stream("damage", 0, parcel.header.sequence);
  switch (armed_.damage) {
    case Damage::bits:
      flip_bits(random, parcel.bytes, armed_.corrupt_bits);
      parcel.corrupted = true;
      return;
    case Damage::length: {
      // With the right sum: only that it contradicts what the completion said gives it away.
      FrameHeader header = parcel.header;
      header.payload_bytes += kEntryAlignment;
      encode_frame_header(header,
                          std::span<std::byte, kFrameHeaderBytes>(parcel.bytes.data(), kFrameHeaderBytes));
      parcel.corrupted = true;
      return;
    }
    case Damage::old_epoch:
      return age(parcel);
    case Damage::stale: {
      const auto size = static_cast<std::uint32_t>(parcel.bytes.size());
      const std::uint32_t from = static_cast<std::uint32_t>(random.below(size / kAlignment)) * kAlignment;
      parcel.stale_from = from;
      parcel.stale_to = std::min(size, from + static_cast<std::uint32_t>(kAlignment));
      // Earlier laps may have left just what belongs there.
      parcel.corrupted = !std::equal(parcel.bytes.begin() + from, parcel.bytes.begin() + parcel.stale_to,
                                     ring_.begin() + static_cast<std::ptrdiff_t>(parcel.position + from));
      return;
    }
  }
}

/// Everything as it should be, from a primary of the epoch before: what one that was deposed would send.
void Wire::age(Parcel& parcel) {
  if (parcel.header.kind != FrameKind::entries) return;
  FrameHeader header = parcel.header;
  --header.epoch.counter;
  encode_frame_header(header,
                      std::span<std::byte, kFrameHeaderBytes>(parcel.bytes.data(), kFrameHeaderBytes));
  const std::vector<std::byte> young(parcel.bytes.begin() + kFrameHeaderBytes, parcel.bytes.end());
  MutableBytes rest = MutableBytes(parcel.bytes).subspan(kFrameHeaderBytes);
  for (EntryReader reader(young); !reader.at_end();) {
    auto entry = reader.next();
    TL_ASSERT(entry, "a batch that nothing has damaged");
    --entry->epoch.counter;
    const std::uint32_t bytes = entry_bytes(entry->kind, entry->key.size(), entry->value.size());
    encode_entry(*entry, rest.first(bytes));
    rest = rest.subspan(bytes);
  }
  parcel.corrupted = true;
}

void Wire::refused(bool corrupted) {
  if (corrupted) counts_.hit(FaultKind::corrupt);
}

void Wire::notify_early(std::uint32_t batches, Duration by) {
  armed_.early_batches = batches;
  armed_.early_by = by;
}

void Wire::complete_late(std::uint32_t batches, Duration by) {
  armed_.late_completions = batches;
  armed_.late_by = by;
  armed_.late_hit = false;
}

void Wire::lose_completion() { armed_.lose_completion = true; }

void Wire::receiver_not_ready(Duration wait, bool fails) {
  armed_.not_ready = wait;
  armed_.not_ready_fails = fails;
}

void Wire::slow_down(Instant until) {
  armed_.slow_until = std::max(armed_.slow_until, until);
  armed_.slow_hit = false;
}

/// A publish was refused.
void Wire::out_of_room() {
  if (world_.now() >= armed_.slow_until || armed_.slow_hit) return;
  armed_.slow_hit = true;
  counts_.hit(FaultKind::slow_peer);
}

void Wire::scribble() { armed_.scribble = true; }

void Wire::scribble_now() {
  if (!armed_.scribble || received_ == released_) return;
  armed_.scribble = false;
  Random random = stream("scribble", 0, received_);
  for (std::uint64_t sequence = released_ + 1; sequence <= received_; ++sequence) {
    const Parcel& held = parcel(sequence);
    for (std::size_t i = 0; i < held.bytes.size(); ++i) {
      ring_[held.position + i] = static_cast<std::byte>(random.next());
    }
  }
  counts_.hit(FaultKind::scribble);
}

void Wire::heal() {
  armed_ = {};
  for (End& way : ends_) way.swallows_until = Instant{};
}

void Wire::die(Side side) {
  End& dead = end(side);
  dead.dead = true;
  dead.died_at = world_.now();
  dead.core = nullptr;
  Random random = stream("death", index_of(side), 0);
  dead.sender_learns =
      one_in(random, 3) ? Duration{Instant::never().ns} : draw(random, milliseconds(500), seconds(4));
  // Of the control frames that it sent, some never left; what is staged never does, nor what the rest of a
  // turn that stood still would have sent after its death.
  Lane& lane = end(other(side)).lane;
  lane.staged.reset();
  const auto after_death = [&](const Letter& letter) { return letter.sent_at > dead.died_at; };
  const auto late =
      static_cast<std::uint64_t>(std::count_if(lane.in_flight.begin(), lane.in_flight.end(), after_death));
  lane.cut_after = lane.sent - late - random.below(lane.in_flight.size() - late + 1);
  if (side == Side::replica) return;
  std::uint64_t leaving = 0;
  while (gathered_ + leaving < rung_ && parcel(gathered_ + leaving + 1).rung_at <= dead.died_at) ++leaving;
  const std::uint64_t left = leaving == 0 ? 0 : leaving - random.below(leaving + 1);
  for (std::uint64_t i = 0; i < left && !log_released_; ++i) on_gather(gathered_ + 1);
  on_destroyed();
}

}  // namespace tidelock::sim
