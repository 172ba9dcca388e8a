#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/header_sum.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/wire.h>

#include "fuzz/wire_decoders.h"
#include "fuzz/wire_seeds.h"

using namespace tidelock;

namespace {

constexpr FrameContext kContext = test::kFuzzContext;

FrameHeader some_header() {
  FrameHeader header;
  header.history = kContext.history;
  header.generation = kContext.generation;
  header.shard = kContext.shard;
  header.epoch = {4, 9};
  header.sequence = 12;
  header.payload_bytes = 96;
  header.entries = 3;
  header.first_lsn = {100};
  header.last_lsn = {102};
  header.commit_lsn = {99};
  return header;
}

ControlFrame some_control() {
  ControlFrame frame;
  frame.history = kContext.history;
  frame.generation = kContext.generation;
  frame.shard = kContext.shard;
  frame.epoch = {4, 9};
  frame.sequence = 8;
  frame.received_lsn = {55};
  frame.applied_lsn = {54};
  frame.commit_lsn = {53};
  return frame;
}

Hello some_hello() {
  Hello hello;
  hello.role = NodeRole::primary;
  hello.node = 3;
  hello.shard = {1};
  hello.shard_count = 4;
  hello.history = {0x0123456789abcdef};
  hello.routing_seed = 42;
  hello.epoch = {2, 3};
  hello.generation = {17};
  hello.last_lsn = {1000};
  hello.first_lsn = {900};
  hello.ring_bytes = 1 << 22;
  return hello;
}

std::vector<std::byte> encoded(const EntryView& entry) {
  std::vector<std::byte> bytes(entry_bytes(entry.kind, entry.key.size(), entry.value.size()),
                               std::byte{0xee});
  encode_entry(entry, bytes);
  return bytes;
}

EntryView some_entry(EntryKind kind, std::string_view key, std::string_view value) {
  EntryView entry;
  entry.kind = kind;
  entry.lsn = {7};
  entry.epoch = {4, 9};
  entry.key = as_bytes(key);
  entry.value = as_bytes(value);
  return entry;
}

/// Puts the CRC of an entry right again after a test has changed it.
void seal(std::vector<std::byte>& entry) { store(entry.data(), crc32c(0, Bytes(entry).subspan(4))); }

Result<EntryView> decode(const std::vector<std::byte>& bytes) { return EntryReader(bytes).next(); }

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;
FrameBytes frame_bytes(const FrameHeader& header) {
  FrameBytes bytes{};
  encode_frame_header(header, bytes);
  return bytes;
}
void seal(FrameBytes& bytes) { store(bytes.data() + 76, header_sum(Bytes(bytes).first(76))); }

}  // namespace

TEST_CASE("replication/wire: crc32c has the published check value and chains") {
  CHECK(crc32c(0, as_bytes("123456789")) == 0xe3069283);
  CHECK(crc32c(0, {}) == 0);
  CHECK(crc32c(crc32c(0, as_bytes("1234")), as_bytes("56789")) == 0xe3069283);
  // RFC 3720, B.4: 32 bytes of zeroes, 32 bytes of ones.
  const std::array<std::byte, 32> zeroes{};
  CHECK(crc32c(0, zeroes) == 0x8a9136aa);
  std::array<std::byte, 32> ones;
  ones.fill(std::byte{0xff});
  CHECK(crc32c(0, ones) == 0x62a8ab43);
}

TEST_CASE("replication/wire: a header's sum is the low half of XXH3") {
  CHECK(header_sum({}) == 0x38d394c2);  // as published: 2d06800538d394c2
  CHECK(header_sum(as_bytes("123456789")) == 0x67a17dff);
  const std::array<std::byte, 60> zeroes{};
  CHECK(header_sum(zeroes) == 0x8d640202);
}

