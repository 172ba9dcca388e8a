/// RDMA as one reactor owns it: an ibv_context, one PD, one CQ, an arena, and the channels that rdma_cm and
/// the device speak through. It dispatches completions and events to the connections, and keeps these.
/// Thread:   create(), register_memory(), destruction: any that may block, while the core does not turn.
///           post(): any. All else: owner core
/// Suspends: never
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/control_thread.h>
#include <tidelock/rdma/device.h>
#include <tidelock/reactor/operation.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/timer.h>

struct rdma_event_channel;

namespace tidelock {

struct RdmaOptions {
  std::uint16_t connections_max = 16;   ///< a core, those that still drain included; 1 to 1,024
  std::uint16_t data_slots = 64;        ///< batches in flight, 4 to 256
  std::uint16_t control_slots = 16;     ///< control frames in flight, 4 to 256
  std::uint32_t inline_bytes = 256;     ///< wanted; the device's cap is probed
  std::uint32_t gather = 4;             ///< pieces of a batch, its header included; 2 to 32
  std::uint32_t completion_vector = 0;  ///< which of the device's interrupts; one a core, modulo what it has

  Duration resolving_deadline = seconds(2);
  Duration connecting_deadline = seconds(5);
  Duration greeting_deadline = seconds(5);
  Duration closing_deadline = milliseconds(500);
  Duration draining_deadline = milliseconds(500);
  Duration call_patience = seconds(5);  ///< a call on the control thread that takes longer is reported

  /// Transport: 4.096 us x 2^ack_timeout for each of retry_count tries (ibv_modify_qp(3)). 14 and 6 notice a
  /// dead link after about half a second. retry_count is at most 6: 7 is for ever on soft-RoCE.
  std::uint8_t ack_timeout = 14;
  std::uint8_t retry_count = 6;
  std::uint8_t rnr_retry = 7;  ///< for ever; credits keep it from happening, the link timeout ends it
  /// 0.64 ms. The 0 that rdma_cm leaves means 655 ms.
  std::uint8_t min_rnr_timer = 12;

  /// Errors:   EINVAL names the option
  [[nodiscard]] Status validate() const;
};

/// Single-writer; readable by anyone.
struct RdmaCounters {
  std::atomic<std::uint64_t> completions{0};
  std::atomic<std::uint64_t> completions_stale{0};  ///< of a connection that is gone
  std::atomic<std::uint64_t> completion_errors{0};
  std::atomic<std::uint64_t> completion_events{0};  ///< wakeups by the CQ's channel
  std::atomic<std::uint64_t> cm_events{0};
  std::atomic<std::uint64_t> async_events{0};
  std::atomic<std::uint64_t> connections_made{0};
  std::atomic<std::uint64_t> connections_live{0};
};

class RdmaCore final : public PollSource {
 public:
  /// Errors:   no_device; memlock_too_low; device_too_small; errno values
  static Result<std::unique_ptr<RdmaCore>> create(const RdmaPlace& place, const RdmaOptions& options,
                                                  std::shared_ptr<BlockingCalls> calls);
  /// After detach(), with no connection left.
  ~RdmaCore() override;

  /// Memory that batches are gathered from; local access only. Before start().
  /// Errors:   memlock_too_low names the limit and how to raise it
  Status register_memory(MutableBytes memory);

  /// What an operator should know: requests that were rejected, attempts of peers that came to nothing, a
  /// call that does not return. `about` is the same for texts that say the same again. Runs on the owner
  /// core.
  using Notice = std::function<void(const std::string& about, const std::string& text)>;
  void on_notice(Notice handler) { notice_ = std::move(handler); }
  void notice(const std::string& about, const std::string& text) const {
    if (notice_) notice_(about, text);
  }

  /// Watches the channels through the reactor's ring and adds itself to the reactor.
  Status start(Reactor& reactor);
  void close_all(const std::string& reason);
  /// No connection is left, and nothing is under way on the control thread or posted.
  [[nodiscard]] bool idle() const {
    return live_ == 0 && offloaded_.empty() && !any_posted_.load(std::memory_order_acquire);
  }
  /// Leaves the reactor. No connection is left.
  void detach();

  /// Active. The connection is the core's; see its abandon().
  /// Errors:   busy; device_failed: start the engine again
  Result<RdmaConnection*> connect(const ActiveTerms& terms, ConnectionCallbacks callbacks);
  /// Passive. Takes `id` in any case; rejects it as busy if there is no slot, and as node_in_use if another
  /// process of that node number is connected. (Its own older connection ends when this one says hello.)
  void accept(rdma_cm_id* id, const ConnectRequest& request, const ConnectReply& reply,
              ConnectionCallbacks callbacks);
  /// Says no to a connect request, on the control thread; takes `id`. `why` is for our own operator, beyond
  /// what the peer is told.
  void reject(rdma_cm_id* id, const ConnectReject& reason, const std::string& why = "");

