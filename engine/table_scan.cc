// Scans. A position is a hash: what lies below it was visited, wherever splits have put it since.
#include <algorithm>
#include <bit>

#include <tidelock/base/check.h>

#include "table.h"
#include "table_state.h"

namespace tidelock {

using detail::Bucket;
using detail::Cell;
using detail::Record;
using detail::Segment;

namespace {

static_assert(Table::kScanRecordBytes == sizeof(Cell),
              "a copy of a record takes about as much as the record");

/// Calls visit(cell, record) for each record in a cell, `record` null if it is inline; and then
/// visit(nullptr, record) for each in the chain.
template <class Visit>
void for_each(Segment& segment, Visit visit) {
  for (Bucket& bucket : segment.buckets) {
    for (unsigned first = bucket.line.first; first != 0; first &= first - 1) {
      const auto unit = static_cast<unsigned>(std::countr_zero(first));
      Cell* cell = bucket.cell(unit);
      TL_ASSERT(cell != nullptr, "a cell lies inside of its bucket");
      visit(cell, bucket.is_external(unit) ? cell->record() : nullptr);
    }
  }
  for (const Record* record = segment.chain; record != nullptr; record = record->next) visit(nullptr, record);
}

/// Hashes, both ends included: the last one of all is the greatest number there is.
struct Range {
  std::uint64_t first;
  std::uint64_t last;
  [[nodiscard]] bool contains(std::uint64_t hash) const { return first <= hash && hash <= last; }
};

struct Extent {
  std::uint64_t bytes = 0;
  std::uint64_t least = ~std::uint64_t{0};  ///< hash that is there
  std::uint64_t greatest = 0;

  void add(std::uint64_t hash, std::uint64_t cost) {
    bytes += cost;
    least = std::min(least, hash);
    greatest = std::max(greatest, hash);
  }
};

/// Reads the cells only, also of records with memory of their own.
Extent measure(Segment& segment, const Range& range, std::uint64_t record_bytes) {
  Extent extent;
  for_each(segment, [&](const Cell* cell, const Record* record) {
    const std::uint64_t hash = cell != nullptr ? cell->hash : record->hash;
    if (!range.contains(hash)) return;
    const std::uint64_t key_bytes = cell != nullptr ? cell->key_bytes : record->key_bytes;
    const std::uint64_t value_bytes = cell != nullptr ? cell->value_bytes : record->value_bytes;
    extent.add(hash, record_bytes + key_bytes + value_bytes);
  });
  return extent;
}

/// Bisects what is there until it costs at most `bytes_max` or has one hash. Every half has a record.
Range cut(Segment& segment, Range range, std::size_t bytes_max, std::size_t record_bytes) {
  for (;;) {
    const Extent extent = measure(segment, range, record_bytes);
    if (extent.bytes <= bytes_max || extent.least == extent.greatest) return range;
    range.last = extent.least + (extent.greatest - extent.least) / 2;
  }
}

std::uint64_t last_of(const Segment& segment) {
  return segment.depth == 0 ? ~std::uint64_t{0} : segment.prefix + ((~std::uint64_t{0}) >> segment.depth);
}

}  // namespace

std::uint64_t Table::scan(std::uint64_t position, std::size_t bytes_max, Visit visit, void* context,
                          std::size_t record_bytes) const {
  Segment& segment = *state_->directory.segment(position);
  const Range range = cut(segment, {position, last_of(segment)}, bytes_max, record_bytes);
  for_each(segment, [&](Cell* cell, const Record* record) {
    if (!range.contains(cell != nullptr ? cell->hash : record->hash)) return;
    if (record != nullptr) return visit(context, record->key(), record->value(), {record->lsn});
    visit(context, {cell->payload(), cell->key_bytes}, {cell->payload() + cell->key_bytes, cell->value_bytes},
          {cell->word});
  });
  return range.last + 1;  // 0 after the last hash of all
}

}  // namespace tidelock
