#include "doctor_memory.h"

#include <bit>
#include <charconv>
#include <limits>

#include <fmt/format.h>
#include <sys/resource.h>

namespace tidelock::tools {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kPage = 4096;

/// Receives, messages and batch headers of a shard's connections; more than any shape of them takes.
constexpr std::uint64_t kArenaBytes = 1 << 20;
/// Ring, eventfd, listener, and of each link a socket, memory, device and channels.
constexpr std::uint64_t kDescriptorsOfShard = 16;
constexpr std::uint64_t kDescriptorsOfProcess = 64;
/// A stack and its guard page.
constexpr std::uint64_t kMapsOfFiber = 2;
constexpr std::uint64_t kMapsOfProcess = 4096;

std::string kib(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  return bytes >= 10 << 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} KiB", (bytes + 1023) >> 10);
}

/// capabilities(7). In a user namespace of its own a process has it in name only.
std::optional<bool> may_lock_all(const SystemFiles& files) {
  constexpr unsigned kIpcLock = 14;
  const auto text = files.field("proc/self/status", "CapEff");
  if (!text) return {};
  std::uint64_t set = 0;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), set, 16);
  if (error != std::errc{} || rest != text->data() + text->size()) return {};
  const auto map = files.text("proc/self/uid_map");
  const bool own_namespace = map && map->find("4294967295") == std::string::npos;
  return (set >> kIpcLock & 1) != 0 && !own_namespace;
}

std::string memlock_fix(const ProcessLimits::Limit& limit, std::uint64_t need) {
  if (limit.hard >= need)
    return limit.hard == kUnlimited ? "ulimit -l unlimited" : fmt::format("ulimit -l {}", limit.hard / 1024);
  return "sudo prlimit --pid $$ --memlock=unlimited:unlimited";
}

Check check_memlock(const SystemFiles& files, const MemorySituation& situation, const DoctorNeeds& needs) {
  const char* const name = "memlock limit";
  const char* const why =
      "rings, and with verbs all that a device reads and writes, are charged to it; services have "
      "LimitMEMLOCK=, containers --ulimit memlock=";
  const auto& limit = situation.limits.memlock_bytes;
  const std::uint64_t shm = locked_bytes(needs, false);
  const std::uint64_t verbs = locked_bytes(needs, true);
  const std::string value = fmt::format("{}; {} take {} with shm, {} with verbs", kib(limit.soft),
                                        counted(needs.shards, "shard"), kib(shm), kib(verbs));
  if (may_lock_all(files) == true) return good(name, value + "; CAP_IPC_LOCK: it does not bind", why);
  if (limit.soft < shm && !needs.verbs()) {
    // Not every kernel charges rings: what it did a moment ago decides.
    return {name, situation.rings_work ? CheckStatus::warning : CheckStatus::error, value, why,
            memlock_fix(limit, shm)};
  }
  if (limit.soft < verbs && (needs.verbs() || situation.rdma_present))
    return {name, needs.if_verbs(), value, why, memlock_fix(limit, verbs)};
  return good(name, value, why);
}

Check check_transparent(const SystemFiles& files) {
  const char* const name = "transparent huge pages";
  const char* const why = "tables and logs ask for them (madvise): fewer TLB misses";
  const char* const path = "sys/kernel/mm/transparent_hugepage/enabled";
  const auto line = files.line(path);
  if (!line) return unknown(name, fmt::format("no /{}", path), why);
  if (line->find("[always]") != std::string::npos) return good(name, "always", why);
  if (line->find("[madvise]") != std::string::npos) return good(name, "madvise", why);
  if (line->find("[never]") == std::string::npos) return unknown(name, *line, why);
  return {name, CheckStatus::warning, "never", why, fmt::format("echo madvise | sudo tee /{}", path)};
}

Check check_reserved(const SystemFiles& files) {
  const char* const name = "reserved huge pages";
  const char* const why = "none is needed: the engine asks for transparent ones";
  const auto text = files.field("proc/meminfo", "HugePages_Free");
  const auto free = text ? to_number(*text) : std::nullopt;
  if (!free) return unknown(name, "no HugePages_Free in /proc/meminfo", why);
  const auto size = files.field("proc/meminfo", "Hugepagesize");
  return good(name, fmt::format("HugePages_Free {}, of {}", *free, size.value_or("unknown size")), why);
}

Check check_maps(const SystemFiles& files, const DoctorNeeds& needs) {
  const char* const name = "vm.max_map_count";
  const char* const why = "a fiber's stack and its guard page are two mappings: beyond it spawning fails";
  const auto count = files.number("proc/sys/vm/max_map_count");
  if (!count) return unknown(name, "no number in /proc/sys/vm/max_map_count", why);
  const std::uint64_t need = kMapsOfProcess + kMapsOfFiber * needs.shards * needs.max_fibers;
  const std::string value = fmt::format("{}; {} of {} fibers take up to {}", *count,
                                        counted(needs.shards, "shard"), needs.max_fibers, need);
  if (*count >= need) return good(name, value, why);
  return {name, CheckStatus::warning, value, why,
          fmt::format("sudo sysctl -w vm.max_map_count={}", std::bit_ceil(need))};
}

Check check_descriptors(const ProcessLimits& limits, const DoctorNeeds& needs) {
  const char* const name = "open files limit";
  const char* const why = "a shard has a ring, an eventfd, and a socket and memory for each link";
  const std::uint64_t need = kDescriptorsOfProcess + kDescriptorsOfShard * needs.shards;
  const auto& limit = limits.descriptors;
  const std::string value =
      fmt::format("{}; {} take up to {}", limit.soft == kUnlimited ? "unlimited" : std::to_string(limit.soft),
                  counted(needs.shards, "shard"), need);
  if (limit.soft >= need) return good(name, value, why);
  const std::string fix = limit.hard >= need
                              ? fmt::format("ulimit -n {}", need)
                              : fmt::format("sudo prlimit --pid $$ --nofile={0}:{0}", std::bit_ceil(need));
  return {name, CheckStatus::error, value, why, fix};
}

ProcessLimits::Limit limit_of(__rlimit_resource which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return {};
  const auto number = [](rlim_t value) { return value == RLIM_INFINITY ? kUnlimited : std::uint64_t{value}; };
  return {number(limit.rlim_cur), number(limit.rlim_max)};
}

}  // namespace

ProcessLimits process_limits() { return {limit_of(RLIMIT_MEMLOCK), limit_of(RLIMIT_NOFILE)}; }

std::uint64_t locked_bytes(const DoctorNeeds& needs, bool verbs) {
  // io_uring_setup(2): 64 bytes an SQE, 16 a CQE of which there are twice as many, 4 for each place in the
  // queue.
  const std::uint64_t entries = std::bit_ceil(std::uint64_t{needs.ring_entries});
  const auto pages = [](std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; };
  const std::uint64_t ring = pages(entries * 64) + pages(entries * 2 * 16 + entries * 4 + 512);
  return needs.shards * (ring + (verbs ? needs.log_bytes + needs.ring_bytes + kArenaBytes : 0));
}

Checks check_memory(const SystemFiles& files, const MemorySituation& situation, const DoctorNeeds& needs) {
  return {check_memlock(files, situation, needs), check_transparent(files), check_reserved(files),
          check_maps(files, needs), check_descriptors(situation.limits, needs)};
}

}  // namespace tidelock::tools
