/// Where verbs and rdma_cm calls that block are made: create, modify, register, destroy, resolve, accept.
/// Thread:   run() from any; the work runs elsewhere, one piece after the other
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tidelock {

class BlockingCalls {
 public:
  virtual ~BlockingCalls() = default;
  /// Never blocks its caller.
  virtual void run(std::function<void()> work) = 0;
};

/// A thread for them. Lifetime: outlives the cores that use it; stop() runs what was given before.
class ControlThread final : public BlockingCalls {
 public:
  ControlThread();
  ~ControlThread() override;
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  void run(std::function<void()> work) override;
  /// Idempotent. What is given afterwards is dropped.
  void stop();

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tidelock
