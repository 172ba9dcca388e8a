/// The doctor's report, for people and for programs.
/// Thread:   any
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "doctor_check.h"

namespace tidelock::tools {

struct DoctorReport {
  Checks checks;
  std::string host;
  std::string kernel;
  std::string command;
};

nlohmann::json to_json(const DoctorReport& report);
std::string to_text(const DoctorReport& report);
/// 2 if anything keeps the engine from starting, 1 if anything else is not ok, else 0.
int exit_code_of(const Checks& checks);

}  // namespace tidelock::tools
