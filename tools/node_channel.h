/// The conversation between `tidelock run` and its two nodes: one JSON message a packet over a unix
/// SOCK_SEQPACKET pair. Not on any hot path.
/// Thread:   one owner a side
#pragma once

#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

#include "file_handle.h"

namespace tidelock::tools {

/// How long a node waits for a command before it looks at its own work.
inline constexpr Duration kNodeTick = milliseconds(100);

class NodeChannel {
 public:
  NodeChannel() = default;
  explicit NodeChannel(FileHandle socket) : socket_(std::move(socket)) {}
  static Result<std::pair<NodeChannel, NodeChannel>> pair();

  /// Errors:   EPIPE the other side is gone; EMSGSIZE
  Status send(const nlohmann::json& message);
  /// Empty on timeout. Errors: ECONNRESET the other side is gone
  Result<std::optional<nlohmann::json>> receive(Duration timeout);
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  FileHandle socket_;
  std::string
      arriving_;  ///< room for the largest packet, made once: clearing 4 MiB a message is not for nothing
};

}  // namespace tidelock::tools
