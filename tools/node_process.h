/// A node process as its parent sees it. It dies with its parent, however that ends.
/// Thread:   one owner
#pragma once

#include <string>

#include <sys/types.h>

#include "node_channel.h"
#include "run_options.h"

namespace tidelock::tools {

class NodeProcess {
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
  ~NodeProcess();

  [[nodiscard]] NodeChannel& channel() { return channel_; }
  [[nodiscard]] bool running() const { return pid_ > 0; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Waits for its end, kills it after `timeout`. How it ended, in words ("ended by signal 9 (Killed)"),
  /// empty if it ended well.
  std::string reap(Duration timeout);

 private:
  NodeProcess(pid_t pid, NodeChannel channel) : pid_(pid), channel_(std::move(channel)) {}
  pid_t pid_ = -1;
  NodeChannel channel_;
  std::string end_;
};

}  // namespace tidelock::tools
