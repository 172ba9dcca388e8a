#include "side_messages.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <span>
#include <string>

#include <tidelock/reactor/histogram.h>

namespace tidelock::tools {
namespace {

constexpr std::array kAllCounters{"keys",       "loaded",           "reads",   "writes", "failed",
                                  "receipts",   "receipts_skipped", "checked", "stale",  "wrong",
                                  "unverified", "digest_keys",      "last_lsn"};
constexpr std::array kAllHistograms{"ack_ns", "check_delay_ns"};
constexpr std::array kAllTexts{"digest", "first_error", "first_violation"};
/// Not digest_keys, nor the digest: a node that could not compute it leaves it out, and has failed.
constexpr std::array kPrimaryCounters{"keys",     "loaded",           "reads",   "writes", "failed",
                                      "receipts", "receipts_skipped", "last_lsn"};
constexpr std::array kReplicaCounters{"checked", "stale", "wrong", "unverified", "last_lsn"};

Error bad(const std::string& what) { return Error::from_errno(EBADMSG, "the other machine sends " + what); }

bool is_number(const nlohmann::json& json, const char* name, std::uint64_t most = ~0ULL) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_unsigned() && found->get<std::uint64_t>() <= most;
}

bool is_text(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string();
}

bool is_histogram(const nlohmann::json& json) {
  if (!json.is_object() || !json.contains("buckets") || !json["buckets"].is_array()) return false;
  if (json["buckets"].size() > Histogram::kBuckets || json.size() != 4) return false;
  for (const auto& bucket : json["buckets"]) {
    const bool good = bucket.is_array() && bucket.size() == 2 && bucket[0].is_number_unsigned() &&
                      bucket[1].is_number_unsigned() && bucket[0].get<std::uint64_t>() < Histogram::kBuckets;
    if (!good) return false;
  }
  return is_number(json, "min") && is_number(json, "max") && is_number(json, "sum");
}

bool between(double value, double least, double most) { return value >= least && value <= most; }

Status check_ranges(const RunOptions& run) {
  const bool good = run.shards >= 1 && run.shards <= 256 && between(run.timeout_s, 0.001, 3'600) &&
                    between(run.duration_s, 0, 86'400) && between(run.read_ratio, 0, 1) &&
                    run.in_flight >= 1 && run.in_flight <= 10'000 && run.value_bytes <= kValueBytesMax &&
                    run.ack <= AckLevel::applied && run.link <= LinkKind::verbs;
  return good ? Status() : Status(bad("a run whose numbers are out of range"));
}

}  // namespace

nlohmann::json side_hello() { return {{"tidelock", "side channel"}, {"version", kSideVersion}}; }

Status check_side_hello(const nlohmann::json& hello) {
  if (!is_text(hello, "tidelock") || hello["tidelock"] != "side channel" || !is_number(hello, "version"))
    return bad("no hello");
  if (hello["version"] != kSideVersion) {
    return bad("version " + std::to_string(hello["version"].get<std::uint64_t>()) +
               " of the side channel, this is version " + std::to_string(kSideVersion) +
               ": use the same tidelock on both");
  }
  return {};
}

nlohmann::json side_config(const NodeConfig& config, std::uint64_t dataset_bytes) {
  nlohmann::json json = side_hello();
  json["run"] = to_json(config);
  json["dataset_bytes"] = dataset_bytes;
  return json;
}

Result<SideConfig> side_config_from(const nlohmann::json& json, const RunOptions& ours) {
  TL_TRY(check_side_hello(json));
  if (!is_number(json, "dataset_bytes", kSideDatasetBytesMax)) return bad("an input that is too large");
  SideConfig side;
  side.dataset_bytes = json["dataset_bytes"];
  try {
    side.config = node_config_from(json.at("run"));
  } catch (const nlohmann::json::exception&) {
    return bad("a run that makes no sense");
  }
  RunOptions& run = side.config.run;
  TL_TRY(check_ranges(run));
  side.config.role = NodeRole::replica;
  side.config.cpus.clear();
  run.wake = ours.wake;
  run.device = ours.device;
  run.replica_address = ours.replica_address;
  if (!ours.primary_address.empty()) run.primary_address = ours.primary_address;
  run.role = RunRole::replica;
  run.side_channel = ours.side_channel;
  run.output = ours.output;
  run.json = ours.json;
  run.command = ours.command;
  return side;
}

Status check_shard_result(const nlohmann::json& result, std::uint32_t shards, NodeRole role) {
  if (!result.is_object() || !is_number(result, "shard", shards - 1)) return bad("a result of no shard");
  // Sums of so many must not wrap around, whatever another machine says.
  constexpr std::uint64_t kCountMax = 1ULL << 53;
  const auto one_of = [](const std::string& name, std::span<const char* const> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  // Results are kept until the end, so nothing else may come with them.
  for (const auto& [name, value] : result.items()) {
    bool good = name == "shard";
    if (one_of(name, kAllHistograms)) good = is_histogram(value);
    if (one_of(name, kAllTexts)) good = value.is_string();
    if (one_of(name, kAllCounters))
      good = value.is_number_unsigned() && value.get<std::uint64_t>() <= kCountMax;
    if (!good) return bad("a result whose " + name.substr(0, 40) + " makes no sense");
  }
  const std::span<const char* const> counted =
      role == NodeRole::primary ? std::span<const char* const>(kPrimaryCounters) : kReplicaCounters;
  for (const char* number : counted) {
    if (!result.contains(number)) return bad(std::string("a result without its ") + number);
  }
  return {};
}

Status check_finish(const nlohmann::json& message, std::uint32_t shards) {
  const auto lsns = message.find("last_lsns");
  bool good = lsns != message.end() && lsns->is_array();
  for (const auto& entry : good ? *lsns : nlohmann::json::array())
    good = good && entry.is_object() && is_number(entry, "shard", shards - 1) && is_number(entry, "lsn");
  return good ? Status() : Status(bad("a command that makes no sense"));
}

Status check_node_message(const nlohmann::json& message, std::uint32_t shards) {
  if (!is_text(message, "event")) return bad("a message without an event");
  const std::string event = message["event"];
  if (event == "shard") {
    if (!message.contains("result") || !message["result"].contains("check_delay_ns"))
      return bad("a shard without its result");
    return check_shard_result(message["result"], shards, NodeRole::replica);
  }
  bool good = event == "result";
  if (event == "progress") good = is_number(message, "checked") && is_number(message, "stale");
  if (event == "notice") good = is_text(message, "text");
  if (event == "ended") good = is_text(message, "how");
  if (event == "error") good = is_text(message, "message");
  if (event == "ready") {
    good = message.contains("notices") && message["notices"].is_array();
    for (const auto& notice : good ? message["notices"] : nlohmann::json::array())
      good = good && notice.is_string();
  }
  return good ? Status() : Status(bad("a message that makes no sense: " + event.substr(0, 40)));
}

}  // namespace tidelock::tools
