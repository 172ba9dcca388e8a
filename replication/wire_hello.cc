// The handshake: what each side says before a link carries anything, and how it is refused.
#include <algorithm>

#include <tidelock/replication/wire.h>

#include "wire_layout.h"

namespace tidelock {
namespace {

bool all_zero(Bytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

std::string range(std::uint32_t min, std::uint32_t max) {
  return std::to_string(min) + "-" + std::to_string(max);
}
std::string range(std::uint64_t packed) {
  return range(static_cast<std::uint32_t>(packed >> 16), static_cast<std::uint32_t>(packed & 0xffff));
}

constexpr std::uint32_t kShardCountMax = 256;

std::string epoch_text_of(std::uint64_t value) {
  const Epoch epoch = epoch_of_value(value);
  return std::to_string(epoch.counter) + "." + std::to_string(epoch.node);
}

std::uint8_t packed(const HelloFlags& flags) {
  using namespace layout::hello;
  return static_cast<std::uint8_t>((flags.memory ? kMemoryFlag : 0) | (flags.promise ? kPromiseFlag : 0) |
                                   (flags.fetch ? kFetchFlag : 0) | (flags.snapshot ? kSnapshotFlag : 0) |
                                   (flags.released ? kReleasedFlag : 0) |
                                   (flags.founding ? kFoundingFlag : 0) | (flags.forced ? kForcedFlag : 0));
}

HelloFlags unpacked(std::uint8_t bits) {
  using namespace layout::hello;
  HelloFlags flags;
  flags.memory = (bits & kMemoryFlag) != 0;
  flags.promise = (bits & kPromiseFlag) != 0;
  flags.fetch = (bits & kFetchFlag) != 0;
  flags.snapshot = (bits & kSnapshotFlag) != 0;
  flags.released = (bits & kReleasedFlag) != 0;
  flags.founding = (bits & kFoundingFlag) != 0;
  flags.forced = (bits & kForcedFlag) != 0;
  return flags;
}

/// What a role says at all.
std::uint8_t flags_said_by(NodeRole role) {
  using namespace layout::hello;
  switch (role) {
    case NodeRole::primary:
      return kMemoryFlag | kSnapshotFlag | kForcedFlag;
    case NodeRole::replica:
      return kMemoryFlag | kPromiseFlag | kSnapshotFlag | kFoundingFlag;
    case NodeRole::candidate:
      return kMemoryFlag | kPromiseFlag | kFetchFlag | kReleasedFlag | kFoundingFlag;
  }
  return 0;
}

/// Epochs and LSNs that can be of one log. A node in no group says nothing of them but its last LSN.
bool line_fields_agree(const Hello& hello) {
  if (hello.last_epoch == Epoch{} && hello.commit_epoch != Epoch{}) return false;
  if (hello.last_epoch != Epoch{} && hello.last_lsn == Lsn{}) return false;
  if ((hello.commit_epoch == Epoch{}) != (hello.commit_lsn == Lsn{})) return false;
  return hello.commit_lsn <= hello.last_lsn && hello.commit_epoch <= hello.last_epoch;
}

}  // namespace

void encode_hello(const Hello& hello, std::span<std::byte, kHelloBytes> into) {
  using namespace layout::hello;
  std::byte* const to = into.data();
  std::fill(into.begin(), into.end(), std::byte{0});
  store(to + kMagic, layout::kHelloMagic);
  store(to + kVersionMin, hello.version_min);
  store(to + kVersionMax, hello.version_max);
  store(to + kLength, kHelloBytes);
  store(to + kRole, static_cast<std::uint8_t>(hello.role));
  store(to + kFlags, packed(hello.flags));
  store(to + kC, hello.c);
  store(to + kNode, hello.node);
  store(to + kShard, hello.shard.value);
  store(to + kShardCount, hello.shard_count);
  store(to + kHistory, hello.history.value);
  store(to + kRoutingSeed, hello.routing_seed);
  layout::store_epoch(to + kEpoch, hello.epoch);
  store(to + kGeneration, hello.generation.value);
  store(to + kGroupSum, hello.group_sum);
  store(to + kLastLsn, hello.last_lsn.value);
  store(to + kFirstLsn, hello.first_lsn.value);
  store(to + kRingBytes, hello.ring_bytes);
  store(to + kKeyLimit, hello.key_bytes_max);
  store(to + kValueLimit, hello.value_bytes_max);
  layout::store_epoch(to + kLastEpoch, hello.last_epoch);
  layout::store_epoch(to + kCommitEpoch, hello.commit_epoch);
  store(to + kCommitLsn, hello.commit_lsn.value);
  store(to + kCrc, crc32c(0, into.first<kCrc>()));
}

Result<Hello> decode_hello(Bytes from) {
  using namespace layout::hello;
  const std::byte* const at = from.data();
  // Magic and version range stand where they are in every version, so that two nodes that have none in common
  // can still tell each other so. They are looked at before anything that a version may define.
  if (from.size() < kLength) return ReplicationErrc::malformed;
  if (load<std::uint32_t>(at + kMagic) != layout::kHelloMagic) return ReplicationErrc::bad_magic;
  Hello hello;
  hello.version_min = load<std::uint16_t>(at + kVersionMin);
  hello.version_max = load<std::uint16_t>(at + kVersionMax);
  if (hello.version_min > hello.version_max) return ReplicationErrc::malformed;
  if (hello.version_min > kWireVersionMax || hello.version_max < kWireVersionMin) {
    return Error(ReplicationErrc::bad_version, "the peer speaks wire versions " +
                                                   range(hello.version_min, hello.version_max) +
                                                   ", this node " + range(kWireVersionMin, kWireVersionMax));
  }
  if (from.size() < kHelloBytes || load<std::uint32_t>(at + kLength) != kHelloBytes) {
    return ReplicationErrc::malformed;
  }
  if (load<std::uint32_t>(at + kCrc) != crc32c(0, from.first(kCrc))) return ReplicationErrc::bad_crc;

  const auto role = load<std::uint8_t>(at + kRole);
  const auto flags = load<std::uint8_t>(at + kFlags);
  hello.role = static_cast<NodeRole>(role);
  hello.flags = unpacked(flags);
  hello.c = load<std::uint16_t>(at + kC);
  hello.node = load<std::uint32_t>(at + kNode);
  hello.shard.value = load<std::uint16_t>(at + kShard);
  hello.shard_count = load<std::uint16_t>(at + kShardCount);
  hello.history.value = load<std::uint64_t>(at + kHistory);
  hello.routing_seed = load<std::uint64_t>(at + kRoutingSeed);
  hello.epoch = layout::load_epoch(at + kEpoch);
  hello.generation.value = load<std::uint32_t>(at + kGeneration);
  hello.group_sum = load<std::uint32_t>(at + kGroupSum);
  hello.last_lsn.value = load<std::uint64_t>(at + kLastLsn);
  hello.first_lsn.value = load<std::uint64_t>(at + kFirstLsn);
  hello.ring_bytes = load<std::uint64_t>(at + kRingBytes);
  hello.key_bytes_max = load<std::uint32_t>(at + kKeyLimit);
  hello.value_bytes_max = load<std::uint32_t>(at + kValueLimit);
  hello.last_epoch = layout::load_epoch(at + kLastEpoch);
  hello.commit_epoch = layout::load_epoch(at + kCommitEpoch);
  hello.commit_lsn.value = load<std::uint64_t>(at + kCommitLsn);
  const bool reserved_zero = all_zero(from.subspan(kReserved, kCrc - kReserved));
  const bool fields_legal = role >= 1 && role <= 3 && hello.shard_count >= 1 &&
                            hello.shard_count <= kShardCountMax && hello.shard.value < hello.shard_count;
  if (!reserved_zero || !fields_legal) return ReplicationErrc::malformed;
  if ((flags & ~flags_said_by(hello.role)) != 0 || !line_fields_agree(hello)) {
    return ReplicationErrc::malformed;
  }
  return hello;
}

void encode_refusal(const Refusal& refusal, std::span<std::byte, kRefusalBytes> into) {
  using namespace layout::refusal;
  std::byte* const to = into.data();
  store(to + kMagic, layout::kRefusalMagic);
  store(to + kReason, static_cast<std::uint16_t>(refusal.reason));
  store(to + kLength, static_cast<std::uint16_t>(kRefusalBytes));
  store(to + kOurs, refusal.ours);
  store(to + kTheirs, refusal.theirs);
  store(to + kReserved, std::uint32_t{0});
  store(to + kCrc, crc32c(0, into.first<kCrc>()));
}

Result<Refusal> decode_refusal(Bytes from) {
  using namespace layout::refusal;
  const std::byte* const at = from.data();
  if (from.size() < kRefusalBytes) return ReplicationErrc::malformed;
  if (load<std::uint32_t>(at + kMagic) != layout::kRefusalMagic) return ReplicationErrc::bad_magic;
  if (load<std::uint16_t>(at + kLength) != kRefusalBytes) return ReplicationErrc::malformed;
  if (load<std::uint32_t>(at + kCrc) != crc32c(0, from.first(kCrc))) return ReplicationErrc::bad_crc;
  Refusal refusal;
  // A reason that this version does not know is kept: describe() prints its number.
  refusal.reason = static_cast<RefusalReason>(load<std::uint16_t>(at + kReason));
  refusal.ours = load<std::uint64_t>(at + kOurs);
  refusal.theirs = load<std::uint64_t>(at + kTheirs);
  if (refusal.reason == RefusalReason::none || load<std::uint32_t>(at + kReserved) != 0) {
    return ReplicationErrc::malformed;
  }
  return refusal;
}

Error to_error(const Refusal& refusal) {
  const bool passing = refusal.reason == RefusalReason::busy;
  return Error(passing ? ReplicationErrc::peer_busy : ReplicationErrc::refused, describe(refusal));
}

std::string describe(const Refusal& refusal) {
  const auto ours = std::to_string(refusal.ours);
  const auto theirs = std::to_string(refusal.theirs);
  // The reader is the node that was refused, so "the peer" is the refuser.
  switch (refusal.reason) {
    case RefusalReason::none:
      return "not refused";
    case RefusalReason::version:
      return "the peer speaks wire versions " + range(refusal.ours) + ", this node " + range(refusal.theirs) +
             ": upgrade the older node";
    case RefusalReason::role:
      return "the peer's role is " + ours + ", this node's " + theirs +
             " (1 primary, 2 replica, 3 candidate): a replica connects to a primary";
    case RefusalReason::shard_count:
      return "the peer has " + ours + " shards, this node " + theirs +
             ": start both with the same number of shards";
    case RefusalReason::history:
      return "the peer follows history " + ours + ", this node " + theirs +
             ": start this node empty to follow it";
    case RefusalReason::epoch:
      return "the peer is in epoch " + ours + ", this node in " + theirs +
             ": connect to the primary of the newest epoch";
    case RefusalReason::behind_log:
      return "the peer's log begins at LSN " + ours + ", this node's last is " + theirs +
             ": restart both nodes, and raise log_bytes for longer outages";
    case RefusalReason::limits:
      return "the peer's limit is " + ours + " bytes, this node's " + theirs + ": give both the same limits";
    case RefusalReason::busy:
      if (refusal.ours == 0) {
        return "the peer has a link of a node with this number for shard " + theirs +
               " that is not gone yet: retry later, and give each node a number of its own";
      }
      return "the peer cannot take shard " + theirs + " now (" + ours +
             " ms: it waited so long for its core, its next snapshot waits, or it looks whether an older link"
             " of a node with this number is still there): retry later";
    case RefusalReason::malformed:
      return "the peer could not read this node's hello (it expected " + ours + ", found " + theirs +
             "): check that the address is a tidelock node's";
    case RefusalReason::credentials:
      return "the peer runs as user " + ours + ", this node as user " + theirs +
             ": run both as the same user";
    case RefusalReason::group:
      return "the peer's group has the sum " + ours + ", this node's " + theirs +
             ": give all nodes the same list, c, lease and largest group";
    case RefusalReason::promised:
      return "the peer has promised epoch " + epoch_text_of(refusal.ours) + ", this node says " +
             epoch_text_of(refusal.theirs) + ": follow the newest epoch, or ask for a higher one";
    case RefusalReason::no_memory:
      return "the peer (its value " + ours + ", ours " + theirs +
             ") was restarted and does not know yet what it had promised: retry later";
    case RefusalReason::lease:
      return "the peer granted a lease that runs for " + ours + " ms more (this node's value " + theirs +
             "): retry then";
    case RefusalReason::not_primary:
      return "the peer is no primary, has promised epoch " + epoch_text_of(refusal.ours) +
             " and holds history " + theirs + ": connect to that epoch's primary";
    case RefusalReason::diverged:
      return "what the peer has (LSN " + ours + ") and what this node has (LSN " + theirs +
             ") were both committed and contradict each other: one of them was forced";
    case RefusalReason::node:
      return "the peer's node number is " + ours + ", this node's " + theirs +
             ": give each node a number of its own";
  }
  return "the peer refused for reason " + std::to_string(static_cast<unsigned>(refusal.reason)) +
         " (its value " + ours + ", ours " + theirs +
         "), which this version does not know: upgrade this node";
}

}  // namespace tidelock
