#include "link_view.h"

#include <array>
#include <cerrno>
#include <cstdint>

#include <fmt/format.h>

namespace tidelock::tools {
namespace {

struct Column {
  const char* name;
  const char* title;
};
constexpr std::array<Column, 8> kCounters{{{"batches_out", "batches out"},
                                           {"batches_in", "batches in"},
                                           {"bytes_out", "bytes out"},
                                           {"bytes_in", "bytes in"},
                                           {"control_out", "control out"},
                                           {"control_in", "control in"},
                                           {"full", "full"},
                                           {"peer_wakeups", "wakeups"}}};

std::string readable_count(double count) {
  if (count < 100'000) return fmt::format("{:.0f}", count);
  if (count < 1e8) return fmt::format("{:.1f}k", count / 1e3);
  if (count < 1e11) return fmt::format("{:.1f}M", count / 1e6);
  return fmt::format("{:.1f}G", count / 1e9);
}

std::string readable_age(std::uint64_t ns) {
  if (ns < 1'000'000'000) return fmt::format("{} ms", ns / 1'000'000);
  if (ns < 600'000'000'000) return fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9);
  return fmt::format("{} min", ns / 60'000'000'000);
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return text;
}

std::string text_of(const nlohmann::json& json, const char* name) {
  return one_line(json.at(name).get<std::string>());
}

std::uint64_t number_of(const nlohmann::json& json, const char* name) {
  return json.at(name).get<std::uint64_t>();
}

/// The same link in an earlier answer, or null. Counters begin anew with each generation.
const nlohmann::json* find_before(const std::vector<nlohmann::json>& before, const nlohmann::json& node,
                                  const nlohmann::json& link) {
  for (const auto& earlier : before) {
    if (earlier.at("pid") != node.at("pid")) continue;
    for (const auto& other : earlier.at("links")) {
      if (other.at("shard") == link.at("shard") && other.at("peer_node") == link.at("peer_node") &&
          other.at("generation") == link.at("generation"))
        return &other;
    }
  }
  return nullptr;
}

std::string counter_cell(const nlohmann::json& link, const nlohmann::json* earlier, const char* name,
                         double seconds) {
  const std::uint64_t now = number_of(link, name);
  if (seconds <= 0) return readable_count(static_cast<double>(now));
  const std::uint64_t then = earlier != nullptr ? number_of(*earlier, name) : now;
  return readable_count(now >= then ? static_cast<double>(now - then) / seconds : 0.0);
}

std::string link_lines(const nlohmann::json& link, const nlohmann::json* earlier, double seconds) {
  std::string text =
      fmt::format("{:>5}  {:>5}  {:<12}  {:>4}  {:>10}", number_of(link, "shard"),
                  number_of(link, "peer_node"), text_of(link, "state"), number_of(link, "generation"),
                  readable_age(number_of(link, "last_heard_age_ns")));
  for (const Column& column : kCounters)
    text += fmt::format("  {:>13}", counter_cell(link, earlier, column.name, seconds));
  text += fmt::format("  {}\n", text_of(link, "description"));
  for (const auto& change : link.at("transitions")) {
    const std::string detail = text_of(change, "detail");
    text += fmt::format("{:>14} ago: {}{}{}\n", readable_age(number_of(change, "age_ns")),
                        text_of(change, "state"), detail.empty() ? "" : ", ", detail);
  }
  return text;
}

std::string node_lines(const nlohmann::json& node, const std::vector<nlohmann::json>& before,
                       double seconds) {
  std::string text = fmt::format("node {}, {}, pid {}, {} shard{}\n", number_of(node, "node"),
                                 text_of(node, "role"), number_of(node, "pid"), number_of(node, "shards"),
                                 number_of(node, "shards") == 1 ? "" : "s");
  if (node.at("links").empty()) return text + "  no link, and none so far\n";
  text += fmt::format("{:>5}  {:>5}  {:<12}  {:>4}  {:>10}", "shard", "peer", "state", "gen", "last heard");
  for (const Column& column : kCounters)
    text += fmt::format("  {:>13}", column.title + std::string(seconds > 0 ? "/s" : ""));
  text += "  link\n";
  for (const auto& link : node.at("links"))
    text += link_lines(link, find_before(before, node, link), seconds);
  return text;
}

}  // namespace

Result<std::string> format_links(const std::vector<nlohmann::json>& nodes,
                                 const std::vector<nlohmann::json>& before, double seconds) {
  try {
    std::string text;
    for (const auto& node : nodes) text += (text.empty() ? "" : "\n") + node_lines(node, before, seconds);
    return text;
  } catch (const nlohmann::json::exception&) {
    return Error::from_errno(EBADMSG, "what answers is no engine of this version");
  }
}

}  // namespace tidelock::tools
