/// One segment of the table: 16 home buckets and a stash, 16 KiB in all. A bucket is a line of tags followed
/// by 14 units of 64 bytes. A record of up to 64 bytes (header, key, value) fills one unit, up to 128 two
/// adjacent ones; a larger one leaves a pointer to its memory in one unit. A record stands in its home
/// bucket, the next one, or the stash; when all three are full and a split would not help, in the segment's
/// chain.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <tidelock/base/bytes.h>

namespace tidelock::detail {

inline constexpr unsigned kHomeBuckets = 16;
inline constexpr unsigned kBuckets = kHomeBuckets + 1;  // the last is the stash
inline constexpr unsigned kUnits = 14;
inline constexpr std::size_t kUnitBytes = 64;
inline constexpr unsigned kUnitMask = (1U << kUnits) - 1;
/// The directory uses bits 63 down to 20.
inline constexpr unsigned kDepthMax = 44;

/// The fields of a hash, see hash_key().
[[nodiscard]] inline unsigned home_of(std::uint64_t hash) { return (hash >> 16) & (kHomeBuckets - 1); }
[[nodiscard]] inline std::uint16_t tag_of(std::uint64_t hash) {
  return static_cast<std::uint16_t>(hash >> 20);
}
/// Where in its bucket a record would like to be: a lookup asks for this unit's line together with the tags'.
[[nodiscard]] inline unsigned unit_of(std::uint64_t hash) {
  return static_cast<unsigned>(((hash >> 36) & 0xff) * kUnits >> 8);
}

/// A record that has memory of its own: the key follows, then the value.
struct Record {
  Record* next;  ///< in the segment's chain, or null
  std::uint64_t hash;
  std::uint64_t lsn;
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;
  std::uint32_t pins;
  std::uint32_t detached;  ///< replaced or erased while pinned: the last pin frees it

  [[nodiscard]] std::byte* payload() { return reinterpret_cast<std::byte*>(this) + sizeof(Record); }
  [[nodiscard]] const std::byte* payload() const {
    return reinterpret_cast<const std::byte*>(this) + sizeof(Record);
  }
  [[nodiscard]] Bytes key() const { return {payload(), key_bytes}; }
  [[nodiscard]] Bytes value() const { return {payload() + key_bytes, value_bytes}; }
  [[nodiscard]] std::size_t bytes() const { return sizeof(Record) + std::size_t{key_bytes} + value_bytes; }
};

/// At the start of a record's first unit.
struct Cell {
  std::uint64_t hash;
  std::uint64_t word;  ///< the LSN; of a record with memory of its own, its address
  std::uint32_t key_bytes;
  std::uint32_t value_bytes;

  [[nodiscard]] std::byte* payload() { return reinterpret_cast<std::byte*>(this) + sizeof(Cell); }
  [[nodiscard]] Record* record() const { return reinterpret_cast<Record*>(word); }
};

/// Units that a record takes inline, 0 if it needs memory of its own.
[[nodiscard]] inline unsigned inline_units(std::size_t key_bytes, std::size_t value_bytes) {
  const std::size_t bytes = sizeof(Cell) + key_bytes + value_bytes;
  return bytes <= kUnitBytes ? 1 : bytes <= 2 * kUnitBytes ? 2 : 0;
}

struct alignas(kCacheLineBytes) TagLine {
  std::uint16_t tags[16];
  std::uint16_t used;      ///< units in use
  std::uint16_t first;     ///< units that start a record
  std::uint16_t external;  ///< of those, records with memory of their own
  // Of the records whose home this bucket is: how many stand elsewhere. Zero spares a lookup the other lines.
  std::uint8_t displaced;  ///< in the next bucket
  std::uint8_t stashed;
  std::uint32_t chained;
};

struct Bucket {
  TagLine line;
  std::byte units[kUnits * kUnitBytes];

