#include "receipt_wire.h"

#include <algorithm>
#include <cerrno>

#include <tidelock/base/bytes.h>

namespace tidelock::tools {
namespace {

constexpr std::size_t kNotesHeaderBytes = 8;
constexpr std::size_t kNoteBytes = 40;
/// A receipt older than that says nothing about delays any more.
constexpr std::uint64_t kAgeMaxNs = 3'600'000'000'000;

template <class T>
void put(std::string& to, T value) {
  std::byte bytes[sizeof value];
  store(bytes, value);
  to.append(as_text(bytes));
}

Error bad(const char* what) {
  return Error::from_errno(EBADMSG, std::string("the other machine sends ") + what);
}

}  // namespace

std::string encode_receipts(ShardId shard, std::span<const ReceiptNote> notes, Instant now) {
  std::string body;
  body.reserve(kNotesHeaderBytes + notes.size() * kNoteBytes);
  put(body, shard.value);
  put(body, std::uint16_t{0});
  put(body, static_cast<std::uint32_t>(notes.size()));
  for (const ReceiptNote& note : notes) {
    put(body, note.lsn);
    put(body, note.history.value);
    put(body, note.epoch.counter);
    put(body, note.epoch.node);
    put(body, note.key_index);
    put(body, note.value_crc);
    put(body, static_cast<std::uint64_t>(std::max<std::int64_t>(0, (now - note.acknowledged).ns)));
  }
  return body;
}

Result<ReceiptBatch> decode_receipts(const std::string& body, std::uint32_t shards, Instant now) {
  if (body.size() < kNotesHeaderBytes) return bad("receipts that are cut short");
  const std::byte* from = as_bytes(body).data();
  ReceiptBatch batch;
  batch.shard = {load<std::uint16_t>(from)};
  const auto count = load<std::uint32_t>(from + 4);
  if (batch.shard.value >= shards || load<std::uint16_t>(from + 2) != 0)
    return bad("receipts of a shard that there is not");
  if (count == 0 || count > kReceiptWindow || body.size() != kNotesHeaderBytes + count * kNoteBytes)
    return bad("receipts whose length is wrong");
  from += kNotesHeaderBytes;
  for (std::uint32_t i = 0; i < count; ++i, from += kNoteBytes) {
    const std::uint64_t age = std::min(load<std::uint64_t>(from + 32), kAgeMaxNs);
    batch.notes.push_back({load<std::uint64_t>(from),
                           {load<std::uint64_t>(from + 8)},
                           {load<std::uint32_t>(from + 16), load<std::uint32_t>(from + 20)},
                           load<std::uint32_t>(from + 24),
                           load<std::uint32_t>(from + 28),
                           Instant{now.ns - static_cast<std::int64_t>(age)}});
  }
  return batch;
}

std::string encode_credit(std::span<const std::uint64_t> taken) {
  std::string body;
  for (const std::uint64_t count : taken) put(body, count);
  return body;
}

Result<std::vector<std::uint64_t>> decode_credit(const std::string& body, std::uint32_t shards) {
  if (body.size() != std::size_t{shards} * sizeof(std::uint64_t)) return bad("a credit of the wrong length");
  std::vector<std::uint64_t> taken;
  for (std::uint32_t i = 0; i < shards; ++i)
    taken.push_back(load<std::uint64_t>(as_bytes(body).data() + i * sizeof(std::uint64_t)));
  return taken;
}

}  // namespace tidelock::tools
