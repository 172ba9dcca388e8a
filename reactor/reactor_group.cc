#include <algorithm>
#include <chrono>
#include <string>

#include <tidelock/base/check.h>
#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/reactor_group.h>

#include "group_member.h"

namespace tidelock {

namespace {

Error invalid(std::string text) { return Error::from_errno(EINVAL, std::move(text)); }

Status check(const ReactorGroupOptions& options) {
  if (options.reactors < 1 || options.reactors > LaneDirectory::kCoresMax) {
    return invalid("reactors must be from 1 to 256, not " + std::to_string(options.reactors));
  }
  const std::uint32_t slots = options.mailbox.lane_slots;
  if (slots < 4 || slots > 65'536 || (slots & (slots - 1)) != 0) {
    return invalid("lane_slots must be a power of two from 4 to 65536, not " + std::to_string(slots));
  }
  if (options.back_stop.ns <= 0) return invalid("back_stop must be positive");
  if (options.spin.ns < 0) return invalid("spin must not be negative");
  return {};
}

/// One CPU a reactor; empty if they are not pinned.
Result<std::vector<std::uint32_t>> choose_cpus(const ReactorGroupOptions& options) {
  std::vector<std::uint32_t> chosen = options.cpus;
  if (!options.pin || (options.overprovisioned && chosen.empty())) return std::vector<std::uint32_t>{};
  const std::vector<std::uint32_t> usable = usable_cpus();
  for (const std::uint32_t cpu : chosen) {
    if (std::find(usable.begin(), usable.end(), cpu) != usable.end()) continue;
    return Error(ReactorErrc::bad_cpu_set, "CPU " + std::to_string(cpu) + " is not among this process's (" +
                                               format_cpu_list(usable) + "): choose from those");
  }
  if (chosen.empty()) chosen = spread_over_cores(usable);
  if (chosen.size() < options.reactors && !options.overprovisioned) {
    return Error(ReactorErrc::bad_cpu_set,
                 std::to_string(options.reactors) + " reactors, but only " + std::to_string(chosen.size()) +
                     " CPUs (" + format_cpu_list(chosen) + "): use fewer reactors, or set overprovisioned");
  }
  std::vector<std::uint32_t> cpus(options.reactors);
  for (std::size_t i = 0; i < cpus.size(); ++i) cpus[i] = chosen[i % chosen.size()];
  return cpus;
}

std::chrono::nanoseconds to_chrono(Duration duration) { return std::chrono::nanoseconds(duration.ns); }

}  // namespace

struct ReactorGroup::Impl {
  Impl(const ReactorGroupOptions& options, std::vector<std::uint32_t> cpus)
      : shared(options, std::move(cpus)) {}
  GroupMember& member(CoreId core) {
    TL_ASSERT(core.value < shared.members.size(), "no such reactor in this group");
    return *shared.members[core.value];
  }
  Status start();
  void join();

