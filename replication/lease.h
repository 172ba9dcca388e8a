/// The leases of one epoch as its primary counts them: how long it may answer reads alone. Who grants one is
/// a Membership: stamped() there, with a clock that was read after the frame was taken, is the other side.
///
/// A stamp is this node's own clock, read before the frame leaves, so a grant never ends earlier than `lease`
/// after its stamp, but for drift. Reads capture first: held() reads the clock itself, after that, and no
/// turn's time will do. A core that stood still between a reading and the capture would answer with what
/// another primary's writes have passed by.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <map>

#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/replication/quorum.h>

namespace tidelock {

class Leases {
 public:
  /// `clock`: one that goes on while the machine sleeps (CLOCK_BOOTTIME). `quorum`: with the epoch's c.
  /// `link_timeout`: who is silent for that long is not there.
  Leases(const Quorum& quorum, Duration lease, Duration link_timeout, Clock& clock);

  /// Of `lease`, what a primary relies on: two clocks may differ by 1 % and 1 ms over it.
  [[nodiscard]] static constexpr Duration usable(Duration lease) {
    return lease - Duration{lease.ns / 100} - milliseconds(1);
  }

  /// c others have been heard within `link_timeout`.
  [[nodiscard]] bool followed() const;
  /// For a control frame that leaves now, to whom ever. 0: none. It does not stamp before it serves, nor
  /// without c others that were heard: leases of a primary that cannot commit would only keep another from
  /// leading.
  [[nodiscard]] std::uint64_t stamp(bool serves);
  /// It has stamped within the last `lease`: whoever got that is bound by it still.
  [[nodiscard]] bool stamped_lately() const;
  /// A frame of a node that follows this epoch came, with this echo, 0 for none. A node that has gone keeps
  /// what it granted: started anew, it waits for as long.
  /// False: that was never stamped. The link is closed then, and nothing counts.
  [[nodiscard]] bool heard(std::uint32_t node, std::uint64_t echo);

  /// To be called after the capture: what was captured was the newest then, once it is committed.
  [[nodiscard]] bool held() const;
  /// To be called after the capture, too, if there is no lease: what confirmed() is asked with, whenever an
  /// echo has come.
  [[nodiscard]] std::uint64_t mark() const { return last_stamp_; }
  /// Enough have echoed a stamp that left after mark() was taken.
  [[nodiscard]] bool confirmed(std::uint64_t mark) const;

  /// It hands over, or is deposed: in that turn already nothing is stamped, held or confirmed any more.
  void end() { ended_ = true; }

 private:
  struct Peer {
    std::uint64_t echo = 0;
    Instant heard_at{};
  };
  /// Of the newest echoes of each, the one that leases_needed() others have reached; 0: fewer have any.
  [[nodiscard]] std::uint64_t reached() const;

  Quorum quorum_;
  Duration lease_, link_timeout_;
  Clock& clock_;
  std::map<std::uint32_t, Peer> peers_;
  std::uint64_t last_stamp_ = 0;
  Instant held_until_{};
  bool ended_ = false;
};

}  // namespace tidelock
