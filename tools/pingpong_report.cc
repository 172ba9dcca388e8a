#include "pingpong_report.h"

#include <fmt/format.h>

namespace tidelock::tools {
namespace {

/// What a number measured on such a link says nothing about; empty: it is a network card's.
std::string caveat(const PingReport& report) {
  if (report.options.link == LinkKind::shm)
    return "shared memory between two processes; says nothing about RDMA";
  const std::string& device = report.facts.device;
  const bool software = device.starts_with("rxe") || device.starts_with("siw");
  return software ? "RDMA in software; says nothing about a network card" : "";
}

/// What goes there and what comes back.
const char* verb_text(PingVerb verb) {
  return verb == PingVerb::link ? "link: 64-byte control frame (SEND) there, batch (WRITE_WITH_IMM) back"
                                : "send: 64-byte control frame (SEND) there and back";
}

nlohmann::json row_json(const PingRow& row) {
  return {{"bytes", row.bytes},
          {"iterations", row.iterations},
          {"t_min_usec", row.min_usec},
          {"t_max_usec", row.max_usec},
          {"t_typical_usec", row.typical_usec},
          {"t_avg_usec", row.average_usec},
          {"t_stdev_usec", row.deviation_usec},
          {"p99_usec", row.p99_usec},
          {"p99_9_usec", row.p999_usec}};
}

}  // namespace

std::string preamble(const PingReport& report) {
  const PingFacts& facts = report.facts;
  const std::string note = caveat(report);
  std::string text = fmt::format(" link:     {}{}\n", facts.link, note.empty() ? "" : " (" + note + ")");
  if (!facts.device.empty()) {
    text += fmt::format(" device:   {}, address {}, GID index {}, MTU {}, inline {} bytes\n", facts.device,
                        facts.local, facts.gid_index, facts.mtu_bytes, facts.inline_bytes);
  }
  text += fmt::format(" verb:     {}\n", report.options.link == LinkKind::shm
                                             ? "64-byte control frame there, batch back"
                                             : verb_text(report.verb));
  text +=
      fmt::format(" reactor:  {}{}\n", report.options.overprovisioned ? "parks" : "spins",
                  report.options.cpu >= 0 ? fmt::format(" on CPU {}", report.options.cpu) : ", not pinned");
  text += fmt::format(" host:     {}, {}\n", report.host, report.kernel);
  text += fmt::format(" command:  {}\n", report.options.command);
  return text;
}

std::string results(const PingReport& report) {
  if (report.options.is_server()) return fmt::format(" answered: {}\n", report.answers);
  std::string text =
      fmt::format(" {:<8}{:<13}{:<13}{:<13}{:<17}{:<13}{:<15}{:<22}{}\n", "#bytes", "#iterations",
                  "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]",
                  "99% percentile[usec]", "99.9% percentile[usec]");
  for (const PingRow& row : report.rows) {
    text += fmt::format(" {:<8}{:<13}{:<13.2f}{:<13.2f}{:<17.2f}{:<13.2f}{:<15.2f}{:<22.2f}{:.2f}\n",
                        row.bytes, row.iterations, row.min_usec, row.max_usec, row.typical_usec,
                        row.average_usec, row.deviation_usec, row.p99_usec, row.p999_usec);
  }
  return text;
}

nlohmann::json to_json(const PingReport& report) {
  const PingFacts& facts = report.facts;
  nlohmann::json json = {{"command", report.options.command},
                         {"host", report.host},
                         {"kernel", report.kernel},
                         {"role", report.options.is_server() ? "server" : "client"},
                         {"link",
                          {{"kind", report.options.link == LinkKind::shm ? "shm" : "verbs"},
                           {"description", facts.link},
                           {"device", facts.device},
                           {"local_address", facts.local},
                           {"remote_address", facts.remote},
                           {"gid_index", facts.gid_index},
                           {"mtu_bytes", facts.mtu_bytes},
                           {"inline_bytes", facts.inline_bytes},
                           {"note", caveat(report)}}},
                         {"verb", to_string(report.verb)},
                         {"overprovisioned", report.options.overprovisioned},
                         {"interrupted", report.interrupted},
                         {"answers", report.answers}};
  if (!report.error.empty()) json["error"] = report.error;
  if (report.options.is_server()) return json;
  json["results"] = nlohmann::json::array();
  for (const PingRow& row : report.rows) json["results"].push_back(row_json(row));
  return json;
}

}  // namespace tidelock::tools
