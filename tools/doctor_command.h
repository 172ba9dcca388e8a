/// `tidelock doctor`: whether this machine will run the engine, and what to do where not.
/// Thread:   the main one
#pragma once

#include <string>

#include <CLI/App.hpp>

#include "doctor_check.h"

namespace tidelock::tools {

struct DoctorOptions {
  DoctorNeeds needs;
  bool json = false;
  std::string command;  ///< as typed, for the report
};

/// Adds the subcommand; `options` holds what was parsed.
CLI::App* add_doctor_command(CLI::App& app, DoctorOptions& options);

/// Returns the program's exit status.
int doctor_command(DoctorOptions options);

}  // namespace tidelock::tools
