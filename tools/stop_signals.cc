#include "stop_signals.h"

#include <csignal>
#include <ctime>

#include "exit_code.h"

namespace tidelock::tools {
namespace {

std::atomic<bool> stopped{false};
volatile std::sig_atomic_t signal_number = 0;
volatile std::sig_atomic_t signal_came_at_s = 0;

// Only what is async-signal-safe (signal-safety(7)).
void on_stop_signal(int number) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto now_s = static_cast<std::sig_atomic_t>(now.tv_sec);
  if (signal_number == 0) {
    signal_number = number;
    signal_came_at_s = now_s;
    stopped.store(true, std::memory_order_relaxed);
  } else if (now_s - signal_came_at_s > 1) {
    std::signal(number, SIG_DFL);
    ::raise(number);
  }
}

}  // namespace

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& stop_asked() { return stopped; }

int interrupted_status() { return signal_number == SIGTERM ? kExitTerminated : kExitInterrupted; }

}  // namespace tidelock::tools
