#include <algorithm>

#include <tidelock/base/check.h>
#include <tidelock/replication/epoch_line.h>

namespace tidelock {

bool EpochLine::legal(std::span<const EpochStart> starts) {
  if (starts.size() > kStartsMax) return false;
  EpochStart before{};
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (starts[i].first_lsn <= before.first_lsn || (i > 0 && starts[i].epoch <= before.epoch)) return false;
    before = starts[i];
  }
  return true;
}

void EpochLine::begin(Epoch epoch, Lsn first_lsn) {
  TL_ASSERT(first_lsn.value > 0, "LSNs begin with 1");
  if (count_ > 0) {
    TL_ASSERT(epoch > starts_[count_ - 1].epoch, "epochs of a log ascend");
    TL_ASSERT(first_lsn > starts_[count_ - 1].first_lsn, "an epoch has its no-op at least");
  }
  if (count_ == kStartsMax) {
    std::move(starts_.begin() + 1, starts_.end(), starts_.begin());
    --count_;
  }
  starts_[count_++] = {epoch, first_lsn};
}

void EpochLine::assign(std::span<const EpochStart> starts) {
  TL_ASSERT(legal(starts), "a line was checked when it was decoded");
  std::copy(starts.begin(), starts.end(), starts_.begin());
  count_ = starts.size();
}

std::optional<Epoch> EpochLine::epoch_of(Lsn lsn) const {
  const auto line = starts();
  const auto after = std::partition_point(line.begin(), line.end(),
                                          [&](const EpochStart& start) { return start.first_lsn <= lsn; });
  if (after == line.begin()) return std::nullopt;
  return std::prev(after)->epoch;
}

EntryStanding EpochLine::standing(Epoch epoch, Lsn lsn, Lsn last_lsn) const {
  if (epoch > last_epoch() || count_ == 0) return EntryStanding::to_come;
  const auto line = starts();
  const auto at = std::partition_point(line.begin(), line.end(),
                                       [&](const EpochStart& start) { return start.epoch < epoch; });
  // An epoch that is not in the line although newer ones are: nothing of it is in the log, or it is
  // forgotten.
  if (at->epoch != epoch || lsn < at->first_lsn) return EntryStanding::cut;
  const auto next = std::next(at);
  if (next != line.end()) return lsn < next->first_lsn ? EntryStanding::held : EntryStanding::cut;
  return lsn <= last_lsn ? EntryStanding::held : EntryStanding::to_come;
}

}  // namespace tidelock
