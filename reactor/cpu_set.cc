#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <utility>

#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/errc.h>

namespace tidelock {
namespace {

/// Beyond any machine; keeps "0-4294967295" from filling the memory.
constexpr std::uint32_t kCpuLimit = 65'536;

using CpuMask = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

CpuMask make_mask(std::uint32_t cpus) {
  return {CPU_ALLOC(cpus), [](cpu_set_t* mask) { CPU_FREE(mask); }};
}

/// -1 if there is no such file or it holds no number.
int read_topology(std::uint32_t cpu, const char* leaf) {
  const std::string path = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + leaf;
  std::ifstream file(path);
  int value = -1;
  return file >> value ? value : -1;
}

bool parse_number(std::string_view text, std::uint32_t& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && rest == end && number < kCpuLimit;
}

}  // namespace

std::vector<std::uint32_t> usable_cpus() {
  std::vector<std::uint32_t> cpus;
  // The kernel answers EINVAL while the mask is smaller than its own.
  for (std::uint32_t limit = 1024; limit <= kCpuLimit; limit *= 2) {
    const CpuMask mask = make_mask(limit);
    const std::size_t bytes = CPU_ALLOC_SIZE(limit);
    if (mask == nullptr) return cpus;
    CPU_ZERO_S(bytes, mask.get());
    if (::sched_getaffinity(0, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;
      return cpus;
    }
    for (std::uint32_t cpu = 0; cpu < limit; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return cpus;
}

Result<std::vector<std::uint32_t>> parse_cpu_list(std::string_view text) {
  std::vector<std::uint32_t> cpus;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view piece = text.substr(begin, comma - begin);
    const std::size_t dash = piece.find('-');
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    bool valid = parse_number(piece.substr(0, dash), first);
    last = first;
    if (dash != std::string_view::npos) valid = valid && parse_number(piece.substr(dash + 1), last);
    if (!valid || last < first) {
      return Error::from_errno(EINVAL, "'" + std::string(piece) + "' in the CPU list '" + std::string(text) +
                                           "' is no CPU and no range: write for example 0-3,8");
    }
    for (std::uint32_t cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    begin = comma + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string format_cpu_list(const std::vector<std::uint32_t>& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (end - i > 1) text += '-' + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::vector<std::uint32_t> spread_over_cores(const std::vector<std::uint32_t>& usable) {
  struct Place {
    std::size_t turn;  ///< how many threads of the same core come before this one
    std::size_t index;
  };
  std::vector<std::pair<int, int>> cores;
  std::vector<Place> places;
  for (std::size_t i = 0; i < usable.size(); ++i) {
    // A CPU whose topology is hidden counts as a core of its own.
    const int core = read_topology(usable[i], "core_id");
    const std::pair<int, int> key =
        core < 0 ? std::pair{-1, static_cast<int>(usable[i])}
                 : std::pair{std::max(read_topology(usable[i], "physical_package_id"), 0), core};
    places.push_back({static_cast<std::size_t>(std::count(cores.begin(), cores.end(), key)), i});
    cores.push_back(key);
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.turn < b.turn; });
  std::vector<std::uint32_t> spread;
  spread.reserve(usable.size());
  for (const Place& place : places) spread.push_back(usable[place.index]);
  return spread;
}

Status pin_this_thread(std::uint32_t cpu) {
  int error = EINVAL;
  if (cpu < kCpuLimit) {
    const CpuMask mask = make_mask(cpu + 1);
    const std::size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
    if (mask == nullptr) return Error::from_errno(ENOMEM, "a mask for CPU " + std::to_string(cpu));
    CPU_ZERO_S(bytes, mask.get());
    CPU_SET_S(cpu, bytes, mask.get());
    error = ::pthread_setaffinity_np(::pthread_self(), bytes, mask.get());
  }
  if (error == 0) return {};
  return Error(ReactorErrc::bad_cpu_set, "CPU " + std::to_string(cpu) +
                                             " cannot be used: this process may use " +
                                             format_cpu_list(usable_cpus()));
}

}  // namespace tidelock
