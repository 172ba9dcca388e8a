/// Which epoch wrote which LSNs of a log. As an epoch has one writer, an epoch and an LSN name one entry and
/// with it all entries before: two logs are compared by their lines alone. Only the newest epochs are kept;
/// what is older is not known, and then the answer is the one that costs a snapshot or a `history_lost`.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include <tidelock/base/ids.h>

namespace tidelock {

/// An epoch and the LSN of its no-op, with which it begins.
struct EpochStart {
  Epoch epoch{};
  Lsn first_lsn{};
  friend constexpr bool operator==(const EpochStart&, const EpochStart&) = default;
};

/// What a log is to an entry that somebody was told of (a receipt, or another log's last).
enum class EntryStanding : std::uint8_t {
  held,     ///< it is in the log
  to_come,  ///< the log does not reach so far, or is of an older epoch: it may still come
  cut,      ///< the log went on without it, or the line does not go back so far
};

class EpochLine {
 public:
  static constexpr std::size_t kStartsMax = 64;

  /// True for what assign() takes: at most kStartsMax, epochs and LSNs ascending, LSNs from 1.
  [[nodiscard]] static bool legal(std::span<const EpochStart> starts);

  /// The log's next entry, `first_lsn`, begins this epoch. Both are greater than the newest one's. The oldest
  /// is forgotten if there is no room.
  void begin(Epoch epoch, Lsn first_lsn);
  /// Takes another log's line, with the log itself. `starts` is legal() and not this line's own.
  void assign(std::span<const EpochStart> starts);

  /// Ascending.
  [[nodiscard]] std::span<const EpochStart> starts() const { return std::span(starts_).first(count_); }
  /// The newest; zero if there is none.
  [[nodiscard]] Epoch last_epoch() const { return count_ == 0 ? Epoch{} : starts_[count_ - 1].epoch; }
  /// Of the entry `lsn`; none if no epoch of the line has it, or if that is forgotten.
  [[nodiscard]] std::optional<Epoch> epoch_of(Lsn lsn) const;

  // In what follows `last_lsn` is the last of this line's own log.

  [[nodiscard]] EntryStanding standing(Epoch epoch, Lsn lsn, Lsn last_lsn) const;
  [[nodiscard]] bool holds(Epoch epoch, Lsn lsn, Lsn last_lsn) const {
    return standing(epoch, lsn, last_lsn) == EntryStanding::held;
  }
  /// True if a log that ends with (epoch, lsn) is a prefix of this one. An empty log (LSN 0) always is.
  [[nodiscard]] bool prefix(Epoch epoch, Lsn lsn, Lsn last_lsn) const {
    return lsn.value == 0 || holds(epoch, lsn, last_lsn);
  }
  /// True if a receipt's entry is gone from this history, as far as this log can tell.
  [[nodiscard]] bool cut(Epoch epoch, Lsn lsn, Lsn last_lsn) const {
    return standing(epoch, lsn, last_lsn) == EntryStanding::cut;
  }

 private:
  std::array<EpochStart, kStartsMax> starts_{};
  std::size_t count_ = 0;
};

}  // namespace tidelock
