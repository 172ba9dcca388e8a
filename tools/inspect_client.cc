#include "inspect_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <set>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <tidelock/reactor/clock.h>

#include "file_handle.h"

namespace tidelock::tools {
namespace {

constexpr std::string_view kPrefix = "@tidelock-inspect-";
constexpr std::size_t kAnswerBytesMax = 16 << 20;
constexpr Duration kAnswerPatience = seconds(10);

Result<FileHandle> connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path == "@" || path.size() >= sizeof address.sun_path ||
      path.find('\0') != std::string::npos) {
    return Error::from_errno(EINVAL,
                             fmt::format("\"{}\" is no socket: give a path, or '@' and a name", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const bool abstract = path[0] == '@';
  if (abstract) address.sun_path[0] = '\0';
  const std::size_t bytes = offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1);
  FileHandle socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Error::from_errno(errno, "cannot make a socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes)) !=
      0) {
    return Error::from_errno(errno, fmt::format("no engine answers at {}: does it still run, and is that its "
                                                "Options::inspect?",
                                                path));
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != ::geteuid() && peer.uid != 0)) {
    return Error::from_errno(EPERM, fmt::format("{} belongs to user {}: run as that user", path, peer.uid));
  }
  return socket;
}

/// Up to the line's end.
Result<std::string> read_line(int fd, const std::string& path) {
  std::string line;
  std::array<char, 65'536> bytes;
  const Instant deadline = SystemClock().now() + kAnswerPatience;
  while (SystemClock().now() < deadline && line.size() < kAnswerBytesMax) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 100) < 0 && errno == EINTR)
      return Error::from_errno(EINTR, "interrupted");  // Ctrl-C is not kept waiting
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) return Error::from_errno(ECONNRESET, fmt::format("the engine at {} has hung up", path));
    line.append(bytes.data(), static_cast<std::size_t>(count));
    if (line.back() == '\n') return line;
  }
  return Error::from_errno(ETIMEDOUT, fmt::format("the engine at {} did not answer in time", path));
}

}  // namespace

std::vector<std::string> find_inspection_sockets(const std::string& proc_net_unix) {
  constexpr const char* kListening = "00010000";
  std::set<long> pids;
  std::istringstream lines(proc_net_unix);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (flags != kListening || !name.starts_with(kPrefix)) continue;
    long pid = 0;
    const char* const end = name.data() + name.size();
    const auto [rest, code] = std::from_chars(name.data() + kPrefix.size(), end, pid);
    if (code == std::errc{} && rest == end && pid > 0) pids.insert(pid);
  }
  std::vector<std::string> names;
  names.reserve(pids.size());
  for (const long pid : pids) names.push_back(std::string(kPrefix) + std::to_string(pid));
  return names;
}

std::vector<std::string> find_inspection_sockets() {
  std::ifstream file("/proc/net/unix");
  return find_inspection_sockets(std::string(std::istreambuf_iterator<char>(file), {}));
}

Result<nlohmann::json> inspect(const std::string& path) {
  TL_TRY(const FileHandle socket, connect_to(path));
  constexpr std::string_view kRequest = "links\n";
  if (::send(socket.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL) < 0)
    return Error::from_errno(errno, fmt::format("the engine at {} has hung up", path));
  TL_TRY(const std::string line, read_line(socket.get(), path));
  nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("links") || !answer["links"].is_array()) {
    return Error::from_errno(EBADMSG, fmt::format("what answers at {} is no engine of this version", path));
  }
  return answer;
}

}  // namespace tidelock::tools
