/// A node as the session sees it that drives it: a process of this machine, or one behind the side channel.
/// Thread:   one owner
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

namespace tidelock::tools {

/// So many of one side are dealt with before the others have their turn, the signals and the deadlines.
inline constexpr int kMessagesPerStep = 64;

class NodeEnd {
 public:
  virtual ~NodeEnd() = default;
  /// Readable when there may be a message.
  [[nodiscard]] virtual int fd() const = 0;
  /// Errors:   it is gone
  virtual Status send(const nlohmann::json& message) = 0;
  /// Never waits. Empty: nothing there, or enough for now.
  /// Errors:   it is gone
  virtual Result<std::optional<nlohmann::json>> receive() = 0;
  /// There may be a message although fd() is not readable.
  [[nodiscard]] virtual bool buffered() const { return false; }
  /// Waits for its end, and ends it after `timeout`. How it ended, in words that go with "the ... process";
  /// empty if it ended well.
  virtual std::string reap(Duration timeout) = 0;
};

}  // namespace tidelock::tools
