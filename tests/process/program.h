/// Runs a program as a user would, from a test: arguments, standard input, limits; output, exit status,
/// signals.
/// Thread:   one owner
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/types.h>

namespace tidelock::test {

struct ProgramResult {
  int exit_status = -1;  ///< or 128 + signal
  std::string out;
  std::string err;
  [[nodiscard]] nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

class Program {
 public:
  struct Setup {
    std::string input;
    /// Runs in the child just before exec; only async-signal-safe calls.
    std::function<void()> before_exec;
    std::string out_path;   ///< standard output goes there instead of into ProgramResult::out
    bool terminal = false;  ///< standard error is a terminal, so that progress is shown there
  };
  Program(const std::string& path, const std::vector<std::string>& arguments, const Setup& setup);
  Program(const std::string& path, const std::vector<std::string>& arguments)
      : Program(path, arguments, Setup()) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The processes that it started and that still run, by the role that follows "node" on their command line.
  [[nodiscard]] std::optional<pid_t> node(const std::string& role) const;
  [[nodiscard]] std::vector<pid_t> children() const;
  void signal(int number) const;
  /// Waits until the program has printed `text` to standard error, or `timeout` has passed (false).
  bool wait_for_error_text(const std::string& text, std::chrono::seconds timeout);
  /// Waits until the progress of a run (Setup::terminal) shows so many operations, 0 if `timeout` has passed;
  /// returns how many.
  std::uint64_t wait_for_ops(std::uint64_t ops, std::chrono::seconds timeout);
  /// Kills it (exit status 137) if it takes longer.
  ProgramResult finish(std::chrono::seconds timeout);

 private:
  bool pump(std::chrono::milliseconds time);

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::string out_text_;
  std::string err_text_;
};

/// Start, finish within two minutes.
ProgramResult run_program(const std::string& path, const std::vector<std::string>& arguments,
                          const Program::Setup& setup = {});

/// For Setup::before_exec: answers io_uring_setup with `errno_value`, as a container's seccomp profile does.
void refuse_io_uring(int errno_value);

/// The programs under test.
inline const std::string kTidelock = TIDELOCK_PROGRAM;
inline const std::string kTidelockPlanted = TIDELOCK_PLANTED_PROGRAM;

/// A file of its own, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tidelock::test
