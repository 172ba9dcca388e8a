#include <algorithm>
#include <bit>

#include <tidelock/rdma/errc.h>
#include <tidelock/rdma/private_data.h>
#include <tidelock/reactor/header_sum.h>

namespace tidelock {
namespace {

constexpr std::uint32_t kRequestMagic = 0x5143'4c54;  // "TLCQ"
constexpr std::uint32_t kReplyMagic = 0x5043'4c54;    // "TLCP"
constexpr std::uint32_t kRejectMagic = 0x4a43'4c54;   // "TLCJ"
constexpr std::uint16_t kMtuBytesMin = 256;
constexpr std::uint16_t kMtuBytesMax = 4096;

Error wrong(const char* message, const char* what) {
  return Error(RdmaErrc::protocol, std::string("a connect ") + message + " with " + what);
}

void seal(MutableBytes whole) {
  store(whole.data() + whole.size() - 4, header_sum(whole.first(whole.size() - 4)));
}

/// Magic, length and checksum, which stand where they stand in every version.
Status check_frame(Bytes from, std::size_t bytes, std::uint32_t magic, std::size_t length_at,
                   const char* message) {
  if (from.size() < bytes) return wrong(message, "too few bytes");
  if (load<std::uint32_t>(from.data()) != magic)
    return wrong(message, "the wrong magic: not a tidelock peer");
  if (load<std::uint16_t>(from.data() + length_at) != bytes) return wrong(message, "a wrong length");
  if (load<std::uint32_t>(from.data() + bytes - 4) != header_sum(from.first(bytes - 4))) {
    return wrong(message, "a wrong checksum");
  }
  return {};
}

bool slots_legal(std::uint16_t data, std::uint16_t control) {
  return data >= kDataSlotsMin && data <= kDataSlotsMax && control >= kControlSlotsMin &&
         control <= kControlSlotsMax;
}

bool mtu_legal(std::uint16_t bytes) {
  return bytes >= kMtuBytesMin && bytes <= kMtuBytesMax && std::has_single_bit(bytes);
}

void put_epoch(std::byte* at, Epoch epoch) {
  store(at, epoch.counter);
  store(at + 4, epoch.node);
}

Epoch get_epoch(const std::byte* at) { return {load<std::uint32_t>(at), load<std::uint32_t>(at + 4)}; }

}  // namespace

void encode_request(const ConnectRequest& request, std::span<std::byte, kConnectRequestBytes> into) {
  std::fill(into.begin(), into.end(), std::byte{0});
  std::byte* at = into.data();
  store(at, kRequestMagic);
  store(at + 4, request.version_min);
  store(at + 6, request.version_max);
  store(at + 8, static_cast<std::uint16_t>(kConnectRequestBytes));
  store(at + 10, request.shard.value);
  store(at + 12, request.shard_count);
  store(at + 14, request.mtu_bytes);
  store(at + 16, request.node);
  store(at + 20, request.generation.value);
  store(at + 24, request.incarnation);
  put_epoch(at + 32, request.epoch);
  store(at + 40, request.data_slots);
  store(at + 42, request.control_slots);
  seal(into);
}

Result<ConnectRequest> decode_request(Bytes from) {
  TL_TRY(check_frame(from, kConnectRequestBytes, kRequestMagic, 8, "request"));
  const std::byte* at = from.data();
  ConnectRequest request;
  request.version_min = load<std::uint16_t>(at + 4);
  request.version_max = load<std::uint16_t>(at + 6);
  request.shard = {load<std::uint16_t>(at + 10)};
  request.shard_count = load<std::uint16_t>(at + 12);
  request.mtu_bytes = load<std::uint16_t>(at + 14);
  request.node = load<std::uint32_t>(at + 16);
  request.generation = {load<std::uint32_t>(at + 20)};
  request.incarnation = load<std::uint64_t>(at + 24);
  request.epoch = get_epoch(at + 32);
  request.data_slots = load<std::uint16_t>(at + 40);
  request.control_slots = load<std::uint16_t>(at + 42);
  if (request.version_max < request.version_min) return wrong("request", "a version range that is empty");
  if (request.shard_count < 1 || request.shard_count > 256) return wrong("request", "a bad shard count");
  if (request.shard.value >= request.shard_count) return wrong("request", "a shard beyond its shard count");
  if (!mtu_legal(request.mtu_bytes)) return wrong("request", "an MTU that does not exist");
  if (!slots_legal(request.data_slots, request.control_slots)) return wrong("request", "slots out of range");
  if (load<std::uint64_t>(at + 44) != 0) return wrong("request", "reserved bytes that are not zero");
  return request;
}

void encode_reply(const ConnectReply& reply, std::span<std::byte, kConnectReplyBytes> into) {
  std::fill(into.begin(), into.end(), std::byte{0});
  std::byte* at = into.data();
  store(at, kReplyMagic);
  store(at + 4, reply.version);
  store(at + 6, static_cast<std::uint16_t>(kConnectReplyBytes));
  store(at + 8, reply.shard.value);
  store(at + 10, reply.mtu_bytes);
  store(at + 12, reply.node);
  store(at + 16, reply.generation.value);
  store(at + 20, reply.data_slots);
  store(at + 22, reply.control_slots);
  put_epoch(at + 24, reply.epoch);
  store(at + 32, reply.ring_bytes);
  seal(into);
}

Result<ConnectReply> decode_reply(Bytes from) {
  TL_TRY(check_frame(from, kConnectReplyBytes, kReplyMagic, 6, "reply"));
  const std::byte* at = from.data();
  ConnectReply reply;
  reply.version = load<std::uint16_t>(at + 4);
  reply.shard = {load<std::uint16_t>(at + 8)};
  reply.mtu_bytes = load<std::uint16_t>(at + 10);
  reply.node = load<std::uint32_t>(at + 12);
  reply.generation = {load<std::uint32_t>(at + 16)};
  reply.data_slots = load<std::uint16_t>(at + 20);
  reply.control_slots = load<std::uint16_t>(at + 22);
  reply.epoch = get_epoch(at + 24);
  reply.ring_bytes = load<std::uint64_t>(at + 32);
  if (reply.version < kRdmaVersionMin || reply.version > kRdmaVersionMax) {
    return wrong("reply", "a version that was not offered");
  }
  if (!mtu_legal(reply.mtu_bytes)) return wrong("reply", "an MTU that does not exist");
  if (!slots_legal(reply.data_slots, reply.control_slots)) return wrong("reply", "slots out of range");
  if (!std::has_single_bit(reply.ring_bytes) || reply.ring_bytes < kRingBytesMin ||
      reply.ring_bytes > kRingBytesMax) {
    return wrong("reply", "a ring size out of range");
  }
  if (load<std::uint32_t>(at + 40) != 0) return wrong("reply", "reserved bytes that are not zero");
  return reply;
}

void encode_reject(const ConnectReject& reject, std::span<std::byte, kConnectRejectBytes> into) {
  std::fill(into.begin(), into.end(), std::byte{0});
  std::byte* at = into.data();
  store(at, kRejectMagic);
  store(at + 4, static_cast<std::uint16_t>(reject.reason));
  store(at + 6, static_cast<std::uint16_t>(kConnectRejectBytes));
  store(at + 8, reject.ours);
  store(at + 16, reject.theirs);
  seal(into);
}

Result<ConnectReject> decode_reject(Bytes from) {
  TL_TRY(check_frame(from, kConnectRejectBytes, kRejectMagic, 6, "reject"));
  if (load<std::uint32_t>(from.data() + 24) != 0) {
    return wrong("reject", "reserved bytes that are not zero");
  }
  ConnectReject reject;
  reject.reason = static_cast<RejectReason>(load<std::uint16_t>(from.data() + 4));
  reject.ours = load<std::uint64_t>(from.data() + 8);
  reject.theirs = load<std::uint64_t>(from.data() + 16);
  return reject;
}

std::string describe(const ConnectReject& reject) {
  const std::string ours = std::to_string(reject.ours);
  const std::string theirs = std::to_string(reject.theirs);
  const auto range = [](std::uint64_t packed) {
    return std::to_string(packed >> 16) + " to " + std::to_string(packed & 0xffff);
  };
  switch (reject.reason) {
    case RejectReason::version:
      return "versions: the peer speaks " + range(reject.ours) + ", this side " + range(reject.theirs) +
             "; upgrade the older node";
    case RejectReason::shard_count:
      return "shard count: the peer has " + ours + ", this side " + theirs + "; start both with the same";
    case RejectReason::shard:
      return "shard " + theirs + ": the peer has shards below " + ours;
    case RejectReason::epoch:
      return "epoch: the peer serves " + ours + ", this side has seen " + theirs +
             "; the peer is no longer the primary";
    case RejectReason::generation:
      return "generation: the peer has taken attempt " + ours + ", this is the older attempt " + theirs;
    case RejectReason::malformed:
      return "the peer found the request malformed; both sides must be tidelock";
    case RejectReason::busy:
      return "the peer takes no connection now; try again later";
    case RejectReason::limits:
      return "limits: the peer needs at least " + ours + " slots, this side offers " + theirs;
    case RejectReason::node_in_use:
      return "another node with number " + theirs +
             " is connected: give each node a number of its own (Options::node); after a restart, the old "
             "connection is noticed dead soon";
  }
  return "reason " + std::to_string(static_cast<unsigned>(reject.reason)) + ", the peer's value " + ours +
         ", ours " + theirs;
}

std::string describe_given(const ConnectReject& reject) {
  const std::string ours = std::to_string(reject.ours);
  const std::string theirs = std::to_string(reject.theirs);
  const auto both = [&](const char* what) {
    return std::string(what) + ": this side has " + ours + ", the peer " + theirs;
  };
  switch (reject.reason) {
    case RejectReason::version:
      return "its versions " + std::to_string(reject.theirs >> 16) + " to " +
             std::to_string(reject.theirs & 0xffff) + " have none in common with " +
             std::to_string(reject.ours >> 16) + " to " + std::to_string(reject.ours & 0xffff);
    case RejectReason::shard_count:
      return both("shard count");
    case RejectReason::shard:
      return both("shard");
    case RejectReason::epoch:
      return both("epoch");
    case RejectReason::generation:
      return both("an attempt older than one that was taken");
    case RejectReason::malformed:
      return "its private data is no request of tidelock's";
    case RejectReason::busy:
      return reject.ours != 0 ? "all " + ours + " connection slots are in use" : "nobody takes connections";
    case RejectReason::limits:
      return both("limits");
    case RejectReason::node_in_use:
      return "another process of node " + theirs + " is connected";
  }
  return both("unknown reason");
}

}  // namespace tidelock
