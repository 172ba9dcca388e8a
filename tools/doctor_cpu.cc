#include "doctor_cpu.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include <tidelock/reactor/cpu_set.h>

namespace tidelock::tools {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

std::optional<double> share(std::optional<std::uint64_t> quota, std::optional<std::uint64_t> period) {
  if (!quota || !period || *quota == 0 || *period == 0) return {};
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

/// "max 100000" or "150000 100000" (cgroup-v2.rst).
std::optional<double> quota_v2(const SystemFiles& files, const std::string& group) {
  const auto line = files.line("sys/fs/cgroup" + group + "/cpu.max");
  if (!line) return {};
  const auto fields = split(*line, ' ');
  return fields.size() == 2 ? share(to_number(fields[0]), to_number(fields[1])) : std::nullopt;
}

/// -1 for none.
std::optional<double> quota_v1(const SystemFiles& files, const std::string& group) {
  const std::string folder = "sys/fs/cgroup/cpu" + group;
  return share(files.number(folder + "/cpu.cfs_quota_us"), files.number(folder + "/cpu.cfs_period_us"));
}

/// The least of a group's and all that it is in.
template <class Quota>
std::optional<double> least_on_path(const SystemFiles& files, std::string group, Quota quota) {
  // Seen from another namespace: only the root is ours to look at.
  if (group.find("..") != std::string::npos) group.clear();
  std::optional<double> least;
  for (;;) {
    if (group == "/") group.clear();
    const auto here = quota(files, group);
    if (here && (!least || *here < *least)) least = here;
    if (group.empty()) return least;
    group.resize(std::min(group.rfind('/'), group.size() - 1));
  }
}

Check check_count(const std::vector<std::uint32_t>& usable, const DoctorNeeds& needs) {
  const char* const name = "cpus";
  const char* const why =
      "a reactor has a CPU of its own and spins there; on shared ones each message pays for a wakeup";
  const std::size_t count = usable.size();
  if (count == 0) return unknown(name, "sched_getaffinity(2) names none", why);
  std::string value = fmt::format("{} usable ({})", count, format_cpu_list(usable).substr(0, 60));
  if (needs.shards > count) {
    return {
        name, CheckStatus::error,
        value + fmt::format("; {} do not fit, each needs one", counted(needs.shards, "shard")), why,
        fmt::format("tidelock doctor --shards {}  # or Options::overprovisioned, or a wider CPU set", count)};
  }
  if (count < 2) {
    return {name, CheckStatus::warning,
            value + "; room for 1 shard; two nodes here would share it and not spin", why,
            "grep Cpus_allowed_list /proc/self/status  # then: taskset -c LIST tidelock ..."};
  }
  value += fmt::format("; room for {} of one node, {} of two; {} would spin", counted(count, "shard"),
                       count / 2, counted(needs.shards, "reactor"));
  if (std::size_t{needs.shards} * 2 > count) value += ", a second node beside it would make both share";
  return good(name, value, why);
}

Check check_quota(const SystemFiles& files, const DoctorNeeds& needs) {
  const char* const name = "cpu quota";
  const char* const why =
      "a spinning reactor uses its CPU whole; beyond the quota the kernel stops it for milliseconds";
  const auto cpus = cgroup_cpus(files);
  if (!cpus && !files.exists("proc/self/cgroup")) return unknown(name, "no /proc/self/cgroup", why);
  if (!cpus) return good(name, "none", why);
  const std::string value = fmt::format("{:.2f} CPUs for {}", *cpus, counted(needs.shards, "shard"));
  if (*cpus >= needs.shards) return good(name, value, why);
  return {name, CheckStatus::warning, value, why,
          fmt::format("docker update --cpus {0} CONTAINER  # or systemctl set-property UNIT CPUQuota={0}00%",
                      needs.shards)};
}

Check check_isolated(const SystemFiles& files, const std::vector<std::uint32_t>& usable) {
  const char* const name = "isolated cpus";
  const char* const why = "the scheduler puts nothing else there: the steadiest place for reactors";
  const std::string path = "sys/devices/system/cpu/isolated";
  if (!files.exists(path)) return unknown(name, "no /" + path, why);
  const auto line = files.line(path);
  if (!line) return good(name, "none", why);
  const auto isolated = parse_cpu_list(*line);
  if (!isolated) return unknown(name, *line, why);
  std::vector<std::uint32_t> ours;
  std::set_intersection(isolated->begin(), isolated->end(), usable.begin(), usable.end(),
                        std::back_inserter(ours));
  if (ours.empty()) {
    return {name, CheckStatus::warning, *line + ", none of them usable here", why,
            fmt::format("taskset -c {} tidelock ...", format_cpu_list(*isolated))};
  }
  return good(name, fmt::format("{}, usable here: {}", *line, format_cpu_list(ours)), why);
}

Check check_siblings(const SystemFiles& files, const std::vector<std::uint32_t>& usable,
                     const DoctorNeeds& needs) {
  const char* const name = "hyper-threads";
  const char* const why =
      "two reactors on threads of one core share its units and caches; distinct cores come first";
  std::set<std::string> cores;
  for (const std::uint32_t cpu : usable) {
    const auto list =
        files.line(fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    const auto siblings =
        list ? parse_cpu_list(*list) : Result<std::vector<std::uint32_t>>(std::vector<std::uint32_t>{});
    if (!siblings || std::find(siblings->begin(), siblings->end(), cpu) == siblings->end())
      return unknown(name, fmt::format("CPU {} does not say which share its core", cpu), why);
    cores.insert(format_cpu_list(*siblings));
  }
  if (cores.empty()) return unknown(name, "no usable CPU", why);
  const std::string value =
      fmt::format("{} on {}", counted(usable.size(), "CPU"), counted(cores.size(), "core"));
  if (needs.shards <= cores.size()) return good(name, value, why);
  return {name, CheckStatus::warning, fmt::format("{}: {} shards share cores", value, needs.shards), why,
          fmt::format("tidelock doctor --shards {}", cores.size())};
}

}  // namespace

std::optional<double> cgroup_cpus(const SystemFiles& files) {
  const auto groups = files.text("proc/self/cgroup");
  if (!groups) return {};
  std::optional<double> least;
  for (const std::string_view row : split(*groups, '\n')) {
    const auto fields = split(row, ':');
    if (fields.size() != 3 || fields[2].size() > 4096) continue;
    const auto controllers = split(fields[1], ',');
    std::optional<double> here;
    if (fields[1].empty()) {
      here = least_on_path(files, std::string(fields[2]), quota_v2);
    } else if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end()) {
      here = least_on_path(files, std::string(fields[2]), quota_v1);
    }
    if (here && (!least || *here < *least)) least = here;
  }
  return least;
}

Checks check_cpus(const SystemFiles& files, const std::vector<std::uint32_t>& usable,
                  const DoctorNeeds& needs) {
  return {check_count(usable, needs), check_quota(files, needs), check_isolated(files, usable),
          check_siblings(files, usable, needs)};
}

Checks check_clock(const SystemFiles& files) {
  // Of these the vDSO makes no system call; the second is KVM's, the third Hyper-V's, the fourth Arm's.
  constexpr std::array<std::string_view, 4> kCheap{"tsc", "kvm-clock", "hyperv_clocksource_tsc_page",
                                                   "arch_sys_counter"};
  const std::string folder = "sys/devices/system/clocksource/clocksource0/";
  const char* const why = "the time is read in every turn: by the vDSO some 20 ns, otherwise a system call";
  Checks checks;
  const auto current = files.line(folder + "current_clocksource");
  const std::string available = files.line(folder + "available_clocksource").value_or("");
  if (!current) {
    checks.push_back(unknown("clocksource", "no /" + folder + "current_clocksource", why));
  } else if (std::find(kCheap.begin(), kCheap.end(), *current) != kCheap.end()) {
    checks.push_back(good("clocksource", *current, why));
  } else {
    const auto others = split(available, ' ');
    const bool has_tsc = std::find(others.begin(), others.end(), "tsc") != others.end();
    checks.push_back({"clocksource", CheckStatus::warning, *current, why,
                      has_tsc
                          ? fmt::format("echo tsc | sudo tee /{}current_clocksource", folder)
                          : "sudo dmesg | grep -i 'tsc\\|clocksource'  # why the kernel gave the TSC up"});
  }

  const char* const steady =
      "a TSC that neither stops nor changes its pace is what makes the vDSO's clock good";
  const auto flags = files.field("proc/cpuinfo", "flags");
  if (!flags) {
    checks.push_back(unknown("invariant tsc", "no CPU flags in /proc/cpuinfo (or no x86)", steady));
    return checks;
  }
  const auto words = split(*flags, ' ');
  const auto has = [&](std::string_view flag) {
    return std::find(words.begin(), words.end(), flag) != words.end();
  };
  if (has("constant_tsc") && has("nonstop_tsc")) {
    checks.push_back(good("invariant tsc", "constant_tsc nonstop_tsc", steady));
  } else {
    checks.push_back(
        {"invariant tsc", CheckStatus::warning, has("constant_tsc") ? "no nonstop_tsc" : "no constant_tsc",
         steady,
         "virsh edit DOMAIN  # <feature policy='require' name='invtsc'/>, or qemu -cpu host,+invtsc"});
  }
  return checks;
}

}  // namespace tidelock::tools
