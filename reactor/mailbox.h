/// Messages between the reactors of one group: a lane for each ordered pair of cores in use, made at first
/// use, whose 64-byte slots carry their own sequence number (one cache line a message).
/// No message is lost, and none is reordered within a pair: posts and calls to one target run there in the
/// order in which they were sent. Replies come back in the order in which they were finished.
/// Thread:   owner core (each core sends and polls through its own Mailbox)
/// Errors:   lane_full; deadline_exceeded; cancelled; out_of_operations
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>

namespace tidelock {

/// How messages of a lane travel. One carrier a lane: two would reorder.
enum class Carrier : std::uint8_t {
  shared_memory,  ///< slots, polled; a wakeup only for a parked target. The default
  msg_ring,       ///< every message announced by IORING_OP_MSG_RING; the target acts on its CQEs
  eventfd,        ///< every flush announced by an eventfd that the target's ring polls
};

struct MailboxOptions {
  /// A power of two, 4 to 65,536. Half as many calls may be outstanding to one target; further callers wait.
  std::uint32_t lane_slots = 256;
  Carrier carrier = Carrier::shared_memory;
};

/// Single-writer; readable by anyone.
struct MailboxStats {
  // Replies included. What a group has sent and not received is on its way.
  std::atomic<std::uint64_t> sent{0};
  std::atomic<std::uint64_t> received{0};
  std::atomic<std::uint64_t> wakeups_sent{0};
  std::atomic<std::uint64_t> lane_full{0};
  std::atomic<std::uint64_t> lanes{0};       ///< made by this core
  std::atomic<std::uint64_t> lane_bytes{0};  ///< of those
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> late_replies{0};  ///< whose caller had given up
};

/// Largest trivially copyable closure that a message carries.
inline constexpr std::size_t kMessageBytes = 40;

/// Runs on the target's loop, in place in the slot. Must not suspend.
using MessageHandler = void (*)(Reactor& target, CoreId from, std::byte* payload);

class LaneDirectory;

class Mailbox final : public PollSource {
 public:
  /// Adds itself to the reactor's sources and becomes reactor.mailbox(), until it is destroyed.
  /// `directory` is shared by the group's mailboxes and outlives them.
  Mailbox(Reactor& reactor, LaneDirectory& directory, const MailboxOptions& options);
  ~Mailbox() override;

  /// Stages a message; it leaves with the next flush. Never suspends.
  /// Errors:   lane_full
  Status try_send(CoreId target, MessageHandler handler, const void* payload, std::size_t bytes);
  /// The same; suspends while the lane is full. Suspends: yes (fiber)
  Status send(CoreId target, MessageHandler handler, const void* payload, std::size_t bytes,
              Instant deadline);

  /// Runs `closure(Reactor&)` on the target's loop. `closure` is trivially copyable and at most 40 bytes.
  /// Suspends: yes (fiber), while the lane is full
  template <class F>
  Status post(CoreId target, F closure, Instant deadline) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= kMessageBytes);
    return send(target, &run_closure<F>, &closure, sizeof closure, deadline);
  }
  template <class F>
  Status try_post(CoreId target, F closure) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= kMessageBytes);
    return try_send(target, &run_closure<F>, &closure, sizeof closure);
  }

  /// Runs `closure(Reactor&)` on the target's loop and brings its result back. The reply's slot is reserved
  /// before the request leaves, so replies never wait: two cores with full lanes to each other go on.
  /// `closure` at most 24 bytes, its result at most 24 or void, both trivially copyable. After a deadline or
  /// a cancellation the call may still run; its reply is then dropped. Suspends: yes (fiber)
  template <class F>
  Result<std::invoke_result_t<F, Reactor&>> call(CoreId target, F closure, Instant deadline) {
    return call_as<F>(false, target, closure, deadline);
  }
  /// Like call, but `closure` runs in a fiber of the target and may suspend. At most half of the target's
  /// fibers serve calls; further calls queue there and none is lost. (Two cores whose fibers all wait for
  /// nested calls to each other therefore wait until their deadlines: nest within bounds.)
  template <class F>
  Result<std::invoke_result_t<F, Reactor&>> call_in_fiber(CoreId target, F closure, Instant deadline) {
    return call_as<F>(true, target, closure, deadline);
  }

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  [[nodiscard]] bool has_work() const override;
  [[nodiscard]] const MailboxStats& stats() const { return stats_; }

  /// For the driver, on the loop: what Waker::announce of this core's waker sent has arrived.
  void on_announcement(std::uint64_t data);
  /// The same for eventfd lanes, after the counter was drained.
  void on_event();
  /// An announcement to `target` was refused after all: it is repeated with the next flush.
  void on_announcement_failed(CoreId target);
  /// True if a message waits whose sender has finished looking at this reactor's park flag. If the flag is
  /// still up then, its wakeup was lost. (A sender that is only on its way does not count.)
  [[nodiscard]] bool has_settled_work() const;

 private:
  static constexpr std::size_t kCallBytes = 24;
  using CallBody = void (*)(Reactor& target, const std::byte* closure, std::byte* reply);

  template <class F>
  static void run_closure(Reactor& target, CoreId, std::byte* payload) {
    (*std::launder(reinterpret_cast<F*>(payload)))(target);
  }
  template <class F>
  static void run_call(Reactor& target, const std::byte* closure, std::byte* reply) {
    alignas(F) std::byte copy[sizeof(F)];
    std::memcpy(copy, closure, sizeof copy);
    F& call = *std::launder(reinterpret_cast<F*>(copy));
    if constexpr (std::is_void_v<std::invoke_result_t<F, Reactor&>>) {
      call(target);
    } else {
      store(reply, call(target));
    }
  }
  template <class F>
  Result<std::invoke_result_t<F, Reactor&>> call_as(bool in_fiber, CoreId target, F& closure,
                                                    Instant deadline) {
    using R = std::invoke_result_t<F, Reactor&>;
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= kCallBytes);
    alignas(8) std::byte reply[kCallBytes];
    TL_TRY(call_raw(in_fiber, target, &run_call<F>, &closure, sizeof closure, reply, deadline));
    if constexpr (std::is_void_v<R>) {
      return {};
    } else {
      static_assert(std::is_trivially_copyable_v<R> && sizeof(R) <= kCallBytes);
      alignas(R) std::byte copy[sizeof(R)];
      std::memcpy(copy, reply, sizeof copy);
      return *std::launder(reinterpret_cast<R*>(copy));
    }
  }
  Status call_raw(bool in_fiber, CoreId target, CallBody body, const void* closure, std::size_t bytes,
                  std::byte* reply, Instant deadline);

  struct State;
  struct Peer;
  struct Calls;
  std::unique_ptr<State> state_;
  MailboxStats stats_;
};

}  // namespace tidelock
