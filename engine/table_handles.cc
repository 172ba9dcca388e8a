// Memory that is out of the table's hands for a while: assemblies on their way in, pins on values being read.
#include <cstring>
#include <utility>

#include <tidelock/base/check.h>

#include "table.h"
#include "table_state.h"

namespace tidelock {

using detail::Location;
using detail::Record;

namespace {

Record* record_of(std::byte* memory) { return reinterpret_cast<Record*>(memory); }

}  // namespace

Table::Assembly::Assembly(Assembly&& other) noexcept
    : table_(other.table_),
      memory_(std::exchange(other.memory_, nullptr)),
      key_bytes_(other.key_bytes_),
      value_bytes_(other.value_bytes_) {}

Table::Assembly& Table::Assembly::operator=(Assembly&& other) noexcept {
  Assembly taken(std::move(other));
  std::swap(table_, taken.table_);
  std::swap(memory_, taken.memory_);
  std::swap(key_bytes_, taken.key_bytes_);
  std::swap(value_bytes_, taken.value_bytes_);
  return *this;
}

Table::Assembly::~Assembly() {
  if (memory_ == nullptr) return;
  State& state = *table_->state_;
  Record* record = record_of(memory_);
  if (state.plan.record == record) state.plan.active = false;  // prepared, but not committed
  --state.assemblies;
  state.free_record(record);
}

void Table::Assembly::write(std::uint64_t offset, Bytes piece) {
  TL_ASSERT(active() && offset + piece.size() <= std::uint64_t{key_bytes_} + value_bytes_,
            "a piece lies within its assembly");
  if (piece.empty()) return;
  Record* record = record_of(memory_);
  table_->state_->arena.populate(memory_, record->bytes(), sizeof(Record) + offset + piece.size());
  std::memcpy(record->payload() + offset, piece.data(), piece.size());
}

Bytes Table::Assembly::key() const { return {record_of(memory_)->payload(), key_bytes_}; }

Result<Table::Assembly> Table::assemble(std::uint32_t key_bytes, std::uint32_t value_bytes) {
  Record* record = state_->new_record(key_bytes, value_bytes);
  if (record == nullptr) return state_->out_of_memory();
  ++state_->assemblies;
  Assembly assembly;
  assembly.table_ = this;
  assembly.memory_ = reinterpret_cast<std::byte*>(record);
  assembly.key_bytes_ = key_bytes;
  assembly.value_bytes_ = value_bytes;
  return assembly;
}

Status Table::prepare(const Assembly& assembly, std::uint64_t hash) {
  TL_ASSERT(assembly.active() && assembly.table_ == this, "an assembly is prepared for its own table");
  Record* record = record_of(assembly.memory_);
  const State::Plan& plan = state_->plan;
  if (plan.active && plan.record == record && plan.hash == hash) return {};
  return state_->prepare(hash, record->key(), record->value_bytes, record);
}

Status Table::commit(Assembly&& assembly, std::uint64_t hash, Lsn lsn) {
  Assembly taken = std::move(assembly);
  TL_ASSERT(taken.active() && taken.table_ == this, "an assembly is committed to its own table, once");
  TL_TRY(prepare(taken, hash));
  state_->plan.active = false;
  state_->install(state_->plan, lsn.value);
  --state_->assemblies;
  taken.memory_ = nullptr;
  return {};
}

Result<bool> Table::commit_newer(Assembly&& assembly, std::uint64_t hash, Lsn lsn) {
  Assembly taken = std::move(assembly);
  TL_ASSERT(taken.active() && taken.table_ == this, "an assembly is committed to its own table, once");
  Found found;
  if (find(hash, taken.key(), found) && found.lsn >= lsn) return false;
  TL_TRY(commit(std::move(taken), hash, lsn));
  return true;
}

Table::Pin::Pin(Pin&& other) noexcept
    : table_(other.table_),
      record_(std::exchange(other.record_, nullptr)),
      value_(std::exchange(other.value_, {})) {}

Table::Pin& Table::Pin::operator=(Pin&& other) noexcept {
  Pin taken(std::move(other));
  std::swap(table_, taken.table_);
  std::swap(record_, taken.record_);
  std::swap(value_, taken.value_);
  return *this;
}

Table::Pin::~Pin() {
  if (record_ == nullptr) return;
  Record* record = record_of(record_);
  --table_->state_->pins;
  if (--record->pins == 0 && record->detached != 0) table_->state_->free_record(record);
}

Table::Pin Table::pin(std::uint64_t hash, Bytes key) {
  const Location location = locate(*state_->directory.segment(hash), hash, key);
  TL_ASSERT(location.record != nullptr && Arena::is_extent(location.record->bytes()),
            "only values above 64 KiB that are there can be pinned");
  ++location.record->pins;
  ++state_->pins;
  Pin pin;
  pin.table_ = this;
  pin.record_ = reinterpret_cast<std::byte*>(location.record);
  pin.value_ = location.record->value();
  return pin;
}

}  // namespace tidelock
