/// What the two parents of a run on two machines say to each other, and how each checks the other's word.
/// replica: {"tidelock", "version"}; primary: the run and {"dataset_bytes"}, then the input. Afterwards the
/// replica passes on what its node says (see node_replica.cc) and the primary what it tells a node; at the
/// end the primary says {"command":"shard","result"} for each shard of its own and
/// {"command":"result","result","interrupted","failures"}. The last that the replica says is how its node has
/// ended: {"event":"ended","how"}, empty if it ended well.
/// Errors:   EBADMSG names what is wrong
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>

#include "run_options.h"

namespace tidelock::tools {

inline constexpr int kSideVersion = 2;
inline constexpr std::uint64_t kSideDatasetBytesMax = 1ULL << 30;

nlohmann::json side_hello();
Status check_side_hello(const nlohmann::json& hello);

nlohmann::json side_config(const NodeConfig& config, std::uint64_t dataset_bytes);
struct SideConfig {
  NodeConfig config;
  std::uint64_t dataset_bytes = 0;
};
/// What the primary's machine wants to be run here; `ours` says what is this machine's own affair: cores,
/// device and addresses.
Result<SideConfig> side_config_from(const nlohmann::json& json, const RunOptions& ours);

/// A shard's result as make_report() reads it, with every number that a node of this role counts.
Status check_shard_result(const nlohmann::json& result, std::uint32_t shards, NodeRole role);
/// The primary's command to check what is left and to come to an end.
Status check_finish(const nlohmann::json& message, std::uint32_t shards);
/// A message of a replica's node.
Status check_node_message(const nlohmann::json& message, std::uint32_t shards);

}  // namespace tidelock::tools
