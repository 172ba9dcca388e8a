#include "run_command.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/random.h>

#include "exit_code.h"
#include "replica_session.h"
#include "run_report.h"
#include "run_session.h"
#include "say.h"

namespace tidelock::tools {
namespace {

constexpr std::uint32_t kGeneratedKeys = 10'000;

Result<Dataset> load_dataset(RunOptions& options) {
  if (!options.input.empty()) return Dataset::read(options.input, options.format);
  if (::access(kDpkgStatusPath, R_OK) == 0) return Dataset::read(kDpkgStatusPath, InputFormat::dpkg);
  say(fmt::format("tidelock run: no {} here: using made-up data from seed {} (--input FILE takes your own)\n",
                  kDpkgStatusPath, options.seed));
  return Dataset::generate(options.seed, kGeneratedKeys, options.value_bytes);
}

/// One line that overwrites itself, on a terminal only.
class ProgressLine {
 public:
  ProgressLine() : visible_(::isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() { clear(); }
  void show(const RunProgress& progress) {
    if (!visible_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(200)) return;
    const std::chrono::duration<double> since = now - last_;
    const double rate =
        last_ops_ <= progress.ops ? static_cast<double>(progress.ops - last_ops_) / since.count() : 0;
    last_ = now;
    last_ops_ = progress.ops;
    if (progress.phase == "load") {
      say(fmt::format("\r\033[Kloading {} of {} records; {} receipts checked", progress.loaded,
                      progress.total, progress.checked));
    } else {
      say(fmt::format("\r\033[K{} ops, {:.0f} ops/s; {} receipts checked, {} stale{}", progress.ops, rate,
                      progress.checked, progress.stale,
                      progress.failed > 0 ? fmt::format(", {} failed", progress.failed) : ""));
    }
    shown_ = true;
    std::fflush(stderr);
  }
  void clear() {
    if (shown_) say("\r\033[K");
    shown_ = false;
  }

 private:
  bool visible_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
  std::uint64_t last_ops_ = 0;
};

/// Opened before the run: a result that cannot be kept should fail in the first second, not after an hour.
Result<std::FILE*> open_output(const std::string& path) {
  if (path.empty()) return stdout;
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr)
    return Error::from_errno(errno, fmt::format("cannot write {}: check the path and its permissions", path));
  return file;
}

Status write_output(std::FILE* file, const std::string& path, const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int why = errno;
  const bool closed = file == stdout || std::fclose(file) == 0;
  if (written && closed) return {};
  return Error::from_errno(
      written ? errno : why,
      fmt::format("cannot write the report to {}: free some space there, or give another --output",
                  path.empty() ? "standard output" : path));
}

}  // namespace

CLI::App* add_run_command(CLI::App& app, RunOptions& options) {
  CLI::App* run = app.add_subcommand(
      "run", "Replicate a key-value file core to core, and prove that no reader is behind");
  run->description(
      "Starts a primary and a replica as two processes on this machine, joined by shared memory or RDMA. "
      "Loads a\n"
      "key-value file into the primary, drives a mixed load, and holds every acknowledged write against a "
      "read at\n"
      "the replica. With --role each of two machines runs one of the two.\n"
      "Exit status: 0 proved; 1 something was stale, lost or different; 2 it could not run as asked; 130 "
      "interrupted.");
  run->add_option("--input", options.input,
                  "File to load, - for standard input (default: dpkg's status database)");
  run->add_option("--format", options.format,
                  "Of the input: tsv (key<TAB>value lines) or dpkg (package status stanzas)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, InputFormat>{{"tsv", InputFormat::tsv}, {"dpkg", InputFormat::dpkg}}))
      ->default_str("tsv");
  run->add_option("--shards", options.shards,
                  "Shards on each side, a core each, 1 to 256 (default: CPUs / 2)")
      ->check(CLI::Range(1, 256));
  run->add_option("--ack", options.ack,
                  "When a write counts: local, received (checked by the replica) or applied (visible there)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, AckLevel>{
          {"local", AckLevel::local}, {"received", AckLevel::received}, {"applied", AckLevel::applied}}))
      ->default_str("applied");
  run->add_option("--duration", options.duration_s, "Seconds of mixed load after the file is loaded")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  run->add_option("--checks", options.checks,
                  "End early once so many receipts were checked (0: run for --duration)")
      ->capture_default_str();
  run->add_option("--value-bytes", options.value_bytes, "Size of the values written by the load, 0 to 64 MiB")
      ->check(CLI::Range(0U, kValueBytesMax))
      ->capture_default_str();
  run->add_option("--read-ratio", options.read_ratio, "Share of reads in the load, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  run->add_option("--keys", options.keys, "How keys are chosen: uniform or zipfian (theta 0.99)")
      ->transform(CLI::CheckedTransformer(std::map<std::string, KeyDistribution>{
          {"uniform", KeyDistribution::uniform}, {"zipfian", KeyDistribution::zipfian}}))
      ->default_str("uniform");
  run->add_option("--seed", options.seed, "Of the load's random choices")->capture_default_str();
  run->add_option("--in-flight", options.in_flight, "Operations in flight on each shard, 1 to 10,000")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  auto* pin =
      run->add_flag("--pin", options.pin, "Insist on a CPU for each reactor; fail if there are too few");
  run->add_flag("--overprovisioned", options.overprovisioned, "Let reactors share CPUs: none pins or spins")
      ->excludes(pin);
  run->add_option("--wake", options.wake, "How a parked core is woken: auto, msg_ring or eventfd")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, WakeCarrier>{{"auto", WakeCarrier::automatic},
                                                                     {"msg_ring", WakeCarrier::msg_ring},
                                                                     {"eventfd", WakeCarrier::eventfd}}))
      ->default_str("auto");
  run->add_option("--log-bytes", options.log_bytes, "Log of a shard, a power of two, 64 KiB to 64 GiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  run->add_option("--ring-bytes", options.ring_bytes, "Ring of a link, a power of two, 256 KiB to 1 GiB")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  run->add_option("--timeout", options.timeout_s, "Seconds until a write's outcome counts as unknown")
      ->check(CLI::Range(0.001, 3'600.0))
      ->capture_default_str();
  run->add_option("--link", options.link,
                  "What joins the two nodes: shm (this machine's memory) or verbs (RDMA)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LinkKind>{{"shm", LinkKind::shm}, {"verbs", LinkKind::verbs}}))
      ->default_str("shm");
  run->add_option("--socket", options.socket,
                  "shm: unix socket by which the two processes meet (default: an abstract one of its own)");
  run->add_option("--primary-address", options.primary_address,
                  "verbs: IPv4 address of an RDMA device, where the primary listens");
  run->add_option("--replica-address", options.replica_address,
                  "verbs: IPv4 address from which the replica connects (default: by route)");
  run->add_option("--port", options.port, "verbs: where the primary listens, 1 to 65535")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  run->add_option("--device", options.device,
                  "verbs: name of the RDMA device, as ibv_devices lists it (default: by address)");
  run->add_option("--role", options.role,
                  "Start only this node: primary (its flags decide the run) or replica, on two machines")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, RunRole>{{"primary", RunRole::primary}, {"replica", RunRole::replica}}));
  run->add_option(
      "--side-channel", options.side_channel,
      "With --role: IPv4:port at the primary's machine for receipts, input and results. TCP, without "
      "authentication: for networks that you trust");
  run->add_option("--output", options.output, "File for the report (default: standard output)");
  run->add_flag("--json", options.json, "Print one JSON object instead of the table");
  return run;
}

namespace {

using Notice = RunSession::NoticeHandler;
using Progress = RunSession::ProgressHandler;

/// What is left to do once a run is over.
int conclude(const RunOptions& options, const Dataset& dataset, const CorePlan& plan,
             const RunOutcome& outcome, std::FILE* file) {
  nlohmann::json report;
  try {
    report = make_report(options, dataset, plan, outcome);
  } catch (const std::exception&) {  // of what another machine has sent
    return fail("run", Error::from_errno(EBADMSG, "the other machine's results make no sense"));
  }
  const std::string text = options.json
                               ? report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                               : format_report(report);
  if (const Status written = write_output(file, options.output, text); !written)
    return fail("run", written.error());
  if (outcome.signal == SIGINT) return kExitInterrupted;
  if (outcome.signal == SIGTERM) return kExitTerminated;
  return passed(report) ? kExitOk : kExitFailed;
}

/// Of a run that gave no result. A signal that came first is not the run's failure.
int end_without_result(const Error& error, int signal) {
  const int status = fail("run", error);
  if (error.code() != std::errc::operation_canceled) return status;
  return signal == SIGTERM ? kExitTerminated : kExitInterrupted;
}

int run_replica_half(const RunOptions& options, const RunLimits& limits, const Progress& progress,
                     const Notice& notice, ProgressLine& line) {
  auto file = open_output(options.output);
  if (!file) return fail("run", file.error());
  ReplicaSession session(options, limits);
  auto result = session.execute(progress, notice);
  line.clear();
  if (!result) return end_without_result(result.error(), session.signal());
  if (result->interrupted && result->outcome.signal == 0) result->outcome.signal = SIGINT;
  return conclude(result->run, result->dataset, result->plan, result->outcome, *file);
}

int run_here(RunOptions& options, const RunLimits& limits, const Progress& progress, const Notice& notice,
             ProgressLine& line) {
  const auto plan_for = options.role == RunRole::primary ? plan_node_cores : plan_cores;
  auto plan =
      plan_for(spread_over_cores(usable_cpus()), options.shards, options.pin, options.overprovisioned);
  if (!plan) return fail("run", plan.error());
  options.shards = plan->shards;
  if (options.link == LinkKind::shm && options.socket.empty())
    options.socket = fmt::format("@tidelock-run-{}-{:08x}", ::getpid(), entropy64() & 0xFFFFFFFF);
  NodeConfig probe{options, NodeRole::primary, plan->primary, plan->overprovisioned};
  for (const NodeRole role : {NodeRole::primary, NodeRole::replica}) {
    probe.role = role;
    if (const Status valid = engine_options(probe).validate(); !valid) return fail("run", valid.error());
  }
  auto dataset = load_dataset(options);
  if (!dataset) return fail("run", dataset.error());
  auto file = open_output(options.output);
  if (!file) return fail("run", file.error());
  if (!plan->notice.empty()) notice(plan->notice);
  RunSession session(options, *plan, *dataset, limits);
  auto outcome = session.execute(progress, notice);
  line.clear();
  if (!outcome) return end_without_result(outcome.error(), session.signal());
  return conclude(options, *dataset, *plan, *outcome, *file);
}

}  // namespace

int run_command(RunOptions options, const RunLimits& limits) {
  std::signal(SIGPIPE, SIG_IGN);
  if (const Status consistent = check_flags(options); !consistent) return fail("run", consistent.error());
  ProgressLine line;
  const Progress progress = [&](const RunProgress& now) { line.show(now); };
  const Notice notice = [&](const std::string& text) {
    line.clear();
    say("tidelock run: " + text + "\n");
  };
  return options.role == RunRole::replica ? run_replica_half(options, limits, progress, notice, line)
                                          : run_here(options, limits, progress, notice, line);
}

}  // namespace tidelock::tools
