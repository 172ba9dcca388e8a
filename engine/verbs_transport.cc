#include "verbs_transport.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/engine/errc.h>
#include <tidelock/rdma/errc.h>
#include <tidelock/rdma/listener.h>
#include <tidelock/reactor/errc.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/errc.h>

#include "job.h"
#include "steady_time.h"
#include "verbs_link.h"

namespace tidelock {
namespace {

/// How long cores are given to tear their last connections down: closing and draining, each with its own
/// deadline, and the control thread's work.
constexpr Duration kRestTimeout = seconds(10);

static_assert(kHelloBytes == sizeof(Greeting) && kRefusalBytes <= sizeof(Greeting));

Result<std::pair<std::string, std::uint16_t>> parse_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
    if (parsed.ec == std::errc{} && parsed.ptr == end && port != 0)
      return std::pair{text.substr(0, colon), port};
  }
  return Error(EngineErrc::bad_option,
               "\"" + text + "\" is no address of the verbs link: IPv4:port, such as 10.0.0.1:7471");
}

Greeting greeting_of(const Hello& hello) {
  Greeting greeting{};
  encode_hello(hello, greeting);
  return greeting;
}

/// A refusal comes in a greeting that is longer than it.
Result<Refusal> refusal_in(Bytes greeting) {
  return decode_refusal(greeting.first(std::min<std::size_t>(greeting.size(), kRefusalBytes)));
}

/// What ended an attempt, in the words of replication/.
Error attempt_error(const RdmaConnection& connection, Bytes greeting) {
  if (connection.error() == RdmaErrc::refused) {
    const auto refusal = refusal_in(greeting);
    return refusal ? to_error(*refusal) : refusal.error();
  }
  if (connection.rejected()) {
    // A newer attempt of ours, or something that is still in use: these pass.
    const RejectReason reason = connection.rejected()->reason;
    const bool passing = reason == RejectReason::busy || reason == RejectReason::generation ||
                         reason == RejectReason::node_in_use;
    return Error(passing ? ReplicationErrc::peer_busy : ReplicationErrc::refused,
                 connection.error().message());
  }
  return connection.error();
}

FrameContext context_of(const Hello& primary) { return {primary.history, primary.generation, primary.shard}; }

/// The reactor's part of the transport, one a shard.
using Cores = std::vector<std::unique_ptr<RdmaCore>>;

// ---- active ---------------------------------------------------------------------------------------------

/// One attempt, shared by the thread that waits and the core that makes it.
struct Attempt {
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;           ///< under mutex: an outcome is here, or nobody waits for one any more
  bool waiting = true;         ///< under mutex
  bool interrupted = false;    ///< under mutex: the engine closes
  Greeting greeting{};         ///< under mutex; with an error, what the refusal came in, if one did
  std::optional<Error> error;  ///< under mutex
  RdmaConnection* connection = nullptr;  ///< owner core, until it is over
};

/// On the core: the first outcome counts. False: nobody waits any more.
bool settle(Attempt& attempt, Bytes greeting, std::optional<Error> error) {
  const std::lock_guard lock(attempt.mutex);
  if (!attempt.waiting) return false;
  attempt.over = true;
  attempt.error = std::move(error);
  std::copy_n(greeting.begin(), std::min(greeting.size(), attempt.greeting.size()), attempt.greeting.begin());
  attempt.ended.notify_one();
  return true;
}

void begin(RdmaCore& core, const ActiveTerms& terms, const std::shared_ptr<Attempt>& attempt) {
  auto made = core.connect(terms, {[attempt](RdmaConnection& connection, Bytes greeting) {
                                     if (settle(*attempt, greeting, std::nullopt)) return;
                                     attempt->connection = nullptr;
                                     connection.abandon();
                                   },
                                   [attempt](RdmaConnection& connection, Bytes greeting) {
                                     settle(*attempt, greeting, attempt_error(connection, greeting));
                                     connection.abandon();
                                     attempt->connection = nullptr;
                                   }});
  if (!made) {
    settle(*attempt, {}, Error(ReplicationErrc::peer_busy, made.error().message()));
    return;
  }
  attempt->connection = *made;
}

/// The thread has given up: whatever has become of the attempt ends.
void give_up(RdmaCore& core, const std::shared_ptr<Attempt>& attempt) {
  core.post([attempt] {
    if (attempt->connection != nullptr) std::exchange(attempt->connection, nullptr)->abandon();
  });
}

// ---- passive --------------------------------------------------------------------------------------------

/// A peer that has said hello. `connection` is the core's business; null there: it has ended.
struct Guest {
  RdmaCore* core = nullptr;
  CoreId id{};
  RdmaConnection* connection = nullptr;
  Hello hello;
};

