// Scans. A position is the first hash of a segment, and splits only ever divide segments, so it stays a
// border.
#include <bit>

#include "table.h"
#include "table_state.h"

namespace tidelock {

using detail::Bucket;
using detail::Cell;
using detail::Record;
using detail::Segment;

namespace {

struct Visitor {
  Table::Visit visit;
  void* context;
  std::size_t visited = 0;

  void record(const Record& record) {
    visit(context, record.key(), record.value(), {record.lsn});
    ++visited;
  }
  void bucket(Bucket& bucket) {
    for (unsigned first = bucket.line.first; first != 0; first &= first - 1) {
      const auto unit = static_cast<unsigned>(std::countr_zero(first));
      Cell* cell = bucket.cell(unit);
      if (bucket.is_external(unit)) {
        record(*cell->record());
        continue;
      }
      visit(context, {cell->payload(), cell->key_bytes},
            {cell->payload() + cell->key_bytes, cell->value_bytes}, {cell->word});
      ++visited;
    }
  }
};

/// The first hash after the segment's; 0 after the last segment.
std::uint64_t end_of(const Segment& segment) {
  return segment.depth == 0 ? 0 : segment.prefix + (std::uint64_t{1} << (64 - segment.depth));
}

}  // namespace

std::uint64_t Table::scan(std::uint64_t position, std::size_t keys_max, Visit visit, void* context) const {
  Visitor visitor{visit, context};
  do {
    Segment& segment = *state_->directory.segment(position);
    for (Bucket& bucket : segment.buckets) visitor.bucket(bucket);
    for (const Record* record = segment.chain; record != nullptr; record = record->next)
      visitor.record(*record);
    position = end_of(segment);
  } while (position != 0 && visitor.visited < keys_max);
  return position;
}

}  // namespace tidelock
