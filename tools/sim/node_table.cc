#include "node_table.h"

#include <algorithm>

#include <tidelock/base/check.h>
#include <tidelock/replication/wire.h>

#include "table.h"
#include "values.h"

namespace tidelock::sim {
namespace {

/// The history's, which all nodes route by.
constexpr std::uint64_t kTableSeed = 0x5eed'0f'7ab1e;
/// What a record takes beside key and value: an entry's header, and its padding.
constexpr std::size_t kWalkRecordBytes = kEntryHeaderBytes + kEntryAlignment;

std::uint64_t table_hash(Bytes key) { return hash_key(kTableSeed, key); }

std::unique_ptr<Table> new_table() {
  TableOptions options;
  options.huge_pages = false;
  auto made = Table::create(options);
  TL_ASSERT(made, "a simulated node has the memory that it needs");
  return *std::move(made);
}

}  // namespace

NodeTable::NodeTable(const TablePolicy* policy) : policy_(policy), table_(new_table()) {}
NodeTable::~NodeTable() = default;

const Table& NodeTable::served() const {
  return policy_ != nullptr && policy_->serves_shadow() && shadow_ != nullptr ? *shadow_ : *table_;
}

void NodeTable::put_into(Table& table, Bytes key, Bytes value, Lsn lsn) {
  const std::uint64_t hash = table_hash(key);
  TL_ASSERT(table.reserve(hash, key, value.size()), "a simulated node has the memory that it needs");
  table.put(hash, key, value, lsn);
}

void NodeTable::put(Bytes key, Bytes value, Lsn lsn) {
  if (policy_ != nullptr && policy_->walks_places()) {
    const std::string text(as_text(key));
    if (std::find(places_.begin(), places_.end(), text) == places_.end()) places_.push_back(text);
  }
  put_into(*table_, key, value, lsn);
  if (table_->has_deferred()) table_->free_some(value.size());
}

void NodeTable::erase(Bytes key) {
  table_->erase(table_hash(key), key);
  const auto place = std::find(places_.begin(), places_.end(), as_text(key));
  if (place == places_.end()) return;
  *place = places_.back();
  places_.pop_back();
}

std::optional<std::uint64_t> NodeTable::at(std::uint32_t key) const {
  const std::string text = key_text(key);
  Table::Found found;
  if (!served().find(table_hash(as_bytes(text)), as_bytes(text), found)) return 0;
  return number_of(found.value);
}

// ---- at a primary ---------------------------------------------------------------------------------------

std::uint64_t NodeTable::walk(std::uint64_t position, std::size_t bytes_max, Visit visit,
                              void* context) const {
  if (policy_ != nullptr && policy_->walks_places()) return walk_places(position, bytes_max, visit, context);
  struct Walk {
    const NodeTable& table;
    Visit visit;
    void* context;
  } walk{*this, visit, context};
  const auto pass_on = [](void* passed, Bytes key, Bytes value, Lsn lsn) {
    const auto& to = *static_cast<const Walk*>(passed);
    if (to.table.policy_ != nullptr && to.table.policy_->finds_what_was())
      to.table.were_[std::string(as_text(key))] = {std::string(as_text(value)), lsn};
    to.visit(to.context, {key, value, lsn});
  };
  return table_->scan(position, bytes_max, pass_on, &walk, kWalkRecordBytes);
}

/// One record a step, the next place being the border.
std::uint64_t NodeTable::walk_places(std::uint64_t position, std::size_t bytes_max, Visit visit,
                                     void* context) const {
  static_cast<void>(bytes_max);
  if (position >= places_.size()) return 0;
  Record record;
  const Bytes key = as_bytes(places_[position]);
  TL_ASSERT(find(key, record), "each place has a record");
  visit(context, record);
  return position + 1 < places_.size() ? position + 1 : 0;
}

bool NodeTable::find(Bytes key, Record& found) const {
  Table::Found in_table;
  if (table_->find(table_hash(key), key, in_table)) {
    found = {key, in_table.value, in_table.lsn};
    return true;
  }
  if (policy_ == nullptr || !policy_->finds_what_was()) return false;
  const auto was = were_.find(std::string(as_text(key)));
  if (was == were_.end()) return false;
  found = {key, as_bytes(was->second.value), was->second.lsn};
  return true;
}

// ---- at a replica ---------------------------------------------------------------------------------------

void NodeTable::begin_shadow() { shadow_ = new_table(); }
void NodeTable::drop_shadow() { shadow_.reset(); }
void NodeTable::swap_shadow() { table_ = std::move(shadow_); }

void NodeTable::put_newer(Bytes key, Bytes value, Lsn lsn) {
  TL_ASSERT(shadow_->put_newer(table_hash(key), key, value, lsn),
            "a simulated node has the memory that it needs");
}

void NodeTable::erase_older(Bytes key, Lsn lsn) {
  if (policy_ != nullptr && policy_->keeps_erased()) return;
  shadow_->erase_older(table_hash(key), key, lsn);
}

}  // namespace tidelock::sim
