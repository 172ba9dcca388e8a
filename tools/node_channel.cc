#include "node_channel.h"

#include <cerrno>
#include <poll.h>
#include <string>

#include <sys/socket.h>

namespace tidelock::tools {
namespace {

/// A result with full histograms of 256 shards stays below this.
constexpr int kPacketBytes = 4 << 20;

}  // namespace

Result<std::pair<NodeChannel, NodeChannel>> NodeChannel::pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    return Error::from_errno(errno, "socketpair failed: is the limit of open files reached?");
  for (const int fd : fds) {
    const int bytes = kPacketBytes;
    // Beyond net.core.wmem_max only root may go; the plain call then gives what is allowed.
    if (::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
      ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
  return std::pair(NodeChannel(FileHandle(fds[0])), NodeChannel(FileHandle(fds[1])));
}

Status NodeChannel::send(const nlohmann::json& message) {
  const std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  while (::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EMSGSIZE) {
      return Error::from_errno(errno, "a message of " + std::to_string(text.size()) +
                                          " bytes is more than a socket takes here: raise net.core.wmem_max");
    }
    return Error::from_errno(errno, "the other process is gone");
  }
  return {};
}

Result<std::optional<nlohmann::json>> NodeChannel::receive(Duration timeout) {
  pollfd entry{socket_.get(), POLLIN, 0};
  const int ready = ::poll(&entry, 1, static_cast<int>(timeout.ns / 1'000'000));
  if (ready == 0 || (ready < 0 && errno == EINTR)) return std::optional<nlohmann::json>();
  arriving_.resize(kPacketBytes);
  const ssize_t count = ::recv(socket_.get(), arriving_.data(), arriving_.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<nlohmann::json>();
  if (count <= 0) return Error::from_errno(count < 0 ? errno : ECONNRESET, "the other process is gone");
  const char* const text = arriving_.data();
  nlohmann::json message = nlohmann::json::parse(text, text + count, nullptr, false);
  if (message.is_discarded()) return Error::from_errno(EBADMSG, "the other process sent no JSON");
  return std::optional<nlohmann::json>(std::move(message));
}

}  // namespace tidelock::tools
