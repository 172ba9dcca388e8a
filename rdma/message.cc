#include "message.h"

#include <algorithm>
#include <string>

#include <tidelock/rdma/errc.h>
#include <tidelock/reactor/header_sum.h>

namespace tidelock {
namespace {

constexpr std::uint32_t kMagic = 0x4d51'4c54;  // "TLQM"
constexpr std::size_t kSumAt = kMessageHeaderBytes - 4;

Error wrong(const char* what) { return Error(RdmaErrc::protocol, std::string("a message with ") + what); }

}  // namespace

void encode_message(const MessageHeader& header, std::span<std::byte, kMessageHeaderBytes> into) {
  std::byte* at = into.data();
  store(at, kMagic);
  store(at + 4, static_cast<std::uint8_t>(header.kind));
  store(at + 5, std::uint8_t{0});
  store(at + 6, header.payload_bytes);
  store(at + 8, header.generation.value);
  store(at + 12, header.batches_released);
  store(at + 20, header.controls_consumed);
  store(at + kSumAt, header_sum(into.first<kSumAt>()));
}

Result<MessageHeader> decode_message(Bytes from, Generation generation) {
  if (from.size() < kMessageHeaderBytes) return wrong("too few bytes");
  const std::byte* at = from.data();
  if (load<std::uint32_t>(at) != kMagic) return wrong("the wrong magic");
  if (load<std::uint32_t>(at + kSumAt) != header_sum({at, kSumAt})) return wrong("a wrong checksum");
  MessageHeader header;
  header.kind = static_cast<MessageKind>(load<std::uint8_t>(at + 4));
  header.payload_bytes = load<std::uint16_t>(at + 6);
  header.generation = {load<std::uint32_t>(at + 8)};
  header.batches_released = load<std::uint64_t>(at + 12);
  header.controls_consumed = load<std::uint64_t>(at + 20);
  if (load<std::uint8_t>(at + 5) != 0) return wrong("a reserved byte that is not zero");
  if (from.size() != kMessageHeaderBytes + header.payload_bytes) return wrong("a wrong length");
  if (header.generation != generation) {
    return Error(RdmaErrc::protocol, "a message of generation " + std::to_string(header.generation.value) +
                                         " on a link of generation " + std::to_string(generation.value));
  }
  std::size_t expected = 0;
  switch (header.kind) {
    case MessageKind::hello:
      expected = kRingOfferBytes + kGreetingBytes;
      break;
    case MessageKind::hello_ack:
    case MessageKind::refuse:
      expected = kGreetingBytes;
      break;
    case MessageKind::control:
      expected = kControlBytes;
      break;
    case MessageKind::credit:
    case MessageKind::close:
      break;
    default:
      return wrong("an unknown kind");
  }
  if (header.payload_bytes != expected) return wrong("a length that its kind does not have");
  return header;
}

void encode_offer(const RingOffer& offer, std::span<std::byte, kRingOfferBytes> into) {
  std::fill(into.begin(), into.end(), std::byte{0});
  store(into.data(), offer.address);
  store(into.data() + 8, offer.ring_bytes);
  store(into.data() + 16, offer.rkey);
}

Result<RingOffer> decode_offer(Bytes from, std::uint64_t ring_bytes_expected) {
  if (from.size() < kRingOfferBytes) return wrong("an offer that is cut short");
  const RingOffer offer{load<std::uint64_t>(from.data()), load<std::uint64_t>(from.data() + 8),
                        load<std::uint32_t>(from.data() + 16)};
  if (offer.ring_bytes != ring_bytes_expected) {
    return Error(RdmaErrc::protocol, "the peer offers a ring of " + std::to_string(offer.ring_bytes) +
                                         " bytes, " + std::to_string(ring_bytes_expected) +
                                         " were asked for");
  }
  if (offer.address + offer.ring_bytes < offer.address)
    return wrong("a ring beyond the end of the address space");
  if (load<std::uint32_t>(from.data() + 20) != 0 || load<std::uint64_t>(from.data() + 24) != 0) {
    return wrong("reserved bytes that are not zero");
  }
  return offer;
}

}  // namespace tidelock
