// A ping-pong over verbs: tidelock's frames on a connection of rdma/, as the engine's link puts them there.
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/core.h>
#include <tidelock/rdma/errc.h>
#include <tidelock/rdma/listener.h>
#include <tidelock/reactor/errc.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/errc.h>

#include "pingpong_lane.h"

namespace tidelock::tools {
namespace {

constexpr std::chrono::milliseconds kSlice{100};
constexpr std::chrono::seconds kRestTimeout{10};

static_assert(kHelloBytes == sizeof(Greeting) && kRefusalBytes <= sizeof(Greeting) &&
              kControlFrameBytes == kControlFrameSize);

class VerbsLane final : public PingLane {
 public:
  VerbsLane(RdmaConnection& connection, Bytes memory) : connection_(connection), memory_(memory) {}

  Status start(Reactor&) override {
    if (memory_.empty()) return {};
    return connection_.attach(memory_);
  }
  Result<bool> publish(const FrameHeader& header, Bytes payload) override {
    FrameHeader sent = header;
    sent.generation = ping_context().generation;
    sent.sequence = batches_out_ + 1;
    sent.payload_bytes = static_cast<std::uint32_t>(payload.size());
    std::array<std::byte, kFrameHeaderBytes> encoded{};
    encode_frame_header(sent, encoded);
    const Status published = connection_.publish(encoded, std::span(&payload, 1));
    if (published) {
      ++batches_out_;
      return true;
    }
    if (published.error() == RdmaErrc::no_credit) return false;
    return published.error();
  }
  Result<bool> take_batch(FrameHeader& header) override {
    const auto arrived = connection_.receive();
    if (!arrived) return nothing();
    if (arrived->size() < kFrameHeaderBytes) {
      return Error(ReplicationErrc::bad_length, "a batch shorter than its header");
    }
    std::array<std::byte, kFrameHeaderBytes> copy{};
    std::memcpy(copy.data(), arrived->data(), copy.size());
    TL_TRY(header, decode_frame_header(copy, ping_context()));
    if (header.sequence != ++batches_in_ || header.payload_bytes != arrived->size() - kFrameHeaderBytes) {
      return Error(ReplicationErrc::gap, "a batch that is not the next, or not of the size that it claims");
    }
    connection_.release();
    return true;
  }
  Result<bool> send(ControlFrame frame) override {
    if (connection_.ended()) return connection_.error();
    frame.generation = ping_context().generation;
    frame.sequence = controls_out_ + 1;
    std::array<std::byte, kControlFrameBytes> encoded{};
    encode_control(frame, encoded);
    if (!connection_.send_control(encoded)) return false;
    ++controls_out_;
    return true;
  }
  Result<bool> take_control(ControlFrame& frame) override {
    const auto arrived = connection_.receive_control();
    if (!arrived) return nothing();
    TL_TRY(frame, decode_control(*arrived, ping_context()));
    if (frame.sequence != ++controls_in_) {
      return Error(ReplicationErrc::gap, "a control frame that is not the next");
    }
    return true;
  }
  void close(const std::string& reason) override { connection_.close(reason); }

  /// The core, which is a source before this one, has taken in what completed.
  std::uint32_t poll(std::uint32_t) override { return 0; }
  void flush() override { connection_.flush(); }
  [[nodiscard]] bool has_work() const override {
    return connection_.batch_waiting() || connection_.control_waiting() || connection_.ended();
  }

 private:
  [[nodiscard]] Result<bool> nothing() const {
    if (connection_.ended()) return connection_.error();
    return false;
  }

