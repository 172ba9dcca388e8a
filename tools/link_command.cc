#include "link_command.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "exit_code.h"
#include "inspect_client.h"
#include "link_view.h"
#include "node_events.h"
#include "say.h"

namespace tidelock::tools {
namespace {

volatile std::sig_atomic_t ended = 0;  ///< the exit status that goes with the signal

/// Ctrl-C is how one leaves a watch: there it is no failure.
void end_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { ended = signal == SIGINT ? kExitInterrupted : kExitTerminated; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

Result<std::vector<nlohmann::json>> ask(const LinkCommandOptions& options) {
  std::vector<nlohmann::json> nodes;
  if (!options.at.empty() || options.pid != 0) {
    TL_TRY(auto node, inspect(options.at.empty() ? inspect_name(options.pid) : options.at));
    nodes.push_back(std::move(node));
    return nodes;
  }
  // One that has just ended, or is another user's, is not asked for by name: it is left out.
  for (const std::string& name : find_inspection_sockets()) {
    if (auto node = inspect(name)) nodes.push_back(*std::move(node));
  }
  if (!nodes.empty()) return nodes;
  return Error::from_errno(ESRCH,
                           "no node of this user runs here: start one (tidelock run), or name the socket "
                           "of an engine (--at, its Options::inspect)");
}

void sleep_for(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  const timespec time{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  ::nanosleep(&time, nullptr);  // a signal ends it, as it should
}

}  // namespace

CLI::App* add_link_command(CLI::App& app, LinkCommandOptions& options) {
  CLI::App* link = app.add_subcommand("link", "Show the links of running nodes: peers, states, counters");
  link->description(
      "Shows the links of this user's running nodes: peers, states, how they came to be, and counters.\n"
      "Exit status: 0; 2 there was nobody to ask; 130 interrupted, but for --watch.");
  auto* at = link->add_option("--at", options.at, "Socket of an engine, its Options::inspect");
  link->add_option("--pid", options.pid, "Process of a node that tidelock run has started")
      ->check(CLI::Range(1L, 1L << 30))
      ->excludes(at);
  link->add_option("--watch", options.watch, "Again every so many seconds, with rates, until Ctrl-C")
      ->check(CLI::Range(0.1, 3'600.0));
  link->add_flag("--json", options.json, "One JSON object a line instead of the table");
  return link;
}

int link_command(const LinkCommandOptions& options) {
  end_on_signals();
  using Clock = std::chrono::steady_clock;
  const bool clear = ::isatty(STDOUT_FILENO) != 0 && !options.json && options.watch > 0;
  std::vector<nlohmann::json> before;
  Clock::time_point before_at;
  for (bool first = true; ended == 0; first = false) {
    auto nodes = ask(options);
    if (ended != 0) break;
    if (!nodes && !first) return kExitOk;  // it was there, and has ended
    if (!nodes) return fail("link", nodes.error());
    const auto now = Clock::now();
    const double since = first ? 0 : std::chrono::duration<double>(now - before_at).count();
    auto text = options.json
                    ? Result<std::string>(nlohmann::json{{"nodes", *nodes}}.dump(
                                              -1, ' ', false, nlohmann::json::error_handler_t::replace) +
                                          "\n")
                    : format_links(*nodes, before, since);
    if (!text) return fail("link", text.error());
    if (!print_result((clear ? "\033[H\033[J" : first || options.json ? "" : "\n") + *text)) {
      // A reader that has seen enough is no failure.
      return errno == EPIPE
                 ? kExitOk
                 : fail("link", std::string("cannot write to standard output: ") + std::strerror(errno));
    }
    if (options.watch <= 0) return kExitOk;
    before = *std::move(nodes);
    before_at = now;
    sleep_for(options.watch);
  }
  return options.watch > 0 ? kExitOk : ended;
}

}  // namespace tidelock::tools
