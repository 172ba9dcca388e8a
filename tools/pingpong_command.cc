#include "pingpong_command.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <tidelock/reactor/cpu_set.h>

#include "doctor_files.h"
#include "exit_code.h"
#include "pingpong_course.h"
#include "pingpong_report.h"
#include "say.h"
#include "stop_signals.h"

namespace tidelock::tools {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);
constexpr auto kProgressEvery = std::chrono::seconds(1);

int end_with(const Error& error) {
  const int status = fail("pingpong", printable(error.message()));
  return error.code() == std::errc::operation_canceled ? interrupted_status() : status;
}

PingReport report_of(const PingpongOptions& options, const PingSession& session) {
  PingReport report;
  report.options = options;
  report.facts = session.facts();
  utsname name{};
  ::uname(&name);
  report.host = fmt::format("{}, {} usable CPUs", name.machine, usable_cpus().size());
  report.kernel = fmt::format("{} {}", name.sysname, name.release);
  return report;
}

/// Until the course is done; passes a signal on, and shows on a terminal that it lives.
void watch(PingCourse& course, bool quiet) {
  using Clock = std::chrono::steady_clock;
  const bool shows = !quiet && ::isatty(STDERR_FILENO) != 0;
  bool shown = false;
  auto next = Clock::now() + kProgressEvery;
  while (!course.done()) {
    std::this_thread::sleep_for(kLook);
    if (stop_asked()) course.stop();
    if (!shows || Clock::now() < next) continue;
    next += kProgressEvery;
    shown = true;
    say(fmt::format("\r {} round trips ", course.answers()));
  }
  if (shown) say(fmt::format("\r{:40}\r", ""));
}

/// Puts the course on the reactor, waits for its end, takes it off.
Status run_course(PingSession& session, PingCourse& course, bool quiet) {
  ReactorGroup& group = session.group();
  Status started;
  const auto start = [&] { started = course.start(*Reactor::current()); };
  TL_TRY(group.run(CoreId{0}, start, kJobTimeout));
  TL_TRY(started);
  watch(course, quiet);
  return group.run(
      CoreId{0}, [&] { course.leave(*Reactor::current()); }, kJobTimeout);
}

PingPlan plan_of(const PingpongOptions& options) {
  PingPlan plan;
  plan.verb = options.verb;
  plan.sizes = options.sizes();
  plan.iterations = options.iterations;
  plan.duration = {static_cast<std::int64_t>(options.duration * 1e9)};
  plan.warmup = options.warmup;
  return plan;
}

int conclude(PingReport& report, const PingCourse& course, bool stop_asked) {
  report.answers = course.answers();
  report.interrupted = stop_asked;
  if (course.error()) report.error = printable(course.error()->message());
  const bool printed = print_or_complain(
      "pingpong", report.options.json
                      ? to_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                      : results(report));
  if (stop_asked) {
    say("tidelock pingpong: interrupted, the result is of what came before\n");
    return interrupted_status();
  }
  if (!report.error.empty()) {
    say("tidelock pingpong: the other side is gone, the result is of what came before: " + report.error +
        "\n");
    return kExitFailed;
  }
  return printed ? kExitOk : kExitUsage;
}

int serve(const PingpongOptions& options, PingSession& session) {
  if (!options.json) {
    const std::string at = session.address();
    const std::string client =
        options.link == LinkKind::shm ? "--link shm " + at : fmt::format("-p {} {}", options.port, at);
    if (!print_or_complain("pingpong", " waiting for: tidelock pingpong " + client + "\n")) return kExitUsage;
  }
  PingTerms terms;
  const auto lane = session.meet(terms, stop_asked());
  if (!lane) return end_with(lane.error());
  PingReport report = report_of(options, session);
  report.verb = terms.verb;
  if (!options.json && !print_or_complain("pingpong", preamble(report))) return kExitUsage;
  PingServer server(**lane, options.patience(), terms, session.memory());
  if (const Status run = run_course(session, server, true); !run) return end_with(run.error());
  return conclude(report, server, stop_asked());
}

int measure(const PingpongOptions& options, PingSession& session) {
  const PingPlan plan = plan_of(options);
  PingTerms terms{plan.verb, plan.verb == PingVerb::send ? 0 : plan.sizes.back()};
  const auto lane = session.meet(terms, stop_asked());
  if (!lane) return end_with(lane.error());
  PingReport report = report_of(options, session);
  report.verb = plan.verb;
  if (!options.json && !print_or_complain("pingpong", preamble(report))) return kExitUsage;
  PingClient client(**lane, options.patience(), plan);
  if (const Status run = run_course(session, client, false); !run) return end_with(run.error());
  report.rows = client.rows();
  return conclude(report, client, stop_asked());
}

