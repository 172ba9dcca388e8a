#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <tidelock/replication/transport.h>

#include "control.h"
#include "job.h"

namespace tidelock {
namespace {

constexpr Duration kJobTimeout = seconds(5);
constexpr Duration kAcceptTimeout = seconds(60);  // shutdown() ends it sooner

class Admission final : public Control {
 public:
  Admission(const ControlContext& context, const Lineage& lineage) : context_(context), lineage_(lineage) {}
  ~Admission() override { stop(); }

  Status start() override;
  void stop() override;
  [[nodiscard]] Lineage lineage() const override { return lineage_; }

 private:
  /// What a shard's log holds, for resuming.
  struct Held {
    Lsn first{};
    Lsn last{};
  };

  [[nodiscard]] LinkOptions link_options() const {
    LinkOptions options;
    options.ring_bytes = context_.options.ring_bytes;
    return options;
  }

  void run();
  void admit(PendingPeer& pending);
  Result<Held> held(ShardId shard);
  std::optional<Refusal> check_terms(const Hello& theirs) const;
  static std::optional<Refusal> check_position(const Hello& theirs, const Held& held);
  Hello answer(const Hello& theirs, const Held& held);
  void refuse(PendingPeer& pending, const Refusal& refusal);
  Status hand_over(const Hello& theirs, Generation generation, std::unique_ptr<Link> link);
  void note(const Hello& theirs, const std::string& what) {
    context_.events.add("shard " + std::to_string(theirs.shard.value) + ": replica node " +
                        std::to_string(theirs.node) + ": " + what);
  }

