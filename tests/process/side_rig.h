/// The two halves of a run on two machines, and a side channel in a test's own hands.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace tidelock::test {

/// Of 127.0.0.0/8 an address of this process's own: a port that is free for a moment is not taken by a test
/// that runs beside this one.
inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK | (static_cast<std::uint32_t>(::getpid()) & 0xffffU) << 8U);
  return address;
}

inline std::string loopback_text(std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(port);
}

/// A TCP socket in the test's own hands; closed at the end.
class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  /// Listens at a port that was free.
  std::uint16_t listen() {
    sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof address;
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    REQUIRE(::listen(fd_, 4) == 0);
    REQUIRE(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    return ntohs(address.sin_port);
  }
  bool connect(std::uint16_t port) {
    const sockaddr_in address = loopback(port);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ::close(fd_);
      fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    return true;
  }
  void send(const std::string& bytes) const {
    static_cast<void>(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

inline std::string free_address() {
  Socket socket;
  return loopback_text(socket.listen());
}

inline std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

inline std::string frame(std::uint8_t kind, const std::string& body) {
  const auto length = static_cast<std::uint32_t>(body.size());
  std::string bytes = "TLSC";
  bytes += static_cast<char>(kind);
  bytes.append(3, '\0');
  for (unsigned shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(length >> shift & 0xff);
  return bytes + body;
}

inline const std::string kSideHello = frame(1, R"({"tidelock":"side channel","version":2})");

inline std::vector<std::string> primary_flags(const std::string& address, const std::string& seconds = "0.5",
                                              const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags{"run",      "--json", "--role",     "primary", "--side-channel",   address,
                                 "--shards", "1",      "--duration", seconds,   "--overprovisioned"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

inline std::vector<std::string> replica_flags(const std::string& address) {
  return {"run", "--json", "--role", "replica", "--side-channel", address, "--overprovisioned"};
}

}  // namespace tidelock::test
