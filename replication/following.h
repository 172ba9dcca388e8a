/// How a replica comes by its link, and by another when that was lost: a fiber that dials the primary, with
/// back-off, until it follows or is refused for good.
/// Thread:   owner core
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/sync.h>
#include <tidelock/replication/dialer.h>
#include <tidelock/replication/replica.h>

namespace tidelock {

struct FollowingOptions {
  std::string primary;  ///< its address, in the dialer's terms
  std::uint32_t node = 0;
  ShardId shard{};
  std::uint16_t shard_count = 1;
  std::uint32_t value_bytes_max = kValueBytesMax;  ///< what this node can take
  bool reconnect = true;                           ///< once it has followed
  /// A link that lived for longer, or brought anything, was of use: the back-off begins anew after it.
  Duration link_timeout = seconds(3);
};

enum class AfterLoss : std::uint8_t {
  again,   ///< it dials until it follows again
  never,   ///< FollowingOptions::reconnect is off
  ending,  ///< stop() was called
};

/// What becomes of it, for whoever keeps a list for people. Must not suspend.
class FollowingObserver {
 public:
  virtual ~FollowingObserver() = default;
  /// The primary has answered; what follows will be of this line. Before the link brings anything.
  virtual void follows(const Lineage& lineage) = 0;
  virtual void attached(const Hello& theirs, const Link& link) = 0;
  virtual void lost(const std::string& reason, AfterLoss next) = 0;
  /// An attempt to follow again came to nothing; once for each cause, since it is tried for as long as it
  /// takes.
  virtual void failed(const std::string& why) = 0;
  /// Refused for good: the operator has to act.
  virtual void given_up(const std::string& why) = 0;
};

class Following {
 public:
  /// All four outlive it.
  Following(Reactor& reactor, Replica& replica, Dialer& dialer, FollowingObserver& observer,
            FollowingOptions options);
  /// It has stopped().
  ~Following();

  /// Dials until the primary has taken this replica and counts it, then keeps following in a fiber of its
  /// own. Of a snapshot that is still under way at the deadline only the beginning is waited for. `known`:
  /// what this node follows already. Once.
  /// Suspends: yes (fiber)
  /// Errors:   a refusal at once; else, at the deadline, the last attempt's error; out_of_fibers; cancelled
  Status start(const Lineage& known, Instant deadline);
  /// Ends it for good; the link stays. stopped() comes true soon after, of a start() under way with its
  /// attempt.
  void stop();
  [[nodiscard]] bool stopped() const { return !running_; }
  /// The history never changes once there is one, the epoch only grows.
  [[nodiscard]] const Lineage& lineage() const { return lineage_; }

 private:
  enum class State : std::uint8_t { following, lost, given_up };

  void run();
  void lost(const std::string& reason);
  void reconnect();
  Status connect(Instant deadline);
  Status await_counted(Instant deadline);
  [[nodiscard]] Status check_answer(const Hello& theirs) const;
  [[nodiscard]] Instant after_back_off();

  Reactor& reactor_;
  Replica& replica_;
  Dialer& dialer_;
  FollowingObserver& observer_;
  const FollowingOptions options_;
  Lineage lineage_;
  State state_ = State::following;
  std::uint32_t attempts_ = 0;  ///< since a link was of use
  Instant connected_at_{};      ///< the newest link, and where it began
  Lsn connected_lsn_{};
  Instant retry_at_{};
  std::string lost_reason_;
  std::string last_failure_;  ///< as it was observed
  bool stopping_ = false;
  bool running_ = false;  ///< a fiber is in start() or run()
  Condition changed_;
  JoinHandle<void> fiber_;
};

}  // namespace tidelock
