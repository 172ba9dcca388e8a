#include <algorithm>
#include <bit>
#include <charconv>
#include <csignal>
#include <set>
#include <string>

#include <arpa/inet.h>

#include <tidelock/engine/errc.h>
#include <tidelock/engine/options.h>

namespace tidelock {
namespace {

Error bad(const char* option, const std::string& value, const std::string& range) {
  return Error(EngineErrc::bad_option,
               std::string("Options::") + option + " is " + value + "; it must be " + range);
}

/// As people will read it in a log: whatever does not print is a '?'.
std::string quoted(const std::string& text) {
  constexpr std::size_t kShown = 80;
  std::string shown = '"' + text.substr(0, kShown);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return shown + (text.size() > kShown ? "...\"" : "\"");
}

Status in_range(const char* option, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return bad(option, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
}

Status power_of_two(const char* option, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (std::has_single_bit(value) && value >= least && value <= most) return {};
  return bad(option, std::to_string(value),
             "a power of two, " + std::to_string(least) + " to " + std::to_string(most));
}

Status lasts(const char* option, Duration value, Duration least, Duration most) {
  if (value >= least && value <= most) return {};
  return bad(option, std::to_string(value.ns) + " ns",
             std::to_string(least.ns) + " to " + std::to_string(most.ns) + " ns");
}

/// sun_path holds 108 bytes, one of them the terminator (unix(7)).
Status socket_path(const char* option, const std::string& path) {
  constexpr std::size_t kPathBytesMax = 107;
  if (path.size() > kPathBytesMax) {
    return bad(option, std::to_string(path.size()) + " bytes long",
               "at most " + std::to_string(kPathBytesMax));
  }
  if (path == "@") return bad(option, "\"@\"", "a path, or '@' and a name");
  if (path.find('\0') != std::string::npos) return bad(option, "a name with a NUL byte", "one without");
  return {};
}

/// An address that one machine has: dotted decimal, not 0.0.0.0.
bool is_ipv4(const std::string& text) {
  in_addr address{};
  return text.find('\0') == std::string::npos && ::inet_pton(AF_INET, text.c_str(), &address) == 1 &&
         address.s_addr != INADDR_ANY;
}

bool is_port(const std::string& text) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, port);
  return code == std::errc{} && rest == end && port != 0;
}

Status ipv4_endpoint(const char* option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos && is_ipv4(text.substr(0, colon)) && is_port(text.substr(colon + 1))) {
    return {};
  }
  return bad(option, quoted(text),
             "an IPv4 address of the primary's RDMA device and a port from 1 to 65535, such as "
             "\"10.0.0.1:7471\", since `link` is verbs; `rdma link` and `ip address` show what there is");
}

/// An ibv_device has a name of at most 63 bytes (IBV_SYSFS_NAME_MAX).
Status device_name(const std::string& name) {
  constexpr std::size_t kDeviceBytesMax = 63;
  const bool odd = name.find('/') != std::string::npos || name.find('\0') != std::string::npos;
  if (name.size() <= kDeviceBytesMax && !odd) return {};
  return bad("device", quoted(name), "a name that `ibv_devices` lists, such as \"mlx5_0\", or empty");
}

/// An option that a group has no use for.
Status unused(const char* option, bool as_is, const std::string& value) {
  if (as_is) return {};
  return bad(option, value, "left alone in a group (`nodes`), whose nodes find their primary themselves");
}

Status group_addresses(const Options& o) {
  std::set<std::uint32_t> numbers;
  std::set<std::string> addresses;
  for (const NodeAddress& node : o.nodes) {
    const std::string what = "a list with node " + std::to_string(node.node);
    if (node.node == 0) return bad("nodes", what, "a list of numbers from 1 on");
    if (!numbers.insert(node.node).second) return bad("nodes", what + " twice", "without repetition");
    if (node.address.empty()) return bad("nodes", what + " without its address", "node=address for each");
    if (!addresses.insert(node.address).second) {
      return bad("nodes", "a list with the address " + quoted(node.address) + " twice", "without repetition");
    }
    TL_TRY(o.link == LinkKind::verbs ? ipv4_endpoint("nodes", node.address)
                                     : socket_path("nodes", node.address));
  }
  if (numbers.count(o.node) == 0) {
    return bad("nodes", "a list without node " + std::to_string(o.node),
               "all nodes of the group, this one (`node`), too");
  }
  return {};
}

Status validate_group(const Options& o) {
  TL_TRY(in_range("nodes.size()", o.nodes.size(), 1, kAckReplicasMax + 1));
  TL_TRY(unused("role", o.role == NodeRole::primary, "replica"));
  TL_TRY(unused("listen", o.listen.empty(), quoted(o.listen)));
  TL_TRY(unused("primary", o.primary.empty(), quoted(o.primary)));
  TL_TRY(unused("local_address", o.local_address.empty(), quoted(o.local_address)));
  TL_TRY(unused("reconnect", o.reconnect, "false"));
  TL_TRY(unused("apply_policy", o.apply_policy == nullptr, "set"));
  TL_TRY(group_addresses(o));
  if (o.c) TL_TRY(in_range("c", *o.c, 0, o.nodes.size() - 1));
  return lasts("lease", o.lease, milliseconds(100), seconds(60));
}

Status shm_addresses(const Options& o) {
  const auto of_verbs = [](const char* option, const std::string& value) -> Status {
    if (value.empty()) return {};
    return bad(option, quoted(value), "empty unless `link` is verbs");
  };
  TL_TRY(of_verbs("device", o.device));
  TL_TRY(of_verbs("local_address", o.local_address));
  TL_TRY(socket_path("listen", o.listen));
  return socket_path("primary", o.primary);
}

