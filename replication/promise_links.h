/// A candidate's ends of the links by which it was promised: they carry its stamps, and the echoes that say
/// that a giver has not restarted since. Member has the other ends. Whose promise a link that is gone was may
/// have forgotten it.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/transport.h>

namespace tidelock {

struct PromiseLinksOptions {
  std::uint32_t node = 0;  ///< the candidate
  ShardId shard{};
  Duration heartbeat = milliseconds(100);
  Duration link_timeout = seconds(3);
};

class PromiseLinks final : private PollSource {
 public:
  /// Both are called on the loop, while no link is walked: they may add, stamp and close, but not suspend or
  /// destroy.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// For Attempt::echoed().
    virtual void echoed(std::uint32_t node, std::uint64_t round) = 0;
    /// For Attempt::gone(). Not of what close() ends.
    virtual void gone(std::uint32_t node, const std::string& reason) = 0;
  };

  /// Adds itself to the reactor; both outlive it.
  PromiseLinks(Reactor& reactor, const PromiseLinksOptions& options, Owner& owner);
  ~PromiseLinks() override;
  PromiseLinks(const PromiseLinks&) = delete;
  PromiseLinks& operator=(const PromiseLinks&) = delete;

  /// Takes the link of a node that has answered a candidate's hello with a promise. One that the node has
  /// here already is closed, unheard: this is a newer promise.
  /// Errors:   malformed: its hello gives none, or of another's epoch; those of Link::start. The link is
  ///           closed
  Status add(ConnectedPeer peer);
  /// The links that there are now say that from now on, and their echoes are told. Above 0, and greater than
  /// any before.
  void stamp(std::uint64_t round);
  [[nodiscard]] std::size_t size() const { return links_.size(); }
  void close(const std::string& reason);

 private:
  struct Giver {
    std::uint32_t node = 0;
    std::unique_ptr<Link> link;
    ControlFrame says;
    std::uint64_t echoed = 0;
    bool news = true;
    Instant sent_at{};
  };
  struct Event {
    std::uint32_t node = 0;
    std::uint64_t round = 0;  ///< 0: it is gone
    std::string reason;
  };
  struct OwnedTimer : Timer {
    OwnedTimer(PromiseLinks& owner, Callback callback) : Timer(callback), links(owner) {}
    PromiseLinks& links;
  };

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

  std::uint32_t take_echoes(Giver& giver, std::uint32_t budget);
  std::uint32_t take_out_closed();
  void tick();
  void arm_tick();

  Reactor& reactor_;
  const PromiseLinksOptions options_;
  Owner& owner_;
  std::vector<Giver> links_;
  std::vector<Event> events_;  ///< to be told
  OwnedTimer heartbeat_{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).links.tick(); }};
};

}  // namespace tidelock
