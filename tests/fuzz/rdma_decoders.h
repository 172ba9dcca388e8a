/// Runs arbitrary bytes through every decoder of what an RDMA peer sends, and checks what a successful decode
/// promises: values in their ranges, and one encoding only. Used by the fuzzer and by a seeded unit test,
/// which need no common framework: a broken promise traps.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <tidelock/base/check.h>
#include <tidelock/rdma/private_data.h>
#include <tidelock/reactor/header_sum.h>

#include "message.h"

namespace tidelock::test {

inline constexpr Generation kFuzzGeneration{5};
inline constexpr std::uint64_t kFuzzRingBytes = kRingBytesMin;

/// How many messages were accepted.
struct RdmaDecodeCounts {
  std::uint64_t requests = 0, replies = 0, rejects = 0, messages = 0, offers = 0;
};

template <std::size_t N>
bool starts_with(Bytes bytes, const std::array<std::byte, N>& start) {
  return bytes.size() >= N && std::equal(start.begin(), start.end(), bytes.begin());
}

inline void decode_private_data(Bytes bytes, RdmaDecodeCounts& counts) {
  if (const auto request = decode_request(bytes)) {
    ++counts.requests;
    TL_ASSERT(request->shard.value < request->shard_count, "a shard within its count");
    TL_ASSERT(request->data_slots <= kDataSlotsMax && request->control_slots <= kControlSlotsMax,
              "slots in range");
    std::array<std::byte, kConnectRequestBytes> again{};
    encode_request(*request, again);
    TL_ASSERT(starts_with(bytes, again), "an accepted request has one encoding");
  }
  if (const auto reply = decode_reply(bytes)) {
    ++counts.replies;
    TL_ASSERT(reply->ring_bytes >= kRingBytesMin && reply->ring_bytes <= kRingBytesMax, "a ring in range");
    std::array<std::byte, kConnectReplyBytes> again{};
    encode_reply(*reply, again);
    TL_ASSERT(starts_with(bytes, again), "an accepted reply has one encoding");
  }
  if (const auto reject = decode_reject(bytes)) {
    ++counts.rejects;
    TL_ASSERT(!describe(*reject).empty() && !describe_given(*reject).empty(), "a reject says why");
    std::array<std::byte, kConnectRejectBytes> again{};
    encode_reject(*reject, again);
    TL_ASSERT(starts_with(bytes, again), "an accepted reject has one encoding");
  }
}

inline void decode_rdma_message(Bytes bytes, RdmaDecodeCounts& counts) {
  if (const auto header = decode_message(bytes, kFuzzGeneration)) {
    ++counts.messages;
    TL_ASSERT(kMessageHeaderBytes + header->payload_bytes == bytes.size(), "a message of its length");
    TL_ASSERT(bytes.size() <= kReceiveBytes, "a message fits a receive");
    std::array<std::byte, kMessageHeaderBytes> again{};
    encode_message(*header, again);
    TL_ASSERT(starts_with(bytes, again), "an accepted message has one encoding");
  }
  if (const auto offer = decode_offer(bytes, kFuzzRingBytes)) {
    ++counts.offers;
    TL_ASSERT(offer->address + offer->ring_bytes >= offer->address, "a ring within the address space");
    std::array<std::byte, kRingOfferBytes> again{};
    encode_offer(*offer, again);
    TL_ASSERT(starts_with(bytes, again), "an accepted offer has one encoding");
  }
}

/// As it is, and with its CRCs put right, so that the checks behind them are reached.
inline void decode_rdma_bytes(Bytes bytes, RdmaDecodeCounts& counts) {
  decode_private_data(bytes, counts);
  decode_rdma_message(bytes, counts);
  std::vector<std::byte> copy(bytes.begin(), bytes.end());
  for (const std::size_t size : {kConnectRequestBytes, kConnectReplyBytes, kConnectRejectBytes}) {
    if (copy.size() < size) continue;
    const std::uint32_t was = load<std::uint32_t>(copy.data() + size - 4);
    store(copy.data() + size - 4, header_sum(Bytes(copy).first(size - 4)));
    decode_private_data(copy, counts);
    store(copy.data() + size - 4, was);
  }
  if (copy.size() < kMessageHeaderBytes) return;
  constexpr std::size_t kSumAt = kMessageHeaderBytes - 4;
  store(copy.data() + kSumAt, header_sum(Bytes(copy).first(kSumAt)));
  decode_rdma_message(copy, counts);
}

}  // namespace tidelock::test
