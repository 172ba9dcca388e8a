#include "inspect.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <tidelock/reactor/clock.h>

namespace tidelock {
namespace {

constexpr std::size_t kClientsMax = 8;
constexpr std::size_t kRequestBytesMax = 256;
constexpr std::int64_t kIdleMs = 60'000;
constexpr std::int64_t kSendMs = 2'000;
constexpr std::int64_t kStopLookMs = 100;  ///< how often a send that waits looks whether it is the end

std::int64_t now_ms() { return SystemClock().now().ns / 1'000'000; }

/// `path` was checked by Options::validate().
socklen_t fill(sockaddr_un& address, const std::string& path) {
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const bool abstract = path[0] == '@';
  if (abstract) address.sun_path[0] = '\0';
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
}

/// connect(2) to a regular file is refused, too: this comes before is_stale().
bool is_no_socket(const std::string& path) {
  struct stat there {};
  return ::lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode);
}

/// Whether the socket in the way is one that a killed process has left behind.
bool is_stale(const sockaddr* address, socklen_t bytes) {
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool refused = ::connect(probe, address, bytes) != 0 && errno == ECONNREFUSED;
  ::close(probe);
  return refused;
}

Status listen_at(int fd, const std::string& path) {
  sockaddr_un address{};
  const socklen_t bytes = fill(address, path);
  const auto* const name = reinterpret_cast<const sockaddr*>(&address);
  // On Linux bind() gives the file the socket's own mode, less the umask: it is never open to others.
  ::fchmod(fd, S_IRUSR | S_IWUSR);
  int bound = ::bind(fd, name, bytes);
  const bool taken = bound != 0 && errno == EADDRINUSE;
  if (taken && path[0] != '@' && is_no_socket(path)) {
    return Error::from_errno(
        EADDRINUSE,
        "Options::inspect: '" + path + "' exists and is no socket: choose another path, or move it away");
  }
  if (taken && path[0] != '@' && is_stale(name, bytes)) {
    ::unlink(path.c_str());
    bound = ::bind(fd, name, bytes);
  } else if (taken) {
    errno = EADDRINUSE;  // not what the looks above have left there
  }
  if (bound == 0 && ::listen(fd, kClientsMax) == 0) return {};
  return Error::from_errno(
      errno, "Options::inspect: cannot listen on '" + path +
                 (path[0] == '@' ? "': somebody has that name"
                                 : "': choose another path, or one in a directory that you may write"));
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

/// One deadline for all of it: whoever takes a byte now and then holds nobody up for longer.
bool send_all(int fd, const std::string& text, const std::atomic<bool>& stopping) {
  const std::int64_t deadline = now_ms() + kSendMs;
  for (std::size_t sent = 0; sent < text.size();) {
    const std::int64_t left = deadline - now_ms();
    if (left <= 0 || stopping.load(std::memory_order_acquire)) return false;
    const ssize_t count = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (count < 0 && errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};
      ::poll(&entry, 1, static_cast<int>(std::min(left, kStopLookMs)));
    } else if (count == 0 || errno != EINTR) {
      return false;  // gone
    }
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<Inspector>> Inspector::start(const std::string& path,
                                                    std::function<std::string()> answer) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return Error::from_errno(errno, "cannot make a socket; raise the limit on open files (ulimit -n)");
  }
  if (Status listening = listen_at(fd, path); !listening) {
    ::close(fd);
    return listening.error();
  }
  std::unique_ptr<Inspector> inspector(new Inspector(path, fd, std::move(answer)));
  inspector->thread_ = std::thread([self = inspector.get()] { self->serve(); });
  return inspector;
}

Inspector::Inspector(std::string path, int fd, std::function<std::string()> answer)
    : path_(std::move(path)), fd_(fd), answer_(std::move(answer)) {
  struct stat made {};
  if (path_[0] == '@' || ::lstat(path_.c_str(), &made) != 0) return;
  device_ = made.st_dev;
  inode_ = made.st_ino;
}

Inspector::~Inspector() {
  stopping_.store(true, std::memory_order_release);
  ::shutdown(fd_, SHUT_RDWR);  // ends the poll in wait()
  if (thread_.joinable()) thread_.join();
  for (const Client& client : clients_) ::close(client.fd);
  ::close(fd_);
  struct stat there {};
  // Somebody else's by now, if it is another one.
  if (path_[0] != '@' && ::lstat(path_.c_str(), &there) == 0 && S_ISSOCK(there.st_mode) &&
      there.st_dev == device_ && there.st_ino == inode_)
    ::unlink(path_.c_str());
}

void Inspector::serve() {
  while (!stopping_.load(std::memory_order_acquire)) {
    wait();
    take_client();
    for (auto client = clients_.begin(); client != clients_.end();) {
      if (!stopping_.load(std::memory_order_acquire) && hear(*client)) {
        ++client;
        continue;
      }
      ::close(client->fd);
      client = clients_.erase(client);
    }
  }
}

void Inspector::wait() {
  std::array<pollfd, kClientsMax + 1> entries{};
  nfds_t count = 0;
  std::int64_t until = now_ms() + kIdleMs;
  for (const Client& client : clients_) {
    entries[count++] = {client.fd, POLLIN, 0};
    until = std::min(until, client.idle_until_ms);
  }
  // Beyond so many clients the kernel's backlog waits. The end is seen even then: after shutdown() poll(2)
  // reports POLLHUP, whatever was asked for.
  const bool room = clients_.size() < kClientsMax;
  entries[count++] = {fd_, static_cast<short>(room ? POLLIN : 0), 0};
  ::poll(entries.data(), count, static_cast<int>(std::max<std::int64_t>(0, until - now_ms()) + 1));
}

void Inspector::take_client() {
  if (clients_.size() == kClientsMax) return;
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno != EAGAIN && errno != EINTR) ::poll(nullptr, 0, 20);  // out of descriptors: not in a loop
    return;
  }
  if (same_user(fd)) {
    clients_.push_back({fd, {}, now_ms() + kIdleMs});
  } else {
    ::close(fd);
  }
}

/// False: it is to go.
bool Inspector::hear(Client& client) {
  std::array<char, kRequestBytesMax> bytes;
  const ssize_t count = ::recv(client.fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return now_ms() < client.idle_until_ms;
  if (count <= 0) return false;
  client.request.append(bytes.data(), static_cast<std::size_t>(count));
  client.idle_until_ms = now_ms() + kIdleMs;
  for (std::size_t end; (end = client.request.find('\n')) != std::string::npos;) {
    if (stopping_.load(std::memory_order_acquire)) return false;
    const bool known = client.request.compare(0, end, "links") == 0;
    client.request.erase(0, end + 1);
    if (!send_all(client.fd, (known ? answer_() : R"({"error":"the one request here is: links"})") + '\n',
                  stopping_))
      return false;
  }
  return client.request.size() < kRequestBytesMax;
}

}  // namespace tidelock