  /// Runs `work` on the owner core, soon. Any thread.
  void post(std::function<void()> work);
  /// Runs `work` on the control thread, then `answer` on the owner core. `verb` is the first that it calls.
  void offload(const char* verb, std::function<void()> work, std::function<void()> answer);
  /// From such work: the verb that comes next, so that the watchdog can name one that does not return.
  void calling(const char* verb) { calling_.store(verb, std::memory_order_relaxed); }
  /// The call that the control thread is at, or null.
  [[nodiscard]] const char* call_under_way() const;
  /// For events of rdma_cm that belong to no connection: a listener's.
  void on_foreign_event(std::function<void(const CmEvent&)> handler) { foreign_ = std::move(handler); }

  /// Takes in what has completed. Links call it, so that what arrived in this turn is seen in this turn; the
  /// core's own poll() does it in turns in which no link did.
  std::uint32_t poll_completions(std::uint32_t budget);

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  [[nodiscard]] bool has_work() const override;

  [[nodiscard]] Reactor& reactor() const { return *reactor_; }
  [[nodiscard]] const RdmaPlace& place() const { return place_; }
  [[nodiscard]] const RdmaOptions& options() const { return options_; }
  [[nodiscard]] const RdmaCounters& counters() const { return counters_; }
  [[nodiscard]] rdma_event_channel* channel() const;

  // ---- for connections ----------------------------------------------------------------------------------
  struct Verbs;
  [[nodiscard]] Verbs& verbs() { return *verbs_; }
  [[nodiscard]] MutableBytes arena_of(std::uint16_t slot) const;
  /// Key of the registered memory that holds `memory`.
  /// Errors:   EINVAL
  [[nodiscard]] Result<std::uint32_t> local_key(Bytes memory) const;
  /// Passive: the peer has said hello on this one, so that older ones of its node and shard are over.
  void retire_before(const RdmaConnection& newer);
  /// A connection may be destroyed; done at the end of the turn.
  void reap_soon() { reap_ = true; }

 private:
  RdmaCore(const RdmaPlace& place, const RdmaOptions& options, std::shared_ptr<BlockingCalls> calls);
  Status open();
  Status keep_device_open();
  struct Slot {
    std::unique_ptr<RdmaConnection> connection;
    std::uint32_t generation = 0;
  };
  Result<RdmaConnection*> make_connection();
  [[nodiscard]] RdmaConnection* find(std::uint16_t slot, std::uint32_t generation) const;
  [[nodiscard]] RdmaConnection* find(std::uintptr_t tag) const;
  void reap();
  void dispatch(const ibv_wc& completion);
  void run_posted();
  void drain_cm();
  void drain_completion_channel();
  void drain_async();
  void fail_all(const Error& error);
  void check_gid();
  void watch_call();
  void call_returned();
  void call_is_late();

  struct Watchdog : Timer {
    explicit Watchdog(RdmaCore& core);
    RdmaCore& owner;
  };

  RdmaPlace place_;
  RdmaOptions options_;
  std::shared_ptr<BlockingCalls> calls_;
  std::unique_ptr<Verbs> verbs_;
  Reactor* reactor_ = nullptr;
  std::vector<Slot> slots_;
  std::uint32_t live_ = 0;
  std::deque<const char*> offloaded_;  ///< the first verb of each; the front one is under way
  Instant call_begun_{};               ///< the front one, as far as this core knows
  std::atomic<const char*> calling_{nullptr};
  Watchdog watchdog_{*this};
  Notice notice_;
  bool reap_ = false;
  std::optional<Error> dead_;  ///< device or CQ failed: nothing can be connected here any more
  bool polled_ = false;        ///< the CQ, by a link, since our own last poll or flush
  std::uint32_t taken_ = 0;    ///< by links, since poll() last told the reactor
  bool armed_ = false;
  std::function<void(const CmEvent&)> foreign_;
  RdmaCounters counters_;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  ///< under mutex_
  std::atomic<bool> any_posted_{false};
  int post_fd_ = -1;  ///< an eventfd: control only, never on the way of data
  FdWatch post_watch_, cm_watch_, completion_watch_, async_watch_;
};

}  // namespace tidelock
