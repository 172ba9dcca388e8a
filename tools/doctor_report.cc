#include "doctor_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "exit_code.h"

namespace tidelock::tools {
namespace {

std::size_t count(const Checks& checks, CheckStatus status) {
  return static_cast<std::size_t>(std::count_if(checks.begin(), checks.end(),
                                                [&](const Check& check) { return check.status == status; }));
}

const char* name_of(CheckStatus status) {
  switch (status) {
    case CheckStatus::ok:
      return "ok";
    case CheckStatus::warning:
      return "warning";
    case CheckStatus::error:
      return "error";
    case CheckStatus::unknown:
      break;
  }
  return "unknown";
}

}  // namespace

nlohmann::json to_json(const DoctorReport& report) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Check& check : report.checks) {
    checks.push_back({{"name", check.name},
                      {"status", name_of(check.status)},
                      {"value", check.value},
                      {"why", check.why},
                      {"fix", check.fix}});
  }
  return {{"checks", std::move(checks)},
          {"ok", count(report.checks, CheckStatus::ok)},
          {"warnings", count(report.checks, CheckStatus::warning)},
          {"errors", count(report.checks, CheckStatus::error)},
          {"unknown", count(report.checks, CheckStatus::unknown)},
          {"host", report.host},
          {"kernel", report.kernel},
          {"command", report.command}};
}

std::string to_text(const DoctorReport& report) {
  std::size_t width = 0;
  for (const Check& check : report.checks) width = std::max(width, check.name.size());
  std::string text;
  for (const Check& check : report.checks) {
    text += fmt::format("{:<7}  {:<{}}  {} -- {}", name_of(check.status), check.name, width, check.value,
                        check.why);
    if (!check.fix.empty()) text += fmt::format(" -- FIX: {}", check.fix);
    text += '\n';
  }
  text += fmt::format("\n{} ok, {}, {}, {} unknown\nhost: {}\nkernel: {}\ncommand: {}\n",
                      count(report.checks, CheckStatus::ok),
                      counted(count(report.checks, CheckStatus::warning), "warning"),
                      counted(count(report.checks, CheckStatus::error), "error"),
                      count(report.checks, CheckStatus::unknown), report.host, report.kernel, report.command);
  return text;
}

int exit_code_of(const Checks& checks) {
  if (count(checks, CheckStatus::error) > 0) return kExitUsage;
  return count(checks, CheckStatus::ok) == checks.size() ? kExitOk : kExitFailed;
}

}  // namespace tidelock::tools