  [[nodiscard]] Cell* cell(unsigned unit) { return reinterpret_cast<Cell*>(units + unit * kUnitBytes); }
  [[nodiscard]] bool is_external(unsigned unit) const { return ((line.external >> unit) & 1) != 0; }
  [[nodiscard]] unsigned record_units(unsigned unit) {
    return is_external(unit) ? 1 : inline_units(cell(unit)->key_bytes, cell(unit)->value_bytes);
  }
  /// The units that start a record with this tag, as a mask.
  [[nodiscard]] unsigned match(std::uint16_t tag) const {
#ifdef __SSE2__
    const auto* lanes = reinterpret_cast<const __m128i*>(line.tags);
    const __m128i wanted = _mm_set1_epi16(static_cast<short>(tag));
    const __m128i low = _mm_cmpeq_epi16(_mm_load_si128(lanes), wanted);
    const __m128i high = _mm_cmpeq_epi16(_mm_load_si128(lanes + 1), wanted);
    const auto equal = static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
#else
    unsigned equal = 0;
    for (unsigned unit = 0; unit < 16; ++unit) equal |= static_cast<unsigned>(line.tags[unit] == tag) << unit;
#endif
    return equal & line.first;
  }
};

struct Place {
  Bucket* bucket = nullptr;
  unsigned unit = 0;
  explicit operator bool() const { return bucket != nullptr; }
};

struct alignas(kCacheLineBytes) Segment {
  std::uint64_t prefix;  ///< the top `depth` bits that all its hashes share, the others 0
  std::uint32_t depth;
  std::uint32_t chained;
  Record* chain;
  Bucket buckets[kBuckets];

  [[nodiscard]] Bucket& home(std::uint64_t hash) { return buckets[home_of(hash)]; }
  [[nodiscard]] Bucket& next(std::uint64_t hash) { return buckets[(home_of(hash) + 1) & (kHomeBuckets - 1)]; }
  [[nodiscard]] Bucket& stash() { return buckets[kHomeBuckets]; }
};
static_assert(sizeof(TagLine) == kCacheLineBytes);
static_assert(sizeof(Segment) == 16384);

/// Where a record was found: in a cell, and `record` is its own memory if it has one; or in the chain.
struct Location {
  Place place;
  Record* record = nullptr;
  [[nodiscard]] bool found() const { return place.bucket != nullptr || record != nullptr; }
};

[[nodiscard]] inline bool equal_bytes(const std::byte* a, Bytes b) {
  return std::memcmp(a, b.data(), b.size()) == 0;
}

[[nodiscard]] inline bool probe(Bucket& bucket, std::uint64_t hash, Bytes key, Location& location) {
  for (unsigned hits = bucket.match(tag_of(hash)); hits != 0; hits &= hits - 1) {
    const auto unit = static_cast<unsigned>(std::countr_zero(hits));
    Cell* cell = bucket.cell(unit);
    if (cell->hash != hash || cell->key_bytes != key.size()) continue;
    Record* record = bucket.is_external(unit) ? cell->record() : nullptr;
    if (!equal_bytes(record != nullptr ? record->payload() : cell->payload(), key)) continue;
    location = {{&bucket, unit}, record};
    return true;
  }
  return false;
}

[[nodiscard]] inline Location locate(Segment& segment, std::uint64_t hash, Bytes key) {
  Location location;
  Bucket& home = segment.home(hash);
  // Asked for together with the tags: most records stand in the unit that they wished for.
  __builtin_prefetch(home.cell(unit_of(hash)));
  if (probe(home, hash, key, location)) return location;
  if (home.line.displaced != 0 && probe(segment.next(hash), hash, key, location)) return location;
  if (home.line.stashed != 0 && probe(segment.stash(), hash, key, location)) return location;
  if (home.line.chained == 0) return location;
  for (Record* record = segment.chain; record != nullptr; record = record->next) {
    if (record->hash == hash && record->key_bytes == key.size() && equal_bytes(record->payload(), key)) {
      return {{}, record};
    }
  }
  return location;
}

void init_segment(Segment& segment, std::uint64_t prefix, std::uint32_t depth);
/// Free units for a record. Those of the cell at `ignored` count as free.
[[nodiscard]] Place find_place(Segment& segment, std::uint64_t hash, unsigned units, const Place& ignored);
/// Marks the units in use; the caller fills the cell.
void occupy(Segment& segment, const Place& place, std::uint64_t hash, unsigned units, bool external);
void vacate(Segment& segment, const Place& place);
void push_chain(Segment& segment, Record& record);
void remove_chain(Segment& segment, Record& record);

/// Whether the segment is full enough for a split to be due, and its records differ in bits that a split
/// uses.
[[nodiscard]] bool worth_splitting(Segment& segment, std::uint64_t hash);
/// Divides the records by the next bit of their hashes. `fresh` takes the side that is less work: at most
/// half, 119 units. Returns the bytes moved.
std::uint64_t split_segment(Segment& segment, Segment& fresh);
/// Brings records closer to their homes while that moves at most `bytes_max`. What is left where it was is
/// found all the same. Returns the bytes moved.
std::uint64_t settle_segment(Segment& segment, std::uint64_t bytes_max);

}  // namespace tidelock::detail
