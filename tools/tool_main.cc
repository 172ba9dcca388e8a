#include "tool_main.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <string>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <tidelock/engine/version.h>

#include "doctor_command.h"
#include "exit_code.h"
#include "link_command.h"
#include "node.h"
#include "pingpong_command.h"
#include "run_command.h"
#include "say.h"
#include "sim_command.h"

namespace tidelock::tools {
namespace {

std::string command_line(int argc, char** argv) {
  std::string text;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool quote = argument.empty() || argument.find_first_of(" \t\n'\"$&;|<>()*?") != std::string::npos;
    if (i > 0) text += ' ';
    text += quote ? "'" + argument + "'" : argument;
  }
  return text;
}

/// One of the three that the parent has closed would be the next file that is opened, and what is said to
/// standard error would end up there. In its place comes one that refuses what it is for.
void fill_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0)
      static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

/// CLI11 gives each kind of mistake a status of its own; here they are all "could not run as asked".
int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // --help, --version
    std::ostringstream text;
    app.exit(error, text, text);
    if (print_result(text.str())) return kExitOk;
    say(fmt::format("tidelock: cannot write to standard output: {}\n", std::strerror(errno)));
    return kExitUsage;
  }
  std::string message = error.what();
  if (const auto end = message.find('\n'); end != std::string::npos) message.resize(end);
  const auto chosen = app.get_subcommands();
  say(fmt::format("tidelock: {}: see {} --help\n", message,
                  chosen.empty() ? "tidelock" : "tidelock " + chosen.front()->get_name()));
  return kExitUsage;
}

}  // namespace

int tool_main(int argc, char** argv, const ApplyPolicy* planted, const RunLimits& limits) {
  // Not a subcommand for people: how `run` starts its two processes.
  if (argc >= 2 && std::strcmp(argv[1], "node") == 0) return node_main(planted);

  fill_standard_files();
  CLI::App app("tidelock: a sharded, replicated key-value engine, one reactor a core", "tidelock");
  app.set_version_flag("--version", std::string("tidelock ") + kVersion);
  app.require_subcommand(1);
  app.footer("Try: tidelock doctor, then tidelock run --duration 2");
  RunOptions run_options;
  const CLI::App* run = add_run_command(app, run_options);
  DoctorOptions doctor_options;
  const CLI::App* doctor = add_doctor_command(app, doctor_options);
  LinkCommandOptions link_options;
  const CLI::App* link = add_link_command(app, link_options);
  PingpongOptions pingpong_options;
  const CLI::App* pingpong = add_pingpong_command(app, pingpong_options);
  SimCommandOptions sim_options;
  const CLI::App* sim = add_sim_command(app, sim_options);
  // CLI11 would only say that a subcommand is missing.
  const auto named = app.get_subcommands(
      [&](const CLI::App* command) { return argc >= 2 && command->get_name() == argv[1]; });
  if (argc >= 2 && argv[1][0] != '-' && named.empty()) {
    say(fmt::format("tidelock: there is no command \"{}\": see tidelock --help\n", argv[1]));
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  }
  run_options.command = doctor_options.command = pingpong_options.command = command_line(argc, argv);
  if (run->parsed()) return run_command(std::move(run_options), limits);
  if (link->parsed()) return link_command(link_options);
  if (pingpong->parsed()) return pingpong_command(pingpong_options);
  if (sim->parsed()) return sim_command(sim_options, planted);
  return doctor->parsed() ? doctor_command(std::move(doctor_options)) : kExitUsage;
}

}  // namespace tidelock::tools
