#include "run_report.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <tidelock/reactor/cpu_set.h>

#include "histogram_json.h"

namespace tidelock::tools {
namespace {

const nlohmann::json* find_shard(const nlohmann::json& result, std::uint32_t shard) {
  if (!result.contains("shards")) return nullptr;
  for (const auto& entry : result.at("shards")) {
    if (entry.at("shard") == shard) return &entry;
  }
  return nullptr;
}

std::uint64_t number(const nlohmann::json* entry, const char* name) {
  return entry != nullptr ? entry->value(name, std::uint64_t{0}) : 0;
}

/// What carried the run, in the link's own words.
std::string link_text(const RunOptions& options, const RunOutcome& outcome) {
  const nlohmann::json& ours = options.role == RunRole::replica ? outcome.replica : outcome.primary;
  const std::string text = ours.is_object() ? ours.value("link", "") : "";
  return text.empty() ? to_text(options.link) : text;
}

/// What a number measured on such a link says nothing about.
const char* link_caveat(const std::string& link) {
  if (link.starts_with("shm")) return " (shared memory between two processes; says nothing about RDMA)";
  const bool software = link.find(" rxe") != std::string::npos || link.find(" siw") != std::string::npos;
  return software ? " (RDMA in software; says nothing about a network card)" : "";
}

/// Both over all shards.
struct Totals {
  Histogram ack;
  Histogram check_delay;
};

nlohmann::json shard_report(const RunOutcome& outcome, std::uint32_t shard, double seconds, Totals& total) {
  const nlohmann::json* primary = find_shard(outcome.primary, shard);
  const nlohmann::json* replica = find_shard(outcome.replica, shard);
  Histogram latency;
  if (primary != nullptr) {
    merge_json(primary->at("ack_ns"), latency);
    total.ack.merge(latency);
  }
  Histogram delay;
  if (replica != nullptr) {
    merge_json(replica->at("check_delay_ns"), delay);
    total.check_delay.merge(delay);
  }
  const std::uint64_t ops = number(primary, "reads") + number(primary, "writes");
  const std::string digest = primary != nullptr ? primary->value("digest", "") : "";
  const std::string replica_digest = replica != nullptr ? replica->value("digest", "") : "";
  nlohmann::json json = {{"shard", shard},
                         {"ops", ops},
                         {"ops_per_second", seconds > 0 ? static_cast<double>(ops) / seconds : 0.0},
                         {"reads", number(primary, "reads")},
                         {"writes", number(primary, "writes")},
                         {"failed", number(primary, "failed")},
                         {"keys", number(primary, "keys")},
                         {"loaded", number(primary, "loaded")},
                         {"ack_ns", percentiles(latency)},
                         {"checked", number(replica, "checked")},
                         {"stale", number(replica, "stale")},
                         {"wrong", number(replica, "wrong")},
                         {"unverified", number(replica, "unverified")},
                         {"receipts", number(primary, "receipts")},
                         {"receipts_skipped", number(primary, "receipts_skipped")},
                         {"check_delay_ns", percentiles(delay)},
                         {"digest_keys", number(primary, "digest_keys")},
                         {"last_lsn", number(primary, "last_lsn")},
                         {"replica_lsn", number(replica, "last_lsn")},
                         {"digest", digest},
                         {"replica_digest", replica_digest},
                         {"digests_equal", !digest.empty() && digest == replica_digest}};
  if (primary != nullptr && !primary->value("first_error", "").empty())
    json["first_error"] = primary->at("first_error");
  if (replica != nullptr && !replica->value("first_violation", "").empty())
    json["first_violation"] = replica->at("first_violation");
  return json;
}

std::string readable_ns(std::uint64_t ns) {
  if (ns < 10'000) return fmt::format("{} ns", ns);
  if (ns < 10'000'000) return fmt::format("{:.1f} us", static_cast<double>(ns) / 1e3);
  return fmt::format("{:.1f} ms", static_cast<double>(ns) / 1e6);
}

std::string row(const std::string& name, const nlohmann::json& entry, const std::string& digest) {
  const auto& ack = entry.at("ack_ns");
  return fmt::format("{:>5}  {:>12.0f}  {:>10}  {:>10}  {:>10}  {:>10}  {:>11}  {:>6}  {}\n", name,
                     entry.at("ops_per_second").get<double>(), readable_ns(ack.at("p50")),
                     readable_ns(ack.at("p99")), readable_ns(ack.at("p99_9")), readable_ns(ack.at("max")),
                     entry.at("checked").get<std::uint64_t>(), entry.at("stale").get<std::uint64_t>(),
                     digest);
}

std::string digest_cell(const nlohmann::json& shard) {
  const std::string digest = shard.at("digest");
  if (digest.empty()) return "none";
  return digest.substr(0, 16) + (shard.at("digests_equal").get<bool>() ? " equal" : " DIFFERS");
}

}  // namespace

nlohmann::json make_report(const RunOptions& options, const Dataset& dataset, const CorePlan& plan,
                           const RunOutcome& outcome) {
  utsname name{};
  ::uname(&name);
  const double seconds = outcome.primary.is_object() ? outcome.primary.value("seconds", 0.0) : 0.0;
  Totals totals;
  nlohmann::json shards = nlohmann::json::array();
  nlohmann::json report;
  bool equal = true;
  for (const char* sum : {"ops", "reads", "writes", "failed", "keys", "loaded", "checked", "stale", "wrong",
                          "unverified", "receipts", "receipts_skipped"})
    report[sum] = std::uint64_t{0};
  for (std::uint32_t shard = 0; shard < options.shards; ++shard) {
    shards.push_back(shard_report(outcome, shard, seconds, totals));
    const auto& entry = shards.back();
    for (auto& [key, value] : report.items())
      value = value.get<std::uint64_t>() + entry.at(key).get<std::uint64_t>();
    equal = equal && entry.at("digests_equal").get<bool>();
  }
  report["ops_per_second"] = seconds > 0 ? report["ops"].get<double>() / seconds : 0.0;
  report["seconds"] = seconds;
  report["ack"] = to_text(options.ack);
  report["ack_ns"] = percentiles(totals.ack);
  report["check_delay_ns"] = percentiles(totals.check_delay);
  report["acknowledged"] = report["loaded"].get<std::uint64_t>() + report["writes"].get<std::uint64_t>();
  report["digests_equal"] = equal;
  report["shards"] = std::move(shards);
  report["input"] = options.role == RunRole::replica ? "the primary's" : dataset.name();
  report["duplicates"] = dataset.duplicates();
  report["link"] = link_text(options, outcome);
  report["two_machines"] = options.role != RunRole::both;
  report["overprovisioned"] = plan.overprovisioned;
  report["host"] = fmt::format("{}, {} usable CPUs", name.machine, usable_cpus().size());
  report["kernel"] = fmt::format("{} {}", name.sysname, name.release);
  report["command"] = options.command;
  report["notices"] = outcome.notices;
  report["failures"] = outcome.failures;
  if (outcome.primary.is_object() && outcome.primary.contains("engine"))
    report["primary"] = outcome.primary.at("engine");
  if (outcome.replica.is_object() && outcome.replica.contains("engine"))
    report["replica"] = outcome.replica.at("engine");
  report["interrupted"] = outcome.signal != 0;
  report["passed"] = passed(report);
  return report;
}

bool passed(const nlohmann::json& report) {
  for (const char* must_be_zero : {"stale", "wrong", "unverified", "failed"}) {
    if (report.at(must_be_zero) != 0) return false;
  }
  // Every acknowledged write left a receipt, and every receipt was checked.
  if (report.at("checked") == 0 || report.at("checked") != report.at("acknowledged")) return false;
  for (const auto& shard : report.at("shards")) {
    for (const char* must_be_zero : {"stale", "wrong", "unverified", "failed"}) {
      if (shard.at(must_be_zero) != 0) return false;
    }
    if (shard.at("last_lsn") != shard.at("replica_lsn")) return false;
    if (shard.at("digest_keys") != shard.at("loaded")) return false;
    if (!report.at("interrupted").get<bool>() && shard.at("loaded") != shard.at("keys")) return false;
  }
  return report.at("digests_equal").get<bool>() && report.at("failures").empty();
}

std::string format_report(const nlohmann::json& report) {
  std::string text =
      fmt::format("{:>5}  {:>12}  {:>10}  {:>10}  {:>10}  {:>10}  {:>11}  {:>6}  {}\n", "shard", "ops/s",
                  "ack p50", "p99", "p99.9", "max", "checked", "stale", "digest");
  for (const auto& shard : report.at("shards")) {
    text += row(std::to_string(shard.at("shard").get<std::uint32_t>()), shard, digest_cell(shard));
  }
  text += row("total", report, report.at("digests_equal").get<bool>() ? "all equal" : "NOT equal");
  text += fmt::format(
      "\n{} reads and {} writes (ack {}) in {:.2f} s; {} of {} records loaded, {} duplicate keys; input: "
      "{}\n",
      report.at("reads").get<std::uint64_t>(), report.at("writes").get<std::uint64_t>(),
      report.at("ack").get<std::string>(), report.at("seconds").get<double>(),
      report.at("loaded").get<std::uint64_t>(), report.at("keys").get<std::uint64_t>(),
      report.at("duplicates").get<std::uint64_t>(), report.at("input").get<std::string>());
  if (const auto skipped = report.at("receipts_skipped").get<std::uint64_t>(); skipped > 0)
    text += fmt::format("{} receipts were not checked: nobody took them at the replica\n", skipped);
  const auto& delay = report.at("check_delay_ns");
  text += fmt::format("from acknowledgement to check at the replica: p50 {}, p99 {}{}\n",
                      readable_ns(delay.at("p50")), readable_ns(delay.at("p99")),
                      report.at("two_machines").get<bool>() ? " (less the way between the machines)" : "");
  for (const auto& failure : report.at("failures")) text += fmt::format("{}\n", failure.get<std::string>());
  for (const auto& shard : report.at("shards")) {
    for (const char* trouble : {"first_error", "first_violation"}) {
      if (shard.contains(trouble))
        text += fmt::format("shard {}: {}\n", shard.at("shard").get<std::uint32_t>(),
                            shard.at(trouble).get<std::string>());
    }
  }
  if (const auto failed = report.at("failed").get<std::uint64_t>(); failed > 0)
    text += fmt::format("{} operations failed\n", failed);
  const std::string link = report.at("link");
  text += fmt::format("link: {}{}\n", link, link_caveat(link));
  text += fmt::format("host: {}\nkernel: {}\ncommand: {}\n", report.at("host").get<std::string>(),
                      report.at("kernel").get<std::string>(), report.at("command").get<std::string>());
  const char* verdict = report.at("passed").get<bool>()
                            ? "no reader saw a state older than what it was notified of"
                            : "THE RUN DID NOT PROVE WHAT IT SHOULD: see above";
  text += fmt::format("{}{}\n", report.at("interrupted").get<bool>() ? "interrupted, partial result: " : "",
                      verdict);
  return text;
}

}  // namespace tidelock::tools
