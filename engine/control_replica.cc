#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <tidelock/engine/errc.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/transport.h>

#include "control.h"
#include "job.h"

namespace tidelock {
namespace {

constexpr Duration kJobTimeout = seconds(5);
constexpr Duration kAttempt = seconds(3);  ///< one connection attempt, and so about the longest stop()
constexpr Duration kBackOffLeast = milliseconds(50);
constexpr Duration kBackOffMost = seconds(2);

using SteadyTime = std::chrono::steady_clock::time_point;

class Following final : public Control {
 public:
  explicit Following(const ControlContext& context)
      : context_(context), random_(entropy64()), peers_(context.options.shards) {}
  ~Following() override { stop(); }

  Status start() override;
  void stop() override;
  [[nodiscard]] Lineage lineage() const override {
    const std::lock_guard lock(mutex_);
    return lineage_;
  }

 private:
  enum class State : std::uint8_t { following, lost, given_up };
  struct Peer {
    State state = State::following;
    std::uint32_t attempts = 0;  ///< since a link was of use
    SteadyTime connected_at{};   ///< the newest link, and where it began
    Lsn connected_lsn{};
    SteadyTime retry_at{};
    std::string last_error;  ///< of the attempts since then, as it was reported
  };

  Status watch_links();
  Status connect_all(SteadyTime until);
  void run();
  void lost(ShardId shard, const std::string& reason);
  void reconnect(ShardId shard);
  Status connect(ShardId shard, SteadyTime until, Duration attach_timeout);
  Status await_counted(Shard& owner, SteadyTime until);
  Status check_answer(ShardId shard, const Hello& theirs) const;
  [[nodiscard]] SteadyTime after_back_off(std::uint32_t attempts);
  void note(ShardId shard, const std::string& what) {
    context_.events.add("shard " + std::to_string(shard.value) + ": " + what);
  }

  ControlContext context_;
  Lineage
      lineage_;  ///< written under mutex_ by whoever connects. After the first answer only the epoch moves
  Random random_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;    ///< under mutex_
  std::vector<Peer> peers_;  ///< under mutex_
  std::thread thread_;
};

/// A refusal does not go away by itself: the operator has to act.
bool final_error(const Error& error) {
  return error == ReplicationErrc::refused || error == ReplicationErrc::bad_version ||
         error == EngineErrc::history_lost;
}

SteadyTime after(Duration duration) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(duration.ns);
}

Duration until_or_soon(SteadyTime when) {
  const std::chrono::nanoseconds left = when - std::chrono::steady_clock::now();
  return std::max(milliseconds(1), Duration{left.count()});
}

Status Following::start() {
  TL_TRY(watch_links());
  TL_TRY(connect_all(after(context_.options.connect_timeout)));
  thread_ = std::thread([this] { run(); });
  return {};
}

Status Following::watch_links() {
  for (const auto& shard : context_.shards) {
    const auto watch = [this, owner = shard.get()](Reactor&) -> Status {
      owner->on_link_lost([this, owner](const std::string& reason) { lost({owner->core().value}, reason); });
      return {};
    };
    TL_TRY(run_job(context_.group, shard->core(), watch, kJobTimeout));
  }
  return {};
}

Status Following::connect_all(SteadyTime until) {
  for (std::uint16_t shard = 0; shard < context_.options.shards; ++shard) {
    for (std::chrono::milliseconds pause{20};; pause = std::min(pause * 2, std::chrono::milliseconds(500))) {
      Status connected = connect({shard}, until, until_or_soon(until));
      if (connected) connected = await_counted(*context_.shards[shard], until);
      if (connected) break;
      // The primary may still be starting, so only a refusal ends this before its time.
      if (final_error(connected.error()) || std::chrono::steady_clock::now() >= until) {
        return Error(connected.error().code(), "cannot follow the primary at " + context_.options.primary +
                                                   ": " + connected.error().message());
      }
      std::this_thread::sleep_for(pause);
    }
  }
  return {};
}

void Following::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

/// On the shard's core.
void Following::lost(ShardId shard, const std::string& reason) {
  context_.board.lost(*context_.shards[shard.value], reason);
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  const bool again = context_.options.reconnect;
  note(shard, "lost the primary: " + reason +
                  (again ? "; reconnecting" : "; not reconnecting (Options::reconnect)"));
  Peer& peer = peers_[shard.value];
  peer.state = again ? State::lost : State::given_up;
  context_.board.note(shard, again ? "reconnecting" : "given up", again ? "" : "Options::reconnect is off");
  // A primary that takes every link and drops it again is to be left alone, too.
  const auto lived = std::chrono::steady_clock::now() - peer.connected_at;
  const bool of_use = context_.shards[shard.value]->followed_lsn() > peer.connected_lsn ||
                      lived > std::chrono::nanoseconds(context_.options.link_timeout.ns);
  peer.attempts = of_use ? 0 : peer.attempts + 1;
  peer.last_error.clear();
  peer.retry_at = after_back_off(peer.attempts);
  changed_.notify_all();
}

SteadyTime Following::after_back_off(std::uint32_t attempts) {
  const Duration whole = std::min(kBackOffMost, kBackOffLeast * (std::int64_t{1} << std::min(attempts, 10U)));
  // Half of it at random, so that the shards of many replicas do not come back in one moment.
  const auto jitter = static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(whole.ns / 2 + 1)));
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(whole.ns / 2 + jitter);
}