void add_measuring_flags(CLI::App& pingpong, PingpongOptions& options) {
  auto* iterations = pingpong.add_option("-n,--iters", options.iterations, "Round trips a size")
                         ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
                         ->capture_default_str();
  auto* bytes =
      pingpong
          .add_option("-s,--size", options.bytes,
                      fmt::format("Payload of a batch, a multiple of {} from {} to {}; its header of {} "
                                  "bytes goes with it",
                                  kEntryAlignment, kPingBytesMin, kPingBytesMax, kFrameHeaderBytes))
          ->capture_default_str();
  auto* all =
      pingpong.add_flag("-a,--all", options.all_sizes,
                        fmt::format("All powers of two from {} to what a batch can have", kPingBytesMin));
  all->excludes(bytes);
  pingpong.add_option("-D,--duration", options.duration, "Seconds a size, instead of -n")
      ->check(CLI::Range(0.001, 86'400.0))
      ->excludes(iterations);
  pingpong.add_option("--warmup", options.warmup, "Round trips before each size that do not count")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1} << 30))
      ->capture_default_str();
  pingpong
      .add_option("--verb", options.verb,
                  "verbs: link (control frame there, batch back) or send (64-byte control frames both ways)")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, PingVerb>{{"link", PingVerb::link}, {"send", PingVerb::send}}))
      ->default_str("link");
}

}  // namespace

CLI::App* add_pingpong_command(CLI::App& app, PingpongOptions& options) {
  CLI::App* pingpong =
      app.add_subcommand("pingpong", "Measure the latency of a link between two processes, as perftest does");
  pingpong->description(
      "Measures the round trip of tidelock's own path: the client asks with a control frame (an inline "
      "SEND), "
      "the server\n"
      "answers with one batch (WRITE_WITH_IMM), which the client takes by its completion and releases. The "
      "server is the\n"
      "primary's end, since a primary listens and batches leave from it. All times are half a round trip, as "
      "perftest's are;\n"
      "t_typical is their median.\n"
      "There is no raw RDMA WRITE with polled memory, as ib_write_lat has it: tidelock never polls memory "
      "for "
      "data.\n"
      "Flags that say what is measured are the client's.\n"
      "Exit status: 0; 1 the other side went; 2 it could not be met, or a wrong flag; 130 interrupted, with "
      "what was measured.");
  pingpong->footer(
      "Try: tidelock pingpong -d mlx5_0                        on one machine, and then\n"
      "     tidelock pingpong -d mlx5_0 10.0.0.1               on another\n"
      "     tidelock pingpong --link shm --json @tidelock-pingpong-18515");
  pingpong->add_option("server", options.server,
                       "Client: the server's IPv4 address; with shm its socket's path or @name");
  pingpong->add_option("--link", options.link, "verbs, or shm within one machine")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, LinkKind>{{"shm", LinkKind::shm}, {"verbs", LinkKind::verbs}}))
      ->default_str("verbs");
  pingpong->add_option("-d,--ib-dev", options.device,
                       "RDMA device, as ibv_devices lists it (default: the first)");
  pingpong->add_option("-p,--port", options.port, "Port of rdma_cm; with shm a part of the server's @name")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  pingpong->add_option("--listen", options.listen,
                       "Server: the device's IPv4 address; with shm a path or @name (default "
                       "@tidelock-pingpong-PORT)");
  add_measuring_flags(*pingpong, options);
  pingpong->add_option("--cpu", options.cpu, "Pin the reactor to this CPU (default: not pinned)")
      ->check(CLI::Range(0, 65'535));
  pingpong->add_flag("--overprovisioned", options.overprovisioned,
                     "Park while nothing comes, instead of spinning: both sides share a CPU");
  pingpong->add_option("--timeout", options.timeout, "Seconds to wait for the other side, each time")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  pingpong->add_flag("-F", options.no_frequency_warning,
                     "Accepted for perftest's sake: there is no CPU frequency warning");
  pingpong->add_flag("--json", options.json, "Print one JSON object instead of the table");
  return pingpong;
}

int pingpong_command(const PingpongOptions& options) {
  stop_on_signals();
  if (const Status valid = options.validate(); !valid) return end_with(valid.error());
  auto session = options.link == LinkKind::shm ? open_shm_session(options) : open_verbs_session(options);
  if (!session) return end_with(session.error());
  return options.is_server() ? serve(options, **session) : measure(options, **session);
}

}  // namespace tidelock::tools
