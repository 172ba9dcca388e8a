#include "side_channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <poll.h>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <tidelock/base/bytes.h>

namespace tidelock::tools {
namespace {

constexpr std::uint32_t kMagic = 0x4353'4C54;  // "TLSC"
constexpr std::size_t kFrameHeaderBytes = 12;
constexpr std::int64_t kAliveMs = 1'000;
constexpr std::int64_t kSilenceMs = 30'000;
constexpr std::size_t kReceiveBytes = 256 << 10;
constexpr std::size_t kTextBytesMax = 4096;
constexpr int kDepthMax = 16;  ///< no message of ours nests deeper
/// Frames with nothing in them that one receive() passes over.
constexpr int kAliveFramesMax = 64;
/// A sent part of the output that is shorter is not worth moving the rest.
constexpr std::size_t kSentBytesKept = 64 << 10;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Error bad_message(const std::string& what) {
  return Error::from_errno(EBADMSG, "the other end of the side channel sends " + what +
                                        ": are both the same version of tidelock?");
}

Result<sockaddr_in> parse_address(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const bool well_formed = colon != std::string::npos && text.find('\0') == std::string::npos &&
                           ::inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) == 1 &&
                           std::from_chars(text.data() + colon + 1, end, port).ptr == end && port != 0;
  address.sin_port = htons(port);
  if (well_formed) return address;
  return Error::from_errno(
      EINVAL, fmt::format("--side-channel \"{}\": give an IPv4 address of the primary's machine and a port, "
                          "such as 10.0.0.1:7472",
                          text));
}

Result<FileHandle> tcp_socket() {
  FileHandle socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return Error::from_errno(errno, "cannot make a socket: is the limit of open files reached?");
  }
  return socket;
}

std::int64_t left_ms(const SideWait& wait) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(wait.deadline -
                                                               std::chrono::steady_clock::now())
      .count();
}

