#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>

#include <sys/mman.h>

#include <tidelock/base/check.h>
#include <tidelock/replication/log.h>

#include "wire_layout.h"

namespace tidelock {
namespace {

constexpr std::uint64_t kCapacityMin = 64ULL << 10;
constexpr std::uint64_t kCapacityMax = 64ULL << 30;
constexpr std::uint32_t kBufferUnit = 64U << 10;
constexpr std::uint32_t kBufferBytesMax = 1U << 20;
/// Twice the largest entry, so that in every segment some entry begins, unless a group left a lap's end
/// unused.
constexpr std::uint64_t kSegmentBytes = 64ULL << 10;
static_assert(kSegmentBytes >= 2 * kEntryBytesMax);

/// What walking needs of an encoded entry. The log's own memory is trusted.
struct Shape {
  std::uint32_t bytes;
  Lsn lsn;
  bool first_piece;
  bool last_piece;
  bool group_continues;
};

Shape shape_of(const std::byte* at) {
  using namespace layout::entry;
  const auto kind = static_cast<EntryKind>(load<std::uint8_t>(at + kKind));
  const auto key_bytes = load<std::uint32_t>(at + kKeyBytes);
  const auto value_bytes = load<std::uint32_t>(at + kValueBytes);
  const Lsn lsn{load<std::uint64_t>(at + kLsn)};
  const bool continues = (load<std::uint8_t>(at + kFlags) & kGroupContinuesFlag) != 0;
  if (kind != EntryKind::fragment) {
    return {entry_bytes(kind, key_bytes, value_bytes), lsn, true, true, continues};
  }
  const std::uint64_t offset = load<std::uint32_t>(at + kOffset);
  const auto piece_bytes = load<std::uint32_t>(at + kPieceBytes);
  const std::uint64_t whole_bytes = std::uint64_t{key_bytes} + value_bytes;
  return {entry_bytes(kind, 0, piece_bytes), lsn, offset == 0, offset + piece_bytes == whole_bytes, false};
}

/// `entry` is whole, or its put's last piece; a piece may stand in both key and value.
bool ends_whole(const EntryView& entry) {
  if (entry.kind != EntryKind::fragment) return true;
  const std::uint64_t piece_end = entry.offset + entry.key.size() + entry.value.size();
  return piece_end == std::uint64_t{entry.key_bytes} + entry.value_bytes;
}

/// The end once `bytes` in a row were appended where a lap has a rest of `tail`.
std::uint64_t end_after(std::uint32_t bytes, std::uint64_t end, std::uint64_t tail) {
  return end + (bytes > tail ? tail : 0) + bytes;
}

bool is_skip(const std::byte* at) {
  return load<std::uint8_t>(at + layout::entry::kKind) == layout::entry::kSkipKind;
}

/// Of the entries from `entries` on that must stand in a row: one, or a group.
std::uint64_t row_of(Bytes entries) {
  std::uint64_t bytes = 0;
  for (bool continues = true; continues;) {
    TL_ASSERT(bytes + kEntryHeaderBytes <= entries.size(), "entries are whole, and the last ends its group");
    const Shape shape = shape_of(entries.data() + bytes);
    bytes += shape.bytes;
    continues = shape.group_continues;
  }
  TL_ASSERT(bytes <= entries.size(), "entries are whole");
  return bytes;
}

/// Maps every page now: a page fault on the data path would cost more than the append.
bool populate(void* memory, std::uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: a kernel before 5.14
#endif
  constexpr std::uint64_t kPageBytes = 4096;
  auto* const page = static_cast<volatile std::byte*>(memory);
  for (std::uint64_t i = 0; i < bytes; i += kPageBytes) page[i] = std::byte{0};
  return true;
}

}  // namespace

Result<std::unique_ptr<Log>> Log::create(std::uint64_t capacity_bytes, std::uint32_t buffer_bytes) {
  if (!std::has_single_bit(capacity_bytes) || capacity_bytes < kCapacityMin ||
      capacity_bytes > kCapacityMax) {
    return Error::from_errno(EINVAL, "a log of " + std::to_string(capacity_bytes) +
                                         " bytes: give a power of two from 64 KiB to 64 GiB");
  }
  if (buffer_bytes % kBufferUnit != 0 || buffer_bytes > kBufferBytesMax) {
    return Error::from_errno(EINVAL, "buffers of " + std::to_string(buffer_bytes) +
                                         " bytes behind a log: give a multiple of 64 KiB up to 1 MiB");
  }
  const std::uint64_t mapped_bytes = capacity_bytes + buffer_bytes;
  void* const memory =
      ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Error::from_errno(errno, "cannot map a log of " + std::to_string(capacity_bytes) +
                                        " bytes: lower log_bytes or raise the memory limit");
  }
  static_cast<void>(::madvise(memory, mapped_bytes, MADV_HUGEPAGE));  // a wish; small pages do as well
  if (!populate(memory, mapped_bytes)) {
    const int failure = errno;
    ::munmap(memory, mapped_bytes);
    return Error::from_errno(failure, "cannot populate a log of " + std::to_string(capacity_bytes) +
                                          " bytes: lower log_bytes or raise the memory limit");
  }
  return std::unique_ptr<Log>(new Log(static_cast<std::byte*>(memory), capacity_bytes, buffer_bytes));
}

