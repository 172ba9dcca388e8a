#include <algorithm>
#include <bit>
#include <csignal>
#include <set>

#include <tidelock/engine/errc.h>
#include <tidelock/engine/options.h>

namespace tidelock {
namespace {

Error bad(const char* option, const std::string& value, const std::string& range) {
  return Error(EngineErrc::bad_option,
               std::string("Options::") + option + " is " + value + "; it must be " + range);
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
  TL_TRY(in_range("max_fibers", o.max_fibers, 16, 65'536));
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
  const bool replica = o.role == NodeRole::replica;
  if (replica && o.primary.empty()) {
    return bad("primary", "empty", "the primary's `listen` path, since this node is a replica");
  }
  if (!replica && !o.primary.empty()) {
    return bad("primary", '"' + o.primary + '"', "empty on a primary; did you mean `role` replica?");
  }
  if (replica && !o.listen.empty()) {
    return bad("listen", '"' + o.listen + '"', "empty on a replica, which takes no replicas of its own");
  }
  TL_TRY(socket_path("listen", o.listen));
  TL_TRY(socket_path("primary", o.primary));
  if (o.ack != AckLevel::local && o.ack != AckLevel::received && o.ack != AckLevel::applied) {
    return bad("ack", std::to_string(static_cast<int>(o.ack)), "local, received or applied");
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
