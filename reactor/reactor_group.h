/// Reactors on threads of their own, pinned where there are cores, with lanes between them: the usual driver.
/// Thread:   any for submit() and stats; create and stop from the thread that owns the group
/// Suspends: never; run() and stop() block the calling thread, which must not be a reactor's
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/reactor.h>

namespace tidelock {

/// How a parked reactor is woken by others of its process.
enum class WakeCarrier : std::uint8_t {
  automatic,  ///< MSG_RING where the kernel has it, else eventfd
  msg_ring,   ///< refuses to start where MSG_RING is missing
  eventfd,
};

struct ReactorGroupOptions {
  std::uint32_t reactors = 1;       ///< 1 to 256
  std::vector<std::uint32_t> cpus;  ///< one CPU a reactor; empty: chosen from the process's CPU set
  bool pin = true;
  /// Reactors share cores with each other or with another process: none spins before it parks, and they are
  /// pinned only if `cpus` says where (round robin). Whoever starts several processes on one machine gives
  /// them disjoint `cpus`, or sets this in each.
  bool overprovisioned = false;
  Duration spin = microseconds(200);       ///< how long an idle reactor polls before it parks
  Duration back_stop = milliseconds(100);  ///< a parked reactor looks around at the latest after this
  WakeCarrier wake = WakeCarrier::automatic;
  bool allow_msg_ring = true;  ///< false: as if the kernel had no MSG_RING (to test the fallback)
  MailboxOptions mailbox;
  ReactorOptions reactor;            ///< `id` is set by the group
  std::uint32_t ring_entries = 256;  ///< io_uring submission entries, 8 to 32,768
  std::uint64_t seed = 0;            ///< 0: from the kernel
  int stall_signal = 0;              ///< a realtime signal for stall backtraces; 0: none is used
};

/// Of one reactor; readable by anyone.
struct ParkStats {
  std::atomic<std::uint64_t> parks{0};
  std::atomic<std::uint64_t> wakeups_sent{0};      ///< by this reactor to others
  std::atomic<std::uint64_t> wakeups_received{0};  ///< sleeps that somebody ended
  std::atomic<std::uint64_t> host_wakeups{0};      ///< to this reactor from threads without a ring
  /// MSG_RINGs to this reactor that failed and were repeated by the fallback.
  std::atomic<std::uint64_t> wakeups_failed{0};
  std::atomic<std::uint64_t> back_stops{0};
  /// Back-stops that found a message whose sender had done all it would: must stay 0.
  std::atomic<std::uint64_t> lost_wakeups{0};
  // Of the eventfd, where there is one. Saturated: the counter was at its maximum, write(2) gave EAGAIN.
  std::atomic<std::uint64_t> event_writes{0};
  std::atomic<std::uint64_t> event_saturated{0};
  std::atomic<std::uint64_t> event_drains{0};
  std::atomic<std::uint64_t> event_count_max{0};  ///< the greatest value drained at once
};

/// Work from a thread that runs no reactor. Intrusive: nothing is allocated.
/// Lifetime: until `run` is entered; from then on the group does not touch it
struct HostTask {
  void (*run)(HostTask& task, Reactor& reactor) = nullptr;  ///< on the loop; must not suspend
  HostTask* next = nullptr;
};

class ReactorGroup {
 public:
  /// Starts the threads and returns once every reactor turns. Prints nothing; notices() tells what the
  /// kernel lacks and what is done instead, a line each.
  /// Errors:   io_uring_unavailable, bad_cpu_set, errno values; each with the remedy
  static Result<std::unique_ptr<ReactorGroup>> start(const ReactorGroupOptions& options);
  /// stop() with ten seconds, if it was not called.
  ~ReactorGroup();

  [[nodiscard]] std::uint32_t size() const;
  /// For code that runs on that reactor, and for its statistics. Lifetime: until stop()
  [[nodiscard]] Reactor& reactor(CoreId core);
  [[nodiscard]] const ParkStats& park_stats(CoreId core) const;
  [[nodiscard]] const std::vector<std::string>& notices() const;
  /// The CPU each reactor is pinned to; empty if none is.
  [[nodiscard]] const std::vector<std::uint32_t>& cpus() const;

  /// The eventfd that ends this reactor's sleep, or -1 if it needs none (MSG_RING does it all). For
  /// diagnosis; the counter's behaviour is in park_stats().
  [[nodiscard]] int wake_fd(CoreId core) const;

  /// From any thread: runs `task` on that reactor's loop. A task that was accepted is run, even while the
  /// group stops; the tasks of one thread run in their order. Errors:   closed after stop()
  Status submit(CoreId core, HostTask& task);
  /// From any thread that runs no reactor: runs `closure()` in a fiber there and waits for it.
  /// Errors:   deadline_exceeded (the closure, of which the group keeps its own copy, may still run: what it
  ///           refers to must outlive the group); closed; out_of_fibers
  template <class F>
  Status run(CoreId core, F&& closure, Duration timeout) {
    return run_blocking(core, std::make_unique<Closure<std::decay_t<F>>>(std::forward<F>(closure)), timeout);
  }

  /// Refuses host threads, cancels all fibers, drains what is in flight, and when all reactors have, ends the
  /// threads. Sources and watches of others must have been removed by then. May be called again after an
  /// error. Errors:   deadline_exceeded names the reactors that did not end
  Status stop(Duration timeout);

 private:
  struct AnyClosure {
    virtual ~AnyClosure() = default;
    virtual void run() = 0;
  };
  template <class F>
  struct Closure final : AnyClosure {
    explicit Closure(F&& f) : closure(std::move(f)) {}
    explicit Closure(const F& f) : closure(f) {}
    void run() override { closure(); }
    F closure;
  };
  struct BlockingRun;
  struct Impl;
  explicit ReactorGroup(std::unique_ptr<Impl> impl);
  Status run_blocking(CoreId core, std::unique_ptr<AnyClosure> closure, Duration timeout);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidelock
