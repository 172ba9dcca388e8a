#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include <tidelock/replication/transport.h>

#include "control.h"
#include "job.h"

namespace tidelock {
namespace {

constexpr Duration kAcceptTimeout = seconds(60);  // shutdown() ends it sooner

/// The thread between the transport's listener and the shards' doors.
class Reception final : public Control {
 public:
  Reception(const ControlContext& context, const Lineage& lineage) : context_(context), lineage_(lineage) {}
  ~Reception() override { stop(); }

  Status start() override;
  void stop() override;
  [[nodiscard]] Lineage lineage() const override { return lineage_; }

 private:
  [[nodiscard]] LinkOptions link_options() const {
    LinkOptions options;
    options.ring_bytes = context_.options.ring_bytes;
    return options;
  }
  /// Whose door it is. A shard that does not exist is for any of them to refuse.
  [[nodiscard]] Shard* asked_for(const Hello& theirs) const {
    const std::size_t shard = theirs.shard.value;
    return context_.shards[shard < context_.shards.size() ? shard : 0].get();
  }

  void run();
  void admit(PendingPeer& pending);
  Result<Verdict> judge(const Hello& theirs);
  void refuse(PendingPeer& pending, const Refusal& refusal);
  Status hand_over(const Hello& theirs, const Hello& ours, std::unique_ptr<Link> link);
  void note(const Hello& theirs, const std::string& what) {
    context_.events.add("shard " + std::to_string(theirs.shard.value) + ": replica node " +
                        std::to_string(theirs.node) + ": " + what);
  }

  ControlContext context_;
  Lineage lineage_;
  std::unique_ptr<PeerListener> listener_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

Status Reception::start() {
  TL_TRY(listener_, context_.transport.listen(context_.options.listen_address(), link_options()));
  for (const auto& shard : context_.shards) {
    if (context_.options.in_group()) break;  // a group's watch hears of it
    const auto watch = [owner = shard.get(), events = &context_.events,
                        board = &context_.board](Reactor&) -> Status {
      owner->on_replica_lost([owner, events, board](const std::string& reason) {
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

void Reception::stop() {
  stopping_ = true;
  if (listener_) listener_->shutdown();
  if (thread_.joinable()) thread_.join();
}

void Reception::run() {
  while (!stopping_) {
    auto pending = listener_->accept(kAcceptTimeout);
    if (pending) {
      admit(**pending);
    } else if (pending.error() == ReactorErrc::closed) {
      return;
    } else if (!(pending.error() == ReactorErrc::deadline_exceeded)) {
      context_.events.add("listen " + context_.options.listen_address() + ": " + pending.error().message());
      std::this_thread::sleep_for(
          std::chrono::milliseconds(50));  // out of descriptors, perhaps: not in a loop
    }
  }
}

void Reception::admit(PendingPeer& pending) {
  const Hello theirs = pending.hello();
  const auto verdict = judge(theirs);
  if (!verdict) {
    note(theirs, verdict.error().message());
    const auto waited_ms = static_cast<std::uint64_t>(kJobTimeout.ns / 1'000'000);
    return refuse(pending, {RefusalReason::busy, waited_ms, theirs.shard.value});
  }
  if (const auto* const refusal = std::get_if<Refusal>(&*verdict)) return refuse(pending, *refusal);
  const Hello& ours = std::get<Hello>(*verdict);
  auto link = pending.accept(ours, link_options());
  const Status attached = link ? hand_over(theirs, ours, *std::move(link)) : Status(link.error());
  if (!attached) note(theirs, attached.error().message());
}

Result<Verdict> Reception::judge(const Hello& theirs) {
  const auto verdict = std::make_shared<Verdict>();
  Shard* const owner = asked_for(theirs);
  const auto look = [verdict, theirs, owner](Reactor&) -> Status {
    *verdict = owner->door().judge(theirs);
    return {};
  };
  TL_TRY(run_job(context_.group, owner->core(), look, kJobTimeout));
  return *verdict;
}

void Reception::refuse(PendingPeer& pending, const Refusal& refusal) {
  note(pending.hello(), "refused: " + describe(refusal));
  pending.refuse(refusal);
}

Status Reception::hand_over(const Hello& theirs, const Hello& ours, std::unique_ptr<Link> link) {
  const auto carried = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  Shard* const owner = asked_for(theirs);
  const auto attach = [carried, theirs, ours, board = &context_.board, owner](Reactor&) -> Status {
    const Link* const its = carried->get();
    TL_TRY(owner->door().attach(std::move(*carried), theirs, ours));
    // A candidate's may have served already.
    bool kept = false;
    owner->each_link([&](const Link& one) { kept = kept || &one == its; });
    if (kept) board->attached(owner->id(), theirs.node, ours.generation, *its);
    return {};
  };
  return run_job(context_.group, owner->core(), attach, kJobTimeout);
}

}  // namespace

std::unique_ptr<Control> make_admission(const ControlContext& context, const Lineage& lineage) {
  return std::make_unique<Reception>(context, lineage);
}

}  // namespace tidelock
