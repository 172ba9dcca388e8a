#include "link_board.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <tidelock/reactor/clock.h>

#include "shard.h"

namespace tidelock {
namespace {

/// Peers choose their node numbers, so the board has an end for links that were. One that is there has its
/// entry in any case: it takes far more memory elsewhere.
constexpr std::size_t kEntriesMax = 1024;
constexpr std::size_t kTransitionsMax = 16;

Instant now() { return SystemClock().now(); }

std::uint64_t value(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

std::uint64_t age_ns(Instant then, Instant at) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, (at - then).ns));
}

}  // namespace

/// The entry moves to the end: it is the newest.
LinkBoard::Entry& LinkBoard::entry_for(ShardId shard, std::uint32_t node) {
  const auto same = [&](const Entry& entry) {
    return entry.info.shard == shard && entry.info.peer_node == node;
  };
  const auto found = std::find_if(entries_.begin(), entries_.end(), same);
  if (found != entries_.end()) {
    std::rotate(found, std::next(found), entries_.end());
    return entries_.back();
  }
  make_room();
  Entry& entry = entries_.emplace_back();
  entry.info.shard = shard;
  entry.info.peer_node = node;
  return entry;
}

/// What has been closed for longest goes; a link that is there never does.
void LinkBoard::make_room() {
  while (entries_.size() >= kEntriesMax) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const bool closed = entry->id == nullptr;
      if (closed && (oldest == entries_.end() || entry->closed < oldest->closed)) oldest = entry;
    }
    if (oldest == entries_.end()) return;
    entries_.erase(oldest);
  }
}

void LinkBoard::change(Entry& entry, const std::string& state, const std::string& detail) {
  entry.info.state = state;
  if (entry.changes.size() == kTransitionsMax) entry.changes.pop_front();
  entry.changes.push_back({now(), state, detail});
}

void LinkBoard::close(Entry& entry, const std::string& reason) {
  entry.id = nullptr;
  entry.closed = ++closings_;
  change(entry, "closed", reason);
}

void LinkBoard::copy(Entry& entry, const Link& link) {
  const LinkCounters& counters = link.counters();
  LinkInfo& info = entry.info;
  info.batches_out = value(counters.batches_out);
  info.batches_in = value(counters.batches_in);
  info.bytes_out = value(counters.bytes_out);
  info.bytes_in = value(counters.bytes_in);
  info.control_out = value(counters.control_out);
  info.control_in = value(counters.control_in);
  info.peer_wakeups = value(counters.peer_wakeups);
  info.full = value(counters.full);
  info.description = link.describe();
  entry.heard = link.last_heard();
  entry.its_own = link.transitions();
}

void LinkBoard::attached(ShardId shard, std::uint32_t node, Generation generation, const Link& link) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_for(shard, node);
  entry.id = &link;
  entry.info.kind = link.kind();
  entry.info.generation = generation.value;
  copy(entry, link);
  change(entry, "attached", "generation " + std::to_string(generation.value));
}

void LinkBoard::lost(const Shard& shard, const std::string& reason) {
  std::vector<const Link*> left;
  shard.each_link([&](const Link& link) { left.push_back(&link); });
  lost(shard.id(), left, reason);
}

void LinkBoard::lost(ShardId shard, const std::vector<const Link*>& left, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    const bool here = entry.info.shard == shard && entry.id != nullptr;
    if (!here || std::find(left.begin(), left.end(), entry.id) != left.end()) continue;
    close(entry, reason);
  }
}

void LinkBoard::note(ShardId shard, const std::string& state, const std::string& detail) {
  const std::lock_guard lock(mutex_);
  const auto newest = std::find_if(entries_.rbegin(), entries_.rend(),
                                   [&](const Entry& entry) { return entry.info.shard == shard; });
  if (newest != entries_.rend() && newest->id == nullptr) change(*newest, state, detail);
}

void LinkBoard::look(const Shard& shard) {
  const std::lock_guard lock(mutex_);
  shard.each_link([&](const Link& link) {
    for (Entry& entry : entries_) {
      if (entry.id == &link && entry.info.shard == shard.id()) copy(entry, link);
    }
  });
}

void LinkBoard::close_all(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.id != nullptr) close(entry, reason);
  }
}

std::vector<LinkInfo> LinkBoard::list() const {
  const std::lock_guard lock(mutex_);
  const Instant at = now();
  std::vector<LinkInfo> infos;
  for (const Entry& entry : entries_) {
    LinkInfo info = entry.info;
    info.last_heard_age_ns = age_ns(entry.heard, at);
    std::vector<LinkTransition> all = entry.its_own;
    all.insert(all.end(), entry.changes.begin(), entry.changes.end());
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
    const std::size_t skipped = all.size() > kTransitionsMax ? all.size() - kTransitionsMax : 0;
    for (std::size_t i = skipped; i < all.size(); ++i)
      info.transitions.push_back({all[i].state, age_ns(all[i].at, at), all[i].detail});
    infos.push_back(std::move(info));
  }
  std::stable_sort(infos.begin(), infos.end(), [](const LinkInfo& a, const LinkInfo& b) {
    return std::pair(a.shard, a.peer_node) < std::pair(b.shard, b.peer_node);
  });
  return infos;
}

}  // namespace tidelock
