/// How a call reaches the shard's owner core from elsewhere: from host threads through the group's submit
/// queue, from fibers of other cores through the mailbox. See call.h.
/// Thread:   any
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/reactor_group.h>

#include "call.h"

namespace tidelock {

/// The right to a call's slot. Gives it back when dropped; a call that is still under way then is abandoned.
class Ticket {
 public:
  explicit Ticket(Call& call) : call_(&call) {}
  Ticket(Ticket&& other) noexcept : call_(std::exchange(other.call_, nullptr)), launched_(other.launched_) {}
  Ticket& operator=(Ticket&&) = delete;
  ~Ticket();

  Call* operator->() const { return call_; }
  Call& operator*() const { return *call_; }

  /// Sends the call to its shard. Suspends a fiber while the lane is full.
  /// Errors:   closed, lane_full, deadline_exceeded, cancelled: it never left
  Status launch();
  /// Waits until it was completed; then its status tells how. Suspends a fiber; blocks a host thread. Ends
  /// shortly after the call's deadline at the latest.
  /// Errors:   deadline_exceeded, cancelled: it may still take effect, but nobody will hear of it
  Status await();
  /// Carries it to its shard and leaves. Its `callback` hears of it. Host threads and loops.
  /// Errors:   closed: it never left
  Status send();

 private:
  Status await_on_host();
  Status await_in_fiber();
  [[nodiscard]] bool abandon();
  Call* call_;
  bool launched_ = false;  ///< from then on the owner core uses the call until it has completed it
};

class Host {
 public:
  Host(ReactorGroup& group, std::uint32_t host_slots, std::uint32_t fiber_slots);

  /// The reactor of this group whose fiber calls, or null for a host thread.
  /// Errors:   not_on_reactor: the loop itself, or a foreign reactor, which must not be blocked
  Result<Reactor*> caller() const;
  /// A slot for a call from there. A host thread waits for one until `deadline`.
  /// Errors:   busy, closed
  Result<Ticket> take(Reactor* caller, Instant deadline);
  /// One of the host threads' slots, without waiting.
  Result<Ticket> try_take();

  [[nodiscard]] CallPool& pool() { return pool_; }
  [[nodiscard]] CallSlab& slab(CoreId core) { return *slabs_[core.value]; }

 private:
  ReactorGroup& group_;
  CallPool pool_;
  std::vector<std::unique_ptr<CallSlab>> slabs_;  ///< one a core
};

}  // namespace tidelock
