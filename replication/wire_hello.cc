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
  store(to + kNode, hello.node);
  store(to + kShard, hello.shard.value);
  store(to + kShardCount, hello.shard_count);
  store(to + kHistory, hello.history.value);
  store(to + kRoutingSeed, hello.routing_seed);
  layout::store_epoch(to + kEpoch, hello.epoch);
  store(to + kGeneration, hello.generation.value);
  store(to + kLastLsn, hello.last_lsn.value);
  store(to + kFirstLsn, hello.first_lsn.value);
  store(to + kRingBytes, hello.ring_bytes);
  store(to + kKeyLimit, hello.key_bytes_max);
  store(to + kValueLimit, hello.value_bytes_max);
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
  hello.role = static_cast<NodeRole>(role);
  hello.node = load<std::uint32_t>(at + kNode);
  hello.shard.value = load<std::uint16_t>(at + kShard);
  hello.shard_count = load<std::uint16_t>(at + kShardCount);
  hello.history.value = load<std::uint64_t>(at + kHistory);
  hello.routing_seed = load<std::uint64_t>(at + kRoutingSeed);
  hello.epoch = layout::load_epoch(at + kEpoch);
  hello.generation.value = load<std::uint32_t>(at + kGeneration);
  hello.last_lsn.value = load<std::uint64_t>(at + kLastLsn);
  hello.first_lsn.value = load<std::uint64_t>(at + kFirstLsn);
  hello.ring_bytes = load<std::uint64_t>(at + kRingBytes);
  hello.key_bytes_max = load<std::uint32_t>(at + kKeyLimit);
  hello.value_bytes_max = load<std::uint32_t>(at + kValueLimit);
  const bool reserved_zero = all_zero(from.subspan(kReserved1, kNode - kReserved1)) &&
                             all_zero(from.subspan(kReserved2, kLastLsn - kReserved2)) &&
                             all_zero(from.subspan(kReserved3, kCrc - kReserved3));
  const bool fields_legal = (role == 1 || role == 2) && hello.shard_count >= 1 &&
                            hello.shard_count <= kShardCountMax && hello.shard.value < hello.shard_count;
  if (!reserved_zero || !fields_legal) return ReplicationErrc::malformed;
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
             " (1 primary, 2 replica): a replica connects to a primary";
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
      return "the peer's core of shard " + theirs + " did not answer within " + ours + " ms: retry later";
    case RefusalReason::malformed:
      return "the peer could not read this node's hello (it expected " + ours + ", found " + theirs +
             "): check that the address is a tidelock node's";
    case RefusalReason::credentials:
      return "the peer runs as user " + ours + ", this node as user " + theirs +
             ": run both as the same user";
  }
  return "the peer refused for reason " + std::to_string(static_cast<unsigned>(refusal.reason)) +
         " (its value " + ours + ", ours " + theirs +
         "), which this version does not know: upgrade this node";
}

}  // namespace tidelock
