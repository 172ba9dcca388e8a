#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <tidelock/rdma/control_thread.h>

namespace tidelock {

struct ControlThread::State {
  void loop() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopping || !work.empty(); });
      if (work.empty()) break;
      {
        const std::function<void()> piece = std::move(work.front());
        work.pop_front();
        lock.unlock();
        piece();
      }
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool stopping = false;
  bool ended = false;
};

ControlThread::ControlThread()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->loop(); }) {}

ControlThread::~ControlThread() { stop(seconds(10)); }

void ControlThread::run(std::function<void()> work) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
    state_->work.push_back(std::move(work));
  }
  state_->changed.notify_all();
}

bool ControlThread::stop(Duration timeout) {
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    const bool ended = state_->changed.wait_for(lock, std::chrono::nanoseconds(timeout.ns),
                                                [this] { return state_->ended; });
    if (!ended) {
      // Better left behind than waited for: it holds what it needs.
      if (thread_.joinable()) thread_.detach();
      return false;
    }
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

}  // namespace tidelock