  RdmaConnection& connection_;
  Bytes memory_;
  std::uint64_t batches_out_ = 0, batches_in_ = 0;
  std::uint64_t controls_out_ = 0, controls_in_ = 0;
};

/// What the core has to tell the thread that waits. The callbacks share it, for they may outlive the wait.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  RdmaConnection* connection = nullptr;  ///< under mutex: ready
  std::optional<Error> error;            ///< under mutex
  PingTerms terms;                       ///< under mutex
  bool over = false;                     ///< under mutex: nobody waits any more
};

/// False: nobody waits, or another one was first.
bool settle(Meeting& meeting, RdmaConnection* connection, std::optional<Error> error,
            const PingTerms& terms) {
  const std::lock_guard lock(meeting.mutex);
  if (meeting.over || meeting.connection != nullptr) return false;
  meeting.connection = connection;
  meeting.error = std::move(error);
  meeting.terms = terms;
  meeting.changed.notify_one();
  return true;
}

void refuse(RdmaConnection& connection, const Refusal& refusal) {
  Greeting greeting{};
  encode_refusal(refusal, std::span<std::byte, kRefusalBytes>(greeting.data(), kRefusalBytes));
  connection.refuse(greeting);
  connection.abandon();
}

Greeting greeting_of(const Hello& hello) {
  Greeting greeting{};
  encode_hello(hello, greeting);
  return greeting;
}

/// On the core.
void receive_client(Meeting& meeting, RdmaConnection& connection, Bytes greeting) {
  const auto hello = decode_hello(greeting);
  if (!hello) return refuse(connection, {RefusalReason::malformed, 0, 0});
  Refusal refusal;
  const auto terms = terms_of(*hello, refusal);
  if (!terms) return refuse(connection, refusal);
  if (!settle(meeting, &connection, std::nullopt, *terms)) {
    return refuse(connection, {RefusalReason::busy, 0, 0});
  }
  connection.accept(greeting_of(hello_of(*terms, NodeRole::primary)));
}

/// On the core.
void receive_answer(Meeting& meeting, RdmaConnection& connection, Bytes greeting) {
  const auto hello = decode_hello(greeting);
  Status good = hello ? check_server(*hello) : Status(hello.error());
  const bool settled =
      good ? settle(meeting, &connection, std::nullopt, {}) : settle(meeting, nullptr, good.error(), {});
  if (!good || !settled) connection.abandon();
}

Error attempt_error(const RdmaConnection& connection, Bytes greeting) {
  if (!(connection.error() == RdmaErrc::refused)) return connection.error();
  const auto refusal = decode_refusal(greeting.first(std::min<std::size_t>(greeting.size(), kRefusalBytes)));
  if (!refusal) return refusal.error();
  return Error(ReplicationErrc::refused, describe(*refusal));
}

class VerbsSession final : public PingSession {
 public:
  explicit VerbsSession(const PingpongOptions& options) : options_(options) {}
  ~VerbsSession() override;

  Status open();
  Result<PingLane*> meet(PingTerms& terms, const std::atomic<bool>& stop) override;
  [[nodiscard]] PingFacts facts() const override;
  [[nodiscard]] std::string address() const override {
    return options_.is_server() ? place_.address : options_.server;
  }
  [[nodiscard]] Bytes memory() const override { return memory_; }
  [[nodiscard]] ReactorGroup& group() override { return *group_; }

 private:
  Status listen();
  void connect(const PingTerms& terms);
  Error nobody_came() const;
  bool rest();

