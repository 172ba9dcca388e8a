#include "program.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

namespace tidelock::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Field 4 of /proc/PID/stat, after the parenthesised name (proc(5)).
pid_t parent_of(pid_t pid) {
  const std::string stat = read_whole("/proc/" + std::to_string(pid) + "/stat");
  const auto close = stat.rfind(')');
  if (close == std::string::npos) return -1;
  std::istringstream rest(stat.substr(close + 2));
  char state = 0;
  pid_t parent = -1;
  rest >> state >> parent;
  return state == 'Z' ? -1 : parent;
}

/// As pipe2(2): ends[0] is read from, ends[1] is the terminal.
void open_terminal(int* ends) {
  ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(ends[0] >= 0);
  REQUIRE(::grantpt(ends[0]) == 0);
  REQUIRE(::unlockpt(ends[0]) == 0);
  ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(ends[1] >= 0);
}

/// The last "N ops," in what was printed.
std::uint64_t shown_ops(const std::string& text) {
  const auto end = text.rfind(" ops,");
  if (end == std::string::npos) return 0;
  const auto begin = text.find_last_not_of("0123456789", end - 1);
  return std::strtoull(text.c_str() + (begin == std::string::npos ? 0 : begin + 1), nullptr, 10);
}

}  // namespace

Program::Program(const std::string& path, const std::vector<std::string>& arguments, const Setup& setup) {
  int in[2], out[2], err[2], own[2];
  REQUIRE(::pipe2(own, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  if (setup.terminal) {
    open_terminal(err);
  } else {
    REQUIRE(::pipe2(err, O_CLOEXEC) == 0);
  }
  std::vector<char*> argv{const_cast<char*>("tidelock")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    if (!setup.out_path.empty()) {
      const int file = ::open(setup.out_path.c_str(), O_WRONLY | O_CREAT, 0600);
      if (file < 0 || ::dup2(file, STDOUT_FILENO) < 0) ::_exit(126);
    }
    if (setup.before_exec) setup.before_exec();
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  ::close(own[1]);
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  // exec closes it. Until then a signal would meet this test's own handlers and mask, in the child.
  char nothing = 0;
  while (::read(own[0], &nothing, 1) < 0 && errno == EINTR) continue;
  ::close(own[0]);
  out_ = out[0];
  err_ = err[0];
  // Inputs of tests are far below a pipe's 64 KiB, or are drained by a program that reads.
  for (std::size_t at = 0; at < setup.input.size();) {
    const ssize_t written = ::write(in[1], setup.input.data() + at, setup.input.size() - at);
    if (written <= 0) break;
    at += static_cast<std::size_t>(written);
  }
  ::close(in[1]);
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

std::vector<pid_t> Program::children() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = static_cast<pid_t>(std::stol(name));
    if (parent_of(pid) == pid_) found.push_back(pid);
  }
  return found;
}

std::optional<pid_t> Program::node(const std::string& role) const {
  for (const pid_t pid : children()) {
    const std::string line = read_whole("/proc/" + std::to_string(pid) + "/cmdline");
    if (line.find(std::string("node\0", 5) + role) != std::string::npos) return pid;
  }
  return {};
}

void Program::signal(int number) const {
  REQUIRE(pid_ > 0);  // to -1 it would go to every process
  ::kill(pid_, number);
}

/// Reads what there is; false once both pipes are at their end.
bool Program::pump(std::chrono::milliseconds time) {
  pollfd entries[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  ::poll(entries, 2, static_cast<int>(time.count()));
  bool open = false;
  const auto take = [&](int& fd, short events, std::string& into) {
    if (fd < 0) return;
    open = true;
    if (events == 0) return;
    char buffer[65536];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) {
      into.append(buffer, static_cast<std::size_t>(count));
    } else {
      ::close(fd);
      fd = -1;
    }
  };
  take(out_, entries[0].revents, out_text_);
  take(err_, entries[1].revents, err_text_);
  return open;
}

bool Program::wait_for_error_text(const std::string& text, std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (err_text_.find(text) == std::string::npos) {
    if (Clock::now() > deadline || !pump(std::chrono::milliseconds(50))) return false;
  }
  return true;
}

std::uint64_t Program::wait_for_ops(std::uint64_t ops, std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (shown_ops(err_text_) < ops) {
    if (Clock::now() > deadline || !pump(std::chrono::milliseconds(50))) return 0;
  }
  return shown_ops(err_text_);
}

ProgramResult Program::finish(std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (pump(std::chrono::milliseconds(50))) {
    if (Clock::now() > deadline) {
      MESSAGE("killed after its time: ", err_text_);
      ::kill(pid_, SIGKILL);
    }
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  ProgramResult result;
  result.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.out = out_text_;
  result.err = err_text_;
  return result;
}

ProgramResult run_program(const std::string& path, const std::vector<std::string>& arguments,
                          const Program::Setup& setup) {
  Program program(path, arguments, setup);
  return program.finish(std::chrono::seconds(120));
}

void refuse_io_uring(int errno_value) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(errno_value)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

TemporaryFile::TemporaryFile(const std::string& content) {
  std::string name = (std::filesystem::temp_directory_path() / "tidelock-test-XXXXXX").string();
  const int fd = ::mkstemp(name.data());
  REQUIRE(fd >= 0);
  ::close(fd);
  path_ = name;
  std::ofstream(path_, std::ios::binary) << content;
}

TemporaryFile::~TemporaryFile() { std::filesystem::remove(path_); }

}  // namespace tidelock::test