/// Lets go of a guest that nobody will answer. From any thread.
void dismiss(const std::shared_ptr<Guest>& guest) {
  guest->core->post([guest] {
    if (guest->connection != nullptr) std::exchange(guest->connection, nullptr)->abandon();
  });
}

class Guests {
 public:
  void add(std::shared_ptr<Guest> guest) {
    const std::lock_guard lock(mutex_);
    if (shut_) return dismiss(guest);
    waiting_.push_back(std::move(guest));
    changed_.notify_one();
  }
  Result<std::shared_ptr<Guest>> next(Duration timeout) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, after(timeout), [this] { return shut_ || failed_ || !waiting_.empty(); });
    if (shut_) return ReactorErrc::closed;
    if (failed_) {
      const Error failed = *failed_;
      failed_.reset();
      return failed;
    }
    if (waiting_.empty()) return ReactorErrc::deadline_exceeded;
    auto guest = std::move(waiting_.front());
    waiting_.pop_front();
    return guest;
  }
  /// The next next() fails with it.
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    failed_ = error;
    changed_.notify_all();
  }
  void shut() {
    const std::lock_guard lock(mutex_);
    shut_ = true;
    for (const auto& guest : waiting_) dismiss(guest);
    waiting_.clear();
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Guest>> waiting_;
  std::optional<Error> failed_;
  bool shut_ = false;
};

/// On the guest's core. A hello that is none is refused there and then.
void receive_guest(Guests& guests, const std::shared_ptr<Guest>& guest, RdmaConnection& connection,
                   Bytes greeting) {
  guest->connection = &connection;
  auto hello = decode_hello(greeting);
  if (!hello) {
    connection.core().notice("hello " + connection.describe(),
                             "refused " + connection.describe() + ": " + hello.error().message());
    Greeting refusal{};
    encode_refusal({RefusalReason::malformed, 0, 0},
                   std::span<std::byte, kRefusalBytes>(refusal.data(), kRefusalBytes));
    connection.refuse(refusal);
    guest->connection = nullptr;
    return connection.abandon();
  }
  guest->hello = *hello;
  // What rdma_cm's request said decided where the connection is; the hello must say the same.
  guest->hello.shard = connection.request().shard;
  guests.add(guest);
}

ConnectionCallbacks callbacks_for(const std::shared_ptr<Guests>& guests, RdmaCore& core, CoreId id) {
  auto guest = std::make_shared<Guest>();
  guest->core = &core;
  guest->id = id;
  return {[guests, guest](RdmaConnection& connection, Bytes greeting) {
            receive_guest(*guests, guest, connection, greeting);
          },
          [guests, guest](RdmaConnection& connection, Bytes) {
            guest->connection = nullptr;
            connection.abandon();
          }};
}

class VerbsPending final : public PendingPeer {
 public:
  VerbsPending(ReactorGroup& group, std::shared_ptr<Guest> guest) : group_(group), guest_(std::move(guest)) {}
  ~VerbsPending() override {
    if (!answered_) dismiss(guest_);
  }

  [[nodiscard]] const Hello& hello() const override { return guest_->hello; }

  Result<std::unique_ptr<Link>> accept(const Hello& ours, const LinkOptions&) override {
    const auto link = std::make_shared<std::unique_ptr<Link>>();
    const auto say = [guest = guest_, ours, link](Reactor&) -> Status {
      if (guest->connection == nullptr || guest->connection->ended()) {
        return Error(ReplicationErrc::link_closed, "the peer went while its hello was considered");
      }
      RdmaConnection& connection = *std::exchange(guest->connection, nullptr);
      connection.accept(greeting_of(ours));
      *link = std::make_unique<VerbsLink>(connection, NodeRole::primary, context_of(ours));
      return {};
    };
    TL_TRY(run_job(group_, guest_->id, say, kJobTimeout));
    answered_ = true;
    return std::move(*link);
  }

  void refuse(const Refusal& refusal) override {
    answered_ = true;
    Greeting greeting{};
    encode_refusal(refusal, std::span<std::byte, kRefusalBytes>(greeting.data(), kRefusalBytes));
    guest_->core->post([guest = guest_, greeting] {
      if (guest->connection == nullptr) return;
      RdmaConnection& connection = *std::exchange(guest->connection, nullptr);
      connection.refuse(greeting);
      connection.abandon();
    });
  }

 private:
  ReactorGroup& group_;
  std::shared_ptr<Guest> guest_;
  bool answered_ = false;
};

class VerbsPeerListener final : public PeerListener {
 public:
  VerbsPeerListener(ReactorGroup& group, std::shared_ptr<Guests> guests)
      : group_(group), guests_(std::move(guests)) {}
  ~VerbsPeerListener() override {
    shutdown();
    if (!listener) return;
    // Off the core first: its id is destroyed after that, here, where it may block.
    const auto leave = [door = listener.get()](Reactor&) -> Status {
      door->stop();
      return {};
    };
    if (!run_job(group_, {0}, leave, kJobTimeout)) static_cast<void>(listener.release());
  }