  PingpongOptions options_;
  RdmaPlace place_;
  std::vector<std::byte> memory_;
  std::unique_ptr<ReactorGroup> group_;
  std::unique_ptr<RdmaCore> core_;
  std::unique_ptr<RdmaListener> listener_;
  std::shared_ptr<Meeting> meeting_ = std::make_shared<Meeting>();
  std::unique_ptr<VerbsLane> lane_;
  bool started_ = false;
};

Status VerbsSession::open() {
  TL_TRY(place_, choose_rdma_place({options_.device, options_.listen}));
  TL_TRY(group_, start_ping_reactor(options_));
  RdmaOptions rdma;
  rdma.connections_max = 4;
  TL_TRY(core_, RdmaCore::create(place_, rdma, std::make_shared<ControlThread>()));
  if (options_.is_server()) {
    memory_.resize(kPingBytesMax);
    TL_TRY(core_->register_memory(memory_));
  }
  Status started;
  const auto start = [&] { started = core_->start(*Reactor::current()); };
  TL_TRY(group_->run(CoreId{0}, start, kJobTimeout));
  TL_TRY(started);
  started_ = true;
  return options_.is_server() ? listen() : Status();
}

Status VerbsSession::listen() {
  PassiveTerms terms;
  terms.node = 1;
  terms.ring_bytes = kPingRingBytes;
  const auto callbacks = [meeting = meeting_](ShardId) -> ConnectionCallbacks {
    return {[meeting](RdmaConnection& connection, Bytes greeting) {
              receive_client(*meeting, connection, greeting);
            },
            [](RdmaConnection& connection, Bytes) { connection.abandon(); }};
  };
  TL_TRY(listener_, RdmaListener::open(
                        *core_, place_.address, options_.port, terms, [this](ShardId) { return core_.get(); },
                        callbacks));
  const auto start = [this] {
    listener_->start([meeting = meeting_](const Error& error) { settle(*meeting, nullptr, error, {}); });
  };
  return group_->run(CoreId{0}, start, kJobTimeout);
}

void VerbsSession::connect(const PingTerms& ours) {
  ActiveTerms terms;
  terms.address = options_.server;
  terms.port = options_.port;
  terms.request.shard_count = 1;
  terms.request.node = 2;
  terms.request.generation = {1};
  terms.request.incarnation = entropy64();
  terms.greeting = greeting_of(hello_of(ours, NodeRole::replica));
  core_->post([core = core_.get(), terms, meeting = meeting_] {
    const auto made =
        core->connect(terms, {[meeting](RdmaConnection& connection, Bytes greeting) {
                                receive_answer(*meeting, connection, greeting);
                              },
                              [meeting](RdmaConnection& connection, Bytes greeting) {
                                settle(*meeting, nullptr, attempt_error(connection, greeting), {});
                                connection.abandon();
                              }});
    if (!made) settle(*meeting, nullptr, made.error(), {});
  });
}

Result<PingLane*> VerbsSession::meet(PingTerms& terms, const std::atomic<bool>& stop) {
  if (!options_.is_server()) connect(terms);
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.patience().ns);
  std::unique_lock lock(meeting_->mutex);
  while (meeting_->connection == nullptr && !meeting_->error && !stop &&
         std::chrono::steady_clock::now() < until) {
    meeting_->changed.wait_for(lock, kSlice);
  }
  meeting_->over = true;
  if (meeting_->connection != nullptr) {
    if (options_.is_server()) terms = meeting_->terms;
    lane_ = std::make_unique<VerbsLane>(*meeting_->connection, memory_);
    return lane_.get();
  }
  if (stop) return Error::from_errno(ECANCELED, "interrupted before the other side was met");
  if (options_.is_server()) return meeting_->error ? *meeting_->error : nobody_came();
  const Error error = meeting_->error ? *meeting_->error : Error(ReactorErrc::deadline_exceeded);
  return Error(error.code(),
               fmt::format("no server answers at {} port {}: {}; start one there with \"tidelock pingpong -p "
                           "{}\", and look at both machines with \"tidelock doctor --link verbs\"",
                           options_.server, options_.port, error.message(), options_.port));
}

Error VerbsSession::nobody_came() const {
  return Error(ReactorErrc::deadline_exceeded,
               fmt::format("no client came: start one with \"tidelock pingpong -p {} {}\", or wait longer "
                           "(--timeout)",
                           options_.port, place_.address));
}

PingFacts VerbsSession::facts() const {
  PingFacts facts;
  facts.device = place_.device;
  facts.link = "verbs " + place_.device;
  facts.local = place_.address;
  facts.remote = options_.server;
  facts.gid_index = place_.gid_index;
  facts.mtu_bytes = place_.mtu_bytes;
  const std::lock_guard lock(meeting_->mutex);
  if (meeting_->connection != nullptr) {
    facts.link = meeting_->connection->describe();
    facts.inline_bytes = meeting_->connection->inline_bytes();
  }
  return facts;
}

/// True once the core has nothing left and is off its reactor.
bool VerbsSession::rest() {
  bool left = false;
  const auto leave = [this, &left] {
    core_->close_all("the ping-pong is over");
    if (!core_->idle()) return;
    core_->detach();
    left = true;
  };
  const auto until = std::chrono::steady_clock::now() + kRestTimeout;
  while (!left && std::chrono::steady_clock::now() < until) {
    // Too slow a reactor keeps what the closure refers to: see the caller.
    if (!group_->run(CoreId{0}, leave, kJobTimeout)) break;
    if (!left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return left;
}

VerbsSession::~VerbsSession() {
  if (listener_) {
    static_cast<void>(group_->run(
        CoreId{0}, [this] { listener_->stop(); }, kJobTimeout));
  }
  if (started_ && !rest()) {
    // A device that does not let go: better leaked than destroyed under it. The process ends soon.
    static_cast<void>(core_.release());
    static_cast<void>(listener_.release());
    static_cast<void>(group_.release());
    return;
  }
  listener_.reset();
  core_.reset();
}

}  // namespace

Result<std::unique_ptr<PingSession>> open_verbs_session(const PingpongOptions& options) {
  auto session = std::make_unique<VerbsSession>(options);
  TL_TRY(session->open());
  return std::unique_ptr<PingSession>(std::move(session));
}

}  // namespace tidelock::tools