Log::Log(std::byte* memory, std::uint64_t capacity, std::uint32_t buffer_bytes)
    : memory_(memory),
      capacity_(capacity),
      buffer_bytes_(buffer_bytes),
      marks_(capacity / kSegmentBytes + 1) {}

Log::~Log() { ::munmap(memory_, capacity_ + buffer_bytes_); }

void Log::release_to(std::uint64_t position) {
  TL_ASSERT(position >= begin_ && position <= end_, "only what is readable can be kept");
  needed_ = position;
}

bool Log::fits(std::uint32_t bytes) const {
  return bytes <= capacity_ / 2 && end_after(bytes, end_, tail_bytes(end_)) <= needed_ + capacity_;
}

std::uint64_t Log::room_from(std::uint32_t bytes) const {
  const std::uint64_t end = end_after(bytes, end_, tail_bytes(end_));
  return end > capacity_ ? end - capacity_ : 0;
}

void Log::append(const EntryView& entry, std::uint32_t bytes_after) {
  const std::uint32_t bytes = entry_bytes(entry.kind, entry.key.size(), entry.value.size());
  const std::uint32_t row_bytes = bytes + bytes_after;
  TL_ASSERT(bytes <= kEntryBytesMax && fits(row_bytes), "append() after fits()");
  const std::uint64_t position = place(bytes, row_bytes);
  encode_entry(entry, {memory_ + (position & (capacity_ - 1)), bytes});
  take(position, bytes, entry.lsn, ends_whole(entry));
}

void Log::append_encoded(Bytes entries) {
  TL_ASSERT(entries.size() <= capacity_ && fits(static_cast<std::uint32_t>(entries.size())),
            "append_encoded() after fits()");
  while (!entries.empty()) {
    const std::uint64_t row_bytes = row_of(entries);
    const std::uint64_t position = place(row_bytes, row_bytes);
    std::copy_n(entries.data(), row_bytes, memory_ + (position & (capacity_ - 1)));
    take_row(position, row_bytes);
    entries = entries.subspan(row_bytes);
  }
}

MutableBytes Log::stage(std::uint32_t bytes) {
  TL_ASSERT(fits(bytes), "stage() after fits()");
  if (bytes > tail_bytes(end_)) return {};
  if (end_ + bytes > capacity_) forget_before(end_ + bytes - capacity_);
  return {memory_ + (end_ & (capacity_ - 1)), bytes};
}

void Log::append_staged(std::uint32_t bytes) {
  TL_ASSERT(bytes <= tail_bytes(end_) && end_ + bytes <= begin_ + capacity_, "append_staged() after stage()");
  take_row(end_, bytes);
}

/// Encoded entries that stand in a row from `position` on.
void Log::take_row(std::uint64_t position, std::uint64_t bytes) {
  for (const std::uint64_t row_end = position + bytes; position < row_end; position = end_) {
    const Shape shape = shape_of(at(position));
    TL_ASSERT(shape.bytes <= row_end - position, "entries are whole");
    take(position, shape.bytes, shape.lsn, shape.last_piece);
  }
}

/// Where `bytes` go that begin a row: at the end, or at the start of the next lap. Nothing there is readable
/// any more.
std::uint64_t Log::place(std::uint64_t bytes, std::uint64_t row_bytes) {
  const std::uint64_t tail = tail_bytes(end_);
  const std::uint64_t position = row_bytes > tail ? end_ + tail : end_;
  if (position + bytes > capacity_) forget_before(position + bytes - capacity_);
  if (position != end_) {
    // The whole word, so that what an older lap left in it is not taken for an entry.
    std::byte* const memory = memory_;
    store(memory + (end_ & (capacity_ - 1)), std::uint64_t{layout::entry::kSkipKind});
  }
  return position;
}

/// The entry that was written at `position`, where place() said, is the log's last.
void Log::take(std::uint64_t position, std::uint32_t bytes, Lsn lsn, bool last_piece) {
  TL_ASSERT(lsn == last_lsn_.next(), "LSNs have no gaps");
  mark(position, lsn);
  end_ = position + bytes;
  if (last_piece) {
    last_lsn_ = lsn;
    whole_end_ = end_;
  }
}