  Result<std::unique_ptr<PendingPeer>> accept(Duration timeout) override {
    TL_TRY(auto guest, guests_->next(timeout));
    return std::unique_ptr<PendingPeer>(std::make_unique<VerbsPending>(group_, std::move(guest)));
  }
  void shutdown() override { guests_->shut(); }

  std::unique_ptr<RdmaListener> listener;

 private:
  ReactorGroup& group_;
  std::shared_ptr<Guests> guests_;
};

// ---- the transport --------------------------------------------------------------------------------------

/// What a core notices, as lines of the event log. The same again is told when its number has doubled, so
/// that a peer that tries without end does not push everything else out of the log.
/// Thread:   owner core
class NoticeBoard {
 public:
  explicit NoticeBoard(EventLog& events) : events_(events) {}
  void add(const std::string& about, const std::string& text) {
    if (times_.size() >= kKinds && !times_.contains(about)) times_.clear();
    const std::uint64_t times = ++times_[about];
    if (!std::has_single_bit(times)) return;
    events_.add("verbs: " + text + (times == 1 ? "" : " (" + std::to_string(times) + " times such)"));
  }

 private:
  static constexpr std::size_t kKinds = 256;
  EventLog& events_;
  std::map<std::string, std::uint64_t> times_;
};

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(const Options& options, ReactorGroup& group,
                 const std::vector<std::unique_ptr<Shard>>& shards, EventLog& events)
      : options_(options), group_(group), shards_(shards), events_(events), generations_(shards.size()) {}
  ~VerbsTransport() override;

  Status open();
  Result<std::unique_ptr<PeerListener>> listen(const std::string& address,
                                               const LinkOptions& options) override;
  Result<ConnectedPeer> connect(const std::string& address, const Hello& ours, Duration timeout,
                                std::optional<Refusal>* refusal) override;
  void interrupt() override;
  [[nodiscard]] const char* kind() const override { return "verbs"; }

 private:
  Status open_core(std::size_t shard, const RdmaPlace& place);
  bool rest(std::size_t shard, std::chrono::steady_clock::time_point until);

  const Options& options_;
  ReactorGroup& group_;
  const std::vector<std::unique_ptr<Shard>>& shards_;
  EventLog& events_;
  const std::uint64_t incarnation_ = entropy64();
  std::vector<std::atomic<std::uint32_t>> generations_;
  std::vector<std::shared_ptr<ControlThread>> calls_;
  Cores cores_;
  std::mutex mutex_;
  bool interrupted_ = false;                     ///< under mutex_
  std::set<std::shared_ptr<Attempt>> attempts_;  ///< under mutex_: those that a thread waits for
};

Status VerbsTransport::open() {
  RdmaChoice choice{options_.device, options_.local_address};
  if (options_.role == NodeRole::primary) {
    TL_TRY(const auto at, parse_address(options_.listen_address()));
    choice.address = at.first;
  }
  TL_TRY(const auto place, choose_rdma_place(choice));
  for (std::size_t i = 0; i < shards_.size(); ++i) TL_TRY(open_core(i, place));
  return {};
}

Status VerbsTransport::open_core(std::size_t shard, const RdmaPlace& place) {
  RdmaOptions rdma;
  rdma.completion_vector = static_cast<std::uint32_t>(shard);
  // A thread a core: a verb that is slow on one shard's account delays no other's.
  calls_.push_back(std::make_shared<ControlThread>());
  TL_TRY(auto core, RdmaCore::create(place, rdma, calls_.back()));
  const Bytes log = shards_[shard]->log_memory();
  // The device only reads it; registering takes any memory.
  if (!log.empty()) TL_TRY(core->register_memory({const_cast<std::byte*>(log.data()), log.size()}));
  core->on_notice([board = std::make_shared<NoticeBoard>(events_)](
                      const std::string& about, const std::string& text) { board->add(about, text); });
  RdmaCore* const started = core.get();
  cores_.push_back(std::move(core));
  return run_job(
      group_, {static_cast<std::uint16_t>(shard)},
      [started](Reactor& reactor) { return started->start(reactor); }, kJobTimeout);
}

