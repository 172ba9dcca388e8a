#include "sim_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "world.h"

namespace tidelock::sim {
namespace {

std::string replay(const SimReport& report, std::uint64_t seed) {
  if (!report.plan.empty()) return fmt::format("tidelock sim --plan {} --trace", report.plan);
  const std::string faults = report.faults == "all" ? "" : " --faults " + report.faults;
  return fmt::format("tidelock sim --world {} --seed {}{}{} --trace", name_of(report.world), seed, faults,
                     report.twice ? " --twice" : "");
}

std::string table(const SimReport& report) {
  std::string text = fmt::format("{:<20}{:>8}{:>10}{:>10}\n", "fault", "seeds", "injected", "hit");
  for (std::size_t i = 0; i < kinds_of(report.world); ++i) {
    const FaultCounts::Count& count = report.totals.counts.of[i];
    text += fmt::format("{:<20}{:>8}{:>10}{:>10}\n", name_of(static_cast<FaultKind>(i)),
                        report.totals.seeds_with[i], count.injected, count.hit);
  }
  return text;
}

std::string count_text(std::uint64_t count) {
  return count < 1'000'000 ? std::to_string(count)
                           : fmt::format("{:.1f} M", static_cast<double>(count) / 1'000'000);
}

std::string span_text(std::uint64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  return seconds < 600 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.1f} h", seconds / 3'600);
}

}  // namespace

std::string preamble(const SimReport& report) {
  return fmt::format("tidelock sim: world {}, seeds {} to {}, {} {}, faults {}, tidelock {}\n",
                     name_of(report.world), report.first_seed, report.first_seed + report.seeds - 1,
                     report.jobs, report.jobs == 1 ? "job" : "jobs", report.faults, report.version);
}

std::string results(const SimReport& report) {
  const JobTotals& totals = report.totals;
  std::string text;
  if (report.seeds == 1) {
    for (const std::string& line : totals.trace) text += line + "\n";
  }
  for (const auto& [seed, failures] : totals.failed) {
    for (const Failure& failure : failures) {
      text += fmt::format("seed {}: {} at {}, event {}: {}\n", seed, failure.checker, time_text(failure.at),
                          failure.event, failure.text);
    }
    text += fmt::format("  replay: {}\n", replay(report, seed));
  }
  text += table(report);
  text += fmt::format(
      "load: {} calls ok, {} not done, {} unknown; {} reads at replicas, {} of them after a receipt\n",
      totals.calls.ok, totals.calls.not_done, totals.calls.unknown, totals.calls.replica_reads,
      totals.calls.receipt_reads);
  text += fmt::format(
      "catch-up: {} snapshots, {} whole, {} broken off, {} ranges, {} records void; {} replicas dropped for "
      "room, {} writes refused below c\n",
      totals.syncs.snapshots, totals.syncs.whole, totals.syncs.broken, totals.syncs.ranges,
      totals.syncs.voids, totals.syncs.drops, totals.syncs.below_c);
  text += fmt::format("operator: {} refused replicas started again, empty\n", totals.restarted);
  text += fmt::format(
      "sim: {} {}, {} passed, {} failed, {} undecided, {} excused, {} events, {} simulated in {}{}\n",
      totals.seeds(), totals.seeds() == 1 ? "seed" : "seeds", totals.passed, totals.failed.size(),
      totals.undecided, totals.excused, count_text(totals.events), span_text(totals.simulated_ns),
      span_text(report.wall_ns), totals.interrupted ? " (interrupted)" : "");
  if (const auto why = totals.too_little()) text += "sim: not a pass: " + *why + "\n";
  if (report.seeds == 1 && totals.seeds() == 1)
    text += fmt::format("trace hash {:016x}\n", totals.trace_hash);
  return text;
}

nlohmann::json to_json(const SimReport& report) {
  const JobTotals& totals = report.totals;
  nlohmann::json failed = nlohmann::json::array();
  for (const auto& [seed, failures] : totals.failed) {
    for (const Failure& failure : failures) {
      failed.push_back({{"seed", seed},
                        {"checker", failure.checker},
                        {"at_ns", failure.at.ns},
                        {"event", failure.event},
                        {"text", failure.text},
                        {"replay", replay(report, seed)}});
    }
  }
  nlohmann::json faults = nlohmann::json::array();
  for (std::size_t i = 0; i < kinds_of(report.world); ++i) {
    faults.push_back({{"kind", name_of(static_cast<FaultKind>(i))},
                      {"seeds", totals.seeds_with[i]},
                      {"injected", totals.counts.of[i].injected},
                      {"hit", totals.counts.of[i].hit}});
  }
  nlohmann::json json = {{"version", report.version},
                         {"world", name_of(report.world)},
                         {"first_seed", report.first_seed},
                         {"seeds", totals.seeds()},
                         {"passed", totals.passed},
                         {"failed", failed},
                         {"undecided", totals.undecided},
                         {"excused", totals.excused},
                         {"restarted", totals.restarted},
                         {"events", totals.events},
                         {"simulated_ns", totals.simulated_ns},
                         {"wall_ns", report.wall_ns},
                         {"interrupted", totals.interrupted},
                         {"calls",
                          {{"ok", totals.calls.ok},
                           {"not_done", totals.calls.not_done},
                           {"unknown", totals.calls.unknown},
                           {"replica_reads", totals.calls.replica_reads},
                           {"receipt_reads", totals.calls.receipt_reads}}},
                         {"syncs",
                          {{"snapshots", totals.syncs.snapshots},
                           {"whole", totals.syncs.whole},
                           {"broken", totals.syncs.broken},
                           {"ranges", totals.syncs.ranges},
                           {"voids", totals.syncs.voids},
                           {"drops", totals.syncs.drops},
                           {"below_c", totals.syncs.below_c}}},
                         {"faults", faults}};
  if (report.seeds == 1 && totals.seeds() == 1) {
    json["trace_hash"] = fmt::format("{:016x}", totals.trace_hash);
    if (!totals.trace.empty()) json["trace"] = totals.trace;
  }
  return json;
}

}  // namespace tidelock::sim
