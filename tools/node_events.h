/// What both kinds of node tell their parent besides their results.
#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include <tidelock/engine/engine.h>

#include "node_channel.h"

namespace tidelock::tools {

/// Passes each of an engine's events on once.
class EventForwarder {
 public:
  Status forward(const Engine& engine, NodeChannel& parent);

 private:
  std::string last_;
  std::size_t seen_ = 0;
};

/// What carries the node's links, in their own words; empty if there was none.
std::string link_text(const Engine& engine);
/// Where `tidelock link` finds the node whose process has this number.
std::string inspect_name(long pid);
/// 32 hexadecimal digits.
std::string digest_text(const Digest& digest);
nlohmann::json engine_stats_json(const EngineStats& stats);

}  // namespace tidelock::tools