  GroupShared shared;
  std::vector<std::string> notices;
  bool joined = false;
};

Result<std::unique_ptr<ReactorGroup>> ReactorGroup::start(const ReactorGroupOptions& options) {
  TL_TRY(check(options));
  TL_TRY(auto cpus, choose_cpus(options));
  auto impl = std::make_unique<Impl>(options, std::move(cpus));
  if (options.seed == 0) impl->shared.options.seed = entropy64();
  TL_TRY(impl->start());
  return std::unique_ptr<ReactorGroup>(new ReactorGroup(std::move(impl)));
}

Status ReactorGroup::Impl::start() {
  for (std::uint32_t i = 0; i < shared.options.reactors; ++i) {
    shared.members.push_back(std::make_unique<GroupMember>(shared, CoreId{static_cast<std::uint16_t>(i)}));
  }
  Status status;
  std::uint32_t started = 0;
  for (const auto& one : shared.members) {
    status = one->start_thread();
    if (!status) break;
    ++started;
  }
  std::unique_lock lock(shared.mutex);
  const auto all = static_cast<std::uint32_t>(shared.members.size());
  shared.changed.wait(lock, [&] { return shared.ready == started; });
  if (status) status = shared.set_up;
  shared.start = status ? GroupShared::Start::go : GroupShared::Start::give_up;
  shared.changed.notify_all();
  if (status) {
    shared.changed.wait(lock, [&] { return shared.turning == all; });
    notices = shared.members.front()->notices();  // one kernel, so one list
    return {};
  }
  lock.unlock();
  join();
  return status;
}

void ReactorGroup::Impl::join() {
  for (const auto& one : shared.members) one->join();
  joined = true;
}

ReactorGroup::ReactorGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ReactorGroup::~ReactorGroup() {
  const Status stopped = stop(seconds(10));
  TL_ASSERT(stopped.has_value(), "a reactor still runs: its fibers refer to a group that goes away");
}

std::uint32_t ReactorGroup::size() const { return impl_->shared.options.reactors; }
Reactor& ReactorGroup::reactor(CoreId core) { return impl_->member(core).reactor(); }
const ParkStats& ReactorGroup::park_stats(CoreId core) const { return impl_->member(core).park_stats(); }
const std::vector<std::string>& ReactorGroup::notices() const { return impl_->notices; }
const std::vector<std::uint32_t>& ReactorGroup::cpus() const { return impl_->shared.cpus; }
int ReactorGroup::wake_fd(CoreId core) const { return impl_->member(core).wake_fd(); }

Status ReactorGroup::submit(CoreId core, HostTask& task) { return impl_->member(core).submit(task); }

/// Shared by the waiting thread and the fiber; whoever lets go last frees it, so a timeout leaves nothing
/// dangling.
struct ReactorGroup::BlockingRun : HostTask {
  std::unique_ptr<AnyClosure> closure;
  std::shared_ptr<BlockingRun> self;  ///< held for the group from submit() until `run`
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool abandoned = false;
  Status outcome;

  void finish() {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  }
  void run_closure() {
    bool wanted = false;
    {
      const std::lock_guard lock(mutex);
      wanted = !abandoned;
    }
    if (wanted) closure->run();
    closure.reset();  // on the reactor, before the caller goes on
    finish();
  }
};

Status ReactorGroup::run_blocking(CoreId core, std::unique_ptr<AnyClosure> closure, Duration timeout) {
  TL_ASSERT(Reactor::current() == nullptr,
            "run() blocks its thread; on a reactor use Mailbox::call_in_fiber");
  auto job = std::make_shared<BlockingRun>();
  job->closure = std::move(closure);
  job->self = job;
  job->run = [](HostTask& task, Reactor& reactor) {
    std::shared_ptr<BlockingRun> mine = std::move(static_cast<BlockingRun&>(task).self);
    mine->outcome = reactor.spawn_detached("host run", [mine] { mine->run_closure(); });
    if (!mine->outcome) mine->finish();
  };
  if (Status accepted = submit(core, *job); !accepted) {
    job->self.reset();
    return accepted;
  }
  std::unique_lock lock(job->mutex);
  if (job->changed.wait_for(lock, to_chrono(timeout), [&] { return job->done; })) return job->outcome;
  job->abandoned = true;
  return ReactorErrc::deadline_exceeded;
}

Status ReactorGroup::stop(Duration timeout) {
  TL_ASSERT(Reactor::current() == nullptr, "a reactor cannot wait for its own end");
  if (impl_->joined) return {};
  GroupShared& shared = impl_->shared;
  shared.stopping.store(true, std::memory_order_relaxed);
  for (const auto& member : shared.members) member->close_to_hosts();
  std::unique_lock lock(shared.mutex);
  const bool ended = shared.changed.wait_for(lock, to_chrono(timeout),
                                             [&] { return shared.ended == shared.members.size(); });
  lock.unlock();
  if (ended) {
    impl_->join();
    return {};
  }
  std::string names;
  for (const auto& member : shared.members) {
    if (!member->ended()) names += (names.empty() ? "" : "; ") + member->describe();
  }
  return Error(ReactorErrc::deadline_exceeded,
               names + ": a fiber ignores its cancellation, or a source or watch was not removed");
}

}  // namespace tidelock
