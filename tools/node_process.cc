#include "node_process.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <thread>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "node.h"

namespace tidelock::tools {
namespace {

/// Above every fixed number, so that no dup2 below overwrites a source.
constexpr int kFirstFreeFd = 64;

/// In the child, before exec: only async-signal-safe calls.
[[noreturn]] void become_node(pid_t parent, int channel, int dataset, int receipts, const char* role) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it died before the request above
  const int sources[3] = {::fcntl(channel, F_DUPFD, kFirstFreeFd), ::fcntl(dataset, F_DUPFD, kFirstFreeFd),
                          ::fcntl(receipts, F_DUPFD, kFirstFreeFd)};
  const int targets[3] = {kNodeChannelFd, kNodeDatasetFd, kNodeReceiptsFd};
  for (int i = 0; i < 3; ++i) {
    if (sources[i] < 0 || ::dup2(sources[i], targets[i]) < 0) ::_exit(1);
    ::close(sources[i]);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execl("/proc/self/exe", "tidelock", "node", role, static_cast<char*>(nullptr));
  ::_exit(127);
}

}  // namespace

Result<NodeProcess> NodeProcess::start(const NodeConfig& config, int dataset_fd, int receipts_fd) {
  TL_TRY(auto channels, NodeChannel::pair());
  const pid_t parent = ::getpid();
  const char* role = config.role == NodeRole::primary ? "primary" : "replica";
  // An ignored SIGCHLD, which a parent can leave to us, would lose how the node ends.
  std::signal(SIGCHLD, SIG_DFL);
  const pid_t pid = ::fork();
  if (pid < 0) return Error::from_errno(errno, "cannot start a process: is the limit of processes reached?");
  if (pid == 0) become_node(parent, channels.second.fd(), dataset_fd, receipts_fd, role);
  NodeProcess process(pid, std::move(channels.first));
  TL_TRY(process.send(to_json(config)));
  return process;
}

NodeProcess::~NodeProcess() {
  if (running()) reap(Duration{0});
}

std::string NodeProcess::reap(Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout.ns);
  int status = 0;
  bool killed = false;
  while (running()) {
    const pid_t ended = ::waitpid(pid_, &status, killed ? 0 : WNOHANG);
    if (ended == pid_ || (ended < 0 && errno != EINTR)) {
      pid_ = -1;
      if (ended < 0) {
        end_ = fmt::format("ended nobody knows how ({})", ::strerror(errno));
      } else if (killed) {
        end_ = "did not end in time and was killed";
      } else if (WIFSIGNALED(status)) {
        end_ = fmt::format("ended by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
      } else if (WEXITSTATUS(status) != 0) {
        end_ = fmt::format("ended with exit status {}", WEXITSTATUS(status));
      }
    } else if (!killed && std::chrono::steady_clock::now() >= deadline) {
      ::kill(pid_, SIGKILL);
      killed = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return end_;
}

}  // namespace tidelock::tools