void Following::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto now = std::chrono::steady_clock::now();
    SteadyTime next = now + std::chrono::seconds(60);
    for (std::uint16_t shard = 0; shard < peers_.size() && !stopping_; ++shard) {
      if (peers_[shard].state != State::lost) continue;
      if (peers_[shard].retry_at <= now) {
        lock.unlock();
        reconnect({shard});
        lock.lock();
      }
      if (peers_[shard].state == State::lost) next = std::min(next, peers_[shard].retry_at);
    }
    if (!stopping_) changed_.wait_until(lock, next);
  }
}

void Following::reconnect(ShardId shard) {
  {
    // Before the attempt: the new link may be lost again before this thread is back.
    const std::lock_guard lock(mutex_);
    peers_[shard.value].state = State::following;
  }
  const Status connected = connect(shard, after(kAttempt), kJobTimeout);
  if (connected) return;
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[shard.value];
  if (final_error(connected.error())) {
    peer.state = State::given_up;
    context_.board.note(shard, "given up", connected.error().message());
    note(shard, "given up, reads go on with what is here: " + connected.error().message());
    return;
  }
  peer.state = State::lost;
  peer.retry_at = after_back_off(++peer.attempts);
  // Once for each cause: it is tried for as long as it takes.
  if (const std::string why = connected.error().message(); why != peer.last_error) {
    note(shard, "cannot reconnect yet: " + why);
    peer.last_error = why;
  }
}

/// The handshake ends by `until`. The core has `attach_timeout` to take the link, and will take it even
/// later.
Status Following::connect(ShardId shard, SteadyTime until, Duration attach_timeout) {
  Shard* const owner = context_.shards[shard.value].get();
  Hello ours;
  ours.role = NodeRole::replica;
  ours.node = context_.options.node;
  ours.shard = shard;
  ours.shard_count = static_cast<std::uint16_t>(context_.options.shards);
  ours.history = lineage_.history;
  ours.routing_seed = lineage_.routing_seed;
  ours.epoch = lineage_.epoch;
  ours.last_lsn = owner->followed_lsn();
  ours.value_bytes_max = context_.options.value_bytes_max;
  TL_TRY(ConnectedPeer peer,
         context_.transport.connect(context_.options.primary, ours, until_or_soon(until)));
  TL_TRY(check_answer(shard, peer.hello));
  {
    const std::lock_guard lock(mutex_);
    // check_answer() lets nothing pass but the same history, in this epoch or a later one.
    lineage_ = {peer.hello.history, peer.hello.routing_seed, peer.hello.epoch};
    peers_[shard.value].connected_at = std::chrono::steady_clock::now();
    peers_[shard.value].connected_lsn = ours.last_lsn;
  }
  const auto carried = std::make_shared<std::unique_ptr<Link>>(std::move(peer.link));
  const auto attach = [carried, owner, lineage = lineage_, theirs = peer.hello,
                       board = &context_.board](Reactor& reactor) -> Status {
    std::unique_ptr<Link> arrived = std::move(*carried);
    const Link& its = *arrived;
    owner->follow(lineage.history, lineage.routing_seed, lineage.epoch);
    TL_TRY(arrived->start(reactor));
    TL_TRY(owner->attach_primary(std::move(arrived)));
    board->attached(*owner, theirs.node, theirs.generation, its);
    return {};
  };
  return run_job(context_.group, owner->core(), attach, attach_timeout);
}

/// The primary has accepted, but takes the link to its core a moment later. Only then is a write there that
/// asks for an acknowledgement no longer refused, and open() promises that much. A link that is lost
/// meanwhile is reported like any other.
Status Following::await_counted(Shard& owner, SteadyTime until) {
  const auto settled = [&owner](Reactor&) -> Status {
    return owner.counted() || !owner.following() ? Status{} : Status(EngineErrc::busy);
  };
  while (!run_job(context_.group, owner.core(), settled, until_or_soon(until))) {
    if (std::chrono::steady_clock::now() >= until) {
      return Error(ReactorErrc::deadline_exceeded, "the primary accepted shard " +
                                                       std::to_string(owner.id().value) +
                                                       " but did not come to count it in time");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return {};
}

Status Following::check_answer(ShardId shard, const Hello& theirs) const {
  const auto differs = [&](const char* what, std::uint64_t have, std::uint64_t got) {
    return Error(EngineErrc::history_lost, std::string("the primary's ") + what + " is " +
                                               std::to_string(got) + ", expected " + std::to_string(have));
  };
  if (theirs.role != NodeRole::primary) {
    return differs("role", static_cast<std::uint64_t>(NodeRole::primary),
                   static_cast<std::uint64_t>(theirs.role));
  }
  if (theirs.shard != shard) return differs("shard", shard.value, theirs.shard.value);
  if (theirs.shard_count != context_.options.shards) {
    return differs("shard count", context_.options.shards, theirs.shard_count);
  }
  if (theirs.history == HistoryId{}) return Error(ReplicationErrc::malformed, "the primary names no history");
  if (lineage_.history == HistoryId{}) return {};
  if (theirs.history != lineage_.history)
    return differs("history", lineage_.history.value, theirs.history.value);
  if (theirs.routing_seed != lineage_.routing_seed) {
    return differs("routing seed", lineage_.routing_seed, theirs.routing_seed);
  }
  if (theirs.epoch < lineage_.epoch) return differs("epoch", lineage_.epoch.counter, theirs.epoch.counter);
  return {};
}

}  // namespace

std::unique_ptr<Control> make_following(const ControlContext& context) {
  return std::make_unique<Following>(context);
}

}  // namespace tidelock
