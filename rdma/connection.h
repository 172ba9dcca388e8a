/// One attempt at a connection, from its first step to its last completion. It is one-shot: what ended stays
/// ended, and another attempt is another object with another generation. README.md has the states.
/// Thread:   owner core
/// Suspends: never
/// Lifetime: made and kept by its RdmaCore. The owner says abandon() when it needs it no more; the core
///           destroys it once its queue pair is gone, too
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/rdma/connection_state.h>
#include <tidelock/rdma/private_data.h>
#include <tidelock/reactor/timer.h>

struct ibv_wc;
struct ibv_qp_attr;
struct rdma_cm_id;

namespace tidelock {

enum class MessageKind : std::uint8_t;
class QueuePair;
class RdmaConnection;
class RdmaCore;

/// What the owner says first on the queue pair; opaque here.
using Greeting = std::array<std::byte, 128>;
inline constexpr std::size_t kControlFrameSize = 64;

/// Run on the owner core. Both may call any function of the connection.
struct ConnectionCallbacks {
  /// Passive: the peer said hello; answer by accept() or refuse(), now or later. Active: the peer accepted,
  /// the connection is ready.
  std::function<void(RdmaConnection&, Bytes greeting)> greeted;
  /// It ended before it was ready. error() says why; for a refusal `greeting` is what the peer said.
  std::function<void(RdmaConnection&, Bytes greeting)> ended;
};

struct ActiveTerms {
  std::string address;  ///< of the peer: IPv4
  std::uint16_t port = 0;
  ConnectRequest request;  ///< mtu and slots are filled in
  Greeting greeting{};
};

/// What rdma_cm said, taken out of its event.
struct CmEvent {
  int kind = 0;  ///< rdma_cm_event_type
  int status = 0;
  rdma_cm_id* id = nullptr;
  std::uint8_t bytes = 0;
  std::array<std::byte, 255> private_data{};
};

class RdmaConnection {
 public:
  RdmaConnection(RdmaCore& core, std::uint16_t slot, std::uint32_t slot_generation);
  ~RdmaConnection();
  RdmaConnection(const RdmaConnection&) = delete;
  RdmaConnection& operator=(const RdmaConnection&) = delete;

  // ---- life: connection.cc, connection_cm.cc --------------------------------------------------------
  void start_active(const ActiveTerms& terms, ConnectionCallbacks callbacks);
  /// `id` is the new one of a connect request; the connection destroys it.
  void start_passive(rdma_cm_id* id, const ConnectRequest& request, const ConnectReply& reply,
                     ConnectionCallbacks callbacks);
  /// Passive, after greeted(): ready from now on.
  void accept(const Greeting& greeting);
  void refuse(const Greeting& greeting);
  /// Says goodbye if it can, then ends. What was published before still leaves. Idempotent.
  void close(const std::string& reason);
  /// Passive: closes it for a newer one of the same peer, which is not its owner's doing.
  void retire(const std::string& reason);
  /// The owner needs it no more, and is not called again. Closes it.
  void abandon();

  [[nodiscard]] ConnectionState state() const { return state_; }
  [[nodiscard]] bool ready() const { return state_ == ConnectionState::ready; }
  /// Nothing more will arrive; what has arrived can still be received.
  [[nodiscard]] bool ended() const { return error_.has_value(); }
  /// Why it ended.
  [[nodiscard]] const Error& error() const { return *error_; }
  /// The state that it was in when it ended.
  [[nodiscard]] ConnectionState ended_in() const { return ended_in_; }
  /// The queue pair is destroyed: no device reads or writes memory for it any more.
  [[nodiscard]] bool torn_down() const { return torn_down_; }
  /// Active: what the passive side said in rdma_cm's reject, if that is how it ended.
  [[nodiscard]] const std::optional<ConnectReject>& rejected() const { return rejected_; }
  [[nodiscard]] const TransitionTrace& trace() const { return trace_; }
  [[nodiscard]] const ConnectRequest& request() const { return request_; }
  [[nodiscard]] Generation generation() const { return generation_; }
  [[nodiscard]] bool active() const { return active_; }
  /// "verbs rxe0 10.0.0.1 -> 10.0.0.2"
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] RdmaCore& core() const { return core_; }
  /// What has passed, of every kind; greetings and credits are messages.
  struct Traffic {
    std::uint64_t batches_out = 0, batches_in = 0;
    std::uint64_t messages_out = 0, messages_in = 0;
  };
  [[nodiscard]] Traffic traffic() const;
  /// What the device was found to take inline.
  [[nodiscard]] std::uint32_t inline_bytes() const;

