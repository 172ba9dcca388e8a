#include "thread_dialer.h"

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>

namespace tidelock {
namespace {

/// A transport's own deadline says more than ours, and comes a little later.
constexpr Duration kGrace = milliseconds(500);

Error gave_up(const std::string& address) {
  return {ReactorErrc::closed, "connecting to " + address + " was given up"};
}

}  // namespace

/// Belongs to the core, except while the thread has it: from the queue to the submission of its outcome.
struct ThreadDialer::Attempt : HostTask {
  CoreId core{};
  Hello ours;
  Instant deadline{};
  std::optional<Result<ConnectedPeer>> outcome;
  std::optional<Refusal> refusal;
  std::shared_ptr<Attempt> self;       ///< while its outcome is on the way to the core
  std::atomic<bool> abandoned{false};  ///< set by the core; the thread need not begin it then
  bool over = false;
  WaitQueue ended;
};

class ThreadDialer::Worker {
 public:
  Worker(ReactorGroup& group, Transport& transport, std::string address, std::uint32_t threads)
      : group_(group), transport_(transport), address_(std::move(address)) {
    threads_.reserve(threads);
    try {
      for (std::uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (...) {
      stop();  // those that were started
      throw;
    }
  }
  ~Worker() { stop(); }

  Status add(std::shared_ptr<Attempt> attempt) {
    const std::lock_guard lock(mutex_);
    if (stopping_) return gave_up(address_);
    queue_.push_back(std::move(attempt));
    changed_.notify_one();
    return {};
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::shared_ptr<Attempt> attempt = std::move(queue_.front());
      queue_.pop_front();
      const bool begin = !stopping_;
      lock.unlock();
      if (!attempt->abandoned.load(std::memory_order_relaxed)) {
        deliver(attempt, begin ? connect(*attempt) : gave_up(address_));
      }
      lock.lock();
    }
  }

  Result<ConnectedPeer> connect(Attempt& attempt) {
    const Duration left = attempt.deadline - SystemClock().now();
    if (left <= Duration{0}) {
      return Error(ReactorErrc::deadline_exceeded, "other attempts to reach " + address_ + " took too long");
    }
    return transport_.connect(address_, attempt.ours, left, &attempt.refusal);
  }

  void deliver(const std::shared_ptr<Attempt>& attempt, Result<ConnectedPeer> outcome) {
    attempt->outcome = std::move(outcome);
    attempt->run = &arrive;
    attempt->self = attempt;
    if (!group_.submit(attempt->core, *attempt)) attempt->self.reset();
  }

  /// On the core.
  static void arrive(HostTask& task, Reactor&) {
    const std::shared_ptr<Attempt> attempt = std::move(static_cast<Attempt&>(task).self);
    attempt->over = true;
    if (attempt->abandoned.load(std::memory_order_relaxed)) attempt->outcome.reset();
    attempt->ended.notify_all();
  }

  ReactorGroup& group_;
  Transport& transport_;
  const std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Attempt>> queue_;  ///< under mutex_
  bool stopping_ = false;                       ///< under mutex_
  std::vector<std::thread> threads_;            ///< the last member: they use the others
};

ThreadDialer::ThreadDialer(ReactorGroup& group, Transport& transport,
                           const std::vector<std::string>& addresses, std::uint32_t threads)
    : transport_(transport) {
  for (const std::string& address : addresses) {
    workers_.try_emplace(address, std::make_unique<Worker>(group, transport, address, threads));
  }
}

ThreadDialer::~ThreadDialer() { stop(); }

void ThreadDialer::stop() {
  transport_.interrupt();
  for (const auto& [address, worker] : workers_) worker->stop();
}

Result<ConnectedPeer> ThreadDialer::dial(const std::string& address, const Hello& ours, Instant deadline,
                                         std::optional<Refusal>* refusal) {
  const auto worker = workers_.find(address);
  if (worker == workers_.end()) {
    return Error(std::error_code(EINVAL, std::system_category()), "nobody dials " + address);
  }
  const auto attempt = std::make_shared<Attempt>();
  attempt->core = Reactor::current()->id();
  attempt->ours = ours;
  attempt->deadline = deadline;
  TL_TRY(worker->second->add(attempt));
  const Wakeup wakeup = attempt->ended.wait(deadline + kGrace);
  if (attempt->over) {
    if (refusal != nullptr) *refusal = attempt->refusal;
    return *std::move(attempt->outcome);
  }
  attempt->abandoned.store(true, std::memory_order_relaxed);
  if (wakeup == Wakeup::cancelled) return ReactorErrc::cancelled;
  return Error(ReactorErrc::deadline_exceeded, "no answer from " + address + " in time");
}

}  // namespace tidelock
