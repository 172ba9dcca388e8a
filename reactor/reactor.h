/// The event loop of one core: polls its sources, fires timers, runs fibers, flushes what they staged.
/// It never blocks; a driver (reactor_group.h, or a host's own loop, or the simulator) calls turn() and
/// decides how to wait.
/// Thread:   owner core: whichever thread is inside turn(); create and destroy on any one thread while no
///           turn runs
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/io_backend.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/timer.h>

namespace tidelock {

class Mailbox;
class OperationPool;

/// Of a reactor. A guarded stack takes two of the mappings that a process may have (vm.max_map_count), so
/// that limit may come first.
inline constexpr std::uint32_t kFibersMax = 65'536;

struct ReactorOptions {
  CoreId id{};
  std::uint32_t stack_bytes = 64 * 1024;  ///< 16 KiB to 8 MiB; rounded up to pages, plus a guard page
  std::uint32_t max_fibers = 1024;        ///< 1 to kFibersMax; stacks are mapped on demand and pooled
  std::uint32_t prepared_fibers = 64;     ///< stacks mapped and touched at start
  std::uint32_t max_operations = 1024;    ///< slots for operations in flight
  std::uint32_t source_budget = 64;       ///< items taken from one source in one turn
  /// How often a turn that finds nothing looks at its sources before it goes on, 1 to 64. What comes
  /// meanwhile is found sooner; timers wait that much longer.
  std::uint32_t idle_looks = 1;
  Duration fiber_quota = microseconds(500);    ///< ready fibers run at most this long in one turn
  Duration flush_interval = microseconds(20);  ///< staged work leaves at the latest after this long in a turn
  Duration stall_threshold = milliseconds(25);  ///< a turn longer than this counts as a stall
};

/// Single-writer counters: the owner stores, anyone may load (relaxed).
struct ReactorStats {
  std::atomic<std::uint64_t> turns{0};
  std::atomic<std::uint64_t> busy_turns{0};  ///< turns that found something to do
  std::atomic<std::uint64_t> fiber_switches{0};
  std::atomic<std::uint64_t> fibers_spawned{0};
  std::atomic<std::uint64_t> fibers_live{0};
  std::atomic<std::uint64_t> stack_bytes_peak{0};  ///< deepest use seen of any stack that was given back
  std::atomic<std::uint64_t> timers_fired{0};
  std::atomic<std::uint64_t> stalls{0};
  std::atomic<std::uint64_t> stall_ns_max{0};
};

class Reactor {
 public:
  /// `clock`, `io` and `random` outlive the reactor.
  /// Errors:   ENOMEM with the number of bytes that could not be mapped; EINVAL for options out of range
  static Result<std::unique_ptr<Reactor>> create(const ReactorOptions& options, Clock& clock, IoBackend& io,
                                                 Random& random);
  /// All fibers must have ended (see shutdown()), all sources been removed.
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// The reactor whose turn runs on this thread, or null.
  [[nodiscard]] static Reactor* current();

  /// One round. Returns when it wants to run again: Instant{0} if work is left, else the next timer, or
  /// never(). Sources and completions that arrive from outside do not show in that time.
  /// If timers are overdue because no turn ran for longer than stall_threshold, whatever came in meanwhile is
  /// handled before they fire: a deadline must not pass on account of input that only waited to be read.
  Instant turn();
  /// True if a turn would find work now: ready fibers, due timers, completions or any source.
  [[nodiscard]] bool has_work();
  /// For the driver's park protocol; see poll_source.h. arm_sources() ends with a full fence: whoever parks
  /// asks has_work() after it.
  void arm_sources();
  void disarm_sources();

  /// Starts a fiber; it first runs in this turn or the next. `name` must be a literal (it is kept).
  /// Callable on the owner core, from fibers and from the loop.
  /// Errors:   out_of_fibers
  template <class F>
  Result<JoinHandle<std::invoke_result_t<std::decay_t<F>&>>> spawn(const char* name, F&& closure) {
    using Closure = std::decay_t<F>;
    using R = std::invoke_result_t<Closure&>;
    using Body = detail::TypedFiberBody<Closure, R>;
    static_assert(sizeof(Body) <= 4096, "a fiber's closure and result take at most 4 KiB of its stack");
    Fiber* fiber = allocate_fiber(name);
    if (fiber == nullptr) return ReactorErrc::out_of_fibers;
    void* place = reserve_body(fiber, sizeof(Body), alignof(Body));
    start_fiber(fiber, ::new (place) Body(Closure(std::forward<F>(closure))));
    return JoinHandle<R>(fiber);
  }
  /// spawn without a handle.
  template <class F>
  Status spawn_detached(const char* name, F&& closure) {
    TL_TRY(auto handle, spawn(name, std::forward<F>(closure)));
    handle.detach();
    return {};
  }

  /// False: spawn would be refused, and will be until a fiber has ended and its handle is gone.
  [[nodiscard]] bool can_spawn() const;

  /// The time as of this turn, refreshed at its start and every 16 fiber switches. Costs a load.
  [[nodiscard]] Instant now() const { return now_; }
  /// Reads the clock.
  Instant refresh_now();

  /// Sources are polled in the order in which they were added. Both are safe from any callback of a source,
  /// its own included; a source that was removed is not called again.
  void add_source(PollSource& source);
  void remove_source(PollSource& source);

  /// Asks every live fiber to end. Turn until idle() afterwards.
  void cancel_all();
  /// No live fibers and nothing in flight in the kernel.
  [[nodiscard]] bool idle() const;

  [[nodiscard]] CoreId id() const { return options_.id; }
  [[nodiscard]] const ReactorOptions& options() const { return options_; }
  [[nodiscard]] Clock& clock() { return clock_; }
  [[nodiscard]] IoBackend& io() { return io_; }
  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] Timers& timers() { return timers_; }
  [[nodiscard]] OperationPool& operations() { return *operations_; }
  [[nodiscard]] const ReactorStats& stats() const { return stats_; }
  /// Null until a ReactorGroup (or a test) connects one.
  [[nodiscard]] Mailbox* mailbox() { return mailbox_; }
  void set_mailbox(Mailbox* mailbox) { mailbox_ = mailbox; }

 private:
  friend class Scheduler;
  Reactor(const ReactorOptions& options, Clock& clock, IoBackend& io, Random& random);
  Fiber* allocate_fiber(const char* name);
  void* reserve_body(Fiber* fiber, std::size_t bytes, std::size_t alignment);
  void start_fiber(Fiber* fiber, detail::FiberBody* body);
  struct Input {
    std::uint32_t items = 0;
    bool more = false;  ///< something used its whole budget
  };
  Input poll_inputs();
  Input drain_inputs();
  [[nodiscard]] bool overslept(Instant start);
  void flush_sources();
  template <class Visit>
  void for_each_source(Visit&& visit);
  void account(Instant start, bool busy);

  ReactorOptions options_;
  Clock& clock_;
  IoBackend& io_;
  Random& random_;
  Instant now_{};
  Instant previous_turn_{};
  Timers timers_;
  ReactorStats stats_;
  std::unique_ptr<OperationPool> operations_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<PollSource*> sources_;  ///< null where one was removed during a walk
  std::uint32_t walks_ = 0;           ///< walks over sources_ under way
  bool holes_ = false;
  bool in_turn_ = false;
  Mailbox* mailbox_ = nullptr;
};

}  // namespace tidelock
