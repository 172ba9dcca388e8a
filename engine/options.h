/// Everything that a user decides about an engine. Defaults run on any Linux machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/primary.h>

namespace tidelock {

class ApplyPolicy;

/// What carries the links between nodes.
enum class LinkKind : std::uint8_t {
  shm,    ///< shared memory, between processes of one machine
  verbs,  ///< RDMA, between machines
};

/// A node of a group, and where it listens: as Options::listen.
struct NodeAddress {
  std::uint32_t node = 0;
  std::string address;
};

struct Options {
  NodeRole role = NodeRole::primary;
  /// Unique among the nodes of a history, >= 1. A replica's differs from its primary's and from other
  /// replicas': a number that is in use is refused.
  std::uint32_t node = 1;
  std::uint32_t shards = 1;  ///< 1 to 256, a reactor each; the same on all nodes

  // Cores: see ReactorGroupOptions.
  std::vector<std::uint32_t> cpus;  ///< one a shard; empty: chosen
  bool pin = true;
  bool overprovisioned = false;  ///< reactors share cores with others: none spins
  Duration spin = microseconds(200);
  WakeCarrier wake = WakeCarrier::automatic;
  std::uint32_t ring_entries = 256;  ///< io_uring submission entries, 8 to 32,768
  std::uint32_t max_fibers = 1024;   ///< a reactor
  MailboxOptions mailbox;
  int stall_signal = 0;  ///< a realtime signal for stall backtraces; 0: none

  // Replication.
  LinkKind link = LinkKind::shm;  ///< the same on all nodes
  /// Primary: where replicas connect; empty: no replicas. With shm a unix socket's path or "@name"
  /// (abstract), with verbs "IPv4:port": an address of the RDMA device, and a port from 1 to 65535.
  std::string listen;
  /// Replica: the primary's `listen`.
  std::string primary;
  /// Verbs: the RDMA device's name, as `ibv_devices` lists it; empty: the one that has the address.
  std::string device;
  /// Verbs, replica: the IPv4 address that it connects from; empty: chosen by the route to the primary.
  std::string local_address;
  /// Of writes that do not say. A primary without `listen` can have no replica: there it is local.
  AckLevel ack = AckLevel::applied;
  /// Primary: how many replicas must have applied a write before it is committed, 0 to 64, counted by node.
  /// With fewer connected all writes are refused. With it, a replica that stands in the way of a write
  /// because the log is full is dropped as long as so many others keep up, instead of holding the write up.
  /// Empty: no replica is needed, and the slowest one holds writes up until link_timeout. In a group: 0 to
  /// the number of others, the same at all nodes; empty: 1, and 0 in a group of one.
  std::optional<std::uint32_t> c;

  // A group of nodes, which find their primary themselves.
  /// All of its nodes, this one (`node`) included, with their addresses; up to 65. Empty: no group, and
  /// `role` says which part this node has. In a group `role`, `listen`, `primary` and `reconnect` stay as
  /// they are by default, and the nodes agree in numbers, shards, c, lease, log_bytes, ring_bytes and
  /// value_bytes_max: else they refuse each other.
  std::vector<NodeAddress> nodes;
  /// How long a primary may answer reads after it was heard of last; as long, a node that starts waits before
  /// it takes part. 100 ms to 60 s.
  Duration lease = seconds(2);
  /// It begins a new history once all nodes of the group are there and none holds anything.
  bool found = true;
  /// It stands for the primary's part by itself once it has missed one for link_timeout. Else an operator
  /// says who leads next: Engine::promote().
  bool failover = false;
  Duration write_timeout = seconds(5);
  Duration read_timeout = seconds(5);
  std::uint64_t log_bytes = 16ULL << 20;  ///< a shard; a power of two, 64 KiB to 64 GiB
  std::uint64_t ring_bytes = 4ULL << 20;  ///< a link; a power of two, 256 KiB to 1 GiB
  Duration heartbeat = milliseconds(100);
  /// A peer that says or takes nothing for so long is dropped. Several times what 64 KiB take on the link.
  Duration link_timeout = seconds(3);
  /// Replica: how long open() waits until all shards follow. In a group: until they do, or lead.
  Duration connect_timeout = seconds(5);
  bool reconnect = true;  ///< replica: with back-off, after a link was lost

  /// Where `tidelock link` can ask for Engine::links(): a unix socket's path (made with mode 0600) or "@name"
  /// (abstract; only this user and root are answered). Empty: nowhere. A path that cannot be had is an error
  /// of open(); an abstract name, which anybody may take, an event: the engine then does without.
  std::string inspect;

  // Data.
  std::uint32_t value_bytes_max = kValueBytesMax;  ///< 0 to 64 MiB
  std::uint64_t memory_bytes_max = 0;              ///< a shard's table; 0: no limit but the machine's
  std::uint64_t seed = 0;  ///< 0: from the kernel; reactors' Random and, on a primary, the routing seed
  std::uint32_t host_slots = 1024;  ///< operations of host threads in flight

  /// Tests only: plants a replica that acknowledges before it applies.
  const ApplyPolicy* apply_policy = nullptr;

  /// How many bytes a WriteBatch may have, encoded, for one shard: a quarter of the log, what one batch of a
  /// link takes (a quarter of its ring), or 1 MiB, whichever is least.
  [[nodiscard]] std::uint32_t batch_bytes_max() const;
  [[nodiscard]] bool in_group() const { return !nodes.empty(); }
  /// Of a group, once validated: `c` with its default.
  [[nodiscard]] std::uint32_t group_c() const { return c.value_or(nodes.size() > 1 ? 1 : 0); }
  /// Where this node listens, in a group or not; empty: nowhere.
  [[nodiscard]] const std::string& listen_address() const;
  /// Errors:   bad_option
  [[nodiscard]] Status validate() const;
};

}  // namespace tidelock
