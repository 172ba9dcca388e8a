/// A second process of this test program, to be killed: it runs one test case, named by `what`, and is spoken
/// to by lines. In the child, see Parent.
/// Thread:   one
#pragma once

#include <array>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace tidelock::test {

inline constexpr const char* kChildVariable = "TIDELOCK_TEST_CHILD";
inline constexpr auto kChildPatience = std::chrono::seconds(120);

/// For doctest::skip() of what only a child runs.
inline bool not_a_child() { return std::getenv(kChildVariable) == nullptr; }

/// Whole lines from a descriptor that does not block.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  /// True if there is one now.
  bool next(std::string& line) {
    std::array<char, 4096> bytes{};
    for (ssize_t got = 0; (got = ::read(fd_, bytes.data(), bytes.size())) > 0;) {
      text_.append(bytes.data(), static_cast<std::size_t>(got));
    }
    const std::size_t end = text_.find('\n');
    if (end == std::string::npos) return false;
    line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return true;
  }
  /// Waits for one.
  bool await(std::string& line, std::chrono::seconds patience) {
    const auto give_up = std::chrono::steady_clock::now() + patience;
    while (!next(line)) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      pollfd wait{fd_, POLLIN, 0};
      ::poll(&wait, 1, 100);
      if ((wait.revents & POLLHUP) != 0 && !next(line)) return false;
      if (!line.empty()) return true;
    }
    return true;
  }

 private:
  int fd_;
  std::string text_;
};

class ChildProcess {
 public:
  /// `role` is what Parent::role() gives in the child.
  ChildProcess(const std::string& what, const std::string& role) : lines_(make_pipes()) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to_[0], 0);
    ::posix_spawn_file_actions_adddup2(&actions, from_[1], 1);
    std::string test_case = "--test-case=" + what;
    std::string program = "/proc/self/exe";
    std::array<char*, 3> arguments{program.data(), test_case.data(), nullptr};
    ::setenv(kChildVariable, role.c_str(), 1);
    const int failed = ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ);
    ::unsetenv(kChildVariable);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(to_[0]);
    ::close(from_[1]);
    REQUIRE(failed == 0);
  }
  ~ChildProcess() {
    kill();
    ::close(to_[1]);
    ::close(from_[0]);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void tell(const std::string& line) const {
    const std::string whole = line + "\n";
    CHECK(::write(to_[1], whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
  }
  /// What it says next, without "child: "; empty: it says nothing now.
  std::string poll() {
    for (std::string line; lines_.next(line);) {
      if (line.starts_with(kMark)) return line.substr(kMark.size());
    }
    return {};
  }
  /// Waits for it. The child's own patience ends it.
  std::string hear() {
    for (std::string line; lines_.await(line, kChildPatience); line.clear()) {
      if (line.starts_with(kMark)) return line.substr(kMark.size());
      if (line.find("ERROR") != std::string::npos) MESSAGE(line);
    }
    return {};
  }
  /// kill -9, and waits until it is gone.
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    finish();
  }
  /// Waits for its end; its exit code, or -1.
  int finish() {
    int status = -1;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static constexpr std::string_view kMark = "child: ";

 private:
  int make_pipes() {
    REQUIRE(::pipe2(to_.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(from_.data(), O_CLOEXEC) == 0);
    REQUIRE(::fcntl(from_[0], F_SETFL, O_NONBLOCK) == 0);
    return from_[0];
  }

  std::array<int, 2> to_{};
  std::array<int, 2> from_{};
  pid_t pid_ = -1;
  LineReader lines_;
};

/// The other end, in the child.
class Parent {
 public:
  Parent() : lines_(0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(static_cast<unsigned>(kChildPatience.count()));
    ::fcntl(0, F_SETFL, O_NONBLOCK);
  }
  static std::string role() { return std::getenv(kChildVariable); }
  static void tell(const std::string& line) {
    const std::string whole = std::string(ChildProcess::kMark) + line + "\n";
    static_cast<void>(!::write(1, whole.data(), whole.size()));
  }
  std::string hear() {
    std::string line;
    lines_.await(line, kChildPatience);
    return line;
  }

 private:
  LineReader lines_;
};

}  // namespace tidelock::test
