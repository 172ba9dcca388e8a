// Snapshots: the table that a primary's are made of; at a replica the shadow table that one fills, the turn
// in which that becomes what is served, and the end of tables that are served no more. See shard.h and
// replication/snapshot_{source,target}.h.
#include <algorithm>
#include <utility>

#include <tidelock/engine/errc.h>

#include "shard.h"

namespace tidelock {

Result<std::unique_ptr<Table>> Shard::new_table() {
  TableOptions options;
  options.memory_bytes_max = options_.memory_bytes_max;
  options.number = ++tables_made_;
  return Table::create(options);
}

// ---- at a primary -----------------------------------------------------------------------------------

std::uint64_t Shard::walk(std::uint64_t position, std::size_t bytes_max, SnapshotSource::Visit visit,
                          void* context) const {
  struct Walk {
    SnapshotSource::Visit visit;
    void* context;
  } walk{visit, context};
  const auto pass_on = [](void* passed, Bytes key, Bytes value, Lsn lsn) {
    const auto& to = *static_cast<const Walk*>(passed);
    to.visit(to.context, {key, value, lsn});
  };
  // What a record takes beside key and value: an entry's header, and its padding.
  constexpr std::size_t kRecordBytes = kEntryHeaderBytes + kEntryAlignment;
  return table_->scan(position, bytes_max, pass_on, &walk, kRecordBytes);
}

bool Shard::find(Bytes key, Record& found) const {
  Table::Found in_table;
  if (!table_->find(hash_of(key), key, in_table)) return false;
  found = {key, in_table.value, in_table.lsn};
  return true;
}

// ---- at a replica -----------------------------------------------------------------------------------

Status Shard::begin_shadow() {
  // They go faster than a snapshot comes, unless a reader keeps one.
  constexpr std::size_t kRetiredMax = 2;
  if (retired_.size() >= kRetiredMax) {
    const auto held = std::count_if(retired_.begin(), retired_.end(),
                                    [](const std::unique_ptr<Table>& table) { return !table->idle(); });
    const std::string all = std::to_string(retired_.size()) + " tables that earlier snapshots replaced";
    return Error(EngineErrc::busy,
                 held > 0 ? "readers of large values still hold " + std::to_string(held) + " of " + all
                          : all + " are not yet unmapped");
  }
  TL_TRY(shadow_, new_table());
  return {};
}

Status Shard::apply_live(std::span<const EntryView> entries) {
  for (const EntryView& entry : entries) {
    switch (entry.kind) {
      case EntryKind::put:
        TL_TRY(shadow_->put_newer(hash_of(entry.key), entry.key, entry.value, entry.lsn));
        break;
      case EntryKind::erase:
        shadow_->erase_older(hash_of(entry.key), entry.key, entry.lsn);
        break;
      case EntryKind::noop:
        break;
      default:
        TL_TRY(add_newer_fragment(shadow_live_, entry));
    }
  }
  count_memory();
  return {};
}

Status Shard::add_records(std::span<const EntryView> entries) {
  for (const EntryView& entry : entries) {
    if (entry.kind == EntryKind::fragment) {
      TL_TRY(add_newer_fragment(shadow_record_, entry));
    } else {
      TL_TRY(shadow_->put_newer(hash_of(entry.key), entry.key, entry.value, entry.lsn));
    }
  }
  count_memory();
  return {};
}

Status Shard::add_newer_fragment(Table::Assembly& assembly, const EntryView& entry) {
  TL_TRY(add_fragment(*shadow_, assembly, entry));
  if (!entry.last_fragment()) return {};
  const std::uint64_t hash = hash_of(assembly.key());
  TL_TRY(shadow_->commit_newer(std::move(assembly), hash, entry.lsn));
  return {};
}

void Shard::void_record() { shadow_record_ = {}; }

/// Whoever reads comes back to `table_` after each suspension: what it finds there is newer, hashes and with
/// them the positions of scans are the same, and a value that it has pinned stays.
void Shard::swap_shadow(Lsn lsn) {
  shadow_record_ = {};
  assembly_ = std::move(shadow_live_);  // a put whose other fragments are to come
  retire(std::exchange(table_, std::move(shadow_)));
  wrote(lsn);
}

void Shard::drop_shadow() {
  shadow_record_ = {};
  shadow_live_ = {};
  if (shadow_) retire(std::move(shadow_));
}

void Shard::retire(std::unique_ptr<Table> table) { retired_.push_back(std::move(table)); }

Table* Shard::dismantled() const {
  for (const auto& table : retired_) {
    if (table->idle()) return table.get();
  }
  return nullptr;
}

/// Of all tables that there are.
void Shard::count_memory() {
  std::uint64_t bytes = table_->memory_bytes();
  if (shadow_) bytes += shadow_->memory_bytes();
  for (const auto& table : retired_) bytes += table->memory_bytes();
  counters_.memory_bytes.store(bytes, std::memory_order_relaxed);
}

bool Shard::has_memory_to_free() const {
  return table_->has_deferred() || (shadow_ && shadow_->has_deferred()) || dismantled() != nullptr;
}

void Shard::free_some_memory() {
  constexpr std::size_t kFreedBytes = 64 * 1024;  // one slice a turn
  // By turns, so that a stream which replaces large values all the time holds up none of the others.
  const bool of_shadow = shadow_ && shadow_->has_deferred() && !(freed_shadow_ && table_->has_deferred());
  const bool deferred = of_shadow || table_->has_deferred();
  Table* const table = dismantled();
  freed_retired_ = table != nullptr && !(freed_retired_ && deferred);
  if (!freed_retired_) {
    freed_shadow_ = of_shadow;
    if (deferred) (of_shadow ? *shadow_ : *table_).free_some(kFreedBytes);
    return;
  }
  if (table->dismantle(kFreedBytes)) {
    std::erase_if(retired_, [table](const std::unique_ptr<Table>& one) { return one.get() == table; });
  }
  count_memory();
}

}  // namespace tidelock
