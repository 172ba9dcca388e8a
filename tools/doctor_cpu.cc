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

/// What control groups say, together: the least of their limits.
struct Said {
  std::optional<double> cpus;
  bool something = false;  ///< at least that there is no limit
  bool nonsense = false;

  void add(const Said& other) {
    if (other.cpus && (!cpus || *other.cpus < *cpus)) cpus = other.cpus;
    something = something || other.something;
    nonsense = nonsense || other.nonsense;
  }
};

/// A file that is there; `unlimited` is its word for no limit.
Said said_by(std::string_view quota, std::string_view period, std::string_view unlimited) {
  const auto allowed = to_number(quota);
  const auto of = to_number(period);
  Said said;
  said.nonsense = !of || *of == 0 || (quota != unlimited && (!allowed || *allowed == 0));
  if (said.nonsense) return said;
  said.something = true;
  if (quota != unlimited) said.cpus = static_cast<double>(*allowed) / static_cast<double>(*of);
  return said;
}

/// "max 100000" or "150000 100000" (cgroup-v2.rst).
Said quota_v2(const SystemFiles& files, const std::string& folder) {
  const std::string path = folder + "/cpu.max";
  if (!files.exists(path)) return {};
  const std::string line = files.line(path).value_or("");
  const auto fields = split(line, ' ');
  if (fields.size() == 2) return said_by(fields[0], fields[1], "max");
  Said said;
  said.nonsense = true;
  return said;
}

/// -1 for none.
Said quota_v1(const SystemFiles& files, const std::string& folder) {
  const std::string path = folder + "/cpu.cfs_quota_us";
  if (!files.exists(path)) return {};
  return said_by(files.line(path).value_or(""), files.line(folder + "/cpu.cfs_period_us").value_or(""), "-1");
}

/// Of a group and all that it is in. `mark`: a file or folder that shows that the hierarchy is at `root`.
template <class Quota>
Said said_on_path(const SystemFiles& files, const std::string& root, const std::string& mark,
                  std::string group, Quota quota) {
  Said said;
  // Seen from another namespace: only the root is ours to look at.
  const bool elsewhere = group.find("..") != std::string::npos;
  if (elsewhere) group.clear();
  // The kernel shows a group without a file for a limit that it does not have there.
  said.something = !elsewhere && files.exists(root + mark) && files.exists(root + group);
  for (;;) {
    if (group == "/") group.clear();
    said.add(quota(files, root + group));
    if (group.empty()) return said;
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
  if (!files.exists("proc/self/cgroup")) return unknown(name, "no /proc/self/cgroup", why);
  const CpuQuota quota = cgroup_quota(files);
  const bool low = quota.cpus && *quota.cpus < needs.shards;
  if (!quota.known && !low)
    return unknown(name, "/sys/fs/cgroup does not say for the groups in /proc/self/cgroup", why);
  if (!quota.cpus) return good(name, "none", why);
  const std::string value = fmt::format("{:.2f} CPUs for {}", *quota.cpus, counted(needs.shards, "shard"));
  if (!low) return good(name, value, why);
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

CpuQuota cgroup_quota(const SystemFiles& files) {
  const std::string groups = files.text("proc/self/cgroup").value_or("");
  const std::string root = "sys/fs/cgroup";
  Said unified, by_cpu;
  bool has_cpu = false;
  for (const std::string_view row : split(groups, '\n')) {
    const auto fields = split(row, ':');
    if (fields.size() != 3 || !fields[2].starts_with('/') || fields[2].size() > 4096) continue;
    const auto controllers = split(fields[1], ',');
    const std::string group(fields[2]);
    if (fields[1].empty()) {
      unified = said_on_path(files, root, "/cgroup.controllers", group, quota_v2);
    } else if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end()) {
      has_cpu = true;
      by_cpu = said_on_path(files, root + "/cpu", "", group, quota_v1);
    }
  }
  // The controller is in one hierarchy. Whatever the other says counts, but it need not say anything.
  const bool something = has_cpu ? by_cpu.something : unified.something;
  Said all = unified;
  all.add(by_cpu);
  return {all.cpus, something && !all.nonsense};
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
