#include <utility>

#include <tidelock/replication/admission.h>

namespace tidelock {
namespace {

Refusal busy_for(Duration wait, ShardId shard) {
  const auto wait_ms = static_cast<std::uint64_t>((wait.ns + 999'999) / 1'000'000);
  return {RefusalReason::busy, wait_ms, shard.value};
}

}  // namespace

Verdict Admission::judge(const Hello& theirs) {
  if (const auto refusal = check(theirs)) return *refusal;
  const PrimaryOptions& terms = primary_.options();
  Hello ours;
  ours.role = NodeRole::primary;
  ours.node = terms.node;
  ours.shard = terms.shard;
  ours.shard_count = terms.shard_count;
  ours.history = terms.history;
  ours.routing_seed = terms.routing_seed;
  ours.epoch = terms.epoch;
  ours.generation = {++generation_};
  ours.last_lsn = primary_.last_lsn();
  ours.first_lsn = primary_.log().first_lsn();
  ours.ring_bytes = options_.ring_bytes;
  ours.value_bytes_max = options_.value_bytes_max;
  ours.flags.snapshot = needs_snapshot(theirs);
  return ours;
}

Status Admission::attach(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) {
  const auto refuse = [&link](Error error) {
    link->close(error.message());
    return error;
  };
  TL_TRY(link->start(reactor_));
  if (const auto refusal = check(theirs)) return refuse({ReplicationErrc::refused, describe(*refusal)});
  // The peer goes by what it was told, so one that needs another start than that dials again.
  if (needs_snapshot(theirs) != ours.flags.snapshot) {
    return refuse(
        {ReplicationErrc::peer_busy, "the log no longer reaches back to where the stream was to begin"});
  }
  if (ours.flags.snapshot) {
    return primary_.attach_snapshot(std::move(link), theirs.node, theirs.last_lsn);
  }
  return primary_.attach(std::move(link), theirs.node, theirs.last_lsn);
}

bool Admission::needs_snapshot(const Hello& theirs) const {
  return theirs.last_lsn.next() < primary_.log().first_lsn() && theirs.flags.snapshot &&
         primary_.sends_snapshots();
}

std::optional<Refusal> Admission::check(const Hello& theirs) {
  if (auto refusal = check_terms(theirs)) return refusal;
  if (auto refusal = check_position(theirs)) return refusal;
  Duration left{};
  switch (primary_.sender().claim(theirs.node, left)) {
    case Sender::Claim::free:
      break;
    case Sender::Claim::wait:
      return busy_for(left, theirs.shard);
    case Sender::Claim::taken:
      return Refusal{RefusalReason::busy, 0, theirs.shard.value};
  }
  return std::nullopt;
}

std::optional<Refusal> Admission::check_terms(const Hello& theirs) const {
  const PrimaryOptions& terms = primary_.options();
  const auto range = [](std::uint16_t least, std::uint16_t most) {
    return std::uint64_t{least} << 16 | most;
  };
  if (theirs.version_min > kWireVersionMax || theirs.version_max < kWireVersionMin) {
    return Refusal{RefusalReason::version, range(kWireVersionMin, kWireVersionMax),
                   range(theirs.version_min, theirs.version_max)};
  }
  if (theirs.role != NodeRole::replica) {
    return Refusal{RefusalReason::role, static_cast<std::uint64_t>(NodeRole::primary),
                   static_cast<std::uint64_t>(theirs.role)};
  }
  if (theirs.node == terms.node && terms.node != 0) {
    return Refusal{RefusalReason::node, terms.node, theirs.node};
  }
  if (theirs.shard_count != terms.shard_count) {
    return Refusal{RefusalReason::shard_count, terms.shard_count, theirs.shard_count};
  }
  if (theirs.shard != terms.shard)
    return Refusal{RefusalReason::malformed, terms.shard_count, theirs.shard.value};
  if (theirs.history != HistoryId{} && theirs.history != terms.history) {
    return Refusal{RefusalReason::history, terms.history.value, theirs.history.value};
  }
  // LSNs are of a history: without one there is nothing that they could count.
  if (theirs.history == HistoryId{} && theirs.last_lsn > Lsn{}) {
    return Refusal{RefusalReason::history, terms.history.value, theirs.history.value};
  }
  if (theirs.epoch > terms.epoch) {
    return Refusal{RefusalReason::epoch, terms.epoch.counter, theirs.epoch.counter};
  }
  if (theirs.key_bytes_max < kKeyBytesMax) {
    return Refusal{RefusalReason::limits, kKeyBytesMax, theirs.key_bytes_max};
  }
  if (theirs.value_bytes_max < options_.value_bytes_max) {
    return Refusal{RefusalReason::limits, options_.value_bytes_max, theirs.value_bytes_max};
  }
  return std::nullopt;
}

std::optional<Refusal> Admission::check_position(const Hello& theirs) const {
  const Lsn first = primary_.log().first_lsn();
  const Lsn last = primary_.last_lsn();
  // Nobody can be ahead of its primary within one history and epoch, so such a claim is nonsense.
  if (theirs.last_lsn > last) return Refusal{RefusalReason::malformed, last.value, theirs.last_lsn.value};
  if (needs_snapshot(theirs)) {
    const Duration wait = primary_.snapshot_wait(theirs.node);
    if (wait == Duration{}) return std::nullopt;
    return busy_for(wait, theirs.shard);
  }
  if (theirs.last_lsn.next() < first)
    return Refusal{RefusalReason::behind_log, first.value, theirs.last_lsn.value};
  return std::nullopt;
}

}  // namespace tidelock
