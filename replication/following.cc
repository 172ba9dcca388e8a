#include <algorithm>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/following.h>

namespace tidelock {
namespace {

constexpr Duration kAttempt = seconds(3);
constexpr Duration kFirstPause = milliseconds(20);  ///< between attempts of start()
constexpr Duration kFirstPauseMax = milliseconds(500);
constexpr Duration kBackOffMin = milliseconds(50);
constexpr Duration kBackOffMax = seconds(2);
constexpr Duration kIdle = seconds(60);  ///< a wait for nothing but being lost or stopped, again and again
constexpr Duration kLook = microseconds(200);

/// A refusal does not go away by itself: the operator has to act.
bool for_good(const Error& error) {
  return error == ReplicationErrc::refused || error == ReplicationErrc::bad_version ||
         error == ReplicationErrc::wrong_context || error == ReplicationErrc::old_epoch;
}

}  // namespace

Following::Following(Reactor& reactor, Replica& replica, Dialer& dialer, FollowingObserver& observer,
                     FollowingOptions options)
    : reactor_(reactor),
      replica_(replica),
      dialer_(dialer),
      observer_(observer),
      options_(std::move(options)) {
  replica_.on_link_lost([this](const std::string& reason) { lost(reason); });
}

Following::~Following() {
  TL_ASSERT(stopped(), "it ends after its fiber");
  replica_.on_link_lost({});
}

Status Following::start(const Lineage& known, Instant deadline) {
  lineage_ = known;
  running_ = true;
  Status connected;
  for (Duration pause = kFirstPause;; pause = std::min(pause * 2, kFirstPauseMax)) {
    connected = connect(deadline);
    if (connected) connected = await_counted(deadline);
    if (connected) break;
    // The primary may still be starting, so only a refusal ends this before its time.
    const Error& error = connected.error();
    const bool over = stopping_ || for_good(error) || error == ReactorErrc::cancelled;
    const Instant next = std::min(reactor_.now() + pause, deadline);
    if (over || this_fiber::sleep_until(next) == Wakeup::cancelled || reactor_.now() >= deadline) {
      running_ = false;
      return Error(error.code(), "cannot follow the primary at " + options_.primary + ": " + error.message());
    }
  }
  auto spawned = reactor_.spawn("following", [this] {
    run();
    running_ = false;
  });
  if (spawned) {
    fiber_ = *std::move(spawned);
    return {};
  }
  running_ = false;
  return spawned.error();
}

void Following::stop() {
  stopping_ = true;
  if (fiber_.valid()) fiber_.cancel();
}

void Following::run() {
  while (!stopping_ && !this_fiber::cancelled()) {
    if (state_ == State::lost && reactor_.now() >= retry_at_) {
      reconnect();
    } else {
      static_cast<void>(changed_.wait(state_ == State::lost ? retry_at_ : reactor_.now() + kIdle));
    }
  }
  if (stopping_) return;
  state_ = State::given_up;
  observer_.given_up("its fiber was cancelled");
}

/// On the loop.
void Following::lost(const std::string& reason) {
  const AfterLoss next = stopping_            ? AfterLoss::ending
                         : options_.reconnect ? AfterLoss::again
                                              : AfterLoss::never;
  state_ = next == AfterLoss::again ? State::lost : State::given_up;
  lost_reason_ = reason;
  observer_.lost(reason, next);
  // A primary that takes every link and drops it again is to be left alone, too.
  const bool of_use =
      replica_.applied_lsn() > connected_lsn_ || reactor_.now() - connected_at_ > options_.link_timeout;
  attempts_ = of_use ? 0 : attempts_ + 1;
  last_failure_.clear();
  retry_at_ = after_back_off();
  changed_.notify_all();
}

Instant Following::after_back_off() {
  const Duration whole = std::min(kBackOffMax, kBackOffMin * (std::int64_t{1} << std::min(attempts_, 10U)));
  // Half of it at random, so that the shards of many replicas do not come back in one moment.
  const auto half = static_cast<std::uint64_t>(whole.ns / 2);
  return reactor_.now() +
         Duration{whole.ns / 2 + static_cast<std::int64_t>(reactor_.random().below(half + 1))};
}

void Following::reconnect() {
  // Before the attempt: the new link may be lost again before this fiber runs.
  state_ = State::following;
  const Status connected = connect(reactor_.now() + kAttempt);
  if (connected || stopping_ || this_fiber::cancelled()) return;
  const std::string why = connected.error().message();
  if (for_good(connected.error())) {
    state_ = State::given_up;
    observer_.given_up(why);
    return;
  }
  state_ = State::lost;
  ++attempts_;
  retry_at_ = after_back_off();
  // A primary that is busy tells how long it will be, in other words each time.
  const std::string cause = connected.error() == ReplicationErrc::peer_busy ? "busy" : why;
  if (cause == last_failure_) return;
  last_failure_ = cause;
  observer_.failed(why);
}

Status Following::connect(Instant deadline) {
  Hello ours;
  ours.role = NodeRole::replica;
  ours.node = options_.node;
  ours.shard = options_.shard;
  ours.shard_count = options_.shard_count;
  ours.history = lineage_.history;
  ours.routing_seed = lineage_.routing_seed;
  ours.epoch = lineage_.epoch;
  ours.last_lsn = replica_.applied_lsn();
  ours.value_bytes_max = options_.value_bytes_max;
  ours.flags.snapshot = replica_.takes_snapshots();
  TL_TRY(ConnectedPeer peer, dialer_.dial(options_.primary, ours, deadline));
  TL_TRY(check_answer(peer.hello));
  lineage_ = {peer.hello.history, peer.hello.routing_seed, peer.hello.epoch};
  connected_at_ = reactor_.now();
  connected_lsn_ = ours.last_lsn;
  observer_.follows(lineage_);
  state_ = State::following;
  TL_TRY(peer.link->start(reactor_));
  const Link& its = *peer.link;
  TL_TRY(replica_.attach(std::move(peer.link), lineage_.history, lineage_.epoch));
  observer_.attached(peer.hello, its);
  return {};
}

/// The primary has accepted, but takes the link to its core a moment later. Only then is a write there that
/// asks for an acknowledgement no longer refused, and start() promises that much.
Status Following::await_counted(Instant deadline) {
  while (!replica_.counted()) {
    if (stopping_) return ReactorErrc::closed;
    if (!replica_.connected()) {
      return Error(ReplicationErrc::link_closed, "the primary took the link and dropped it: " + lost_reason_);
    }
    if (reactor_.now() >= deadline) {
      // A snapshot takes as long as it takes; what was here before is served meanwhile.
      if (replica_.heard()) return {};
      return Error(ReactorErrc::deadline_exceeded, "the primary accepted shard " +
                                                       std::to_string(options_.shard.value) +
                                                       " but did not come to count it in time");
    }
    if (this_fiber::sleep_for(kLook) == Wakeup::cancelled) return ReactorErrc::cancelled;
  }
  return {};
}

Status Following::check_answer(const Hello& theirs) const {
  const auto differs = [&](const char* what, std::uint64_t have, std::uint64_t got) {
    return Error(ReplicationErrc::wrong_context, std::string("the primary's ") + what + " is " +
                                                     std::to_string(got) + ", expected " +
                                                     std::to_string(have));
  };
  if (theirs.role != NodeRole::primary) {
    return differs("role", static_cast<std::uint64_t>(NodeRole::primary),
                   static_cast<std::uint64_t>(theirs.role));
  }
  if (theirs.shard != options_.shard) return differs("shard", options_.shard.value, theirs.shard.value);
  if (theirs.shard_count != options_.shard_count) {
    return differs("shard count", options_.shard_count, theirs.shard_count);
  }
  if (theirs.history == HistoryId{}) return Error(ReplicationErrc::malformed, "the primary names no history");
  if (lineage_.history == HistoryId{}) return {};
  if (theirs.history != lineage_.history)
    return differs("history", lineage_.history.value, theirs.history.value);
  if (theirs.routing_seed != lineage_.routing_seed) {
    return differs("routing seed", lineage_.routing_seed, theirs.routing_seed);
  }
  if (theirs.epoch < lineage_.epoch) {
    return Error(ReplicationErrc::old_epoch,
                 "the primary is in epoch " + std::to_string(theirs.epoch.counter) +
                     ", this replica has seen " + std::to_string(lineage_.epoch.counter));
  }
  return {};
}

}  // namespace tidelock
