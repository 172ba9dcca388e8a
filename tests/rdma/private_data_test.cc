// What an RDMA peer says in private data and in messages: one encoding each, and nothing hostile gets past.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/rdma/errc.h>
#include <tidelock/reactor/random.h>

#include "fuzz/rdma_decoders.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMutations = 20'000;
#else
constexpr int kMutations = 200'000;
#endif

using Message = std::vector<std::byte>;

Message a_request() {
  ConnectRequest request;
  request.shard = {1};
  request.shard_count = 2;
  request.mtu_bytes = 1024;
  request.node = 7;
  request.generation = {3};
  request.incarnation = 0x1122'3344'5566'7788;
  request.epoch = {4, 1};
  request.data_slots = 64;
  request.control_slots = 16;
  Message bytes(kConnectRequestBytes);
  encode_request(request, std::span<std::byte, kConnectRequestBytes>(bytes));
  return bytes;
}

Message a_reply() {
  ConnectReply reply;
  reply.shard = {1};
  reply.mtu_bytes = 4096;
  reply.node = 1;
  reply.generation = {9};
  reply.data_slots = 4;
  reply.control_slots = 256;
  reply.epoch = {4, 1};
  reply.ring_bytes = kRingBytesMin;
  Message bytes(kConnectReplyBytes);
  encode_reply(reply, std::span<std::byte, kConnectReplyBytes>(bytes));
  return bytes;
}

Message a_reject(RejectReason reason) {
  Message bytes(kConnectRejectBytes);
  encode_reject({reason, 5, 6}, std::span<std::byte, kConnectRejectBytes>(bytes));
  return bytes;
}

Message a_message(MessageKind kind, std::size_t payload_bytes) {
  MessageHeader header;
  header.kind = kind;
  header.payload_bytes = static_cast<std::uint16_t>(payload_bytes);
  header.generation = kFuzzGeneration;
  header.batches_released = 12;
  header.controls_consumed = 34;
  Message bytes(kMessageHeaderBytes + payload_bytes);
  encode_message(header, std::span<std::byte, kMessageHeaderBytes>(bytes.data(), kMessageHeaderBytes));
  return bytes;
}

Message an_offer() {
  Message bytes(kRingOfferBytes);
  encode_offer({0x7000'0000, kFuzzRingBytes, 77}, std::span<std::byte, kRingOfferBytes>(bytes));
  return bytes;
}

std::vector<Message> all_messages() {
  return {a_request(),
          a_reply(),
          a_reject(RejectReason::epoch),
          a_message(MessageKind::hello, kRingOfferBytes + kGreetingBytes),
          a_message(MessageKind::hello_ack, kGreetingBytes),
          a_message(MessageKind::refuse, kGreetingBytes),
          a_message(MessageKind::control, kControlBytes),
          a_message(MessageKind::credit, 0),
          a_message(MessageKind::close, 0),
          an_offer()};
}

void put_sum(Message& bytes) {
  store(bytes.data() + bytes.size() - 4, header_sum(Bytes(bytes).first(bytes.size() - 4)));
}

void mutate(Message& bytes, Random& random) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random.below(bound)); };
  switch (below(4)) {
    case 0:  // a bit
      bytes[below(bytes.size())] ^= std::byte{1} << static_cast<int>(below(8));
      break;
    case 1:  // a byte that is often a limit
      bytes[below(bytes.size())] =
          std::array{std::byte{0}, std::byte{1}, std::byte{0x7f}, std::byte{0xff}}[below(4)];
      break;
    case 2:
      bytes.resize(below(bytes.size() + 1));
      break;
    default:
      bytes.resize(bytes.size() + below(64), static_cast<std::byte>(below(256)));
  }
}

}  // namespace

TEST_CASE("rdma/private_data: what is encoded is decoded, and padding behind it is not looked at") {
  RdmaDecodeCounts counts;
  for (Message bytes : {a_request(), a_reply(), a_reject(RejectReason::busy)}) {
    decode_private_data(bytes, counts);
    bytes.resize(196);  // rdma_cm pads
    decode_private_data(bytes, counts);
  }
  CHECK(counts.requests == 2);
  CHECK(counts.replies == 2);
  CHECK(counts.rejects == 2);
}