/// Ends a core's connections and takes it off its reactor.
bool VerbsTransport::rest(std::size_t shard, std::chrono::steady_clock::time_point until) {
  const CoreId id{static_cast<std::uint16_t>(shard)};
  const auto leave = [core = cores_[shard].get()](Reactor&) -> Status {
    core->close_all("shutting down");
    if (!core->idle()) return EngineErrc::busy;
    core->detach();
    return {};
  };
  for (;;) {
    const Status left = run_job(group_, id, leave, kJobTimeout);
    if (left) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

VerbsTransport::~VerbsTransport() {
  const auto until = after(kRestTimeout);
  bool all_rest = true;
  for (std::size_t i = 0; i < cores_.size(); ++i) all_rest = rest(i, until) && all_rest;
  // Their last answers are posted, and no rejected id is left, before any core goes.
  for (const auto& calls : calls_) all_rest = calls->stop(kJobTimeout) && all_rest;
  if (all_rest) return;
  events_.add(
      "verbs: the device did not let go of all connections; their memory is left to the end of the "
      "process");
  // A device that does not let go: better leaked than destroyed under it. All of them, since a core may hold
  // ids that still stand on the channel of another.
  for (auto& core : cores_) static_cast<void>(core.release());
}

Result<std::unique_ptr<PeerListener>> VerbsTransport::listen(const std::string& address,
                                                             const LinkOptions& options) {
  TL_TRY(const auto at, parse_address(address));
  PassiveTerms terms;
  terms.shard_count = static_cast<std::uint16_t>(shards_.size());
  terms.node = options_.node;
  terms.epoch = shards_.front()->epoch();
  terms.ring_bytes = options.ring_bytes;
  const auto guests = std::make_shared<Guests>();
  auto peers = std::make_unique<VerbsPeerListener>(group_, guests);
  TL_TRY(peers->listener, RdmaListener::open(
                              *cores_.front(), at.first, at.second, terms,
                              [this](ShardId shard) {
                                return shard.value < cores_.size() ? cores_[shard.value].get() : nullptr;
                              },
                              [this, guests](ShardId shard) {
                                return callbacks_for(guests, *cores_[shard.value], {shard.value});
                              }));
  const auto open_door = [door = peers->listener.get(), guests](Reactor&) -> Status {
    door->start([guests](const Error& error) { guests->fail(error); });
    return {};
  };
  TL_TRY(run_job(group_, {0}, open_door, kJobTimeout));
  return std::unique_ptr<PeerListener>(std::move(peers));
}

Result<ConnectedPeer> VerbsTransport::connect(const std::string& address, const Hello& ours, Duration timeout,
                                              std::optional<Refusal>* refusal) {
  const auto until = after(timeout);
  TL_TRY(const auto at, parse_address(address));
  RdmaCore& core = *cores_[ours.shard.value];
  ActiveTerms terms;
  terms.address = at.first;
  terms.port = at.second;
  terms.request.shard = ours.shard;
  terms.request.shard_count = ours.shard_count;
  terms.request.node = ours.node;
  terms.request.epoch = ours.epoch;
  terms.request.incarnation = incarnation_;
  terms.request.generation = {++generations_[ours.shard.value]};
  terms.greeting = greeting_of(ours);
  const auto attempt = std::make_shared<Attempt>();
  const auto given_up = [&address] {
    return Error(ReactorErrc::closed, "connecting to " + address + " was given up");
  };
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_) return given_up();
    attempts_.insert(attempt);
  }
  core.post([&core, terms, attempt] { begin(core, terms, attempt); });
  bool interrupted = false;
  {
    std::unique_lock lock(attempt->mutex);
    attempt->ended.wait_until(lock, until, [&] { return attempt->over || attempt->interrupted; });
    attempt->waiting = false;
    interrupted = attempt->interrupted;
  }
  {
    const std::lock_guard lock(mutex_);
    attempts_.erase(attempt);
  }
  if (!attempt->over) {
    give_up(core, attempt);
    if (interrupted) return given_up();
    return Error(ReactorErrc::deadline_exceeded, "no answer from " + address + " in time");
  }
  if (attempt->error) {
    const auto theirs = refusal_in(attempt->greeting);
    if (theirs && refusal != nullptr) *refusal = *theirs;
    return *attempt->error;
  }
  const auto hello = decode_hello(attempt->greeting);
  if (!hello) {
    give_up(core, attempt);
    return hello.error();
  }
  // The outcome was handed over under the mutex, after the core had stored the connection.
  return ConnectedPeer{
      std::make_unique<VerbsLink>(*attempt->connection, NodeRole::replica, context_of(*hello)), *hello};
}

void VerbsTransport::interrupt() {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (const auto& attempt : attempts_) {
    const std::lock_guard its(attempt->mutex);
    attempt->interrupted = true;
    attempt->ended.notify_one();
  }
}

}  // namespace

Result<std::unique_ptr<Transport>> make_verbs_transport(const Options& options, ReactorGroup& group,
                                                        const std::vector<std::unique_ptr<Shard>>& shards,
                                                        EventLog& events) {
  auto transport = std::make_unique<VerbsTransport>(options, group, shards, events);
  TL_TRY(transport->open());
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace tidelock
