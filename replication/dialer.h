/// How a core comes by links without ever blocking: one side dials, the other has a door. Transports block,
/// so in production control threads stand between them and the cores (engine/); a simulator serves both in
/// virtual time.
/// Thread:   owner core
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/transport.h>
#include <tidelock/replication/wire.h>

namespace tidelock {

/// What a node takes from whom it follows: one line of history.
struct Lineage {
  HistoryId history{};  ///< 0: none yet
  std::uint64_t routing_seed = 0;
  Epoch epoch{};
};

class Dialer {
 public:
  virtual ~Dialer() = default;
  /// Connects to `address`, says `ours`, takes the answer. The link is ready, not yet started. Whatever comes
  /// of an attempt that nobody waits for any more is closed unseen. `refusal`: as in Transport::connect().
  /// Suspends: yes (fiber)
  /// Errors:   those of Transport::connect(); cancelled
  virtual Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline,
                                     std::optional<Refusal>* refusal) = 0;
  Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline) {
    return dial(address, ours, deadline, nullptr);
  }
};

/// The answer to a hello: ours, or why not.
using Verdict = std::variant<Hello, Refusal>;

class Door {
 public:
  virtual ~Door() = default;
  /// In one turn. Whatever it promises holds from then on, whether or not the link comes to be.
  /// Suspends: never
  virtual Verdict judge(const Hello& theirs) = 0;
  /// The link that came of that verdict. Time has passed since, so it is judged once more; what fails then
  /// closes the link. Suspends: never
  /// Errors:   refused with both values; those of Link::start and of whom it is for
  virtual Status attach(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) = 0;
};

}  // namespace tidelock