/// Segments that were skipped get the mark, too.
void Log::mark(std::uint64_t position, Lsn lsn) {
  for (std::uint64_t segment = end_ / kSegmentBytes; segment <= position / kSegmentBytes; ++segment) {
    Mark& mark = marks_[segment % marks_.size()];
    if (mark.segment != segment) mark = {segment, position, lsn};
  }
}

/// Marks of what is cut off: another entry may come to stand in that segment, and the same LSN elsewhere.
void Log::unmark_from(std::uint64_t position) {
  for (std::uint64_t segment = position / kSegmentBytes; segment <= end_ / kSegmentBytes; ++segment) {
    Mark& mark = marks_[segment % marks_.size()];
    if (mark.segment == segment && mark.position >= position) mark = {};
  }
}

void Log::cut_to_whole() {
  if (whole_end_ < begin_) return begin_anew(last_lsn_);  // the pieces have overwritten all that was whole
  unmark_from(whole_end_);
  end_ = whole_end_;
  needed_ = std::min(needed_, end_);
}

/// Positions go on, so that none ever means two entries.
void Log::begin_anew(Lsn lsn) {
  begin_ = needed_ = whole_end_ = end_;
  last_lsn_ = lsn;
}

/// `position`, or the start of the next lap if the rest of this one is unused.
std::uint64_t Log::skip_tail(std::uint64_t position) const {
  return position < end_ && is_skip(at(position)) ? position + tail_bytes(position) : position;
}

/// Moves begin() to an entry at or after `position`. Reads each entry once before it is overwritten.
void Log::forget_before(std::uint64_t position) {
  while (begin_ < position) {
    const std::uint64_t entry = skip_tail(begin_);
    begin_ = entry != begin_ ? entry : entry + shape_of(at(entry)).bytes;
  }
}

Lsn Log::first_lsn() const {
  const std::uint64_t first = skip_tail(begin_);
  if (first >= end_) return last_lsn_.next();
  const Shape shape = shape_of(at(first));
  return std::min(shape.first_piece ? shape.lsn : shape.lsn.next(), last_lsn_.next());
}

Log::Run Log::run_at(std::uint64_t position, std::uint32_t bytes_max, std::uint32_t group_bytes_max) const {
  TL_ASSERT(position >= begin_ && position <= end_, "a cursor stays within what is readable");
  Run run;
  run.next = position;
  const std::uint64_t start = skip_tail(position);
  const std::uint64_t end = std::min(end_, start + tail_bytes(start));
  std::uint32_t entries = 0;
  for (std::uint64_t next = start; next < end && !is_skip(at(next));) {
    const Shape shape = shape_of(at(next));
    const std::uint32_t allowed = run.entries == 0 ? std::max(bytes_max, group_bytes_max) : bytes_max;
    next += shape.bytes;
    if (next - start > allowed) break;
    if (entries++ == 0) run.first_lsn = shape.lsn;
    if (shape.group_continues) continue;
    run.entries = entries;
    run.last_lsn = shape.lsn;
    run.whole_lsn = shape.last_piece ? shape.lsn : Lsn{shape.lsn.value - 1};
    run.bytes = {at(start), next - start};
    run.next = next;
  }
  return run;
}

/// The last mark that stands before `lsn`, or begin().
std::uint64_t Log::search_from(Lsn lsn) const {
  std::uint64_t low = begin_ / kSegmentBytes + 1;  // begin()'s own segment: its mark may lie before begin()
  std::uint64_t high = end_ / kSegmentBytes + 1;   // one past the last segment that may have a mark
  if (end_ % kSegmentBytes == 0 && high > low) --high;
  std::uint64_t found = begin_;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    const Mark& mark = marks_[middle % marks_.size()];
    if (mark.segment == middle && mark.lsn < lsn) {
      found = mark.position;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return found;
}

Result<std::uint64_t> Log::position_after(Lsn lsn) const {
  const Lsn wanted = lsn.next();
  const bool at_end = lsn == last_lsn_;
  if (lsn > last_lsn_ || (at_end && whole_end_ < begin_) || (!at_end && wanted < first_lsn())) {
    return Error(ReplicationErrc::gap,
                 "LSN " + std::to_string(wanted.value) + " is asked for, the log holds " +
                     std::to_string(first_lsn().value) + " to " + std::to_string(last_lsn_.value) +
                     ": start the replica empty, or raise log_bytes for longer outages");
  }
  if (at_end) return whole_end_;
  std::uint64_t position = search_from(wanted);
  for (;;) {
    position = skip_tail(position);
    TL_ASSERT(position < end_, "an LSN between first and last is in the log");
    const Shape shape = shape_of(at(position));
    if (shape.lsn == wanted) return position;
    position += shape.bytes;
  }
}

}  // namespace tidelock