TEST_CASE("replication/wire: a frame header stands where README.md says") {
  const FrameBytes bytes = frame_bytes(some_header());
  const std::byte* const at = bytes.data();
  CHECK(as_text(Bytes(bytes).first(4)) == "TLFR");
  CHECK(load<std::uint16_t>(at + 4) == 1);
  CHECK(load<std::uint16_t>(at + 6) == 2);
  CHECK(load<std::uint32_t>(at + 8) == 96);
  CHECK(load<std::uint32_t>(at + 12) == 3);
  CHECK(load<std::uint64_t>(at + 16) == 77);
  CHECK(load<std::uint32_t>(at + 24) == 4);
  CHECK(load<std::uint32_t>(at + 28) == 9);
  CHECK(load<std::uint32_t>(at + 32) == 5);
  CHECK(load<std::uint64_t>(at + 40) == 12);
  CHECK(load<std::uint64_t>(at + 48) == 100);
  CHECK(load<std::uint64_t>(at + 56) == 102);
  CHECK(load<std::uint64_t>(at + 64) == 99);
  CHECK(load<std::uint32_t>(at + 76) == header_sum(Bytes(bytes).first(76)));
}

TEST_CASE("replication/wire: a frame header survives the round trip") {
  const FrameHeader header = some_header();
  const auto decoded = decode_frame_header(frame_bytes(header), kContext);
  REQUIRE(decoded);
  CHECK(decoded->history == header.history);
  CHECK(decoded->epoch == header.epoch);
  CHECK(decoded->generation == header.generation);
  CHECK(decoded->shard == header.shard);
  CHECK(decoded->sequence == header.sequence);
  CHECK(decoded->payload_bytes == header.payload_bytes);
  CHECK(decoded->entries == header.entries);
  CHECK(decoded->first_lsn == header.first_lsn);
  CHECK(decoded->last_lsn == header.last_lsn);
  CHECK(decoded->commit_lsn == header.commit_lsn);
}

TEST_CASE("replication/wire: one flipped bit anywhere in a frame header or control frame is noticed") {
  FrameBytes frame = frame_bytes(some_header());
  for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
    frame[bit / 8] ^= std::byte(1U << (bit % 8));
    CHECK_FALSE(decode_frame_header(frame, kContext));
    frame[bit / 8] ^= std::byte(1U << (bit % 8));
  }
  std::array<std::byte, kControlFrameBytes> control{};
  encode_control(some_control(), control);
  for (std::size_t bit = 0; bit < control.size() * 8; ++bit) {
    control[bit / 8] ^= std::byte(1U << (bit % 8));
    CHECK_FALSE(decode_control(control, kContext));
    control[bit / 8] ^= std::byte(1U << (bit % 8));
  }
}

TEST_CASE("replication/wire: frames of another history, shard or generation are refused") {
  const FrameBytes bytes = frame_bytes(some_header());
  std::array<std::byte, kControlFrameBytes> control{};
  encode_control(some_control(), control);
  for (const FrameContext& other :
       {FrameContext{{78}, {5}, {2}}, FrameContext{{77}, {4}, {2}}, FrameContext{{77}, {5}, {1}}}) {
    CHECK(decode_frame_header(bytes, other).error() == ReplicationErrc::wrong_context);
    CHECK(decode_control(control, other).error() == ReplicationErrc::wrong_context);
  }
}

TEST_CASE("replication/wire: a frame header whose fields contradict each other is refused with a right CRC") {
  const auto change = [](auto&& changed, ReplicationErrc expected) {
    FrameBytes bytes = frame_bytes(some_header());
    changed(bytes.data());
    seal(bytes);
    const auto decoded = decode_frame_header(bytes, kContext);
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error() == expected);
  };
  change([](std::byte* at) { store(at, std::uint32_t{0}); }, ReplicationErrc::bad_magic);
  change([](std::byte* at) { store(at + 4, std::uint16_t{2}); }, ReplicationErrc::bad_version);
  change([](std::byte* at) { store(at + 4, std::uint16_t{0}); }, ReplicationErrc::bad_version);
  change([](std::byte* at) { store(at + 8, std::uint32_t{97}); }, ReplicationErrc::bad_length);
  change([](std::byte* at) { store(at + 8, std::uint32_t{64}); }, ReplicationErrc::bad_length);
  change([](std::byte* at) { store(at + 12, std::uint32_t{0}); }, ReplicationErrc::bad_length);
  change([](std::byte* at) { store(at + 48, std::uint64_t{0}); }, ReplicationErrc::bad_length);
  change([](std::byte* at) { store(at + 48, std::uint64_t{103}); }, ReplicationErrc::bad_length);
  change([](std::byte* at) { store(at + 56, std::uint64_t{103}); }, ReplicationErrc::bad_length);
  change([](std::byte* at) { store(at + 36, std::uint32_t{2}); }, ReplicationErrc::malformed);
  for (const std::size_t reserved : {37U, 38U, 39U}) {
    change([&](std::byte* at) { at[reserved] = std::byte{1}; }, ReplicationErrc::malformed);
  }
  change([](std::byte* at) { store(at + 72, std::uint32_t{1}); }, ReplicationErrc::malformed);
}

