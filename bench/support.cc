#include "support.h"

#include <cstdio>
#include <fstream>
#include <string_view>
#include <vector>

#include <sys/utsname.h>

#include <tidelock/reactor/ring.h>

namespace tidelock::bench {
namespace {

/// Automake's and ctest's word for "skipped".
constexpr int kExitSkipped = 77;

std::string kernel() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return std::string(name.sysname) + ' ' + name.release + ' ' + name.machine;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    if (const auto colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void add_context(const Program& program) {
  const std::vector<std::uint32_t> cpus = usable_cpus();
  benchmark::AddCustomContext("link", program.link);
  benchmark::AddCustomContext("kernel", kernel());
  benchmark::AddCustomContext(
      "cpus", std::to_string(cpus.size()) + " usable (" + format_cpu_list(cpus) + "), " + cpu_model());
#ifdef NDEBUG
  benchmark::AddCustomContext("build", "release");
#else
  benchmark::AddCustomContext("build", "not a release build: these figures mean nothing");
#endif
}

}  // namespace

CpuPair cpu_pair() {
  const std::vector<std::uint32_t> cpus = spread_over_cores(usable_cpus());
  TL_ASSERT(!cpus.empty(), "a process runs on some CPU");
  if (cpus.size() == 1) return {cpus[0], cpus[0], true};
  return {cpus[0], cpus[1], false};
}

std::string describe(const CpuPair& cpus) {
  if (cpus.shared) return "ONE CPU for both sides, nothing spins";
  return "cpus " + std::to_string(cpus.first) + "+" + std::to_string(cpus.second);
}

ReactorGroupOptions pair_options(const CpuPair& cpus) {
  ReactorGroupOptions options;
  options.reactors = 2;
  options.seed = 1;
  options.overprovisioned = cpus.shared;
  options.pin = !cpus.shared;
  if (!cpus.shared) options.cpus = {cpus.first, cpus.second};
  return options;
}

int run(int argc, char** argv, const Program& program) {
  if (program.needs_io_uring) {
    if (const auto ring = UringBackend::create({}); !ring) {
      std::fprintf(stderr, "%s: skipped: %s\n", argv[0], ring.error().message().c_str());
      return kExitSkipped;
    }
  }
  add_context(program);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace tidelock::bench
