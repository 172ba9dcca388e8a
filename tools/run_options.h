/// What `tidelock run` was asked to do. Travels to the two nodes as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <tidelock/engine/options.h>

#include "dataset.h"
#include "key_chooser.h"

namespace tidelock::tools {

/// Which of the two nodes this command starts.
enum class RunRole : std::uint8_t { both, primary, replica };

struct RunOptions {
  std::string input;  ///< empty: the dpkg database, else seeded data
  InputFormat format = InputFormat::tsv;
  std::uint32_t shards = 0;  ///< 0: half of the usable CPUs, at least 1
  AckLevel ack = AckLevel::applied;
  double duration_s = 5;
  std::uint64_t checks = 0;  ///< end early once so many receipts were checked; 0: never
  std::uint32_t value_bytes = 128;
  double read_ratio = 0.5;
  KeyDistribution keys = KeyDistribution::uniform;
  std::uint64_t seed = 1;
  std::uint32_t in_flight = 32;  ///< operations in flight, a shard
  bool pin = false;
  bool overprovisioned = false;
  WakeCarrier wake = WakeCarrier::automatic;
  std::uint64_t log_bytes = 16ULL << 20;
  std::uint64_t ring_bytes = 4ULL << 20;
  double timeout_s = 5;  ///< of one write
  LinkKind link = LinkKind::shm;
  std::string socket;           ///< shm: empty: an abstract one of its own
  std::string device;           ///< verbs: the RDMA device's name; empty: by address
  std::string primary_address;  ///< verbs: IPv4, where the primary listens
  std::string replica_address;  ///< verbs: IPv4, from where the replica connects; empty: by route
  std::uint16_t port = 7471;    ///< verbs
  RunRole role = RunRole::both;
  std::string side_channel;  ///< with one role only: "IPv4:port" at the primary
  std::string output;        ///< empty: standard output
  bool json = false;
  std::string command;  ///< as typed, for the report
};

/// What one node process is told.
struct NodeConfig {
  RunOptions run;
  NodeRole role = NodeRole::primary;
  std::vector<std::uint32_t> cpus;  ///< empty: not pinned
  bool overprovisioned = false;
};

/// Whether the flags of the link and of --role go together.
/// Errors:   EINVAL: one line that names the flag and the remedy
Status check_flags(const RunOptions& run);

const char* to_text(AckLevel level);
const char* to_text(LinkKind kind);

nlohmann::json to_json(const NodeConfig& config);
/// From our own parent; aborts on nonsense.
NodeConfig node_config_from(const nlohmann::json& json);

/// The engine's options of a node.
Options engine_options(const NodeConfig& config);

}  // namespace tidelock::tools