TEST_CASE("replication/wire: a control frame survives the round trip, unknown flags are refused") {
  for (const bool closing : {false, true}) {
    ControlFrame frame = some_control();
    frame.closing = closing;
    std::array<std::byte, kControlFrameBytes> bytes{};
    encode_control(frame, bytes);
    const auto decoded = decode_control(bytes, kContext);
    REQUIRE(decoded);
    CHECK(decoded->closing == closing);
    CHECK(decoded->sequence == frame.sequence);
    CHECK(decoded->received_lsn == frame.received_lsn);
    CHECK(decoded->applied_lsn == frame.applied_lsn);
    CHECK(decoded->commit_lsn == frame.commit_lsn);
    CHECK(decoded->epoch == frame.epoch);
    bytes[5] |= std::byte{8};
    store(bytes.data() + 60, header_sum(Bytes(bytes).first(60)));
    CHECK(decode_control(bytes, kContext).error() == ReplicationErrc::malformed);
  }
}

TEST_CASE(
    "replication/wire: a control frame has a primary's stamp and a replica's echo where README.md says") {
  ControlFrame primary = some_control();
  primary.lead = true;
  primary.applied_lsn = {};
  primary.set_stamp(0x1122334455667788);
  std::array<std::byte, kControlFrameBytes> bytes{};
  encode_control(primary, bytes);
  CHECK(bytes[5] == std::byte{2});
  CHECK(load<std::uint64_t>(bytes.data() + 32) == 0x1122334455667788);
  CHECK(load<std::uint64_t>(bytes.data() + 48) == 53);
  auto decoded = decode_control(bytes, kContext);
  REQUIRE(decoded);
  CHECK(decoded->lead);
  CHECK(decoded->stamp() == 0x1122334455667788);

  ControlFrame replica = some_control();
  replica.whole = replica.closing = true;
  replica.set_echo(0x1122334455667788);
  encode_control(replica, bytes);
  CHECK(bytes[5] == std::byte{1 + 4});
  CHECK(load<std::uint64_t>(bytes.data() + 48) == 0x1122334455667788);
  decoded = decode_control(bytes, kContext);
  REQUIRE(decoded);
  CHECK(decoded->whole);
  CHECK(decoded->echo() == 0x1122334455667788);
  CHECK(decoded->received_lsn == Lsn{55});
}

TEST_CASE("replication/wire: what a role does not say in a control frame is refused") {
  const auto said = [](NodeRole role, auto&& change) {
    ControlFrame frame;
    change(frame);
    const Status status = check_sender(frame, role);
    if (!status) CHECK(status.error() == ReplicationErrc::malformed);
    return static_cast<bool>(status);
  };
  const auto lead = [](ControlFrame& frame) { frame.lead = true; };
  const auto whole = [](ControlFrame& frame) { frame.whole = true; };
  const auto applied = [](ControlFrame& frame) { frame.applied_lsn = {1}; };
  const auto outer_words = [](ControlFrame& frame) { frame.received_lsn = frame.commit_lsn = {1}; };
  for (const NodeRole role : {NodeRole::primary, NodeRole::replica, NodeRole::candidate}) {
    CHECK(said(role, outer_words));
    CHECK(said(role, lead) == (role == NodeRole::primary));
    CHECK(said(role, whole) == (role != NodeRole::candidate));
    CHECK(said(role, applied) == (role == NodeRole::replica));
  }
}

