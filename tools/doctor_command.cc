#include "doctor_command.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/utsname.h>

#include <tidelock/reactor/cpu_set.h>

#include "doctor_cpu.h"
#include "doctor_memory.h"
#include "doctor_rdma.h"
#include "doctor_report.h"
#include "doctor_uring.h"
#include "exit_code.h"
#include "say.h"

namespace tidelock::tools {
namespace {

void append(Checks& checks, Checks more) {
  for (Check& check : more) {
    // A device may have any name, and an error any text.
    check.name = printable(std::move(check.name));
    check.value = printable(std::move(check.value));
    checks.push_back(std::move(check));
  }
}

DoctorReport examine(DoctorNeeds needs) {
  const SystemFiles files;
  const auto cpus = usable_cpus();
  if (needs.shards == 0)
    needs.shards = static_cast<std::uint32_t>(std::clamp<std::size_t>(cpus.size() / 2, 1, 256));
  DoctorReport report;
  append(report.checks, check_kernel(files));
  const UringProbe uring = probe_uring(needs.shards, needs.ring_entries);
  append(report.checks, check_uring(files, uring, needs.shards));
  const RdmaFacts rdma = probe_rdma();
  MemorySituation memory;
  memory.limits = process_limits();
  memory.rings_work = uring.rings >= needs.shards;
  memory.rdma_present = !rdma.devices.empty();
  append(report.checks, check_memory(files, memory, needs));
  append(report.checks, check_cpus(files, cpus, needs));
  append(report.checks, check_clock(files));
  append(report.checks, check_rdma(files, rdma, needs));
  utsname name{};
  ::uname(&name);
  report.host = fmt::format("{}, {} usable CPUs", name.machine, cpus.size());
  report.kernel = fmt::format("{} {}", name.sysname, name.release);
  return report;
}

}  // namespace

CLI::App* add_doctor_command(CLI::App& app, DoctorOptions& options) {
  CLI::App* doctor =
      app.add_subcommand("doctor", "Examine this machine: will the engine run here, and how well");
  doctor->description(
      "Looks at the kernel, io_uring, limits, memory, CPUs, clocks and RDMA devices as the engine would, "
      "changes nothing,\n"
      "and prints a line for each: ok, warning, error or unknown; what it is; why it matters; and a command "
      "that mends it.\n"
      "Run it as the user, and in the container or service, that the engine will run in.\n"
      "Exit status: 0 all is ok; 1 the engine runs, but look at the warnings; 2 an error will stop it, or a "
      "wrong flag.");
  doctor->footer(
      "Try: tidelock doctor --json | jq -r '.checks[] | select(.status != \"ok\") | .name + \": \" + .fix'");
  DoctorNeeds& needs = options.needs;
  doctor->add_option("--shards", needs.shards, "Shards of one node, a CPU each, 1 to 256 (default: CPUs / 2)")
      ->check(CLI::Range(1, 256));
  doctor
      ->add_option(
          "--link", needs.link,
          "What joins the nodes: shm (one machine) or verbs (RDMA); default shm, and a word on verbs")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, DoctorLink>{{"shm", DoctorLink::shm}, {"verbs", DoctorLink::verbs}}));
  doctor
      ->add_option("--log-bytes", needs.log_bytes,
                   "Log of a shard, 64 KiB to 64 GiB: with verbs it is locked")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{64} << 10, std::uint64_t{64} << 30))
      ->capture_default_str();
  doctor
      ->add_option("--ring-bytes", needs.ring_bytes,
                   "Ring of a link, 256 KiB to 1 GiB: with verbs it is locked")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{256} << 10, std::uint64_t{1} << 30))
      ->capture_default_str();
  doctor->add_option("--ring-entries", needs.ring_entries, "Of a reactor's io_uring, 8 to 32,768")
      ->check(CLI::Range(8, 32'768))
      ->capture_default_str();
  doctor->add_option("--max-fibers", needs.max_fibers, "Of a reactor, 16 to 65,536")
      ->check(CLI::Range(16, 65'536))
      ->capture_default_str();
  doctor->add_flag("--json", options.json, "Print one JSON object instead of lines");
  return doctor;
}

int doctor_command(DoctorOptions options) {
  std::signal(SIGPIPE, SIG_IGN);
  DoctorReport report = examine(options.needs);
  report.command = std::move(options.command);
  // Names of devices and an argument may hold anything: what is no UTF-8 is replaced.
  const std::string text =
      options.json ? to_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                   : to_text(report);
  if (!print_result(text)) {
    return fail("doctor", std::string("cannot write to standard output: ") + std::strerror(errno));
  }
  return exit_code_of(report.checks);
}

}  // namespace tidelock::tools
