/// Shows a running engine to other processes of its user: on a unix socket it answers each line "links" with
/// what Engine::links() says, as one line of JSON. `tidelock link` is the usual one to ask.
/// Thread:   made and ended by the engine's owner; serves on a thread of its own that is never a reactor
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/engine/options.h>
#include <tidelock/engine/stats.h>

namespace tidelock {

/// One line: node, role, pid, shards, links. Whatever does not print in a text is a '?'.
std::string links_json(const Options& options, const std::vector<LinkInfo>& links);

class Inspector {
 public:
  /// `path`: made with mode 0600 and removed at the end if it is still ours, or "@name" (abstract). Only
  /// processes of this user and root are answered. `answer` makes the line, on the serving thread.
  /// Errors:   EADDRINUSE and others name the path
  static Result<std::unique_ptr<Inspector>> start(const std::string& path,
                                                  std::function<std::string()> answer);
  ~Inspector();
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;

 private:
  struct Client {
    int fd = -1;
    std::string request;
    std::int64_t idle_until_ms = 0;
  };
  Inspector(std::string path, int fd, std::function<std::string()> answer);
  void serve();
  void wait();
  void take_client();
  bool hear(Client& client);

  std::string path_;
  int fd_;
  std::uint64_t device_ = 0, inode_ = 0;  ///< of the socket's file, as made
  std::function<std::string()> answer_;
  std::vector<Client> clients_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tidelock
