// Opening, looking up and erasing. Writing is in table_put.cc.
#include "table.h"

#include <limits>
#include <new>
#include <string>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/engine/errc.h>

#include "table_state.h"

namespace tidelock {

using detail::Bucket;
using detail::Location;
using detail::Record;
using detail::Segment;

Table::Table(std::unique_ptr<State> state) : state_(std::move(state)) {}

Table::~Table() {
  TL_ASSERT(state_->pins == 0 && state_->assemblies == 0, "a Pin or an Assembly outlives its Table");
}

Result<std::unique_ptr<Table>> Table::create(const TableOptions& options) {
  auto state = std::make_unique<State>(options);
  std::byte* memory = state->arena.allocate(sizeof(Segment));
  if (memory == nullptr) return state->out_of_memory();
  auto* segment = new (memory) Segment;
  detail::init_segment(*segment, 0, 0);
  if (!state->directory.open(*segment)) return state->out_of_memory();
  return std::unique_ptr<Table>(new Table(std::move(state)));
}

bool Table::find(std::uint64_t hash, Bytes key, Found& found) const {
  const Location location = locate(*state_->directory.segment(hash), hash, key);
  if (location.record != nullptr) {
    found = {location.record->value(), {location.record->lsn}};
    return true;
  }
  if (!location.place) return false;
  detail::Cell* cell = location.place.bucket->cell(location.place.unit);
  found = {{cell->payload() + cell->key_bytes, cell->value_bytes}, {cell->word}};
  return true;
}

void Table::prefetch(std::uint64_t hash) const {
  Bucket& home = state_->directory.segment(hash)->home(hash);
  __builtin_prefetch(&home.line);
  __builtin_prefetch(home.cell(detail::unit_of(hash)));
}

bool Table::erase(std::uint64_t hash, Bytes key) {
  state_->cancel_plan();
  Segment& segment = *state_->directory.segment(hash);
  const Location location = locate(segment, hash, key);
  if (!location.found()) return false;
  if (location.place) {
    vacate(segment, location.place);
  } else {
    remove_chain(segment, *location.record);
    --state_->chained;
  }
  if (location.record != nullptr) state_->release(location.record);
  --state_->keys;
  return true;
}

bool Table::erase_older(std::uint64_t hash, Bytes key, Lsn lsn) {
  Found found;
  return find(hash, key, found) && found.lsn < lsn && erase(hash, key);
}

bool Table::dismantle(std::size_t bytes) {
  TL_ASSERT(state_->assemblies == 0, "a put is still being assembled in a table that nobody uses");
  return state_->pins == 0 && state_->arena.dismantle(bytes);
}

bool Table::has_deferred() const { return state_->arena.has_deferred(); }
void Table::free_some(std::size_t bytes) { state_->arena.free_some(bytes); }

std::uint64_t Table::pins() const { return state_->pins; }
bool Table::idle() const { return state_->pins == 0 && state_->assemblies == 0; }
std::uint64_t Table::number() const { return state_->number; }
std::uint64_t Table::keys() const { return state_->keys; }
std::uint64_t Table::memory_bytes() const { return state_->arena.taken_bytes(); }
std::uint64_t Table::chained() const { return state_->chained; }
std::uint64_t Table::moved_bytes_last() const { return state_->moved_bytes_last; }
std::uint64_t Table::moved_bytes_max() const { return state_->moved_bytes_max; }

Record* Table::State::new_record(std::size_t key_bytes, std::size_t value_bytes) {
  std::byte* memory = arena.allocate(sizeof(Record) + key_bytes + value_bytes);
  if (memory == nullptr) return nullptr;
  return new (memory) Record{
      nullptr, 0, 0, static_cast<std::uint32_t>(key_bytes), static_cast<std::uint32_t>(value_bytes), 0, 0};
}

void Table::State::free_record(Record* record) {
  arena.free(reinterpret_cast<std::byte*>(record), record->bytes());
}

void Table::State::release(Record* record) {
  if (record->pins != 0) {
    record->detached = 1;
    return;
  }
  free_record(record);
}

Error Table::State::out_of_memory() const {
  const std::uint64_t bytes_max = arena.bytes_max();
  if (bytes_max == 0)
    return Error(EngineErrc::out_of_memory, "mmap has no more memory for the table; add memory");
  return Error(EngineErrc::out_of_memory, "the shard's table takes " + std::to_string(arena.taken_bytes()) +
                                              " of memory_bytes_max = " + std::to_string(bytes_max) +
                                              " bytes; raise it or erase keys");
}

}  // namespace tidelock
