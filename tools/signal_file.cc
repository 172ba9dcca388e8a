#include "signal_file.h"

#include <cerrno>
#include <csignal>

#include <sys/signalfd.h>

namespace tidelock::tools {
namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Result<FileHandle> block_signals() {
  const sigset_t set = ending_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  FileHandle signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return Error::from_errno(errno, "signalfd failed");
  return signals;
}

void unblock_signals() {
  const sigset_t set = ending_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace tidelock::tools
