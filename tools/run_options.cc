#include "run_options.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include <nlohmann/json.hpp>

#include <tidelock/base/check.h>

namespace tidelock::tools {
namespace {

Duration from_seconds(double seconds) { return {static_cast<std::int64_t>(seconds * 1e9)}; }

}  // namespace

Status check_flags(const RunOptions& run) {
  const auto refuse = [](const std::string& text) { return Error::from_errno(EINVAL, text); };
  const bool replica = run.role == RunRole::replica;
  if (run.role == RunRole::both && !run.side_channel.empty())
    return refuse("--side-channel is for a run on two machines: add --role primary or --role replica");
  if (run.role != RunRole::both && run.side_channel.empty())
    return refuse("--role needs --side-channel IPv4:port, an address of the primary's machine, on both");
  if (replica && (!run.input.empty() || run.shards != 0))
    return refuse("--input and --shards are the primary's: leave them out with --role replica");
  if (replica) return {};  // what joins the two it hears from the primary
  if (run.link == LinkKind::verbs) {
    if (run.primary_address.empty()) {
      return refuse(
          "--link verbs needs --primary-address, the IPv4 address of an RDMA device (rdma link shows "
          "the devices, ip address their addresses)");
    }
    if (!run.socket.empty()) return refuse("--socket is for --link shm; verbs takes --primary-address");
  } else if (!run.device.empty() || !run.primary_address.empty() || !run.replica_address.empty()) {
    return refuse("--device, --primary-address and --replica-address are for --link verbs: add it");
  }
  return {};
}

const char* to_text(AckLevel level) {
  switch (level) {
    case AckLevel::local:
      return "local";
    case AckLevel::received:
      return "received";
    case AckLevel::applied:
      return "applied";
  }
  TL_ASSERT(false, "an ack level beyond the enumeration");
  return "";
}

const char* to_text(LinkKind kind) { return kind == LinkKind::verbs ? "verbs" : "shm"; }

nlohmann::json to_json(const NodeConfig& config) {
  const RunOptions& run = config.run;
  return {{"role", static_cast<int>(config.role)},
          {"cpus", config.cpus},
          {"overprovisioned", config.overprovisioned},
          {"shards", run.shards},
          {"ack", static_cast<int>(run.ack)},
          {"duration_s", run.duration_s},
          {"value_bytes", run.value_bytes},
          {"read_ratio", run.read_ratio},
          {"keys", static_cast<int>(run.keys)},
          {"seed", run.seed},
          {"in_flight", run.in_flight},
          {"wake", static_cast<int>(run.wake)},
          {"log_bytes", run.log_bytes},
          {"ring_bytes", run.ring_bytes},
          {"timeout_s", run.timeout_s},
          {"link", static_cast<int>(run.link)},
          {"socket", run.socket},
          {"device", run.device},
          {"primary_address", run.primary_address},
          {"replica_address", run.replica_address},
          {"port", run.port}};
}

NodeConfig node_config_from(const nlohmann::json& json) {
  NodeConfig config;
  config.role = static_cast<NodeRole>(json.at("role").get<int>());
  config.cpus = json.at("cpus").get<std::vector<std::uint32_t>>();
  config.overprovisioned = json.at("overprovisioned");
  config.run.shards = json.at("shards");
  config.run.ack = static_cast<AckLevel>(json.at("ack").get<int>());
  config.run.duration_s = json.at("duration_s");
  config.run.value_bytes = json.at("value_bytes");
  config.run.read_ratio = json.at("read_ratio");
  config.run.keys = static_cast<KeyDistribution>(json.at("keys").get<int>());
  config.run.seed = json.at("seed");
  config.run.in_flight = json.at("in_flight");
  config.run.wake = static_cast<WakeCarrier>(json.at("wake").get<int>());
  config.run.log_bytes = json.at("log_bytes");
  config.run.ring_bytes = json.at("ring_bytes");
  config.run.timeout_s = json.at("timeout_s");
  config.run.link = static_cast<LinkKind>(json.at("link").get<int>());
  config.run.socket = json.at("socket");
  config.run.device = json.at("device");
  config.run.primary_address = json.at("primary_address");
  config.run.replica_address = json.at("replica_address");
  config.run.port = json.at("port");
  return config;
}

Options engine_options(const NodeConfig& config) {
  Options options;
  options.role = config.role;
  options.node = config.role == NodeRole::primary ? 1 : 2;
  options.shards = config.run.shards;
  options.cpus = config.cpus;
  options.pin = !config.cpus.empty();
  options.overprovisioned = config.overprovisioned;
  options.wake = config.run.wake;
  options.link = config.run.link;
  options.device = config.run.device;
  const bool verbs = config.run.link == LinkKind::verbs;
  const bool primary = config.role == NodeRole::primary;
  (primary ? options.listen : options.primary) =
      verbs ? config.run.primary_address + ":" + std::to_string(config.run.port) : config.run.socket;
  if (!primary) options.local_address = config.run.replica_address;
  options.ack = config.run.ack;
  options.write_timeout = from_seconds(config.run.timeout_s);
  options.log_bytes = config.run.log_bytes;
  options.ring_bytes = config.run.ring_bytes;
  options.connect_timeout = seconds(20);
  // Whoever has patience with a write has it with a machine that stands still, too.
  const Duration patience{std::min(options.write_timeout.ns / 2, seconds(30).ns)};
  options.link_timeout = std::max(options.link_timeout, patience);
  options.max_fibers = config.run.in_flight + 256;
  return options;
}

}  // namespace tidelock::tools