/// At most so long; a negative `fd` only sleeps.
/// Errors:   ECANCELED
Status wait_for(int fd, short events, std::int64_t ms, const SideWait& wait) {
  pollfd entries[2] = {{fd, events, 0}, {wait.interrupt_fd, POLLIN, 0}};
  ::poll(entries, 2, static_cast<int>(std::clamp<std::int64_t>(std::min(ms, left_ms(wait)), 0, 5'000)));
  if (entries[1].revents == 0) return {};
  return Error::from_errno(ECANCELED, "interrupted while the other machine was waited for");
}

/// 0, or the errno of the attempt.
/// Errors:   ECANCELED
Result<int> try_connect(int fd, const sockaddr_in& address, const SideWait& wait) {
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  TL_TRY(wait_for(fd, POLLOUT, 5'000, wait));
  pollfd entry{fd, POLLOUT, 0};
  if (::poll(&entry, 1, 0) <= 0) return ETIMEDOUT;
  int code = 0;
  socklen_t bytes = sizeof code;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &bytes);
  return code;
}

/// The rest of a text is left as it is: it may be in any language.
void replace_controls(std::string& text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
}

/// Texts end up on a terminal and in reports, and so do the names of members.
void make_printable(nlohmann::json& json, int depth = 0) {
  if (depth > kDepthMax) {
    json = nullptr;
  } else if (json.is_object()) {
    nlohmann::json clean = nlohmann::json::object();
    for (auto member = json.begin(); member != json.end(); ++member) {
      make_printable(member.value(), depth + 1);
      std::string name = member.key();
      replace_controls(name);
      clean[name] = std::move(member.value());
    }
    json = std::move(clean);
  } else if (json.is_array()) {
    for (auto& member : json) make_printable(member, depth + 1);
  } else if (json.is_string()) {
    auto& text = json.get_ref<std::string&>();
    if (text.size() > kTextBytesMax) {
      text.resize(kTextBytesMax);
      while (!text.empty() && static_cast<unsigned char>(text.back()) >= 0x80)
        text.pop_back();  // half of one
    }
    replace_controls(text);
  }
}

/// The parser's own memory is then bounded by the message. What is in a text does not count.
bool nests_too_deeply(const std::string& text) {
  int depth = 0;
  bool quoted = false, escaped = false;
  for (const char c : text) {
    if (quoted) {
      if (c == '"' && !escaped) quoted = false;
      escaped = c == '\\' && !escaped;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kDepthMax) return true;
  }
  return false;
}

}  // namespace

SideChannel::SideChannel(FileHandle socket)
    : socket_(std::move(socket)), heard_ms_(now_ms()), said_ms_(heard_ms_), taken_ms_(heard_ms_) {
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Result<SideChannel> SideChannel::connect(const std::string& address, const SideWait& wait) {
  TL_TRY(const sockaddr_in to, parse_address(address));
  for (;;) {
    TL_TRY(FileHandle socket, tcp_socket());
    TL_TRY(const int code, try_connect(socket.get(), to, wait));
    if (code == 0) return SideChannel(std::move(socket));
    if (left_ms(wait) <= 0) {
      return Error::from_errno(code, fmt::format("nobody answers at {}: start the primary there first, with "
                                                 "--role primary --side-channel {}",
                                                 address, address));
    }
    TL_TRY(wait_for(-1, 0, 50, wait));
  }
}

Status SideChannel::send(SideKind kind, std::string_view body) {
  if (body.size() > kSideFrameBytesMax)
    return Error::from_errno(EMSGSIZE, "a message for the side channel is too long");
  if (unsent() > 0 && unsent() + kFrameHeaderBytes + body.size() > kSideUnsentBytesMax) {
    TL_TRY(flush());
    if (unsent() + kFrameHeaderBytes + body.size() > kSideUnsentBytesMax)
      return Error::from_errno(ENOBUFS, "the other machine takes the side channel's messages too slowly");
  }
  std::array<std::byte, kFrameHeaderBytes> header{};
  store(header.data(), kMagic);
  header[4] = static_cast<std::byte>(kind);
  store(header.data() + 8, static_cast<std::uint32_t>(body.size()));
  out_.append(as_text(header));
  out_.append(body);
  said_ms_ = now_ms();
  return flush();
}

Status SideChannel::send(const nlohmann::json& message) {
  return send(SideKind::json, message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Status SideChannel::flush() {
  if (unsent() == 0) {
    taken_ms_ = now_ms();
    if (now_ms() - said_ms_ >= kAliveMs) return send(SideKind::alive, {});
    return {};
  }
  while (unsent() > 0) {
    const ssize_t count = ::send(socket_.get(), out_.data() + out_sent_, unsent(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      // No more is moved than has been sent since the last time, so that each byte is moved once or twice.
      if (out_sent_ >= std::max(kSentBytesKept, unsent())) out_.erase(0, std::exchange(out_sent_, 0));
      if (now_ms() - taken_ms_ < kSilenceMs) return {};
      return Error::from_errno(ETIMEDOUT, "the other machine takes nothing from the side channel");
    }
    if (count < 0) return Error::from_errno(errno, "the side channel to the other machine is lost");
    out_sent_ += static_cast<std::size_t>(count);
    taken_ms_ = now_ms();
  }
  out_.clear();
  out_sent_ = 0;
  return {};
}

Status SideChannel::send_all(const SideWait& wait) {
  TL_TRY(flush());
  while (unsent() > 0) {
    if (left_ms(wait) <= 0)
      return Error::from_errno(ETIMEDOUT, "the other machine takes the side channel's messages too slowly");
    TL_TRY(wait_for(socket_.get(), POLLOUT, 100, wait));
    TL_TRY(flush());
  }
  return {};
}

Status SideChannel::read_some() {
  in_.erase(0, std::exchange(in_taken_, 0));
  arriving_.resize(kReceiveBytes);
  const ssize_t count = ::recv(socket_.get(), arriving_.data(), arriving_.size(), 0);
  const int code = errno;
  if (count > 0) {
    in_.append(arriving_.data(), static_cast<std::size_t>(count));
    heard_ms_ = now_ms();
    return {};
  }
  if (count == 0) return Error::from_errno(ECONNRESET, "the other machine has ended the side channel");
  if (code != EAGAIN && code != EINTR)
    return Error::from_errno(code, "the side channel to the other machine is lost");
  if (now_ms() - heard_ms_ < kSilenceMs) return {};
  return Error::from_errno(ETIMEDOUT, "the other machine has been silent for 30 s");
}

Result<std::optional<SideFrame>> SideChannel::take_frame() {
  const std::size_t have = in_.size() - in_taken_;
  if (have < kFrameHeaderBytes) return std::optional<SideFrame>();
  const std::byte* const header = as_bytes(in_).data() + in_taken_;
  const auto kind = static_cast<std::uint8_t>(header[4]);
  const auto length = load<std::uint32_t>(header + 8);
  const bool reserved = header[5] != std::byte{} || header[6] != std::byte{} || header[7] != std::byte{};
  if (load<std::uint32_t>(header) != kMagic || reserved || kind < 1 || kind > 5)
    return bad_message("something that is no frame");
  if (length > kSideFrameBytesMax) return bad_message("a frame that is too long");
  if (have < kFrameHeaderBytes + length) return std::optional<SideFrame>();
  SideFrame frame{static_cast<SideKind>(kind), in_.substr(in_taken_ + kFrameHeaderBytes, length)};
  in_taken_ += kFrameHeaderBytes + length;
  return std::optional<SideFrame>(std::move(frame));
}

Result<std::optional<SideFrame>> SideChannel::receive() {
  for (int passed = 0; passed < kAliveFramesMax;) {
    TL_TRY(auto frame, take_frame());
    if (!frame) {
      const std::size_t before = in_.size() - in_taken_;
      TL_TRY(read_some());
      if (in_.size() == before) break;
    } else if (frame->kind != SideKind::alive) {
      return frame;
    } else {
      ++passed;
    }
  }
  return std::optional<SideFrame>();
}

bool SideChannel::buffered() const {
  const std::size_t have = in_.size() - in_taken_;
  if (have < kFrameHeaderBytes) return false;
  const auto length = load<std::uint32_t>(as_bytes(in_).data() + in_taken_ + 8);
  return length > kSideFrameBytesMax || have >= kFrameHeaderBytes + length;
}

Result<SideFrame> SideChannel::receive(const SideWait& wait) {
  for (;;) {
    TL_TRY(flush());
    TL_TRY(auto frame, receive());
    if (frame) return *std::move(frame);
    if (left_ms(wait) <= 0) {
      return Error::from_errno(ETIMEDOUT, "the other machine did not answer on the side channel in time");
    }
    TL_TRY(wait_for(socket_.get(), POLLIN, buffered() ? 0 : 100, wait));
  }
}

Result<nlohmann::json> SideChannel::parse(const std::string& body) {
  if (nests_too_deeply(body)) return bad_message("a message that nests too deeply");
  nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return bad_message("no JSON object");
  make_printable(json);
  return json;
}

Result<SideListener> SideListener::listen(const std::string& address) {
  TL_TRY(const sockaddr_in at, parse_address(address));
  TL_TRY(FileHandle socket, tcp_socket());
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 &&
      ::listen(socket.get(), 8) == 0) {
    return SideListener(std::move(socket));
  }
  return Error::from_errno(
      errno, fmt::format("cannot listen at {}: give an address of this machine and a free port", address));
}

std::optional<SideChannel> SideListener::accept() {
  FileHandle socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return std::nullopt;
  return SideChannel(std::move(socket));
}

}  // namespace tidelock::tools
