/// The conversation between `tidelock run` and its two nodes: one JSON message a packet over a unix
/// SOCK_SEQPACKET pair. Not on any hot path.
/// Thread:   one owner a side
#pragma once

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

#include "file_handle.h"

namespace tidelock::tools {

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
};

}  // namespace tidelock::tools
