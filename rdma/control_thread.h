/// Where verbs and rdma_cm calls that block are made: create, modify, register, destroy, resolve, accept.
/// Thread:   run() from any; the work runs elsewhere, one piece after the other
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include <tidelock/base/time.h>

namespace tidelock {

class BlockingCalls {
 public:
  virtual ~BlockingCalls() = default;
  /// Never blocks its caller.
  virtual void run(std::function<void()> work) = 0;
};

/// A thread for them.
class ControlThread final : public BlockingCalls {
 public:
  ControlThread();
  /// Gives a call that does not return ten seconds, then leaves thread and call behind.
  ~ControlThread() override;
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  void run(std::function<void()> work) override;
  /// Runs what was given before; what is given afterwards is dropped. Idempotent. False: a call does not
  /// return.
  bool stop(Duration timeout);

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's, too
  std::thread thread_;
};

}  // namespace tidelock
