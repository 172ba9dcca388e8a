#include "doctor_uring.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

namespace tidelock::tools {
namespace {

constexpr const char* kNewKernel = "sudo apt-get install linux-image-amd64 && sudo reboot";

struct Version {
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
  [[nodiscard]] bool before(std::uint64_t wanted_major, std::uint64_t wanted_minor) const {
    return std::pair{major, minor} < std::pair{wanted_major, wanted_minor};
  }
};

/// "6.1.0-28-amd64" and the like.
std::optional<Version> version_of(const std::string& release) {
  const auto dot = release.find('.');
  if (dot == std::string::npos) return {};
  const auto end = release.find_first_not_of("0123456789", dot + 1);
  const auto major = to_number(std::string_view(release).substr(0, dot));
  const auto minor = to_number(std::string_view(release).substr(
      dot + 1, end == std::string::npos ? std::string::npos : end - dot - 1));
  if (!major || !minor || *major > 99) return {};
  return Version{*major, *minor};
}

bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// The engine's message names the remedy in words; this is the command.
std::string fix_of(const std::string& error) {
  if (says(error, "io_uring_disabled")) return "sudo sysctl -w kernel.io_uring_disabled=0";
  if (says(error, "memlock")) return "sudo prlimit --pid $$ --memlock=unlimited:unlimited";
  if (says(error, "nofile")) return "ulimit -n 65536";
  if (says(error, "is not permitted")) return "docker run --security-opt seccomp=unconfined ...";
  return kNewKernel;
}

Check feature(const char* name, const UringProbe& probe, bool present, const char* since, const char* why,
              const char* without) {
  if (probe.rings == 0) return unknown(name, "there is no ring to ask", why);
  if (present) return good(name, "present", why);
  return {name, CheckStatus::warning, fmt::format("missing ({}): {}", since, without), why, kNewKernel};
}

}  // namespace

UringProbe probe_uring(std::uint32_t rings, std::uint32_t entries) {
  UringProbe probe;
  std::vector<std::unique_ptr<UringBackend>> made;
  for (; probe.rings < rings; ++probe.rings) {
    auto ring = UringBackend::create({.entries = entries});
    if (!ring) {
      probe.error = ring.error().message();
      break;
    }
    probe.features = (*ring)->features();
    made.push_back(*std::move(ring));
  }
  return probe;
}

Checks check_kernel(const SystemFiles& files) {
  const char* const name = "kernel";
  const char* const why = "the engine needs io_uring as of Linux 5.11 and is at its best from 6.13 on";
  const auto release = files.line("proc/sys/kernel/osrelease");
  if (!release) return {unknown(name, "no /proc/sys/kernel/osrelease", why)};
  const auto version = version_of(*release);
  if (!version) return {unknown(name, *release, why)};
  if (version->before(5, 11)) return {{name, CheckStatus::error, *release, why, kNewKernel}};
  if (version->before(6, 0)) return {{name, CheckStatus::warning, *release, why, kNewKernel}};
  return {good(name, *release, why)};
}

Checks check_uring(const SystemFiles& files, const UringProbe& probe, std::uint32_t shards) {
  const char* const why = "each reactor sleeps, wakes others and polls descriptors by a ring of its own";
  const auto disabled = files.number("proc/sys/kernel/io_uring_disabled");
  const std::string sysctl = disabled ? fmt::format("kernel.io_uring_disabled={}", *disabled)
                                      : "no kernel.io_uring_disabled: nothing forbids it";
  Checks checks;
  if (probe.rings >= shards) {
    checks.push_back(good("io_uring", fmt::format("{} made, {}", counted(probe.rings, "ring"), sysctl), why));
  } else {
    checks.push_back({"io_uring", CheckStatus::error,
                      fmt::format("{} of {} rings made: {}", probe.rings, shards, probe.error), why,
                      fix_of(probe.error)});
  }
  const UringFeatures& got = probe.features;
  checks.push_back(feature("io_uring SINGLE_ISSUER", probe, got.single_issuer, "Linux 6.0",
                           "no lock for a ring that one thread uses",
                           "the kernel takes its submission lock at each entry"));
  checks.push_back(feature("io_uring COOP_TASKRUN", probe, got.coop_taskrun, "Linux 5.19",
                           "completions wait until the reactor looks",
                           "the kernel interrupts the core for each completion"));
  checks.push_back(feature("io_uring TASKRUN_FLAG", probe, got.taskrun_flag, "Linux 5.19",
                           "the reactor sees by a flag that completions wait",
                           "COOP_TASKRUN cannot be used either"));
  checks.push_back(feature("io_uring MSG_RING", probe, got.msg_ring, "Linux 5.18",
                           "a reactor wakes another by one entry in its own ring",
                           "an eventfd wakes parked reactors"));
  checks.push_back(feature("io_uring SEND_MSG_RING", probe, got.host_msg_ring, "Linux 6.13",
                           "a thread of the application wakes a reactor with no ring of its own",
                           "threads of the application wake parked reactors by an eventfd"));
  checks.push_back(feature("io_uring multishot poll", probe, got.multishot_poll, "Linux 5.13",
                           "one request watches a descriptor for good", "each event re-arms its poll"));
  return checks;
}

}  // namespace tidelock::tools
