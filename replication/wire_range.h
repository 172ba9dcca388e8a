/// A range: a piece of a snapshot, in a frame of its own kind. It has the records of a table whose hashes lie
/// between two borders, as puts and fragments with the LSNs that they have there, and says with its header
/// what the sender's log ended with at that moment. Ranges that join from hash 0 to the end, with the entries
/// of the stream from the first range's LSN on, make the sender's table. README.md has the layout and the
/// rules.
/// Thread:   any
/// Suspends: never
#pragma once

#include <cstdint>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/replication/epoch_line.h>
#include <tidelock/replication/wire.h>

namespace tidelock {

inline constexpr std::uint32_t kRangeHeaderBytes = 56;
/// With the longest line.
inline constexpr std::uint32_t kRangeHeaderBytesMax = kRangeHeaderBytes + 16 * EpochLine::kStartsMax;

/// Without progress (`to` is `from`, not last) a range has records from `from` on, of which more are to come:
/// so pieces of a record that is larger than a range are sent.
struct RangeHeader {
  bool last = false;   ///< the ranges have reached the end
  bool voids = false;  ///< the record whose fragments were under way is no longer what the sender has
  Lsn lsn{};           ///< the sender's last when this was built. The frame's first and last LSN
  Epoch epoch{};       ///< the sender's; the frame's
  std::uint64_t from = 0;
  std::uint64_t to = 0;  ///< the first hash that is not covered; 0 in the last range: the end
  EpochLine line{};      ///< the last range has it
};

/// Decodes a range as a whole: nothing of it is given before all of it was checked. `payload` is the
/// receiver's own copy, `frame` was decoded. `records` is overwritten: puts and fragments, in the order in
/// which they stand, none newer than the range; its views point into the payload.
/// Errors:   bad_length, bad_kind, bad_crc, too_large, malformed; `records` is empty then
Result<RangeHeader> decode_range(const FrameHeader& frame, Bytes payload, std::vector<EntryView>& records);

/// Builds a range in a buffer: records first, then the header in front of them.
/// Lifetime: the buffer outlives it
class RangeWriter {
 public:
  /// `buffer` has more than kRangeHeaderBytesMax and is aligned to 8 bytes.
  explicit RangeWriter(MutableBytes buffer);

  struct Mark {
    std::uint32_t records = 0;
    std::uint32_t bytes = 0;  ///< of them, encoded
    std::uint32_t sum = 0;
  };
  [[nodiscard]] std::uint32_t records() const { return at_.records; }
  [[nodiscard]] std::uint32_t bytes() const { return at_.bytes; }
  /// What is left for them.
  [[nodiscard]] std::uint32_t room() const;
  /// A put or a fragment, with its LSN; its epoch is written as 0. It fits room().
  void add(EntryView record);
  [[nodiscard]] Mark mark() const { return at_; }
  /// Takes back what was added since.
  void rewind(const Mark& mark);
  /// Writes the header. Returns the payload of a frame; sets what a frame's header says of it.
  /// Lifetime: in the buffer
  Bytes finish(const RangeHeader& header, FrameHeader& frame);

 private:
  MutableBytes buffer_;
  Mark at_{};
};

}  // namespace tidelock
