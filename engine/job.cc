#include "job.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace tidelock {
namespace {

struct Job final : HostTask {
  std::function<Status(Reactor&)> body;
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<Status> status;
  std::shared_ptr<Job> self;  ///< until it has run
};

void run(HostTask& task, Reactor& reactor) {
  const std::shared_ptr<Job> job = std::move(static_cast<Job&>(task).self);
  Status status = job->body(reactor);
  job->body = nullptr;  // what it owns ends on this core
  const std::lock_guard lock(job->mutex);
  job->status = std::move(status);
  job->ended.notify_one();
}

}  // namespace

Status run_job(ReactorGroup& group, CoreId core, std::function<Status(Reactor&)> body, Duration timeout) {
  const auto job = std::make_shared<Job>();
  job->body = std::move(body);
  job->HostTask::run = &run;
  job->self = job;
  if (Status submitted = group.submit(core, *job); !submitted) {
    job->self.reset();
    return submitted;
  }
  std::unique_lock lock(job->mutex);
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout.ns);
  if (job->ended.wait_until(lock, until, [&] { return job->status.has_value(); })) return *job->status;
  return Error(ReactorErrc::deadline_exceeded,
               "reactor " + std::to_string(core.value) + " did not come to a control task in time");
}

}  // namespace tidelock
