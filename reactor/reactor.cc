#include <algorithm>
#include <cerrno>
#include <string>

#include <tidelock/base/bytes.h>
#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/fence.h>
#include <tidelock/reactor/reactor.h>

#include "operation_pool.h"
#include "scheduler.h"

namespace tidelock {
namespace {

thread_local Reactor* t_current = nullptr;

/// A turn within another reactor's turn, as in a simulator's fiber, gives the thread back as it was.
class CurrentScope {
 public:
  explicit CurrentScope(Reactor* reactor) : outer_(t_current) { t_current = reactor; }
  ~CurrentScope() { t_current = outer_; }
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;

 private:
  Reactor* outer_;
};

Status check(const ReactorOptions& options) {
  const auto bad = [](const char* remedy) { return Error::from_errno(EINVAL, remedy); };
  if (options.stack_bytes < 16 * 1024 || options.stack_bytes > 8 * 1024 * 1024) {
    return bad("stack_bytes: choose 16 KiB to 8 MiB");
  }
  if (options.max_fibers < 1 || options.max_fibers > kFibersMax) return bad("max_fibers: choose 1 to 65,536");
  if (options.max_operations < 1) return bad("max_operations: choose at least 1");
  if (options.source_budget < 1) return bad("source_budget: choose at least 1");
  if (options.idle_looks < 1 || options.idle_looks > 64) return bad("idle_looks: choose 1 to 64");
  if (options.fiber_quota.ns < 0 || options.flush_interval.ns < 0 || options.stall_threshold.ns <= 0) {
    return bad("fiber_quota, flush_interval and stall_threshold: choose times above zero");
  }
  return {};
}

}  // namespace

Reactor::Reactor(const ReactorOptions& options, Clock& clock, IoBackend& io, Random& random)
    : options_(options),
      clock_(clock),
      io_(io),
      random_(random),
      now_(clock.now()),
      previous_turn_(now_),
      timers_(options.max_fibers) {}

Result<std::unique_ptr<Reactor>> Reactor::create(const ReactorOptions& options, Clock& clock, IoBackend& io,
                                                 Random& random) {
  TL_TRY(check(options));
  std::unique_ptr<Reactor> reactor(new Reactor(options, clock, io, random));
  TL_TRY(reactor->scheduler_, Scheduler::create(*reactor));
  reactor->operations_ = std::make_unique<OperationPool>(*reactor, options.max_operations);
  return reactor;
}

Reactor::~Reactor() {
  TL_ASSERT(!in_turn_, "a reactor is destroyed by its own turn");
  TL_ASSERT(sources_.empty(), "a reactor is destroyed before its sources were removed");
}

// Not inlined: a fiber may go on in a turn on another thread, and a compiler that saw through this could keep
// the address of the first thread's variable.
[[gnu::noinline]] Reactor* Reactor::current() { return t_current; }

Instant Reactor::refresh_now() {
  now_ = clock_.now();
  return now_;
}

Instant Reactor::turn() {
  TL_ASSERT(!in_turn_, "turn() within a turn of the same reactor");
  const CurrentScope scope(this);
  in_turn_ = true;
  const Instant start = refresh_now();
  Input input = overslept(start) ? drain_inputs() : poll_inputs();
  // The rest of an idle turn (clock, timers, flush) takes longer than a look.
  for (std::uint32_t looks = 1; looks < options_.idle_looks; ++looks) {
    if (input.items > 0 || scheduler_->has_ready()) break;
    input = poll_inputs();
  }
  const std::uint32_t fired = timers_.fire(now_, options_.source_budget);
  if (fired > 0) bump(stats_.timers_fired, fired);
  const std::uint64_t switches = scheduler_->run_ready();
  flush_sources();
  account(start, input.items > 0 || fired > 0 || switches > 0);
  in_turn_ = false;
  if (input.more || scheduler_->has_ready() || io_.has_work()) return Instant{0};
  const Instant next = timers_.next_deadline();
  return next <= now_ ? Instant{0} : next;
}

// By index, since a callback may add a source; what it adds is visited in the same walk.
template <class Visit>
void Reactor::for_each_source(Visit&& visit) {
  ++walks_;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i] != nullptr) visit(*sources_[i]);
  }
  if (--walks_ == 0 && holes_) {
    std::erase(sources_, nullptr);
    holes_ = false;
  }
}

