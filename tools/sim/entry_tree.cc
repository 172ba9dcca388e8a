#include "entry_tree.h"

#include <bit>

#include <fmt/format.h>

#include <tidelock/base/check.h>

namespace tidelock::sim {
namespace {

std::pair<std::uint64_t, std::uint64_t> name_key(Epoch epoch, Lsn lsn) {
  return {epoch_value(epoch), lsn.value};
}

}  // namespace

std::optional<std::size_t> EntryTree::find(Epoch epoch, Lsn lsn) const {
  if (lsn == Lsn{}) return kRoot;
  const auto found = by_name_.find(name_key(epoch, lsn));
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t EntryTree::add(std::uint32_t node, std::size_t before, const Entry& entry, Violation& wrong) {
  const auto [place, made] = by_name_.try_emplace(name_key(entry.epoch, entry.lsn), entries_.size());
  if (made) {
    entries_.push_back(entry);
    entries_.back().before = before;
    if (entry.lsn != entries_[before].lsn.next())
      wrong = fmt::format("{} stands behind {}", name(entries_.size() - 1), name(before));
    if (entry.epoch < entries_[before].epoch)
      wrong = fmt::format("the epoch falls: {} stands behind {}", name(entries_.size() - 1), name(before));
  }
  Entry& there = entries_[place->second];
  there.nodes |= std::uint64_t{1} << node;
  const bool same = there.kind == entry.kind && there.key == entry.key && there.value == entry.value &&
                    there.bytes == entry.bytes;
  if (!same) wrong = fmt::format("{} is another entry than the one that others have", name(place->second));
  if (there.before != before)
    wrong = fmt::format("{} stands behind {}, and elsewhere behind {}", name(place->second), name(before),
                        name(there.before));
  return place->second;
}

void EntryTree::holds(std::uint32_t node, std::size_t index) {
  const std::uint64_t bit = std::uint64_t{1} << node;
  for (; index != kRoot && (entries_[index].nodes & bit) == 0; index = entries_[index].before)
    entries_[index].nodes |= bit;
}

bool EntryTree::forget_unheard(Epoch epoch, std::uint32_t node) {
  const auto of_epoch = [epoch](const auto& named) { return named.first.first == epoch_value(epoch); };
  for (const auto& named : by_name_) {
    if (of_epoch(named) && others_with(named.second, node) > 0) return false;
  }
  std::erase_if(by_name_, of_epoch);
  return true;
}

std::uint32_t EntryTree::others_with(std::size_t index, std::uint32_t node) const {
  return static_cast<std::uint32_t>(std::popcount(entries_[index].nodes & ~(std::uint64_t{1} << node)));
}

std::size_t EntryTree::ancestor(std::size_t index, Lsn lsn) const {
  while (entries_[index].lsn > lsn) index = entries_[index].before;
  return index;
}

bool EntryTree::is_committed(std::size_t index) const {
  const std::uint64_t lsn = entries_[index].lsn.value;
  return lsn < committed_.size() && committed_[lsn] == index;
}

Violation EntryTree::commit(std::size_t index) {
  const std::uint64_t lsn = entries_[index].lsn.value;
  const std::size_t known = committed_.size() - 1;
  if (lsn <= known) {
    if (committed_[lsn] == index) return std::nullopt;
    return fmt::format("{} is called committed, and {} was", name(index), name(committed_[lsn]));
  }
  const std::size_t there = ancestor(index, Lsn{known});
  if (there != committed_[known])
    return fmt::format("{} is called committed, and {} before it is not {}, which was", name(index),
                       name(there), name(committed_[known]));
  committed_.resize(lsn + 1);
  for (std::size_t i = index; entries_[i].lsn.value > known; i = entries_[i].before)
    committed_[entries_[i].lsn.value] = i;
  return std::nullopt;
}

Violation EntryTree::check_leads(std::size_t index) const {
  if (!has(index, committed()))
    return fmt::format("leads with {}, and lacks {}, which was committed", name(index), name(committed()));
  for (const std::size_t each : acknowledged_) {
    if (!has(index, each))
      return fmt::format("leads with {}, and lacks {}, which was acknowledged", name(index), name(each));
  }
  return std::nullopt;
}

std::vector<std::uint64_t> EntryTree::table_at(std::size_t index) const {
  std::vector<std::uint64_t> table(keys_, 0);
  std::vector<bool> known(keys_, false);
  for (; index != kRoot; index = entries_[index].before) {
    const Entry& entry = entries_[index];
    if (entry.kind == EntryKind::noop || entry.key >= keys_ || known[entry.key]) continue;
    known[entry.key] = true;
    table[entry.key] = entry.value;
  }
  return table;
}

std::uint64_t EntryTree::value_at(std::size_t index, std::uint32_t key) const {
  for (; index != kRoot; index = entries_[index].before) {
    const Entry& entry = entries_[index];
    if (entry.kind != EntryKind::noop && entry.key == key) return entry.value;
  }
  return 0;
}

std::string EntryTree::name(std::size_t index) const {
  const Entry& entry = entries_[index];
  return fmt::format("LSN {} of epoch {}.{}", entry.lsn.value, entry.epoch.counter, entry.epoch.node);
}

}  // namespace tidelock::sim