  ControlContext context_;
  Lineage lineage_;
  std::unique_ptr<PeerListener> listener_;
  std::uint32_t generation_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

Status Admission::start() {
  TL_TRY(listener_, context_.transport.listen(context_.options.listen, link_options()));
  for (const auto& shard : context_.shards) {
    const auto watch = [owner = shard.get(), events = &context_.events,
                        board = &context_.board](Reactor&) -> Status {
      owner->on_link_lost([owner, events, board](const std::string& reason) {
        board->lost(*owner, reason);
        events->add("shard " + std::to_string(owner->core().value) + ": lost a replica: " + reason);
      });
      return {};
    };
    TL_TRY(run_job(context_.group, shard->core(), watch, kJobTimeout));
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

void Admission::stop() {
  stopping_ = true;
  if (listener_) listener_->shutdown();
  if (thread_.joinable()) thread_.join();
}

void Admission::run() {
  while (!stopping_) {
    auto pending = listener_->accept(kAcceptTimeout);
    if (pending) {
      admit(**pending);
    } else if (pending.error() == ReactorErrc::closed) {
      return;
    } else if (!(pending.error() == ReactorErrc::deadline_exceeded)) {
      context_.events.add("listen " + context_.options.listen + ": " + pending.error().message());
      std::this_thread::sleep_for(
          std::chrono::milliseconds(50));  // out of descriptors, perhaps: not in a loop
    }
  }
}

void Admission::admit(PendingPeer& pending) {
  const Hello theirs = pending.hello();
  if (const auto refusal = check_terms(theirs)) return refuse(pending, *refusal);
  const auto log = held(theirs.shard);
  if (!log) {
    note(theirs, log.error().message());
    const auto waited_ms = static_cast<std::uint64_t>(kJobTimeout.ns / 1'000'000);
    return refuse(pending, {RefusalReason::busy, waited_ms, theirs.shard.value});
  }
  if (const auto refusal = check_position(theirs, *log)) return refuse(pending, *refusal);
  const Hello ours = answer(theirs, *log);
  auto link = pending.accept(ours, link_options());
  const Status attached = link ? hand_over(theirs, ours.generation, *std::move(link)) : Status(link.error());
  if (!attached) note(theirs, attached.error().message());
}

std::optional<Refusal> Admission::check_terms(const Hello& theirs) const {
  const Options& options = context_.options;
  const auto range = [](std::uint16_t least, std::uint16_t most) {
    return std::uint64_t{least} << 16 | most;
  };
  if (theirs.version_min > kWireVersionMax || theirs.version_max < kWireVersionMin) {
    return Refusal{RefusalReason::version, range(kWireVersionMin, kWireVersionMax),
                   range(theirs.version_min, theirs.version_max)};
  }
  if (theirs.role != NodeRole::replica) {
    return Refusal{RefusalReason::role, static_cast<std::uint64_t>(NodeRole::primary),
                   static_cast<std::uint64_t>(theirs.role)};
  }
  if (theirs.shard_count != options.shards) {
    return Refusal{RefusalReason::shard_count, options.shards, theirs.shard_count};
  }
  if (theirs.shard.value >= options.shards)
    return Refusal{RefusalReason::malformed, options.shards, theirs.shard.value};
  if (theirs.history != HistoryId{} && theirs.history != lineage_.history) {
    return Refusal{RefusalReason::history, lineage_.history.value, theirs.history.value};
  }
  // LSNs are of a history: without one there is nothing that they could count.
  if (theirs.history == HistoryId{} && theirs.last_lsn > Lsn{}) {
    return Refusal{RefusalReason::history, lineage_.history.value, theirs.history.value};
  }
  if (theirs.epoch > lineage_.epoch) {
    return Refusal{RefusalReason::epoch, lineage_.epoch.counter, theirs.epoch.counter};
  }
  if (theirs.key_bytes_max < kKeyBytesMax) {
    return Refusal{RefusalReason::limits, kKeyBytesMax, theirs.key_bytes_max};
  }
  if (theirs.value_bytes_max < options.value_bytes_max) {
    return Refusal{RefusalReason::limits, options.value_bytes_max, theirs.value_bytes_max};
  }
  return std::nullopt;
}

std::optional<Refusal> Admission::check_position(const Hello& theirs, const Held& held) {
  // Nobody can be ahead of its primary within one history and epoch, so such a claim is nonsense.
  if (theirs.last_lsn > held.last)
    return Refusal{RefusalReason::malformed, held.last.value, theirs.last_lsn.value};
  if (theirs.last_lsn.next() < held.first) {
    return Refusal{RefusalReason::behind_log, held.first.value, theirs.last_lsn.value};
  }
  return std::nullopt;
}

void Admission::refuse(PendingPeer& pending, const Refusal& refusal) {
  note(pending.hello(), "refused: " + describe(refusal));
  pending.refuse(refusal);
}

Result<Admission::Held> Admission::held(ShardId shard) {
  const auto held = std::make_shared<Held>();
  const auto look = [held, owner = context_.shards[shard.value].get()](Reactor&) -> Status {
    *held = {owner->primary()->log().first_lsn(), owner->primary()->last_lsn()};
    return {};
  };
  TL_TRY(run_job(context_.group, {shard.value}, look, kJobTimeout));
  return *held;
}

Hello Admission::answer(const Hello& theirs, const Held& held) {
  Hello ours;
  ours.role = NodeRole::primary;
  ours.node = context_.options.node;
  ours.shard = theirs.shard;
  ours.shard_count = static_cast<std::uint16_t>(context_.options.shards);
  ours.history = lineage_.history;
  ours.routing_seed = lineage_.routing_seed;
  ours.epoch = lineage_.epoch;
  ours.generation = {++generation_};
  ours.last_lsn = held.last;
  ours.first_lsn = held.first;
  ours.ring_bytes = context_.options.ring_bytes;
  ours.value_bytes_max = context_.options.value_bytes_max;
  return ours;
}

Status Admission::hand_over(const Hello& theirs, Generation generation, std::unique_ptr<Link> link) {
  const auto carried = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  const auto attach = [carried, theirs, generation, board = &context_.board,
                       owner = context_.shards[theirs.shard.value].get()](Reactor& reactor) -> Status {
    std::unique_ptr<Link> arrived = std::move(*carried);
    const Link& its = *arrived;
    TL_TRY(arrived->start(reactor));
    TL_TRY(owner->attach_replica(std::move(arrived), theirs.last_lsn));
    board->attached(*owner, theirs.node, generation, its);
    return {};
  };
  return run_job(context_.group, {theirs.shard.value}, attach, kJobTimeout);
}

}  // namespace

std::unique_ptr<Control> make_admission(const ControlContext& context, const Lineage& lineage) {
  return std::make_unique<Admission>(context, lineage);
}

}  // namespace tidelock
