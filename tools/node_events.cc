#include "node_events.h"

#include <fmt/format.h>

namespace tidelock::tools {

Status EventForwarder::forward(const Engine& engine, NodeChannel& parent) {
  const auto events = engine.stats().events;
  // The engine keeps the latest 64: once it is full the oldest fall out, and the last one forwarded marks the
  // place.
  std::size_t next = seen_;
  if (next > events.size() || (next > 0 && events[next - 1] != last_)) {
    next = events.size();
    while (next > 0 && events[next - 1] != last_) --next;
  }
  for (; next < events.size(); ++next) {
    TL_TRY(parent.send({{"event", "notice"}, {"text", events[next]}}));
    last_ = events[next];
  }
  seen_ = events.size();
  return {};
}

std::string link_text(const Engine& engine) {
  const auto links = engine.links();
  return links.empty() ? "" : links.front().description;
}

std::string inspect_name(long pid) { return fmt::format("@tidelock-inspect-{}", pid); }

std::string digest_text(const Digest& digest) {
  return fmt::format("{:016x}{:016x}", digest.high, digest.low);
}

nlohmann::json engine_stats_json(const EngineStats& stats) {
  nlohmann::json shards = nlohmann::json::array();
  for (const ShardStats& shard : stats.shards) {
    shards.push_back({{"shard", shard.shard.value},
                      {"keys", shard.keys},
                      {"memory_bytes", shard.memory_bytes},
                      {"batches", shard.batches},
                      {"batch_bytes", shard.batch_bytes},
                      {"peer_wakeups", shard.peer_wakeups},
                      {"turns", shard.turns},
                      {"busy_turns", shard.busy_turns},
                      {"parks", shard.parks},
                      {"lost_wakeups", shard.lost_wakeups},
                      {"stalls", shard.stalls},
                      {"fiber_switches", shard.fiber_switches},
                      {"stack_bytes_peak", shard.stack_bytes_peak}});
  }
  return shards;
}

}  // namespace tidelock::tools
