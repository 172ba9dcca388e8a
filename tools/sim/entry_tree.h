/// The truth of a group's history: all entries that any node ever had in its log, as a tree. An epoch has one
/// writer, so an epoch and an LSN name one entry, and with it all entries before; where two nodes differ, or
/// what one has committed is not what another has, something broke. The checkers ask it; no node does.
/// Thread:   one
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/replication/wire.h>

#include "checks.h"

namespace tidelock::sim {

class EntryTree {
 public:
  struct Entry {
    Epoch epoch{};
    Lsn lsn{};
    EntryKind kind = EntryKind::noop;
    std::uint32_t key = 0;
    std::uint64_t value = 0;  ///< 0: an erase
    std::uint64_t bytes = 0;  ///< of the value
    std::size_t before = 0;
    std::uint64_t nodes = 0;  ///< a bit for each node that ever had it, in whichever life
  };
  /// Before the first entry.
  static constexpr std::size_t kRoot = 0;

  EntryTree(std::size_t number, HistoryId id, std::uint32_t keys)
      : number_(number), id_(id), keys_(keys), entries_(1), committed_{kRoot} {}
  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] HistoryId id() const { return id_; }
  [[nodiscard]] const Entry& at(std::size_t index) const { return entries_[index]; }
  /// Nothing: no node ever had that.
  [[nodiscard]] std::optional<std::size_t> find(Epoch epoch, Lsn lsn) const;

  /// log_prefix: `node` has this behind `before`. Gives its index; what is wrong with it stands in `wrong`.
  std::size_t add(std::uint32_t node, std::size_t before, const Entry& entry, Violation& wrong);
  /// It has all up to this one, as a snapshot.
  void holds(std::uint32_t node, std::size_t index);
  /// How many nodes other than that one ever had it.
  [[nodiscard]] std::uint32_t others_with(std::size_t index, std::uint32_t node) const;

  /// False: another node had some of what that one wrote in that epoch. Else it is as if it had written
  /// nothing in it.
  bool forget_unheard(Epoch epoch, std::uint32_t node);

  /// The one with that LSN, of those before `index` and itself.
  [[nodiscard]] std::size_t ancestor(std::size_t index, Lsn lsn) const;
  [[nodiscard]] bool has(std::size_t index, std::size_t earlier) const {
    return ancestor(index, entries_[earlier].lsn) == earlier;
  }

  /// one_line: a node says that this and all before it is committed.
  [[nodiscard]] Violation commit(std::size_t index);
  /// The newest that any node has called committed; kRoot: none.
  [[nodiscard]] std::size_t committed() const { return committed_.back(); }
  [[nodiscard]] bool is_committed(std::size_t index) const;
  /// A client was told that its write will stay. acked: of whoever leads later, and at the end.
  void acknowledged(std::size_t index) { acknowledged_.push_back(index); }
  /// one_line: whoever leads with `index` as its newest entry has all that was committed, or acknowledged.
  [[nodiscard]] Violation check_leads(std::size_t index) const;

  /// What each key holds after that entry.
  [[nodiscard]] std::vector<std::uint64_t> table_at(std::size_t index) const;
  [[nodiscard]] std::uint64_t value_at(std::size_t index, std::uint32_t key) const;
  [[nodiscard]] std::string name(std::size_t index) const;

 private:
  std::size_t number_;
  HistoryId id_;
  std::uint32_t keys_;
  std::vector<Entry> entries_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> by_name_;
  std::vector<std::size_t> committed_;  ///< by LSN
  std::vector<std::size_t> acknowledged_;
};

}  // namespace tidelock::sim