Status verbs_addresses(const Options& o) {
  TL_TRY(device_name(o.device));
  if (!o.listen.empty()) TL_TRY(ipv4_endpoint("listen", o.listen));
  if (!o.primary.empty()) TL_TRY(ipv4_endpoint("primary", o.primary));
  if (o.local_address.empty()) return {};
  if (o.role != NodeRole::replica) {
    return bad("local_address", quoted(o.local_address),
               "empty on a primary, whose address stands in `listen`");
  }
  if (is_ipv4(o.local_address)) return {};
  return bad("local_address", quoted(o.local_address),
             "an IPv4 address of this machine's RDMA device, such as \"10.0.0.2\", or empty");
}

Status validate_cores(const Options& o) {
  TL_TRY(in_range("shards", o.shards, 1, 256));
  if (!o.cpus.empty() && o.cpus.size() != o.shards) {
    return bad("cpus", std::to_string(o.cpus.size()) + " CPUs",
               "empty or one for each of the " + std::to_string(o.shards) + " shards");
  }
  if (std::set<std::uint32_t>(o.cpus.begin(), o.cpus.end()).size() != o.cpus.size() && !o.overprovisioned) {
    return bad("cpus", "a list with a CPU twice", "without repetition, unless `overprovisioned` is set");
  }
  TL_TRY(lasts("spin", o.spin, Duration{0}, seconds(1)));
  TL_TRY(in_range("ring_entries", o.ring_entries, 8, 32'768));
  TL_TRY(in_range("max_fibers", o.max_fibers, 16, kFibersMax));
  TL_TRY(power_of_two("mailbox.lane_slots", o.mailbox.lane_slots, 4, 65'536));
  if (o.stall_signal != 0 && (o.stall_signal < SIGRTMIN || o.stall_signal > SIGRTMAX)) {
    return bad("stall_signal", std::to_string(o.stall_signal),
               "0 or " + std::to_string(SIGRTMIN) + " to " + std::to_string(SIGRTMAX));
  }
  return {};
}

Status validate_replication(const Options& o) {
  if (o.role != NodeRole::primary && o.role != NodeRole::replica) {
    return bad("role", std::to_string(static_cast<int>(o.role)), "primary or replica");
  }
  TL_TRY(in_range("node", o.node, 1, 0xffff'ffffU));
  if (o.link != LinkKind::shm && o.link != LinkKind::verbs) {
    return bad("link", std::to_string(static_cast<int>(o.link)), "shm or verbs");
  }
  if (o.in_group()) TL_TRY(validate_group(o));
  const bool replica = o.role == NodeRole::replica;
  if (replica && o.primary.empty()) {
    return bad("primary", "empty", "the primary's `listen` address, since this node is a replica");
  }
  if (!replica && !o.primary.empty()) {
    return bad("primary", quoted(o.primary), "empty on a primary; did you mean `role` replica?");
  }
  if (replica && !o.listen.empty()) {
    return bad("listen", quoted(o.listen), "empty on a replica, which takes no replicas of its own");
  }
  TL_TRY(socket_path("inspect", o.inspect));
  TL_TRY(o.link == LinkKind::verbs ? verbs_addresses(o) : shm_addresses(o));
  if (o.ack != AckLevel::local && o.ack != AckLevel::received && o.ack != AckLevel::applied) {
    return bad("ack", std::to_string(static_cast<int>(o.ack)), "local, received or applied");
  }
  if (o.c) {
    TL_TRY(in_range("c", *o.c, 0, kAckReplicasMax));
    if (replica) return bad("c", std::to_string(*o.c), "empty on a replica; its primary's counts");
    if (o.listen.empty() && *o.c > 0 && !o.in_group()) {
      return bad("c", std::to_string(*o.c),
                 "0 or empty on a primary without `listen`, which has no replicas");
    }
  }
  TL_TRY(lasts("write_timeout", o.write_timeout, milliseconds(1), seconds(3600)));
  TL_TRY(lasts("read_timeout", o.read_timeout, milliseconds(1), seconds(3600)));
  TL_TRY(power_of_two("log_bytes", o.log_bytes, 64ULL << 10, 64ULL << 30));
  TL_TRY(power_of_two("ring_bytes", o.ring_bytes, 256ULL << 10, 1ULL << 30));
  TL_TRY(lasts("heartbeat", o.heartbeat, milliseconds(1), seconds(60)));
  TL_TRY(lasts("link_timeout", o.link_timeout, o.heartbeat * 2, seconds(3600)));
  return lasts("connect_timeout", o.connect_timeout, milliseconds(1), seconds(3600));
}

}  // namespace

const std::string& Options::listen_address() const {
  const auto own =
      std::find_if(nodes.begin(), nodes.end(), [this](const NodeAddress& one) { return one.node == node; });
  return own == nodes.end() ? listen : own->address;
}

std::uint32_t Options::batch_bytes_max() const {
  const std::uint64_t of_link = ring_bytes / 4 - kFrameHeaderBytes;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>({log_bytes / 4, of_link, kGroupBytesMax}));
}

Status Options::validate() const {
  TL_TRY(validate_cores(*this));
  TL_TRY(validate_replication(*this));
  TL_TRY(in_range("value_bytes_max", value_bytes_max, 0, kValueBytesMax));
  return in_range("host_slots", host_slots, 1, 65'534);
}

}  // namespace tidelock
