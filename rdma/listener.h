/// The door of the passive side: checks what comes in rdma_cm's private data, and sends each request to the
/// core of its shard, or away.
/// Thread:   owner core, the one whose channel it listens on
/// Suspends: never
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/core.h>

namespace tidelock {

struct PassiveTerms {
  std::uint16_t shard_count = 1;
  std::uint32_t node = 0;
  Epoch epoch{};
  std::uint64_t ring_bytes = 4ULL << 20;  ///< what each active side shall offer
};

class RdmaListener {
 public:
  /// The core of a shard, or null. Any number of calls, on the owner core.
  using Route = std::function<RdmaCore*(ShardId)>;
  /// Makes the callbacks of a new connection; runs on the shard's core.
  using Callbacks = std::function<ConnectionCallbacks(ShardId)>;

  /// Listens on an IPv4 address and port (0: chosen, see port()). Blocks for a moment: call it on a thread
  /// that may, and start() on the core.
  /// Errors:   EADDRINUSE and EADDRNOTAVAIL name the address
  static Result<std::unique_ptr<RdmaListener>> open(RdmaCore& core, const std::string& address,
                                                    std::uint16_t port, const PassiveTerms& terms,
                                                    Route route, Callbacks callbacks);
  /// After stop(); blocks.
  ~RdmaListener();
  RdmaListener(const RdmaListener&) = delete;
  RdmaListener& operator=(const RdmaListener&) = delete;

  /// `lost` runs if the device goes and takes the listener with it.
  void start(std::function<void(const Error&)> lost);
  void stop();
  [[nodiscard]] std::uint16_t port() const { return port_; }

  /// What a request is told, or nothing: it is welcome. Remembers the newest attempt of each node and shard.
  std::unique_ptr<ConnectReject> judge(const Result<ConnectRequest>& request);

 private:
  RdmaListener(RdmaCore& core, const PassiveTerms& terms, Route route, Callbacks callbacks);
  void on_event(const CmEvent& event);

  RdmaCore& core_;
  PassiveTerms terms_;
  Route route_;
  Callbacks callbacks_;
  rdma_cm_id* id_ = nullptr;
  std::uint16_t port_ = 0;
  std::function<void(const Error&)> lost_;
  std::uint32_t generation_ = 0;
  struct Attempt {
    std::uint64_t incarnation = 0;
    Generation generation{};
  };
  std::map<std::pair<std::uint32_t, std::uint16_t>, Attempt> newest_;
};

}  // namespace tidelock
