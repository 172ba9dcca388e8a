/// What an engine counts. Reading costs no round trip through a reactor.
/// Thread:   any
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>

namespace tidelock {

/// A node's part in a shard's group.
enum class GroupRole : std::uint8_t {
  none,       ///< no group, or in one whose primary this node has not found
  following,  ///< it takes what the primary writes
  leading,    ///< it is the primary
};

/// Of one shard, as this node sees it.
struct ShardRole {
  ShardId shard{};
  GroupRole role = GroupRole::none;
  /// It has all that it may ever have acknowledged or promised: it can be read, and promoted. False from a
  /// start until it has learned that from others.
  bool memory = false;
  HistoryId history{};           ///< 0: of none yet
  Epoch epoch{};                 ///< led or followed; without a role the newest that it has promised
  std::uint32_t leader = 0;      ///< the primary's node; 0: not known
  Lsn commit_lsn{};              ///< what no later primary lacks, as far as this node knows
  std::uint64_t role_count = 0;  ///< changes of role
};

struct ShardStats {
  ShardId shard{};
  ShardRole group;  ///< outside of groups: nothing
  std::uint64_t keys = 0;
  /// Taken by the table: segments, slabs, extents; while there are two, for a snapshot, by both.
  std::uint64_t memory_bytes = 0;
  std::uint64_t puts = 0, gets = 0, erases = 0;
  std::uint64_t last_lsn = 0;                       ///< primary: appended; replica: applied
  std::uint64_t received_lsn = 0, applied_lsn = 0;  ///< primary: the furthest replica's; replica: its own
  std::uint64_t replicas = 0;                       ///< primary: whole ones; replica: 1 while it follows
  std::uint64_t snapshots = 0;  ///< primary: whole at a replica; replica: in place of what was there
  std::uint64_t links_lost = 0;
  std::uint64_t batches = 0, batch_bytes = 0;
  std::uint64_t outcome_unknown = 0;
  std::uint64_t peer_wakeups = 0;
  std::uint64_t turns = 0, busy_turns = 0, parks = 0, lost_wakeups = 0, stalls = 0;
  std::uint64_t fiber_switches = 0, fibers_live = 0, stack_bytes_peak = 0;
};

struct LinkTransitionInfo {
  std::string state;
  std::uint64_t age_ns = 0;
  std::string detail;
};

/// The link of a shard to one peer: the one there is, or the last there was. Its counters begin anew with
/// each generation; of a closed link they are as last seen, and so is its age.
struct LinkInfo {
  ShardId shard{};
  std::uint32_t peer_node = 0;
  std::string kind;         ///< "shm", "verbs"
  std::string state;        ///< "attached", "closed"; at a replica also "reconnecting", "given up"
  std::string description;  ///< kind and, where there are several, device and endpoints
  std::uint32_t generation = 0;
  std::uint64_t batches_out = 0, batches_in = 0;
  std::uint64_t bytes_out = 0, bytes_in = 0;
  std::uint64_t control_out = 0, control_in = 0;
  std::uint64_t peer_wakeups = 0;  ///< system calls spent to wake a parked peer
  std::uint64_t full = 0;          ///< batches that had to wait for the peer
  std::uint64_t last_heard_age_ns = 0;
  /// At most 16, oldest first; those of links before this one, too.
  std::vector<LinkTransitionInfo> transitions;
};

struct EngineStats {
  std::vector<ShardStats> shards;
  /// One line for each thing that the kernel lacks and what is done instead.
  std::vector<std::string> notices;
  /// What went wrong lately: lost and refused links, at most 64 lines, oldest first.
  std::vector<std::string> events;
};

}  // namespace tidelock
