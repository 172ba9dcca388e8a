// The connecting side. The listening side: shm_listener.cc.
#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include <sys/socket.h>

#include <tidelock/reactor/errc.h>

#include "shm_handshake.h"
#include "shm_socket.h"

namespace tidelock {
namespace {

void sleep_for(Duration duration) {
  const timespec time{duration.ns / 1'000'000'000, duration.ns % 1'000'000'000};
  ::nanosleep(&time, nullptr);
}

/// Whether the primary may merely not have got there yet: no socket, nobody behind it, or a full backlog.
bool may_come(int code) { return code == ENOENT || code == ECONNREFUSED || code == EAGAIN; }

Error cannot_connect(int code, const std::string& path) {
  std::string text = "cannot connect to '" + path + "'";
  if (code == ENOENT || code == ECONNREFUSED) text += ": no primary listens there; start the primary first";
  if (code == EAGAIN) text += ": the primary does not take connections";
  if (code == EACCES || code == EPERM) text += ": run as the primary's user";
  if (code == EPROTOTYPE) text += ": another kind of program listens there; check --socket";
  return Error::from_errno(code, text);
}

/// The primary may start a moment after us, so we knock until the deadline.
Result<UniqueFd> connect_until(const std::string& path, const UnixAddress& address, Instant deadline,
                               const std::atomic<bool>& interrupted) {
  constexpr Duration kPauseMax = milliseconds(50);
  Duration pause = milliseconds(1);
  for (;;) {
    if (interrupted) return Error(ReactorErrc::closed, "connecting to '" + path + "' was given up");
    TL_TRY(auto socket, unix_socket());
    if (::connect(socket.get(), address.get(), address.bytes) == 0) return socket;
    const int code = errno;
    if (code == EINTR) continue;
    const Duration left = deadline - control_now();
    if (!may_come(code) || left.ns <= 0) return cannot_connect(code, path);
    sleep_for(std::min(pause, left));
    pause = std::min(pause * 2, kPauseMax);
  }
}

}  // namespace

Result<ConnectedPeer> shm_connect(const std::string& path, const Hello& ours, Duration timeout,
                                  const std::atomic<bool>& interrupted, std::optional<Refusal>* refusal) {
  const Instant deadline = control_now() + timeout;
  TL_TRY(const UnixAddress address, unix_address(path));
  TL_TRY(auto socket, connect_until(path, address, deadline, interrupted));
  TL_TRY(check_peer_user(socket.get()));
  return say_hello(std::move(socket), ours, deadline, refusal);
}

}  // namespace tidelock
