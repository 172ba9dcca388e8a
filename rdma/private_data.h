/// What travels in rdma_cm's private data, to the byte: the active side's request, the passive side's reply
/// or reject. Private data arrives padded with zeroes to what the message has room for (56 bytes of a
/// request, 196 of a reply, 148 of a reject: rdma_connect(3), rdma_accept(3)), so it carries its own length.
/// All integers are little-endian. Every decoder takes hostile bytes.
/// Thread:   any
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>

namespace tidelock {

inline constexpr std::uint16_t kRdmaVersionMin = 1;
inline constexpr std::uint16_t kRdmaVersionMax = 1;

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic "TLCQ" |
/// | 4 | 2, 2 | version_min, version_max |
/// | 8 | 2 | length, 56 |
/// | 10 | 2 | shard, below shard_count |
/// | 12 | 2 | shard_count, 1 to 256 |
/// | 14 | 2 | mtu_bytes, 256 to 4096 |
/// | 16 | 4 | node |
/// | 20 | 4 | generation |
/// | 24 | 8 | incarnation |
/// | 32 | 8 | epoch: counter, node |
/// | 40 | 2, 2 | data_slots, control_slots |
/// | 44 | 8 | reserved, 0 |
/// | 52 | 4 | header_sum() of bytes 0 to 51 |
struct ConnectRequest {
  std::uint16_t version_min = kRdmaVersionMin;
  std::uint16_t version_max = kRdmaVersionMax;
  ShardId shard{};
  std::uint16_t shard_count = 0;
  std::uint16_t mtu_bytes = 0;
  std::uint32_t node = 0;
  Generation generation{};        ///< counts the attempts of one incarnation
  std::uint64_t incarnation = 0;  ///< of the process: random at its start
  Epoch epoch{};                  ///< the newest that it has seen
  std::uint16_t data_slots = 0;   ///< batches that it takes before it must have released one
  std::uint16_t control_slots = 0;
};
inline constexpr std::size_t kConnectRequestBytes = 56;

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic "TLCP" |
/// | 4 | 2 | version: the highest that both have |
/// | 6 | 2 | length, 48 |
/// | 8 | 2 | shard |
/// | 10 | 2 | mtu_bytes |
/// | 12 | 4 | node |
/// | 16 | 4 | generation: of the link, chosen by the passive side |
/// | 20 | 2, 2 | data_slots, control_slots |
/// | 24 | 8 | epoch |
/// | 32 | 8 | ring_bytes: what the active side shall offer |
/// | 40 | 4 | reserved, 0 |
/// | 44 | 4 | header_sum() of bytes 0 to 43 |
struct ConnectReply {
  std::uint16_t version = kRdmaVersionMax;
  ShardId shard{};
  std::uint16_t mtu_bytes = 0;
  std::uint32_t node = 0;
  Generation generation{};
  std::uint16_t data_slots = 0;
  std::uint16_t control_slots = 0;
  Epoch epoch{};
  std::uint64_t ring_bytes = 0;
};
inline constexpr std::size_t kConnectReplyBytes = 48;

enum class RejectReason : std::uint16_t {
  version = 1,
  shard_count = 2,
  shard = 3,
  epoch = 4,       ///< the peer has seen a newer epoch than the one that serves here
  generation = 5,  ///< an attempt that is older than one that was taken
  malformed = 6,
  busy = 7,  ///< no connection slot, or the core did not answer; try again later
  limits = 8,
  node_in_use = 9,  ///< another process of that node number is connected; try again later
};

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic "TLCJ" |
/// | 4 | 2 | reason |
/// | 6 | 2 | length, 32 |
/// | 8 | 8 | ours: the rejecting side's value; a version range as min << 16 \| max |
/// | 16 | 8 | theirs |
/// | 24 | 4 | reserved, 0 |
/// | 28 | 4 | header_sum() of bytes 0 to 27 |
struct ConnectReject {
  RejectReason reason = RejectReason::malformed;
  std::uint64_t ours = 0;
  std::uint64_t theirs = 0;
};
inline constexpr std::size_t kConnectRejectBytes = 32;

/// Slots that either side may name.
inline constexpr std::uint16_t kDataSlotsMin = 4;
inline constexpr std::uint16_t kDataSlotsMax = 256;
inline constexpr std::uint16_t kControlSlotsMin = 4;
inline constexpr std::uint16_t kControlSlotsMax = 256;
/// A batch is at most a quarter of the ring.
inline constexpr std::uint64_t kRingBytesMin = 256ULL << 10;
inline constexpr std::uint64_t kRingBytesMax = 1ULL << 30;

void encode_request(const ConnectRequest& request, std::span<std::byte, kConnectRequestBytes> into);
/// Errors:   protocol, with what is wrong. A version range without overlap is no error of form.
Result<ConnectRequest> decode_request(Bytes from);
void encode_reply(const ConnectReply& reply, std::span<std::byte, kConnectReplyBytes> into);
Result<ConnectReply> decode_reply(Bytes from);
void encode_reject(const ConnectReject& reject, std::span<std::byte, kConnectRejectBytes> into);
Result<ConnectReject> decode_reject(Bytes from);
/// One line that names both values and the remedy, for the side that was rejected.
std::string describe(const ConnectReject& reject);
/// The same for the side that rejects: the reason and both values.
std::string describe_given(const ConnectReject& reject);

}  // namespace tidelock
