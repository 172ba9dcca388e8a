/// A node's table, which is the engine's; with what engine/shard_sync.cc does about snapshots: a primary's
/// are walked from it, at a replica a second one is filled in its shadow.
/// Thread:   one
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/snapshot_source.h>

namespace tidelock {
class Table;
}

namespace tidelock::sim {

/// What tests plant here. These defaults are what the engine does.
class TablePolicy {
 public:
  virtual ~TablePolicy() = default;
  /// True: a snapshot is walked by place instead of by hash, and an erase moves the last record to its place.
  [[nodiscard]] virtual bool walks_places() const { return false; }
  /// True: a record that has gone since the walk came upon it is still found.
  [[nodiscard]] virtual bool finds_what_was() const { return false; }
  /// True: erases do not reach the shadow.
  [[nodiscard]] virtual bool keeps_erased() const { return false; }
  /// True: readers see the shadow while it is being filled.
  [[nodiscard]] virtual bool serves_shadow() const { return false; }
};

class NodeTable final : public SnapshotSource {
 public:
  /// `policy`: null: none; outlives it.
  explicit NodeTable(const TablePolicy* policy);
  ~NodeTable() override;
  NodeTable(const NodeTable&) = delete;
  NodeTable& operator=(const NodeTable&) = delete;

  void put(Bytes key, Bytes value, Lsn lsn);
  void erase(Bytes key);
  /// The number of the write that the key holds; 0: none. Nothing: its value is damaged.
  [[nodiscard]] std::optional<std::uint64_t> at(std::uint32_t key) const;

  // SnapshotSource
  std::uint64_t walk(std::uint64_t position, std::size_t bytes_max, Visit visit,
                     void* context) const override;
  bool find(Bytes key, Record& found) const override;

  // The shadow, see SnapshotTarget.
  void begin_shadow();
  void put_newer(Bytes key, Bytes value, Lsn lsn);
  void erase_older(Bytes key, Lsn lsn);
  void swap_shadow();
  void drop_shadow();
  [[nodiscard]] bool has_shadow() const { return shadow_ != nullptr; }

 private:
  struct Copy {
    std::string value;
    Lsn lsn{};
  };
  [[nodiscard]] const Table& served() const;
  void put_into(Table& table, Bytes key, Bytes value, Lsn lsn);
  std::uint64_t walk_places(std::uint64_t position, std::size_t bytes_max, Visit visit, void* context) const;

  const TablePolicy* policy_;
  std::unique_ptr<Table> table_;
  std::unique_ptr<Table> shadow_;
  std::vector<std::string> places_;           ///< of a planted walk: the keys
  mutable std::map<std::string, Copy> were_;  ///< of a planted find(): what the walk came upon
};

}  // namespace tidelock::sim
