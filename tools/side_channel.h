/// The way between the two machines of a run that is not the link: TCP, in frames. It carries the receipts,
/// the input, and what parent and node tell each other. There is no authentication: use a network that you
/// trust. Whatever arrives is checked before it is used; nothing here blocks but the calls that take a
/// SideWait.
///
/// A frame is "TLSC", u8 kind, three zero bytes, u32 length (little-endian), and so many bytes.
/// Thread:   one owner
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

#include "file_handle.h"

namespace tidelock::tools {

inline constexpr std::size_t kSideFrameBytesMax = 4 << 20;
/// So much may wait for the other machine to take it.
inline constexpr std::size_t kSideUnsentBytesMax = 16 << 20;

enum class SideKind : std::uint8_t {
  json = 1,      ///< one object
  dataset = 2,   ///< the next piece of the input, as Dataset::share() made it
  receipts = 3,  ///< see receipt_wire.h
  credit = 4,    ///< see receipt_wire.h
  alive = 5,     ///< nothing to say
};

struct SideFrame {
  SideKind kind = SideKind::alive;
  std::string body;
};

/// How long a call waits, whatever comes meanwhile, and what ends it at once.
/// Errors:   ETIMEDOUT; ECANCELED: interrupted
struct SideWait {
  SideWait(Duration timeout, int its_interrupt_fd)
      : deadline(std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout.ns)),
        interrupt_fd(its_interrupt_fd) {}
  std::chrono::steady_clock::time_point deadline;
  int interrupt_fd;  ///< once it is readable; it is not read. -1: none
};

class SideChannel {
 public:
  /// Waits until somebody listens there.
  /// Errors:   EINVAL names the form; those of connect(2) name the address
  static Result<SideChannel> connect(const std::string& address, const SideWait& wait);
  explicit SideChannel(FileHandle socket);

  /// Sends now what the socket takes, the rest with the next send() or flush().
  /// Errors:   the other side is gone, or has taken nothing for 30 s; ENOBUFS: kSideUnsentBytesMax wait already
  Status send(SideKind kind, std::string_view body);
  /// What is no UTF-8 in its texts is replaced.
  Status send(const nlohmann::json& message);
  Status flush();
  [[nodiscard]] std::size_t unsent() const { return out_.size() - out_sent_; }
  /// Waits until everything has been sent.
  Status send_all(const SideWait& wait);

  /// The next whole frame, if there is one. Looks at a bounded number of frames a call.
  /// Errors:   the other side is gone, has been silent for 30 s, or sends what is no frame
  Result<std::optional<SideFrame>> receive();
  /// The same, waiting.
  Result<SideFrame> receive(const SideWait& wait);
  /// Whether the next receive() has something to look at even if the socket has not.
  [[nodiscard]] bool buffered() const;
  /// An object whose texts are short and print. Errors: it is none
  static Result<nlohmann::json> parse(const std::string& body);

  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  Status read_some();
  Result<std::optional<SideFrame>> take_frame();

  FileHandle socket_;
  std::vector<char> arriving_;  ///< what one read takes
  std::string in_;
  std::size_t in_taken_ = 0;
  std::string out_;
  std::size_t out_sent_ = 0;
  std::int64_t heard_ms_ = 0;
  std::int64_t said_ms_ = 0;
  std::int64_t taken_ms_ = 0;  ///< when the socket last took something, or there was nothing to take
};

/// Where the primary's machine waits for the replica's.
class SideListener {
 public:
  /// Errors:   EINVAL names the form; those of bind(2) name the address
  static Result<SideListener> listen(const std::string& address);
  /// Whoever has connected, if anybody.
  [[nodiscard]] std::optional<SideChannel> accept();
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  explicit SideListener(FileHandle socket) : socket_(std::move(socket)) {}
  FileHandle socket_;
};

}  // namespace tidelock::tools
