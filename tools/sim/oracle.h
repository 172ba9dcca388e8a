/// The truth of a run: what each life of the primary wrote, at which LSN, and how far each node had come. The
/// checkers ask it; no node does.
/// Thread:   one
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <tidelock/base/ids.h>

namespace tidelock::sim {

struct Written {
  std::uint32_t key = 0;
  std::uint64_t value = 0;  ///< 0: an erase
  Epoch epoch{};
  std::uint64_t bytes = 0;  ///< of the value: one that lost its end may still name its write
  friend bool operator==(const Written&, const Written&) = default;
};

/// One line of writes: a history.
class Line {
 public:
  struct Marks {
    Lsn received{};
    Lsn applied{};
  };

  Line(std::size_t number, HistoryId id, std::uint32_t keys) : number_(number), id_(id), changes_(keys) {}
  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] HistoryId id() const { return id_; }

  /// The entry after last(); `log_bytes`: what it takes up in the log.
  void append(const Written& written, std::uint64_t log_bytes = 0) {
    entries_.push_back(written);
    bytes_to_.push_back(bytes_to_.back() + log_bytes);
    changes_[written.key].push_back({last(), written.value});
  }
  [[nodiscard]] Lsn last() const { return {entries_.size()}; }
  /// What the entries after `lsn` take up in the log, the unused ends of its laps apart.
  [[nodiscard]] std::uint64_t log_bytes_after(Lsn lsn) const {
    return bytes_to_.back() - bytes_to_[std::min<std::uint64_t>(lsn.value, entries_.size())];
  }
  /// Null: nobody wrote that.
  [[nodiscard]] const Written* at(Lsn lsn) const {
    return lsn.value >= 1 && lsn.value <= entries_.size() ? &entries_[lsn.value - 1] : nullptr;
  }
  /// The key stood so at some LSN from `from` on.
  [[nodiscard]] bool stood(std::uint32_t key, std::uint64_t value, Lsn from) const;
  /// What the key held after the entry `lsn`.
  [[nodiscard]] std::uint64_t value_at(std::uint32_t key, Lsn lsn) const;
  /// What the key holds after all that was written.
  [[nodiscard]] std::uint64_t newest(std::uint32_t key) const {
    return changes_[key].empty() ? 0 : changes_[key].back().value;
  }

  /// How far `node` ever was, in any of its lives.
  void received(std::uint32_t node, Lsn lsn) { marks_[node].received = std::max(marks_[node].received, lsn); }
  void applied(std::uint32_t node, Lsn lsn) {
    marks_[node].applied = std::max(marks_[node].applied, lsn);
    received(node, lsn);
  }
  /// A primary has told a node so.
  void told(Lsn commit) { told_ = std::max(told_, commit); }
  [[nodiscard]] Lsn told() const { return told_; }
  [[nodiscard]] const std::map<std::uint32_t, Marks>& marks() const { return marks_; }

 private:
  struct Change {
    Lsn lsn{};
    std::uint64_t value = 0;
  };
  std::size_t number_;
  HistoryId id_;
  std::vector<Written> entries_;
  std::vector<std::uint64_t> bytes_to_{0};    ///< by LSN, the sum up to it
  std::vector<std::vector<Change>> changes_;  ///< by key
  std::map<std::uint32_t, Marks> marks_;      ///< by node
  Lsn told_{};
};

class Oracle {
 public:
  explicit Oracle(std::uint32_t keys) : keys_(keys) {}
  [[nodiscard]] std::uint32_t keys() const { return keys_; }
  Line& begin(HistoryId id) {
    lines_.push_back(std::make_unique<Line>(lines_.size(), id, keys_));
    return *lines_.back();
  }
  /// Null: there is none.
  [[nodiscard]] Line* find(HistoryId id) const {
    for (const auto& line : lines_) {
      if (line->id() == id) return line.get();
    }
    return nullptr;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<Line>>& lines() const { return lines_; }

 private:
  std::uint32_t keys_;
  std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace tidelock::sim
