/// What stands behind Table, shared by its source files.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>

#include "arena.h"
#include "directory.h"
#include "segment.h"
#include "table.h"

namespace tidelock {

struct Table::State {
  /// What reserve() found and took, for the put that follows it.
  struct Plan {
    bool active = false;
    bool in_place = false;   ///< only LSN and value are written, over those of `old`
    bool assembled = false;  ///< `record` belongs to an Assembly until it is committed
    std::uint64_t hash = 0;
    std::uint32_t key_bytes = 0;
    std::uint32_t value_bytes = 0;
    unsigned units = 0;  ///< that the new record's cell takes
    detail::Segment* segment = nullptr;
    detail::Location old;
    detail::Place place;               ///< none: into the chain
    detail::Record* record = nullptr;  ///< memory of the new record, if it is not inline
  };

  explicit State(const TableOptions& options)
      : arena({options.memory_bytes_max, options.huge_pages}), directory(arena), number(options.number) {}

  /// Fills `plan`. `assembled` is the record to place, null: one is taken if need be.
  Status prepare(std::uint64_t hash, Bytes key, std::size_t value_bytes, detail::Record* assembled);
  /// Drops a plan that no put or commit followed.
  void cancel_plan();
  /// The new record in, the old one out. Of an inline record the caller writes key and value.
  void install(const Plan& done, std::uint64_t lsn);
  Status split(std::uint64_t hash, detail::Segment& segment);
  [[nodiscard]] bool overwrites(const detail::Location& old, unsigned units, std::size_t bytes) const;

  [[nodiscard]] detail::Record* new_record(std::size_t key_bytes, std::size_t value_bytes);
  void free_record(detail::Record* record);
  /// Frees it now, or leaves that to its last pin.
  void release(detail::Record* record);
  [[nodiscard]] Error out_of_memory() const;

  Arena arena;
  detail::Directory directory;
  Plan plan;
  std::uint64_t keys = 0;
  std::uint64_t chained = 0;
  std::uint64_t number;
  std::uint64_t pins = 0;        ///< that are out
  std::uint64_t assemblies = 0;  ///< likewise
  std::uint64_t moved_bytes_last = 0;
  std::uint64_t moved_bytes_max = 0;
};

}  // namespace tidelock
