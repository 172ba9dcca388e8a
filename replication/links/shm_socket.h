/// The unix socket of an shm link: addresses, and messages with a deadline.
/// Thread:   a control thread (the calls block until their deadline), except UniqueFd
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

namespace tidelock {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct UnixAddress {
  sockaddr_un storage{};
  socklen_t bytes = 0;
  bool abstract = false;  ///< "@name": no file behind it
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Errors:   ENAMETOOLONG and EINVAL name the limit
Result<UnixAddress> unix_address(const std::string& path);

/// A close-on-exec, non-blocking SOCK_SEQPACKET socket: messages keep their bounds, so a hello is one
/// message.
Result<UniqueFd> unix_socket();

/// CLOCK_MONOTONIC, for the deadlines of this folder.
Instant control_now();

/// Waits until `fd` has one of `events` (or an error, which the next call on it reports).
/// Errors:   deadline_exceeded
Status wait_ready(int fd, short events, Instant deadline);

/// Sends one message, with `passed_fd` (SCM_RIGHTS) unless it is -1.
/// Errors:   deadline_exceeded; link_closed if the peer is gone
Status send_message(int fd, Bytes message, int passed_fd, Instant deadline);

/// Receives one message of at most `into.size()` bytes and at most one descriptor (`passed`, may be null).
/// Returns the message's size; one that does not fit, or that brings more descriptors, is malformed.
/// Errors:   deadline_exceeded; link_closed if the peer hung up; malformed
Result<std::size_t> receive_message(int fd, MutableBytes into, UniqueFd* passed, Instant deadline);

/// Only processes of this user, and root, may be at the other end (SO_PEERCRED). Abstract sockets have no
/// permissions of their own, and a path may lie in a directory that others write.
/// Errors:   EPERM names both users
Status check_peer_user(int fd);
/// The user at the other end; that of nobody if it cannot be told.
std::uint32_t peer_user(int fd);

}  // namespace tidelock
