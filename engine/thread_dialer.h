/// Dials by a transport, which blocks: threads of each address do it, so that a dead peer delays nobody
/// else's attempts.
/// Thread:   made and stopped by the engine's owner; dial() on any core of the group
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/dialer.h>

namespace tidelock {

class ThreadDialer final : public Dialer {
 public:
  /// Both outlive it. It can dial these addresses, each for so many fibers at a time; others wait their turn,
  /// which counts against their deadlines. (Its threads are started here, since one that a reactor's
  /// thread starts would share that one's core.)
  ThreadDialer(ReactorGroup& group, Transport& transport, const std::vector<std::string>& addresses,
               std::uint32_t threads);
  /// No fiber may be dialing.
  ~ThreadDialer() override;

  /// Errors:   also EINVAL for another address
  Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline,
                             std::optional<Refusal>* refusal) override;
  using Dialer::dial;
  /// Interrupts the transport and ends the threads; who dials then, and who is waiting, gets `closed`.
  /// Idempotent.
  void stop();

 private:
  struct Attempt;
  class Worker;
  Transport& transport_;
  std::map<std::string, std::unique_ptr<Worker>> workers_;  ///< constant
};

}  // namespace tidelock