TEST_CASE(
    "replication/wire: entries of every kind survive the round trip, padded to eight bytes with zeroes") {
  for (const std::size_t value_bytes : {0U, 1U, 7U, 8U, 100U, 32'000U}) {
    const std::string value(value_bytes, 'v');
    const auto bytes = encoded(some_entry(EntryKind::put, "a key", value));
    CHECK(bytes.size() % 8 == 0);
    for (std::size_t i = kEntryHeaderBytes + 5 + value_bytes; i < bytes.size(); ++i)
      CHECK(bytes[i] == std::byte{0});
    const auto entry = decode(bytes);
    REQUIRE(entry);
    CHECK(entry->kind == EntryKind::put);
    CHECK(as_text(entry->key) == "a key");
    CHECK(as_text(entry->value) == value);
    CHECK(entry->lsn == Lsn{7});
    CHECK(entry->epoch == Epoch{4, 9});
  }
  CHECK(decode(encoded(some_entry(EntryKind::erase, "gone", "")))->kind == EntryKind::erase);
  CHECK(decode(encoded(some_entry(EntryKind::noop, "", "")))->kind == EntryKind::noop);
  for (const EntryKind kind : {EntryKind::put, EntryKind::erase}) {
    EntryView grouped = some_entry(kind, "key", "");
    CHECK_FALSE(decode(encoded(grouped))->group_continues);
    grouped.group_continues = true;
    CHECK(encoded(grouped)[5] == std::byte{1});
    CHECK(decode(encoded(grouped))->group_continues);
  }
}

TEST_CASE("replication/wire: a fragment may be given in two parts and comes back as one piece") {
  EntryView piece = some_entry(EntryKind::fragment, "tail of key", "head of value");
  piece.key_bytes = 50;
  piece.value_bytes = 100;
  piece.offset = 50 - 11;
  const auto bytes = encoded(piece);
  CHECK(load<std::uint32_t>(bytes.data() + 8) == 50);
  CHECK(load<std::uint32_t>(bytes.data() + 12) == 100);
  CHECK(load<std::uint32_t>(bytes.data() + 32) == 39);
  CHECK(load<std::uint32_t>(bytes.data() + 36) == 24);
  const auto entry = decode(bytes);
  REQUIRE(entry);
  CHECK(entry->key.empty());
  CHECK(as_text(entry->value) == "tail of keyhead of value");
  CHECK(entry->offset == 39);
  CHECK(entry->key_bytes == 50);
  CHECK(entry->value_bytes == 100);
  CHECK_FALSE(entry->last_fragment());
}

TEST_CASE("replication/wire: one flipped bit anywhere in an entry is noticed, padding included") {
  auto bytes = encoded(some_entry(EntryKind::put, "key", "value"));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1U << (bit % 8));
    CHECK_FALSE(decode(bytes));
    bytes[bit / 8] ^= std::byte(1U << (bit % 8));
  }
  CHECK(decode(bytes));
}

