/// One reactor of a ReactorGroup: its thread, its ring, its way of sleeping, and how others end that sleep.
/// Thread:   the member's own, except where said
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/lane_directory.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/operation.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/reactor/ring.h>

#include "host_queue.h"
#include "stall.h"
#include "stop_barrier.h"

namespace tidelock {

class GroupMember;

/// What the members of a group share. Settled before the first of them turns, except for the atomics and what
/// the mutex guards.
struct GroupShared {
  GroupShared(const ReactorGroupOptions& chosen, std::vector<std::uint32_t> pinned_to)
      : options(chosen),
        cpus(std::move(pinned_to)),
        directory(chosen.reactors),
        stop_barrier(chosen.reactors) {}

  ReactorGroupOptions options;
  std::vector<std::uint32_t> cpus;  ///< by core; empty: not pinned
  LaneDirectory directory;
  std::vector<std::unique_ptr<GroupMember>> members;

  std::atomic<bool> stopping{false};
  StopBarrier stop_barrier;

  enum class Start : std::uint8_t { waiting, go, give_up };
  std::mutex mutex;
  std::condition_variable changed;
  Start start = Start::waiting;
  std::uint32_t ready = 0;  ///< members whose set-up has ended, well or not
  std::uint32_t turning = 0;
  std::uint32_t ended = 0;
  Status set_up;  ///< the first failure
};

class GroupMember final : public Waker {
 public:
  GroupMember(GroupShared& shared, CoreId id);
  ~GroupMember() override;

  /// Errors:   EAGAIN the system allows no more threads
  Status start_thread();
  /// Nothing to wait for if the thread was not started. Thread: the group's owner
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_acquire); }
  [[nodiscard]] std::string describe() const;

  // Waker, on the sender's thread.
  void wake(CoreId from) override;
  bool announce(CoreId from, std::uint64_t data) override;

  /// Thread: any
  Status submit(HostTask& task);
  /// Refuses further tasks and wakes the reactor. Thread: any
  void close_to_hosts();

  [[nodiscard]] Reactor& reactor();
  [[nodiscard]] const ParkStats& park_stats() const { return park_stats_; }
  [[nodiscard]] const std::vector<std::string>& notices() const { return notices_; }
  [[nodiscard]] int wake_fd() const { return event_fd_; }

 private:
  void run();
  Status set_up();
  Status set_up_wakeups();
  bool await_start(const Status& status);
  void drive();
  bool turn(Instant* next);
  void park(Instant next);
  WaitEnd sleep(Duration limit);
  void note_return(bool back_stop);
  void drain();
  [[nodiscard]] StopBarrier::Standing standing() const;
  void nap();

  void write_event();
  void drain_event();
  void repeat_wake();
  void wake_from_host();
  static void on_wake_refused(void* context, std::uint64_t data);
  static void on_announcement_refused(void* context, std::uint64_t data);

  GroupShared& shared_;
  CoreId id_;
  ParkFlag& flag_;
  ParkStats park_stats_;
  std::vector<std::string> notices_;
  bool wakes_by_ring_ = false;  ///< reactors reach this one by MSG_RING
  int event_fd_ = -1;           ///< where MSG_RING does not do everything; watched by this member's ring
  int ring_fd_ = -1;

  HostQueue host_queue_;  ///< outlives the reactor: a submit() may come late, and is told so
  SystemClock clock_;
  Random random_;
  std::unique_ptr<UringBackend> ring_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<FdWatch> event_watch_;
  std::unique_ptr<StallDetector> stall_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace tidelock
