#include "segment.h"

#include <tidelock/base/check.h>

namespace tidelock::detail {

namespace {

/// Below this many units in use, records that find no place are too much alike in the bits that choose the
/// bucket: they are chained, because splits would only make empty segments. Even hashes fill about 200 of
/// 238.
constexpr unsigned kSplitUnits = 96;

unsigned run_mask(unsigned unit, unsigned units) { return ((1U << units) - 1) << unit; }

/// The counter, in the record's home bucket, of records that stand where this one does.
template <class Change>
void count_away(Segment& segment, const Bucket& bucket, std::uint64_t hash, Change change) {
  Bucket& home = segment.home(hash);
  if (&bucket == &home) return;
  change(&bucket == &segment.stash() ? home.line.stashed : home.line.displaced);
}

Place place_in(Bucket& bucket, std::uint64_t hash, unsigned units, const Place& ignored) {
  unsigned used = bucket.line.used;
  if (ignored.bucket == &bucket) used &= ~run_mask(ignored.unit, bucket.record_units(ignored.unit));
  unsigned free = ~used & kUnitMask;
  if (units == 2) free &= free >> 1;
  if (free == 0) return {};
  const unsigned from_wish_on = free >> unit_of(hash) << unit_of(hash);
  return {&bucket, static_cast<unsigned>(std::countr_zero(from_wish_on != 0 ? from_wish_on : free))};
}

/// Calls visit(bucket, unit) for each record in a cell. The visitor may vacate that cell.
template <class Visit>
void for_each_cell(Segment& segment, Visit visit) {
  for (Bucket& bucket : segment.buckets) {
    for (unsigned first = bucket.line.first; first != 0; first &= first - 1) {
      visit(bucket, static_cast<unsigned>(std::countr_zero(first)));
    }
  }
}

void copy_cell(Segment& target, const Place& to, Bucket& bucket, unsigned unit, unsigned units) {
  const Cell* cell = bucket.cell(unit);
  occupy(target, to, cell->hash, units, bucket.is_external(unit));
  std::memcpy(to.bucket->cell(to.unit), cell, units * kUnitBytes);
}

}  // namespace

void init_segment(Segment& segment, std::uint64_t prefix, std::uint32_t depth) {
  segment.prefix = prefix;
  segment.depth = depth;
  segment.chained = 0;
  segment.chain = nullptr;
  for (Bucket& bucket : segment.buckets) bucket.line = {};
}

Place find_place(Segment& segment, std::uint64_t hash, unsigned units, const Place& ignored) {
  if (const Place place = place_in(segment.home(hash), hash, units, ignored)) return place;
  if (const Place place = place_in(segment.next(hash), hash, units, ignored)) return place;
  return place_in(segment.stash(), hash, units, ignored);
}

void occupy(Segment& segment, const Place& place, std::uint64_t hash, unsigned units, bool external) {
  TagLine& line = place.bucket->line;
  TL_ASSERT((line.used & run_mask(place.unit, units)) == 0, "two records in one unit");
  line.tags[place.unit] = tag_of(hash);
  line.used = static_cast<std::uint16_t>(line.used | run_mask(place.unit, units));
  line.first = static_cast<std::uint16_t>(line.first | 1U << place.unit);
  if (external) line.external = static_cast<std::uint16_t>(line.external | 1U << place.unit);
  count_away(segment, *place.bucket, hash, [](std::uint8_t& count) { ++count; });
}

void vacate(Segment& segment, const Place& place) {
  TagLine& line = place.bucket->line;
  const unsigned units = place.bucket->record_units(place.unit);
  line.used = static_cast<std::uint16_t>(line.used & ~run_mask(place.unit, units));
  line.first = static_cast<std::uint16_t>(line.first & ~(1U << place.unit));
  line.external = static_cast<std::uint16_t>(line.external & ~(1U << place.unit));
  const std::uint64_t hash = place.bucket->cell(place.unit)->hash;
  count_away(segment, *place.bucket, hash, [](std::uint8_t& count) { --count; });
}

void push_chain(Segment& segment, Record& record) {
  record.next = segment.chain;
  segment.chain = &record;
  ++segment.chained;
  ++segment.home(record.hash).line.chained;
}

void remove_chain(Segment& segment, Record& record) {
  Record** link = &segment.chain;
  while (*link != &record) link = &(*link)->next;
  *link = record.next;
  record.next = nullptr;
  --segment.chained;
  --segment.home(record.hash).line.chained;
}

bool worth_splitting(Segment& segment, std::uint64_t hash) {
  if (segment.depth >= kDepthMax) return false;
  unsigned units = segment.chained;
  for (const Bucket& bucket : segment.buckets)
    units += static_cast<unsigned>(std::popcount(bucket.line.used));
  if (units < kSplitUnits) return false;
  std::uint64_t different = 0;
  for_each_cell(segment, [&](Bucket& bucket, unsigned unit) { different |= bucket.cell(unit)->hash ^ hash; });
  for (const Record* record = segment.chain; record != nullptr; record = record->next) {
    different |= record->hash ^ hash;
  }
  return different >> (64 - kDepthMax) != 0;
}

std::uint64_t split_segment(Segment& segment, Segment& fresh) {
  const std::uint64_t bit = std::uint64_t{1} << (63 - segment.depth);
  unsigned units[2] = {0, 0};
  for_each_cell(segment, [&](Bucket& bucket, unsigned unit) {
    units[(bucket.cell(unit)->hash & bit) != 0 ? 1 : 0] += bucket.record_units(unit);
  });
  const std::uint64_t leaving = units[1] <= units[0] ? bit : 0;
  init_segment(fresh, segment.prefix | leaving, segment.depth + 1);
  segment.prefix |= bit ^ leaving;
  ++segment.depth;

  std::uint64_t moved = 0;
  // To the same units as before: those are free in `fresh`, so a place is certain.
  for_each_cell(segment, [&](Bucket& bucket, unsigned unit) {
    if ((bucket.cell(unit)->hash & bit) != leaving) return;
    const unsigned record_units = bucket.record_units(unit);
    Bucket& target = fresh.buckets[&bucket - segment.buckets];
    copy_cell(fresh, {&target, unit}, bucket, unit, record_units);
    vacate(segment, {&bucket, unit});
    moved += record_units * kUnitBytes;
  });
  Record* record = segment.chain;
  while (record != nullptr) {
    Record* next = record->next;
    if ((record->hash & bit) == leaving) {
      remove_chain(segment, *record);
      push_chain(fresh, *record);
    }
    record = next;
  }
  return moved;
}

std::uint64_t settle_segment(Segment& segment, std::uint64_t bytes_max) {
  std::uint64_t moved = 0;
  for_each_cell(segment, [&](Bucket& bucket, unsigned unit) {
    const std::uint64_t hash = bucket.cell(unit)->hash;
    if (&bucket == &segment.home(hash)) return;
    const unsigned units = bucket.record_units(unit);
    if (moved + units * kUnitBytes > bytes_max) return;
    Place better = place_in(segment.home(hash), hash, units, {});
    if (!better && &bucket == &segment.stash()) better = place_in(segment.next(hash), hash, units, {});
    if (!better) return;
    copy_cell(segment, better, bucket, unit, units);
    vacate(segment, {&bucket, unit});
    moved += units * kUnitBytes;
  });
  Record* record = segment.chain;
  while (record != nullptr && moved + sizeof(Cell) <= bytes_max) {
    Record* next = record->next;
    if (const Place place = find_place(segment, record->hash, 1, {})) {
      remove_chain(segment, *record);
      occupy(segment, place, record->hash, 1, true);
      *place.bucket->cell(place.unit) = {record->hash, reinterpret_cast<std::uintptr_t>(record),
                                         record->key_bytes, record->value_bytes};
      moved += sizeof(Cell);
    }
    record = next;
  }
  return moved;
}

}  // namespace tidelock::detail
