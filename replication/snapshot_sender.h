/// The sending end of one snapshot: walks a source by hash and builds one range after the other. A range is
/// built and published with no suspension between, so that it says what the table had at the LSN that it
/// names. Who publishes decides when, how large, and from which buffer: this knows no link and no log.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/time.h>
#include <tidelock/replication/epoch_line.h>
#include <tidelock/replication/snapshot_source.h>
#include <tidelock/replication/wire_range.h>

namespace tidelock {

class SnapshotSender {
 public:
  /// What is known of the log when a range is built.
  struct Moment {
    Lsn lsn{};  ///< its last, at least 1
    Epoch epoch{};
    const EpochLine& line;
  };
  /// Of one range, with its header: the fewest and the most.
  static constexpr std::uint32_t kRangeBytesMin = 4 * 1024;
  static constexpr std::uint32_t kRangeBytesMax = 64 * 1024;

  /// `source` outlives it.
  explicit SnapshotSender(const SnapshotSource& source) : source_(source) {}

  /// The next range. `buffer`: its size, kRangeBytesMin to kRangeBytesMax, bounds the range. Sets what a
  /// frame's header says of it. Not after complete().
  /// Lifetime: the payload is in the buffer
  Bytes build(MutableBytes buffer, const Moment& moment, FrameHeader& frame);
  /// The range that was built last has left. If this is not called the next build() begins where that one
  /// did.
  void left();

  /// At least one range has left: the stream of live entries begins with what was appended after it.
  [[nodiscard]] bool begun() const { return ranges_ > 0; }
  /// The last range has left.
  [[nodiscard]] bool complete() const { return at_.complete; }
  /// That the newest range that left has. The receiver is whole with the entries up to that of the last one.
  [[nodiscard]] Lsn lsn() const { return lsn_; }
  [[nodiscard]] std::uint64_t ranges() const { return ranges_; }
  [[nodiscard]] std::uint64_t records() const { return records_; }
  [[nodiscard]] std::uint64_t voids() const { return voids_; }

 private:
  /// A record that found no place in the frame in which the walk came upon it. Looked up again each time:
  /// what is written meanwhile goes to the receiver with the stream.
  struct Large {
    std::vector<std::byte> key;
    Lsn lsn{};
  };
  struct Progress {
    std::uint64_t position = 0;  ///< the walk's: all below it has left
    std::uint64_t border = 0;    ///< where it goes on once those of larges_ have left
    std::size_t large = 0;       ///< of larges_, which is next
    std::uint64_t offset = 0;    ///< in that one: what has left of it
    bool complete = false;
  };
  struct Step;

  void walk(RangeWriter& writer);
  bool add_larges(RangeWriter& writer, RangeHeader& range);
  bool add_pieces(RangeWriter& writer, const SnapshotSource::Record& record);
  [[nodiscard]] bool amid() const { return next_.large < larges_.size(); }

  const SnapshotSource& source_;
  Progress at_;    ///< of what has left
  Progress next_;  ///< with the range that was built last
  std::vector<Large> larges_;
  bool larges_fresh_ = false;  ///< found by that range
  bool voids_next_ = false;    ///< said by it
  std::uint32_t records_next_ = 0;
  Lsn lsn_{};
  Lsn lsn_next_{};
  std::uint64_t ranges_ = 0;
  std::uint64_t records_ = 0;
  std::uint64_t voids_ = 0;
};

/// When a node may have its next snapshot. One that needs them again and again would otherwise take all of
/// its sender's time: the second within ten minutes waits 30 s, each one after it twice as long, up to ten
/// minutes.
class SnapshotBackOff {
 public:
  static constexpr Duration kForgottenAfter = seconds(600);  ///< or twice the wait, if that is more
  static constexpr Duration kFirstWait = seconds(30);
  static constexpr Duration kWaitMax = seconds(600);
  static constexpr std::size_t kNodesMax = 1024;

  /// Zero: now.
  [[nodiscard]] Duration left(std::uint32_t node, Instant now) const;
  void began(std::uint32_t node, Instant now);
  /// That its latest was of no use is its sender's doing: the next one's wait is no longer for it.
  void excuse(std::uint32_t node);

 private:
  struct Latest {
    Instant at{};
    Duration wait{};  ///< until the next
    bool excused = false;
  };
  void forget(Instant now);
  std::map<std::uint32_t, Latest> nodes_;
};

}  // namespace tidelock
