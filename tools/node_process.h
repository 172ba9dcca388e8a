/// A node process as its parent sees it. It dies with its parent, however that ends.
/// Thread:   one owner
#pragma once

#include <string>

#include <sys/types.h>

#include "node_channel.h"
#include "node_end.h"
#include "run_options.h"

namespace tidelock::tools {

class NodeProcess final : public NodeEnd {
 public:
  /// Starts this program again as `tidelock node`, with the shared descriptors at their fixed numbers.
  static Result<NodeProcess> start(const NodeConfig& config, int dataset_fd, int receipts_fd);
  NodeProcess() = default;
  NodeProcess(NodeProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        channel_(std::move(other.channel_)),
        end_(std::move(other.end_)) {}
  NodeProcess& operator=(NodeProcess&&) = delete;
  /// Kills it if it still runs.
  ~NodeProcess() override;

  [[nodiscard]] int fd() const override { return channel_.fd(); }
  Status send(const nlohmann::json& message) override { return channel_.send(message); }
  Result<std::optional<nlohmann::json>> receive() override { return channel_.receive(Duration{0}); }
  [[nodiscard]] bool running() const { return pid_ > 0; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Waits for its end, kills it after `timeout`. How it ended, in words ("ended by signal 9 (Killed)"),
  /// empty if it ended well.
  std::string reap(Duration timeout) override;

 private:
  NodeProcess(pid_t pid, NodeChannel channel) : pid_(pid), channel_(std::move(channel)) {}
  pid_t pid_ = -1;
  NodeChannel channel_;
  std::string end_;
};

}  // namespace tidelock::tools