Reactor::Input Reactor::poll_inputs() {
  const std::uint32_t budget = options_.source_budget;
  Input input;
  const auto took = [&](std::uint32_t items) {
    input.items += items;
    input.more |= items >= budget;
  };
  took(io_.poll(budget));
  for_each_source([&](PollSource& source) { took(source.poll(budget)); });
  return input;
}

// Bounded, since a peer may send as fast as it is read.
Reactor::Input Reactor::drain_inputs() {
  constexpr int kRoundsMax = 1024;
  Input all;
  for (int round = 0; round < kRoundsMax; ++round) {
    const Input input = poll_inputs();
    all.items += input.items;
    all.more = input.more;
    // What was read may have been handed to fibers.
    scheduler_->run_ready();
    if (!input.more) break;
  }
  return all;
}

bool Reactor::overslept(Instant start) {
  const Instant due = std::max(timers_.next_deadline(), previous_turn_);
  previous_turn_ = start;
  return due < start && start - due > options_.stall_threshold;
}

void Reactor::flush_sources() {
  for_each_source([](PollSource& source) { source.flush(); });
  io_.flush();
}

void Reactor::account(Instant start, bool busy) {
  bump(stats_.turns);
  if (!busy) return;
  bump(stats_.busy_turns);
  const Duration took = refresh_now() - start;
  if (took <= options_.stall_threshold) return;
  bump(stats_.stalls);
  const auto took_ns = static_cast<std::uint64_t>(took.ns);
  if (took_ns > stats_.stall_ns_max.load(std::memory_order_relaxed)) {
    stats_.stall_ns_max.store(took_ns, std::memory_order_relaxed);
  }
}

bool Reactor::has_work() {
  if (scheduler_->has_ready() || io_.has_work()) return true;
  const Instant next = timers_.next_deadline();
  if (next != Instant::never() && next <= clock_.now()) return true;
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const PollSource* source) { return source != nullptr && source->has_work(); });
}

void Reactor::arm_sources() {
  for_each_source([](PollSource& source) { source.arm(); });
  // Pairs with the fence of each source's waker between what it publishes and its look at what arm() stored
  // (ShmRingLink::wake_peer): either has_work() finds the one, or the waker finds the other.
  full_fence();
}

void Reactor::disarm_sources() {
  for_each_source([](PollSource& source) { source.disarm(); });
}

void Reactor::add_source(PollSource& source) {
  TL_ASSERT(std::find(sources_.begin(), sources_.end(), &source) == sources_.end(),
            "the source was added before");
  sources_.push_back(&source);
}

void Reactor::remove_source(PollSource& source) {
  const auto found = std::find(sources_.begin(), sources_.end(), &source);
  TL_ASSERT(found != sources_.end(), "the source is not in this reactor");
  if (walks_ > 0) {
    *found = nullptr;
    holes_ = true;
  } else {
    sources_.erase(found);
  }
}

void Reactor::cancel_all() { scheduler_->cancel_all(); }

bool Reactor::idle() const { return scheduler_->live() == 0 && operations_->idle() && io_.in_flight() == 0; }

bool Reactor::can_spawn() const { return scheduler_->can_allocate(); }

Fiber* Reactor::allocate_fiber(const char* name) { return scheduler_->allocate(name); }

void* Reactor::reserve_body(Fiber* fiber, std::size_t bytes, std::size_t alignment) {
  return Scheduler::reserve_body(*fiber, bytes, alignment);
}

void Reactor::start_fiber(Fiber* fiber, detail::FiberBody* body) { scheduler_->start(*fiber, *body); }

}  // namespace tidelock