  // ---- data: ready connections only. connection_datapath.cc -------------------------------------------
  /// `memory` is registered with the core (RdmaCore::register_memory) and outlives the connection.
  Status attach(Bytes memory);
  [[nodiscard]] std::uint64_t batch_bytes_max() const;
  /// One batch: `header` (copied, at most 128 bytes), then the ranges, which lie in the attached memory and
  /// stay as they are until batches_completed() counts the batch.
  /// Errors:   no_credit, retry after progress; too_large
  Status publish(Bytes header, std::span<const Bytes> ranges);
  [[nodiscard]] std::uint64_t batches_completed() const;
  /// Readable until release() of it, in order. It lies in memory that the peer may write at any time.
  std::optional<Bytes> receive();
  void release();
  [[nodiscard]] bool control_credit() const;
  bool send_control(std::span<const std::byte, kControlFrameSize> frame);
  std::optional<std::span<const std::byte, kControlFrameSize>> receive_control();
  [[nodiscard]] bool batch_waiting() const;
  [[nodiscard]] bool control_waiting() const;
  /// The peer returned credits since this was last asked.
  bool take_room() { return std::exchange(room_came_, false); }
  [[nodiscard]] bool room_came() const { return room_came_; }
  void flush();

  // ---- from the core ------------------------------------------------------------------------------------
  void on_cm(const CmEvent& event);
  void on_completion(const ibv_wc& completion);
  void fail(const Error& error);
  [[nodiscard]] bool abandoned() const { return abandoned_; }
  [[nodiscard]] bool serves(const ConnectRequest& request) const {
    return !active_ && !ended() && request_.node == request.node && request_.shard == request.shard;
  }

 private:
  struct OwnedTimer : Timer {
    OwnedTimer(RdmaConnection& owner, Callback callback) : Timer(callback), connection(owner) {}
    RdmaConnection& connection;
  };
  enum class Teardown : std::uint8_t { none, wanted, draining, destroying };

  void set(ConnectionState state, const std::string& why, Duration deadline);
  void expired();
  /// Runs `work` on the control thread, then `then` here, unless the connection ended meanwhile. `verb`: the
  /// first that it calls.
  void job(const char* verb, std::function<Status()> work, std::function<void()> then);
  [[nodiscard]] std::uintptr_t tag() const;

  Status make_id(const ActiveTerms& terms);
  Status make_queue_pair();
  Status move_to_rts();
  void on_address();
  void on_route();
  void on_reply(const CmEvent& event);
  void on_reject(const CmEvent& event);
  void on_disconnect();
  Status establish();
  void local_ready();
  void say_hello();
  void deliver_greeting();
  void on_greeting(MessageKind kind, Bytes payload);

  void take_deferred();
  void end(ConnectionState state, const Error& error);
  void tell_operator();
  void tear_down();
  void drain();
  void drained_some();
  void destroy();
  void tell_ended(Bytes greeting);

  RdmaCore& core_;
  const std::uint16_t slot_;
  const std::uint32_t slot_generation_;
  bool active_ = false;
  bool abandoned_ = false;
  bool busy_ = false;  ///< a job is under way
  bool torn_down_ = false;
  bool connected_ = false;  ///< rdma_cm takes us for connected: it wants a disconnect
  bool beacon_seen_ = false;
  bool room_came_ = false;
  bool closing_ = false;  ///< CLOSE is sent, its completion awaited
  Teardown teardown_ = Teardown::none;
  ConnectionState state_ = ConnectionState::idle;
  ConnectionState final_state_ = ConnectionState::closed;
  ConnectionState ended_in_ = ConnectionState::idle;
  TransitionTrace trace_;
  std::optional<Error> error_;
  ActiveTerms terms_;
  ConnectRequest request_;
  ConnectReply reply_;
  Generation generation_{};
  ConnectionCallbacks callbacks_;
  std::vector<CmEvent> deferred_;  ///< what rdma_cm said while a job was under way
  std::optional<ConnectReject> rejected_;
  std::optional<Greeting> greeting_;  ///< passive: came, not delivered yet
  std::uint32_t mtu_bytes_ = 0;
  std::string peer_;
  rdma_cm_id* id_ = nullptr;
  std::unique_ptr<QueuePair> pair_;
  OwnedTimer deadline_;
};

}  // namespace tidelock