TEST_CASE(
    "rdma/private_data: each bit of a request, reply, reject and message header is under its checksum") {
  for (const Message& good :
       {a_request(), a_reply(), a_reject(RejectReason::version), a_message(MessageKind::credit, 0)}) {
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
      Message bad = good;
      bad[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      CHECK_FALSE(decode_request(bad));
      CHECK_FALSE(decode_reply(bad));
      CHECK_FALSE(decode_reject(bad));
      CHECK_FALSE(decode_message(bad, kFuzzGeneration));
    }
  }
}

TEST_CASE("rdma/private_data: a value out of range is named, although its checksum is right") {
  struct Case {
    Message bytes;
    std::size_t at;
    std::uint16_t value;
    const char* word;
  };
  const std::vector<Case> cases{{a_request(), 6, 0, "version range"},
                                {a_request(), 8, 55, "length"},
                                {a_request(), 10, 2, "shard"},
                                {a_request(), 12, 0, "shard count"},
                                {a_request(), 12, 257, "shard count"},
                                {a_request(), 14, 1500, "MTU"},
                                {a_request(), 14, 8192, "MTU"},
                                {a_request(), 40, 3, "slots"},
                                {a_request(), 42, 257, "slots"},
                                {a_request(), 46, 1, "reserved"},
                                {a_reply(), 4, 0, "version"},
                                {a_reply(), 4, 2, "version"},
                                {a_reply(), 10, 1000, "MTU"},
                                {a_reply(), 20, 0, "slots"},
                                {a_reply(), 32, 1, "ring"},
                                {a_reply(), 40, 1, "reserved"},
                                {a_reject(RejectReason::busy), 6, 31, "length"},
                                {a_reject(RejectReason::busy), 24, 1, "reserved"}};
  for (const Case& c : cases) {
    Message bytes = c.bytes;
    store(bytes.data() + c.at, c.value);
    put_sum(bytes);
    CAPTURE(std::string(c.word));
    CAPTURE(c.at);
    const auto check = [&](const auto& decoded) {
      REQUIRE_FALSE(decoded);
      CHECK(decoded.error() == RdmaErrc::protocol);
      CHECK(decoded.error().message().find(c.word) != std::string::npos);
    };
    if (bytes.size() == kConnectRequestBytes) check(decode_request(bytes));
    if (bytes.size() == kConnectReplyBytes) check(decode_reply(bytes));
    if (bytes.size() == kConnectRejectBytes) check(decode_reject(bytes));
  }
}

TEST_CASE("rdma/private_data: every reason for a reject has a line of its own that names both values") {
  for (const auto reason :
       {RejectReason::version, RejectReason::shard_count, RejectReason::shard, RejectReason::epoch,
        RejectReason::generation, RejectReason::limits, static_cast<RejectReason>(99)}) {
    const bool packed = reason == RejectReason::version;
    const std::uint64_t ours = packed ? 0x1'0002 : 41, theirs = packed ? 0x3'0004 : 42;
    const std::string text = describe(ConnectReject{reason, ours, theirs});
    CAPTURE(text);
    CHECK(text.find(packed ? "1 to 2" : "41") != std::string::npos);
    CHECK(text.find(packed ? "3 to 4" : "42") != std::string::npos);
  }
}

TEST_CASE("rdma/private_data: mutated messages are refused, or mean what they say") {
  const std::vector<Message> seeds = all_messages();
  Random random(20240229);
  RdmaDecodeCounts counts;
  for (int i = 0; i < kMutations; ++i) {
    Message bytes = seeds[static_cast<std::size_t>(i) % seeds.size()];
    for (auto times = 1 + random.below(3); times > 0 && !bytes.empty(); --times) mutate(bytes, random);
    decode_rdma_bytes(bytes, counts);
  }
  // Enough of them get through for the checks behind the checksum to be reached.
  CHECK(counts.requests > 0);
  CHECK(counts.replies > 0);
  CHECK(counts.rejects > 0);
  CHECK(counts.messages > 0);
  CHECK(counts.offers > 0);
}
