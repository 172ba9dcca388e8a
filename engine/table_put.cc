// Writing: reserve() decides everything and takes all memory, put() cannot fail.
#include <cstring>
#include <new>

#include <tidelock/base/check.h>
#include <tidelock/engine/errc.h>

#include "table.h"
#include "table_state.h"

namespace tidelock {

using detail::Cell;
using detail::Location;
using detail::Place;
using detail::Record;
using detail::Segment;

namespace {

constexpr std::uint64_t kMovedBytesMax = 16 << 10;

/// A null source is legal when there is nothing to copy, except for memcpy.
void copy(std::byte* to, Bytes from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

/// Where the new record goes: over the old one if it fits there, else where there is room.
Place choose_place(Segment& segment, std::uint64_t hash, const Location& old, unsigned units) {
  if (old.place && units <= old.place.bucket->record_units(old.place.unit)) return old.place;
  return find_place(segment, hash, units, old.place);
}

}  // namespace

Status Table::reserve(std::uint64_t hash, Bytes key, std::size_t value_bytes) {
  return state_->prepare(hash, key, value_bytes, nullptr);
}

void Table::put(std::uint64_t hash, Bytes key, Bytes value, Lsn lsn) {
  State::Plan& plan = state_->plan;
  TL_ASSERT(plan.active && plan.hash == hash, "put() comes right after reserve() for the same key");
  TL_ASSERT(plan.key_bytes == key.size() && plan.value_bytes == value.size(),
            "put() has the size of its reserve()");
  plan.active = false;
  if (plan.in_place && plan.old.record == nullptr) {
    Cell* cell = plan.old.place.bucket->cell(plan.old.place.unit);
    cell->word = lsn.value;
    cell->value_bytes = plan.value_bytes;
    copy(cell->payload() + cell->key_bytes, value);
    return;
  }
  Record* record = plan.in_place ? plan.old.record : plan.record;
  if (record != nullptr) {
    TL_ASSERT(record->pins == 0, "a value was pinned between reserve() and put()");
    record->value_bytes = plan.value_bytes;
    state_->arena.populate(reinterpret_cast<std::byte*>(record), record->bytes(), record->bytes());
    copy(record->payload() + key.size(), value);
    if (plan.in_place) {
      record->lsn = lsn.value;
      if (plan.old.place) plan.old.place.bucket->cell(plan.old.place.unit)->value_bytes = plan.value_bytes;
      return;
    }
    copy(record->payload(), key);
    state_->install(plan, lsn.value);
    return;
  }
  state_->install(plan, lsn.value);
  Cell* cell = plan.place.bucket->cell(plan.place.unit);
  copy(cell->payload(), key);
  copy(cell->payload() + key.size(), value);
}

Result<bool> Table::put_newer(std::uint64_t hash, Bytes key, Bytes value, Lsn lsn) {
  // Looked up before reserve(), so that what yields neither splits nor takes memory.
  Found found;
  if (find(hash, key, found) && found.lsn >= lsn) return false;
  TL_TRY(reserve(hash, key, value.size()));
  put(hash, key, value, lsn);
  return true;
}

/// Whether a record of this shape is written over the old one, moving nothing and freeing nothing.
bool Table::State::overwrites(const Location& old, unsigned units, std::size_t bytes) const {
  if (!old.found()) return false;
  if (old.record == nullptr) return units == old.place.bucket->record_units(old.place.unit);
  if (units != 0 && old.place) return false;  // it may now stand in the cell itself
  return old.record->pins == 0 && Arena::block_bytes(old.record->bytes()) == Arena::block_bytes(bytes);
}

Status Table::State::prepare(std::uint64_t hash, Bytes key, std::size_t value_bytes, Record* assembled) {
  cancel_plan();
  moved_bytes_last = 0;
  Segment* segment = directory.segment(hash);
  Location old = locate(*segment, hash, key);
  const std::size_t record_bytes = sizeof(Record) + key.size() + value_bytes;
  const unsigned units = assembled != nullptr ? 0 : detail::inline_units(key.size(), value_bytes);
  const unsigned cell_units = units == 0 ? 1 : units;
  Place place;
  bool in_place = false;
  Record* record = assembled;
  if (assembled == nullptr && overwrites(old, units, record_bytes)) {
    in_place = true;
  } else {
    place = choose_place(*segment, hash, old, cell_units);
    if (!place && worth_splitting(*segment, hash)) {
      // One split, whether it makes room or not: what finds no place after it is chained until a later one.
      TL_TRY(split(hash, *segment));
      segment = directory.segment(hash);
      old = locate(*segment, hash, key);
      place = choose_place(*segment, hash, old, cell_units);
    }
    if (record == nullptr && (units == 0 || !place)) {
      record = new_record(key.size(), value_bytes);
      if (record == nullptr) return out_of_memory();
    }
  }
  plan = {true,
          in_place,
          assembled != nullptr,
          hash,
          static_cast<std::uint32_t>(key.size()),
          static_cast<std::uint32_t>(value_bytes),
          cell_units,
          segment,
          old,
          place,
          record};
  return {};
}

void Table::State::cancel_plan() {
  if (plan.active && !plan.assembled && plan.record != nullptr) free_record(plan.record);
  plan.active = false;
}

void Table::State::install(const Plan& done, std::uint64_t lsn) {
  Record* old = done.old.record;
  if (done.old.place) {
    vacate(*done.segment, done.old.place);
  } else if (old != nullptr) {
    remove_chain(*done.segment, *old);
    --chained;
  } else {
    ++keys;
  }
  if (done.record != nullptr) {
    done.record->hash = done.hash;
    done.record->lsn = lsn;
  }
  if (done.place) {
    const bool external = done.record != nullptr;
    occupy(*done.segment, done.place, done.hash, done.units, external);
    const std::uint64_t word = external ? reinterpret_cast<std::uintptr_t>(done.record) : lsn;
    *done.place.bucket->cell(done.place.unit) = {done.hash, word, done.key_bytes, done.value_bytes};
  } else {
    TL_ASSERT(done.record != nullptr, "a record in a chain has memory of its own");
    push_chain(*done.segment, *done.record);
    ++chained;
  }
  if (old != nullptr) release(old);
}

Status Table::State::split(std::uint64_t hash, Segment& segment) {
  std::uint64_t moved = 0;
  std::byte* memory = arena.allocate(sizeof(Segment));
  if (memory == nullptr) return out_of_memory();
  if (!directory.make_divisible(hash, segment.depth, moved)) {
    arena.free(memory, sizeof(Segment));
    return out_of_memory();
  }
  auto* fresh = new (memory) Segment;
  const std::uint64_t chained_before = segment.chained;
  moved += split_segment(segment, *fresh);
  directory.assign(*fresh, moved);
  moved += settle_segment(segment, kMovedBytesMax - moved);
  moved += settle_segment(*fresh, kMovedBytesMax - moved);
  chained -= chained_before - segment.chained - fresh->chained;
  moved_bytes_last = moved;
  if (moved > moved_bytes_max) moved_bytes_max = moved;
  return {};
}

}  // namespace tidelock
