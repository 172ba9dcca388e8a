/// Reactors on threads of their own, pinned where there are cores, with lanes between them: the usual driver.
/// Thread:   any for submit() and stats; create and stop from the thread that owns the group
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
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
  std::uint32_t reactors = 1;  ///< 1 to 256
  std::vector<std::uint32_t> cpus;  ///< one CPU a reactor; empty: chosen from the process's CPU set
  bool pin = true;
  /// Reactors share cores with each other or with another process: none spins before it parks.
  bool overprovisioned = false;
  Duration spin = microseconds(200);      ///< how long an idle reactor polls before it parks
  Duration back_stop = milliseconds(100); ///< a parked reactor looks around at the latest after this
  WakeCarrier wake = WakeCarrier::automatic;
  MailboxOptions mailbox;
  ReactorOptions reactor;              ///< `id` is set by the group
  std::uint32_t ring_entries = 256;    ///< io_uring submission entries, 8 to 32,768
  std::uint64_t seed = 0;              ///< 0: from the kernel
  int stall_signal = 0;                ///< a realtime signal for stall backtraces; 0: none is used
};

struct ParkStats {
  std::atomic<std::uint64_t> parks{0};
  std::atomic<std::uint64_t> wakeups_sent{0};
  std::atomic<std::uint64_t> wakeups_received{0};
  std::atomic<std::uint64_t> wakeups_failed{0};   ///< a MSG_RING that failed and was repeated by eventfd
  std::atomic<std::uint64_t> back_stops{0};
  std::atomic<std::uint64_t> lost_wakeups{0};     ///< a back-stop that found work: must stay 0
};

/// Work from a thread that runs no reactor. Intrusive: nothing is allocated.
/// Lifetime: until `run` was called
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
  /// For code that runs on that reactor, and for its statistics.
  [[nodiscard]] Reactor& reactor(CoreId core);
  [[nodiscard]] const ParkStats& park_stats(CoreId core) const;
  [[nodiscard]] const std::vector<std::string>& notices() const;
  /// The CPU each reactor is pinned to; empty if none is.
  [[nodiscard]] const std::vector<std::uint32_t>& cpus() const;

  /// From any thread: runs `task` on that reactor's loop.
  /// Errors:   closed after stop()
  Status submit(CoreId core, HostTask& task);
  /// From any thread that runs no reactor: runs `closure()` in a fiber there and waits for it.
  /// Errors:   deadline_exceeded (the closure may still run: what it refers to must outlive the group)
  template <class F>
  Status run(CoreId core, F&& closure, Duration timeout);

  /// Cancels all fibers, drains what is in flight, ends the threads. Sources must have been removed by then.
  /// Errors:   deadline_exceeded names the reactor that did not end
  Status stop(Duration timeout);

 private:
  struct Impl;
  explicit ReactorGroup(std::unique_ptr<Impl> impl);
  Status run_blocking(CoreId core, void (*body)(void*), void* context, Duration timeout);
  std::unique_ptr<Impl> impl_;
};

template <class F>
Status ReactorGroup::run(CoreId core, F&& closure, Duration timeout) {
  return run_blocking(core, [](void* context) { (*static_cast<std::remove_reference_t<F>*>(context))(); },
                      &closure, timeout);
}

}  // namespace tidelock
