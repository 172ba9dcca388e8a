#include "shm_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <unistd.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>

namespace tidelock {
namespace {

Error hung_up() { return Error(ReplicationErrc::link_closed, "the peer hung up during the handshake"); }

bool is_hang_up(int code) { return code == EPIPE || code == ECONNRESET || code == ENOTCONN; }

/// Takes the first descriptor into `passed` and closes all others. Returns how many came.
std::size_t collect_descriptors(msghdr& message, UniqueFd* passed) {
  std::size_t count = 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      UniqueFd owned(fd);
      if (count++ == 0 && passed != nullptr) *passed = std::move(owned);
    }
  }
  return count;
}

}  // namespace

void UniqueFd::reset(int fd) {
  const int old = std::exchange(fd_, fd);
  if (old >= 0) ::close(old);
}

Result<UnixAddress> unix_address(const std::string& path) {
  UnixAddress address;
  address.storage.sun_family = AF_UNIX;
  address.abstract = !path.empty() && path.front() == '@';
  // A path needs its terminating zero; an abstract name has a zero in front instead of the '@'.
  constexpr std::size_t kLimit = sizeof address.storage.sun_path - 1;
  if (path.empty() || path == "@" || path.find('\0') != std::string::npos) {
    return Error::from_errno(
        EINVAL, "a socket path has 1 to " + std::to_string(kLimit) + " bytes and no NUL; set --socket");
  }
  if (path.size() > kLimit) {
    return Error::from_errno(ENAMETOOLONG, "socket path '" + path + "' has " + std::to_string(path.size()) +
                                               " bytes, at most " + std::to_string(kLimit) +
                                               " are possible; choose a shorter --socket");
  }
  std::memcpy(address.storage.sun_path, path.data(), path.size());
  if (address.abstract) address.storage.sun_path[0] = '\0';
  const std::size_t terminator = address.abstract ? 0 : 1;
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + terminator);
  return address;
}

Result<UniqueFd> unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    return Error::from_errno(errno, "cannot open a unix socket; raise the limit on open files (ulimit -n)");
  }
  return fd;
}

Instant control_now() { return SystemClock().now(); }

Status wait_ready(int fd, short events, Instant deadline) {
  for (;;) {
    const Duration left = deadline - control_now();
    if (left.ns <= 0) return ReactorErrc::deadline_exceeded;
    pollfd entry{fd, events, 0};
    // Rounded up, so that the last round is not a busy one.
    const std::int64_t left_ms = std::min<std::int64_t>((left.ns + 999'999) / 1'000'000, 60'000);
    const int ready = ::poll(&entry, 1, static_cast<int>(left_ms));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Error::from_errno(errno, "poll on a unix socket");
  }
}

Status send_message(int fd, Bytes message, int passed_fd, Instant deadline) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (passed_fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &passed_fd, sizeof passed_fd);
  }
  for (;;) {
    if (::sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
    if (errno == EINTR) continue;
    if (is_hang_up(errno)) return hung_up();
    if (errno != EAGAIN) return Error::from_errno(errno, "sendmsg on a unix socket");
    TL_TRY(wait_ready(fd, POLLOUT, deadline));
  }
}

Result<std::size_t> receive_message(int fd, MutableBytes into, UniqueFd* passed, Instant deadline) {
  for (;;) {
    iovec part{into.data(), into.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (passed != nullptr) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
    }
    const ssize_t got = ::recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (is_hang_up(errno)) return hung_up();
      if (errno != EAGAIN) return Error::from_errno(errno, "recvmsg on a unix socket");
      TL_TRY(wait_ready(fd, POLLIN, deadline));
      continue;
    }
    const std::size_t descriptors = collect_descriptors(header, passed);
    if (got == 0) return hung_up();
    if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || descriptors > 1) {
      return Error(ReplicationErrc::malformed, "a handshake message is too long or brings extra descriptors");
    }
    return static_cast<std::size_t>(got);
  }
}

std::uint32_t peer_user(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 ? peer.uid : ~0U;
}

Status check_peer_user(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return Error::from_errno(errno, "cannot tell whose process is at the other end of the socket");
  }
  if (peer.uid == 0 || peer.uid == ::geteuid()) return {};
  return Error::from_errno(EPERM, "the process at the other end of the socket (pid " +
                                      std::to_string(peer.pid) + ") belongs to user " +
                                      std::to_string(peer.uid) + ", this one to user " +
                                      std::to_string(::geteuid()) + "; run both as the same user");
}

}  // namespace tidelock
