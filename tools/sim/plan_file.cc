#include "plan_file.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "shape.h"

namespace tidelock::sim {
namespace {

constexpr std::string_view kFirstLine = "tidelock sim plan 1";
// Far beyond what is ever drawn, and far below what would overflow.
constexpr std::int64_t kLatestNs = seconds(1'000).ns;
constexpr std::int64_t kLongestNs = seconds(100'000).ns;

/// Clients and calls: more than any seed draws.
constexpr std::uint32_t kLoadMost = 10'000;

Error bad_line(std::size_t number, const std::string& why) {
  return Error::from_errno(EINVAL, fmt::format("line {} of the plan: {}", number, why));
}

Result<Fault> parse_fault(std::istringstream& words, std::size_t number) {
  Fault fault;
  std::string kind;
  words >> fault.number >> fault.at.ns >> kind >> fault.replica >> fault.length.ns >> fault.detail;
  if (words.fail()) return bad_line(number, "a fault is: fault NUMBER AT_NS KIND REPLICA LENGTH_NS DETAIL");
  if (!kind_of(kind, fault.kind)) return bad_line(number, "there is no fault \"" + kind + "\"");
  if (fault.at.ns < 0 || fault.at.ns > kLatestNs || fault.length.ns < 0 || fault.length.ns > kLongestNs)
    return bad_line(number, "a time that no plan has");
  return fault;
}

Result<std::uint32_t> parse_count(std::istringstream& words, std::size_t number) {
  std::uint32_t count = 0;
  words >> count;
  if (words.fail() || count == 0 || count > kLoadMost)
    return bad_line(number, "a count of 1 to " + std::to_string(kLoadMost));
  return count;
}

}  // namespace

std::string plan_text(const PlanFile& file) {
  std::string text = fmt::format("{}\nworld {}\nseed {}\n", kFirstLine, name_of(file.world), file.seed);
  if (!file.checker.empty()) text += "checker " + file.checker + "\n";
  if (!file.planted.empty()) text += "planted " + file.planted + "\n";
  if (file.load.clients != 0) text += fmt::format("clients {}\n", file.load.clients);
  if (file.load.calls != 0) text += fmt::format("calls {}\n", file.load.calls);
  for (const Fault& fault : file.plan) {
    text += fmt::format("fault {} {} {} {} {} {}\n", fault.number, fault.at.ns, name_of(fault.kind),
                        fault.replica, fault.length.ns, fault.detail);
  }
  return text;
}

Result<PlanFile> parse_plan(std::string_view text) {
  PlanFile file;
  std::istringstream lines{std::string(text)};
  std::size_t number = 0;
  bool seed_said = false;
  for (std::string line; std::getline(lines, line);) {
    if (++number == 1) {
      if (line != kFirstLine) return bad_line(number, "it begins with \"" + std::string(kFirstLine) + "\"");
      continue;
    }
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string key;
    std::string world;
    words >> key;
    if (key == "world") {
      words >> world;
      if (!world_of(world, file.world)) return bad_line(number, "there is no world \"" + world + "\"");
    } else if (key == "seed") {
      words >> file.seed;
      seed_said = true;
    } else if (key == "checker") {
      words >> file.checker;
    } else if (key == "planted") {
      words >> file.planted;
    } else if (key == "clients") {
      TL_TRY(file.load.clients, parse_count(words, number));
    } else if (key == "calls") {
      TL_TRY(file.load.calls, parse_count(words, number));
    } else if (key == "fault") {
      TL_TRY(const Fault fault, parse_fault(words, number));
      file.plan.push_back(fault);
    } else {
      return bad_line(number, "\"" + key + "\" says nothing");
    }
    if (words.fail()) return bad_line(number, "\"" + key + "\" without its value");
  }
  if (!seed_said) return bad_line(number, "no seed is named");
  const std::uint32_t targets = targets_of(file.world, draw_shape(file.world, Streams(file.seed)));
  for (const Fault& fault : file.plan) {
    if (!befalls(file.world, fault.kind))
      return Error::from_errno(EINVAL, fmt::format("the plan has \"{}\", which the world {} has not",
                                                   name_of(fault.kind), name_of(file.world)));
    if (fault.replica >= targets)
      return Error::from_errno(
          EINVAL, fmt::format("the plan names {} {}, and the seed has {}",
                              file.world == WorldKind::groups ? "node" : "replica", fault.replica, targets));
  }
  return file;
}

Result<PlanFile> read_plan(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Error::from_errno(errno != 0 ? errno : EIO, "cannot read " + path);
  std::ostringstream text;
  text << in.rdbuf();
  return parse_plan(text.str());
}

Status write_plan(const std::string& path, const PlanFile& file) {
  std::ofstream out(path);
  out << plan_text(file);
  out.close();
  if (!out) return Error::from_errno(errno != 0 ? errno : EIO, "cannot write " + path);
  return {};
}

}  // namespace tidelock::sim
