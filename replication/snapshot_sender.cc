#include <algorithm>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/replication/snapshot_sender.h>

namespace tidelock {
namespace {

/// A frame with less room than that is full.
constexpr std::uint32_t kRoomLeast = 512;
/// Of the walk, for one range: empty stretches of a table take no bytes but time.
constexpr int kStepsMax = 64;

std::uint64_t whole_bytes(const SnapshotSource::Record& record) {
  return record.key.size() + record.value.size();
}

bool fits_as_put(const SnapshotSource::Record& record, std::uint32_t room) {
  const std::uint64_t limit = std::min(room, kEntryBytesMax);
  return whole_bytes(record) <= limit &&
         entry_bytes(EntryKind::put, record.key.size(), record.value.size()) <= limit;
}

void add_put(RangeWriter& writer, const SnapshotSource::Record& record) {
  EntryView entry;
  entry.kind = EntryKind::put;
  entry.lsn = record.lsn;
  entry.key = record.key;
  entry.value = record.value;
  writer.add(entry);
}

}  // namespace

struct SnapshotSender::Step {
  RangeWriter& writer;
  std::vector<Large> left_out;
  static void visit(void* context, const SnapshotSource::Record& record) {
    Step& step = *static_cast<Step*>(context);
    if (fits_as_put(record, step.writer.room())) return add_put(step.writer, record);
    step.left_out.push_back({{record.key.begin(), record.key.end()}, record.lsn});
  }
};

Bytes SnapshotSender::build(MutableBytes buffer, const Moment& moment, FrameHeader& frame) {
  TL_ASSERT(!at_.complete, "nothing follows the last range");
  TL_ASSERT(buffer.size() >= kRangeBytesMin && buffer.size() <= kRangeBytesMax, "the buffer bounds a range");
  // Of a range that did not leave nothing is kept. Before the first one has, not even what was written since
  // would reach the receiver in another way.
  if (std::exchange(larges_fresh_, false)) larges_.clear();
  next_ = at_;
  RangeWriter writer(buffer.first(buffer.size() / kEntryAlignment * kEntryAlignment));
  RangeHeader range;
  range.lsn = moment.lsn;
  range.epoch = moment.epoch;
  range.from = at_.position;
  if (!amid()) walk(writer);
  if (amid() && add_larges(writer, range)) {
    next_.position = next_.border;
    next_.complete = next_.border == 0;
  }
  range.to = next_.position;
  range.last = next_.complete;
  if (range.last) range.line = moment.line;
  voids_next_ = range.voids;
  records_next_ = writer.records();
  lsn_next_ = moment.lsn;
  return writer.finish(range, frame);
}

void SnapshotSender::left() {
  at_ = next_;
  larges_fresh_ = false;
  if (at_.large == larges_.size()) {
    larges_.clear();
    at_.large = 0;
  }
  lsn_ = lsn_next_;
  ++ranges_;
  records_ += records_next_;
  voids_ += voids_next_ ? 1 : 0;
}

/// Takes steps as long as whole ones fit.
void SnapshotSender::walk(RangeWriter& writer) {
  for (int steps = 0; steps < kStepsMax && writer.room() >= kRoomLeast; ++steps) {
    const RangeWriter::Mark before = writer.mark();
    Step step{writer, {}};
    const std::uint64_t border = source_.walk(next_.position, writer.room(), &Step::visit, &step);
    if (!step.left_out.empty()) {
      if (next_.position != at_.position) return writer.rewind(before);  // a frame of its own
      larges_ = std::move(step.left_out);
      larges_fresh_ = true;
      next_.border = border;
      next_.large = 0;
      next_.offset = 0;
      return;
    }
    next_.position = border;
    next_.complete = border == 0;
    if (next_.complete) return;
  }
}

/// Returns whether all of larges_ are through.
bool SnapshotSender::add_larges(RangeWriter& writer, RangeHeader& range) {
  for (; amid(); ++next_.large, next_.offset = 0) {
    const Large& large = larges_[next_.large];
    SnapshotSource::Record record;
    const bool stands = source_.find(large.key, record) && record.lsn == large.lsn;
    if (!stands) {
      // Erased or replaced since: the stream tells of it. What has left of it must not become a record there,
      // for the erase may have arrived already.
      range.voids = range.voids || next_.offset > 0;
    } else if (next_.offset == 0 && fits_as_put(record, writer.room())) {
      add_put(writer, record);
    } else if (!add_pieces(writer, record)) {
      return false;
    }
  }
  return true;
}

/// Returns whether that was the last one.
bool SnapshotSender::add_pieces(RangeWriter& writer, const SnapshotSource::Record& record) {
  const std::uint64_t whole = whole_bytes(record);
  EntryView piece;
  piece.kind = EntryKind::fragment;
  piece.lsn = record.lsn;
  piece.key_bytes = static_cast<std::uint32_t>(record.key.size());
  piece.value_bytes = static_cast<std::uint32_t>(record.value.size());
  while (next_.offset < whole) {
    if (writer.room() < kRoomLeast) return false;
    const std::uint64_t body_max =
        std::min(writer.room() / kEntryAlignment * kEntryAlignment, kEntryBytesMax) - kFragmentHeaderBytes;
    const std::uint64_t body = std::min(whole - next_.offset, body_max);
    const std::uint64_t key_from = std::min<std::uint64_t>(next_.offset, record.key.size());
    const std::uint64_t of_key = std::min(record.key.size() - key_from, body);
    piece.offset = next_.offset;
    piece.key = record.key.subspan(key_from, of_key);
    piece.value = record.value.subspan(next_.offset - key_from, body - of_key);
    writer.add(piece);
    next_.offset += body;
  }
  return true;
}

Duration SnapshotBackOff::left(std::uint32_t node, Instant now) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return {};
  return std::max(Duration{}, found->second.at + found->second.wait - now);
}

void SnapshotBackOff::began(std::uint32_t node, Instant now) {
  forget(now);
  const auto [found, first] = nodes_.try_emplace(node);
  Latest& latest = found->second;
  const bool excused = std::exchange(latest.excused, false);
  latest.wait = first ? kFirstWait : std::min(excused ? latest.wait : latest.wait * 2, kWaitMax);
  latest.at = now;
}

void SnapshotBackOff::excuse(std::uint32_t node) {
  const auto found = nodes_.find(node);
  if (found != nodes_.end()) found->second.excused = true;
}

/// Node numbers are the peers' own: they cost no more than so much memory.
void SnapshotBackOff::forget(Instant now) {
  std::erase_if(nodes_, [now](const auto& node) {
    const Latest& latest = node.second;
    return now - latest.at >= std::max(kForgottenAfter, latest.wait * 2);
  });
  while (nodes_.size() >= kNodesMax) {
    nodes_.erase(std::min_element(nodes_.begin(), nodes_.end(),
                                  [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
}

}  // namespace tidelock
