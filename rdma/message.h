/// What travels in a SEND on the queue pair, to the byte. A SEND is a header of 32 bytes and a payload; the
/// header's counters are cumulative, so the newest stands for all before it. Messages are never empty: a
/// virtual RDMA device was seen to drop zero-byte sends (deepseek-ai/3FS issue 320).
/// Thread:   any
#pragma once

#include <cstdint>
#include <span>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>

namespace tidelock {

enum class MessageKind : std::uint8_t {
  hello = 1,      ///< active: where its ring is, and the owner's hello
  hello_ack = 2,  ///< passive: the owner's hello
  refuse = 3,     ///< passive, instead of hello_ack: the owner's reason; closes
  control = 4,    ///< the owner's control frame
  credit = 5,     ///< nothing but the header's counters
  close = 6,      ///< the last one; what was sent before it counts
};

/// | offset | size | field |
/// |---|---|---|
/// | 0 | 4 | magic "TLQM" |
/// | 4 | 1 | kind |
/// | 5 | 1 | reserved, 0 |
/// | 6 | 2 | payload_bytes |
/// | 8 | 4 | generation: the link's |
/// | 12 | 8 | batches_released |
/// | 20 | 8 | controls_consumed |
/// | 28 | 4 | header_sum() of bytes 0 to 27 |
struct MessageHeader {
  MessageKind kind = MessageKind::credit;
  std::uint16_t payload_bytes = 0;
  Generation generation{};
  std::uint64_t batches_released = 0;
  std::uint64_t controls_consumed = 0;
};
inline constexpr std::size_t kMessageHeaderBytes = 32;
inline constexpr std::size_t kControlBytes = 64;
/// Of the owner's hello and its answer.
inline constexpr std::size_t kGreetingBytes = 128;
/// A receive's buffer: the largest message is a hello.
inline constexpr std::size_t kReceiveBytes = 256;

void encode_message(const MessageHeader& header, std::span<std::byte, kMessageHeaderBytes> into);
/// `from` is the receiver's own copy or its private receive buffer.
/// Errors:   protocol
Result<MessageHeader> decode_message(Bytes from, Generation generation);

/// In front of the active side's greeting: the memory that the passive side may write.
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 8 | address |
/// | 8 | 8 | ring_bytes |
/// | 16 | 4 | rkey |
/// | 20 | 12 | reserved, 0 |
struct RingOffer {
  std::uint64_t address = 0;
  std::uint64_t ring_bytes = 0;
  std::uint32_t rkey = 0;
};
inline constexpr std::size_t kRingOfferBytes = 32;
void encode_offer(const RingOffer& offer, std::span<std::byte, kRingOfferBytes> into);
/// Errors:   protocol
Result<RingOffer> decode_offer(Bytes from, std::uint64_t ring_bytes_expected);

}  // namespace tidelock
