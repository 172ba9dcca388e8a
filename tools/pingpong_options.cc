#include "pingpong_options.h"

#include <fmt/format.h>

#include <tidelock/replication/errc.h>

namespace tidelock::tools {
namespace {

/// "pingpong", its bytes read as a number. Engines take theirs at random.
constexpr HistoryId kPingHistory{0x676e'6f70'676e'6970ULL};
constexpr Generation kPingGeneration{1};
constexpr std::uint32_t kPingVersion = 1;

Error invalid(std::string text) { return Error::from_errno(EINVAL, std::move(text)); }

}  // namespace

const char* to_string(PingVerb verb) { return verb == PingVerb::link ? "link" : "send"; }

std::vector<std::uint32_t> PingpongOptions::sizes() const {
  if (verb == PingVerb::send) return {kControlFrameBytes};
  if (!all_sizes) return {bytes};
  std::vector<std::uint32_t> sizes;
  for (std::uint32_t size = kPingBytesMin; size <= kPingBytesMax; size *= 2) sizes.push_back(size);
  return sizes;
}

std::string PingpongOptions::shm_address() const {
  return listen.empty() ? fmt::format("@tidelock-pingpong-{}", port) : listen;
}

Status PingpongOptions::validate() const {
  if (bytes < kPingBytesMin || bytes > kPingBytesMax || bytes % kEntryAlignment != 0) {
    return invalid(fmt::format(
        "-s {}: a batch has at least one entry of {} bytes, entries are padded to {}, and a quarter of the "
        "ring is "
        "the most: use a multiple of {} from {} to {}",
        bytes, kEntryHeaderBytes, kEntryAlignment, kEntryAlignment, kPingBytesMin, kPingBytesMax));
  }
  if (link == LinkKind::shm && verb != PingVerb::link)
    return invalid("--verb is about verbs: use it with --link verbs, or leave it out");
  if (link == LinkKind::shm && !device.empty())
    return invalid("-d names an RDMA device: use it with --link verbs, or leave it out");
  if (!is_server() && !listen.empty())
    return invalid("--listen is for the server, and an address at the end makes this the client: use one");
  return {};
}

FrameContext ping_context() { return {kPingHistory, kPingGeneration, ShardId{0}}; }

Hello hello_of(const PingTerms& terms, NodeRole role) {
  Hello hello;
  hello.role = role;
  hello.node = role == NodeRole::primary ? 1 : 2;
  hello.shard_count = 1;
  hello.history = kPingHistory;
  hello.generation = kPingGeneration;
  hello.routing_seed = std::uint64_t{kPingVersion} << 32 | static_cast<std::uint8_t>(terms.verb);
  hello.ring_bytes = kPingRingBytes;
  hello.value_bytes_max = terms.bytes_max;
  return hello;
}

Result<PingTerms> terms_of(const Hello& hello, Refusal& refusal) {
  const auto refuse = [&](RefusalReason reason, std::uint64_t ours, std::uint64_t theirs) {
    refusal = {reason, ours, theirs};
    return Error(ReplicationErrc::refused, describe(refusal));
  };
  if (hello.history != kPingHistory) {
    return refuse(RefusalReason::history, kPingHistory.value, hello.history.value);
  }
  if (hello.role != NodeRole::replica) {
    return refuse(RefusalReason::role, static_cast<std::uint64_t>(NodeRole::primary),
                  static_cast<std::uint64_t>(hello.role));
  }
  const std::uint64_t version = hello.routing_seed >> 32;
  if (version != kPingVersion) return refuse(RefusalReason::version, kPingVersion, version);
  const std::uint64_t verb = hello.routing_seed & 0xffff'ffffU;
  if (verb != static_cast<std::uint64_t>(PingVerb::link) &&
      verb != static_cast<std::uint64_t>(PingVerb::send)) {
    return refuse(RefusalReason::malformed, static_cast<std::uint64_t>(PingVerb::send), verb);
  }
  if (hello.value_bytes_max > kPingBytesMax) {
    return refuse(RefusalReason::limits, kPingBytesMax, hello.value_bytes_max);
  }
  return PingTerms{static_cast<PingVerb>(verb), hello.value_bytes_max};
}

Status check_server(const Hello& hello) {
  if (hello.history == kPingHistory && hello.role == NodeRole::primary &&
      hello.routing_seed >> 32 == kPingVersion)
    return {};
  return Error(ReplicationErrc::refused,
               "who answered is no tidelock pingpong of this version: start one there, without an address");
}

}  // namespace tidelock::tools