TEST_CASE("replication/wire: entries that break a rule are refused with a right CRC") {
  const auto change = [](const EntryView& entry, auto&& changed, ReplicationErrc expected) {
    auto bytes = encoded(entry);
    changed(bytes.data());
    seal(bytes);
    const auto decoded = decode(bytes);
    REQUIRE_FALSE(decoded);
    CHECK(decoded.error() == expected);
  };
  const EntryView put = some_entry(EntryKind::put, "key", "value");
  change(
      put, [](std::byte* at) { at[4] = std::byte{0}; }, ReplicationErrc::bad_kind);
  // A range's header, which stands only at the start of a frame of that kind: decode_range() takes it there.
  change(
      put, [](std::byte* at) { at[4] = std::byte{5}; }, ReplicationErrc::bad_kind);
  change(
      put, [](std::byte* at) { at[4] = std::byte{6}; }, ReplicationErrc::bad_kind);
  change(
      put, [](std::byte* at) { at[4] = std::byte{2}; },
      ReplicationErrc::bad_length);  // an erase with a value
  change(
      put, [](std::byte* at) { at[4] = std::byte{3}; }, ReplicationErrc::bad_length);  // a noop with a key
  change(
      put, [](std::byte* at) { at[5] = std::byte{2}; }, ReplicationErrc::malformed);
  change(
      some_entry(EntryKind::noop, "", ""), [](std::byte* at) { at[5] = std::byte{1}; },
      ReplicationErrc::malformed);  // only what has a key is grouped
  change(
      put, [](std::byte* at) { at[7] = std::byte{1}; }, ReplicationErrc::malformed);
  change(
      put, [](std::byte* at) { store(at + 8, std::uint32_t{0}); }, ReplicationErrc::bad_length);
  change(
      put, [](std::byte* at) { store(at + 8, kKeyBytesMax + 1); }, ReplicationErrc::too_large);
  change(
      put, [](std::byte* at) { store(at + 12, kValueBytesMax + 1); }, ReplicationErrc::too_large);
  change(
      put, [](std::byte* at) { store(at + 12, ~0U); }, ReplicationErrc::too_large);
  change(
      put, [](std::byte* at) { store(at + 12, 40'000U); }, ReplicationErrc::too_large);
  change(
      put, [](std::byte* at) { store(at + 12, 1'000U); }, ReplicationErrc::bad_length);  // beyond the payload
  EntryView piece = some_entry(EntryKind::fragment, "", "piece");
  piece.key_bytes = 3;
  piece.value_bytes = 10;
  piece.offset = 8;
  change(
      piece, [](std::byte* at) { at[5] = std::byte{1}; }, ReplicationErrc::malformed);
  change(
      piece, [](std::byte* at) { store(at + 32, 9U); }, ReplicationErrc::bad_length);
  change(
      piece, [](std::byte* at) { store(at + 32, ~0U); }, ReplicationErrc::bad_length);
  change(
      piece, [](std::byte* at) { store(at + 36, 0U); }, ReplicationErrc::bad_length);
  change(
      piece, [](std::byte* at) { store(at + 8, 0U); }, ReplicationErrc::bad_length);
  CHECK(EntryReader(Bytes(encoded(put)).first(31)).next().error() == ReplicationErrc::bad_length);
}

TEST_CASE("replication/wire: a hello survives the round trip, every flipped bit and every cut is noticed") {
  const Hello hello = some_hello();
  std::array<std::byte, kHelloBytes> bytes{};
  encode_hello(hello, bytes);
  const auto decoded = decode_hello(bytes);
  REQUIRE(decoded);
  CHECK(decoded->role == hello.role);
  CHECK(decoded->node == hello.node);
  CHECK(decoded->shard == hello.shard);
  CHECK(decoded->shard_count == hello.shard_count);
  CHECK(decoded->history == hello.history);
  CHECK(decoded->routing_seed == hello.routing_seed);
  CHECK(decoded->epoch == hello.epoch);
  CHECK(decoded->generation == hello.generation);
  CHECK(decoded->last_lsn == hello.last_lsn);
  CHECK(decoded->first_lsn == hello.first_lsn);
  CHECK(decoded->ring_bytes == hello.ring_bytes);
  CHECK(decoded->key_bytes_max == kKeyBytesMax);
  CHECK(decoded->value_bytes_max == kValueBytesMax);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1U << (bit % 8));
    CHECK_FALSE(decode_hello(bytes));
    bytes[bit / 8] ^= std::byte(1U << (bit % 8));
  }
  for (std::size_t size = 0; size < kHelloBytes; ++size) {
    CHECK(decode_hello(Bytes(bytes).first(size)).error() == ReplicationErrc::malformed);
  }
}

TEST_CASE("replication/wire: a hello of a version range with nothing in common names both ranges") {
  Hello hello = some_hello();
  hello.version_min = 7;
  hello.version_max = 9;
  std::array<std::byte, kHelloBytes> bytes{};
  encode_hello(hello, bytes);
  const auto decoded = decode_hello(bytes);
  REQUIRE_FALSE(decoded);
  CHECK(decoded.error() == ReplicationErrc::bad_version);
  CHECK(decoded.error().message().find("7-9") != std::string::npos);
  CHECK(decoded.error().message().find("1-1") != std::string::npos);
  hello.version_min = 1;  // a rolling upgrade
  encode_hello(hello, bytes);
  CHECK(decode_hello(bytes));
}

TEST_CASE("replication/wire: a hello with impossible fields is malformed") {
  const auto malformed = [](auto&& change) {
    Hello hello = some_hello();
    change(hello);
    std::array<std::byte, kHelloBytes> bytes{};
    encode_hello(hello, bytes);
    const auto decoded = decode_hello(bytes);
    CHECK((!decoded && decoded.error() == ReplicationErrc::malformed));
  };
  malformed([](Hello& hello) { hello.role = static_cast<NodeRole>(0); });
  malformed([](Hello& hello) { hello.role = static_cast<NodeRole>(4); });
  malformed([](Hello& hello) { hello.shard_count = 0; });
  malformed([](Hello& hello) { hello.shard_count = 257; });
  malformed([](Hello& hello) { hello.shard = {4}; });
  malformed([](Hello& hello) { hello.version_min = 2; });
}

TEST_CASE("replication/wire: a hello of a group's node survives the round trip, by role") {
  Hello hello = some_hello();
  hello.c = 2;
  hello.group_sum = 0x89abcdef;
  hello.last_epoch = {2, 1};
  hello.commit_epoch = {1, 7};
  hello.commit_lsn = {990};
  const auto round_trip = [&] {
    std::array<std::byte, kHelloBytes> bytes{};
    encode_hello(hello, bytes);
    const auto decoded = decode_hello(bytes);
    REQUIRE(decoded);
    CHECK(decoded->role == hello.role);
    CHECK(decoded->flags == hello.flags);
    CHECK(decoded->c == 2);
    CHECK(decoded->group_sum == 0x89abcdef);
    CHECK(decoded->last_epoch == Epoch{2, 1});
    CHECK(decoded->commit_epoch == Epoch{1, 7});
    CHECK(decoded->commit_lsn == Lsn{990});
    CHECK(load<std::uint16_t>(bytes.data() + 14) == 2);
    CHECK(load<std::uint32_t>(bytes.data() + 52) == 0x89abcdef);
    CHECK(load<std::uint32_t>(bytes.data() + 88) == 2);
    CHECK(load<std::uint32_t>(bytes.data() + 100) == 7);
    CHECK(load<std::uint64_t>(bytes.data() + 104) == 990);
    return load<std::uint8_t>(bytes.data() + 13);
  };
  hello.flags = {true, false, false, true, false, false, true};
  CHECK(round_trip() == 1 + 8 + 64);
  hello.role = NodeRole::replica;
  hello.flags = {true, true, false, true, false, true};
  CHECK(round_trip() == 1 + 2 + 8 + 32);
  hello.role = NodeRole::candidate;
  hello.flags = {true, true, true, false, true, true};
  CHECK(round_trip() == 1 + 2 + 4 + 16 + 32);
}

TEST_CASE("replication/wire: what a role does not say in its hello is refused") {
  const auto accepted = [](NodeRole role, std::uint8_t flags) {
    Hello hello = some_hello();
    hello.role = role;
    std::array<std::byte, kHelloBytes> bytes{};
    encode_hello(hello, bytes);
    bytes[13] = std::byte{flags};
    store(bytes.data() + 124, crc32c(0, Bytes(bytes).first(124)));
    const auto decoded = decode_hello(bytes);
    if (!decoded) CHECK(decoded.error() == ReplicationErrc::malformed);
    return static_cast<bool>(decoded);
  };
  const auto said = [&](NodeRole role) {
    std::uint32_t bits = 0;
    for (std::uint32_t bit = 0; bit < 8; ++bit) {
      if (accepted(role, static_cast<std::uint8_t>(1U << bit))) bits |= 1U << bit;
    }
    CHECK(accepted(role, static_cast<std::uint8_t>(bits)));
    return bits;
  };
  CHECK(said(NodeRole::primary) == 1 + 8 + 64);
  CHECK(said(NodeRole::replica) == 1 + 2 + 8 + 32);
  CHECK(said(NodeRole::candidate) == 1 + 2 + 4 + 16 + 32);
}

TEST_CASE("replication/wire: hello bytes 88 to 123 of an older node are zero and mean no memory") {
  std::array<std::byte, kHelloBytes> bytes{};
  encode_hello(some_hello(), bytes);
  for (std::size_t i = 88; i < 124; ++i) CHECK(bytes[i] == std::byte{0});
  CHECK(load<std::uint32_t>(bytes.data() + 12) == 1);  // the role, and nothing beside it
  CHECK(load<std::uint32_t>(bytes.data() + 52) == 0);
  const auto decoded = decode_hello(bytes);
  REQUIRE(decoded);
  CHECK(decoded->flags == HelloFlags{});
  CHECK(decoded->c == 0);
  CHECK(decoded->group_sum == 0);
  CHECK(decoded->last_epoch == Epoch{});
  CHECK(decoded->commit_lsn == Lsn{});
  for (std::size_t i = 112; i < 124; ++i) {
    bytes[i] = std::byte{1};
    store(bytes.data() + 124, crc32c(0, Bytes(bytes).first(124)));
    CHECK(decode_hello(bytes).error() == ReplicationErrc::malformed);
    bytes[i] = std::byte{0};
  }
}

TEST_CASE("replication/wire: a hello whose epochs and LSNs cannot be of one log is malformed") {
  const auto legal = [](auto&& change) {
    Hello hello = some_hello();
    hello.last_epoch = {2, 1};
    hello.commit_epoch = {2, 1};
    hello.commit_lsn = {1000};
    change(hello);
    std::array<std::byte, kHelloBytes> bytes{};
    encode_hello(hello, bytes);
    return static_cast<bool>(decode_hello(bytes));
  };
  CHECK(legal([](Hello&) {}));
  CHECK_FALSE(legal([](Hello& hello) { hello.commit_lsn = {1001}; }));
  CHECK_FALSE(legal([](Hello& hello) { hello.commit_lsn = {}; }));
  CHECK_FALSE(legal([](Hello& hello) { hello.commit_epoch = {}; }));
  CHECK_FALSE(legal([](Hello& hello) { hello.commit_epoch = {2, 2}; }));
  CHECK_FALSE(legal([](Hello& hello) { hello.last_epoch = {}; }));
  CHECK_FALSE(legal([](Hello& hello) {
    hello.last_lsn = hello.commit_lsn = {};
    hello.commit_epoch = {};
  }));
}

TEST_CASE("replication/wire: a refusal survives the round trip and its text names both values") {
  const auto shown = [](RefusalReason reason, std::uint64_t value, bool theirs) {
    const std::string high = std::to_string(value >> 16);
    const std::string low = std::to_string(value & 0xffff);
    switch (reason) {
      case RefusalReason::version:
        return high + "-" + low;
      case RefusalReason::not_primary:
        if (theirs) return std::to_string(value);
        [[fallthrough]];
      case RefusalReason::promised:
        return std::to_string(epoch_of_value(value).counter) + "." +
               std::to_string(epoch_of_value(value).node);
      default:
        return std::to_string(value);
    }
  };
  for (std::uint16_t reason = 1; reason <= 19; ++reason) {
    const Refusal refusal{static_cast<RefusalReason>(reason), (11 << 16) | 12, (13 << 16) | 14};
    std::array<std::byte, kRefusalBytes> bytes{};
    encode_refusal(refusal, bytes);
    const auto decoded = decode_refusal(bytes);
    REQUIRE(decoded);
    CHECK(decoded->reason == refusal.reason);
    const std::string line = describe(*decoded);
    CHECK(line.find(shown(refusal.reason, refusal.ours, false)) != std::string::npos);
    CHECK(line.find(shown(refusal.reason, refusal.theirs, true)) != std::string::npos);
    CHECK(line.find('\n') == std::string::npos);
    CHECK((line.find("does not know: upgrade") != std::string::npos) == (reason > 17));
    bytes[9] ^= std::byte{1};
    CHECK(decode_refusal(bytes).error() == ReplicationErrc::bad_crc);
  }
}

TEST_CASE("replication/wire: two hundred thousand damaged messages do no harm") {
  const std::vector<test::WireSeed> seeds = test::wire_seeds();
  test::DecodeCounts intact;
  for (const auto& seed : seeds) test::decode_everything(seed.bytes, intact);
  CHECK(intact.frames == 2);
  CHECK(intact.controls == 5);
  CHECK(intact.hellos == 6);
  CHECK(intact.refusals == 17);
  CHECK(intact.entries == 4);
  CHECK(intact.ranges == 5);

  Random random(20'260'101);
  test::DecodeCounts counts;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::byte> bytes = seeds[random.below(seeds.size())].bytes;
    for (std::uint64_t changes = random.below(4); changes > 0; --changes) {
      bytes[random.below(bytes.size())] = std::byte(random.below(256));
    }
    if (random.below(4) == 0) bytes.resize(random.below(bytes.size() + 1));
    if (random.below(2) == 0 && bytes.size() >= 8) {  // past the CRC, to the checks behind it
      const Bytes covered = Bytes(bytes).first(bytes.size() - 4);
      const bool has_sum = bytes.size() == kFrameHeaderBytes || bytes.size() == kControlFrameBytes;
      store(bytes.data() + covered.size(), has_sum ? header_sum(covered) : crc32c(0, covered));
    } else if (bytes.size() > 4 && random.below(2) == 0) {
      if (random.below(2) == 0 || !test::repair_range(bytes)) seal(bytes);
    }
    test::decode_everything(bytes, counts);
  }
  CHECK(counts.frames > 100);
  CHECK(counts.entries > 100);
  CHECK(counts.ranges > 100);
}
