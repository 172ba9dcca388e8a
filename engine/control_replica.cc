// A replica's links: each shard dials for itself, one after the other when the engine starts, and is watched
// here.
#include <algorithm>
#include <string>
#include <utility>

#include <tidelock/reactor/clock.h>
#include <tidelock/replication/following.h>

#include "control.h"
#include "job.h"
#include "thread_dialer.h"

namespace tidelock {
namespace {

/// Shards that dial at a time. A primary that accepts and says nothing costs each its whole attempt.
constexpr std::uint32_t kDialersMax = 16;

/// What a shard's Following tells, for people.
class Watch final : public FollowingObserver {
 public:
  Watch(const ControlContext& context, Shard& shard) : context_(context), shard_(shard) {}

  void follows(const Lineage& lineage) override {
    shard_.follow(lineage.history, lineage.routing_seed, lineage.epoch);
  }
  void attached(const Hello& theirs, const Link& link) override {
    context_.board.attached(shard_.id(), theirs.node, theirs.generation, link);
    if (!theirs.flags.snapshot) return;
    note("the primary's log begins at LSN " + std::to_string(theirs.first_lsn.value) +
         ": a snapshot comes, and what is here is served until it is whole");
  }
  void lost(const std::string& reason, AfterLoss next) override {
    context_.board.lost(shard_, reason);
    if (next == AfterLoss::ending) return;
    const bool again = next == AfterLoss::again;
    note("lost the primary: " + reason +
         (again ? "; reconnecting" : "; not reconnecting (Options::reconnect)"));
    context_.board.note(shard_.id(), again ? "reconnecting" : "given up",
                        again ? "" : "Options::reconnect is off");
  }
  void failed(const std::string& why) override { note("cannot reconnect yet: " + why); }
  void given_up(const std::string& why) override {
    context_.board.note(shard_.id(), "given up", why);
    note("given up, reads go on with what is here: " + why);
  }

 private:
  void note(const std::string& what) {
    context_.events.add("shard " + std::to_string(shard_.id().value) + ": " + what);
  }
  ControlContext context_;
  Shard& shard_;
};

class Pursuit final : public Control {
 public:
  explicit Pursuit(const ControlContext& context)
      : context_(context),
        dialer_(context.group, context.transport, {context.options.primary},
                std::min(context.options.shards, kDialersMax)) {}

  Status start() override;
  void stop() override { dialer_.stop(); }
  [[nodiscard]] Lineage lineage() const override { return lineage_; }

 private:
  Status follow(Shard& shard, Instant deadline);

  ControlContext context_;
  ThreadDialer dialer_;
  std::vector<std::unique_ptr<Watch>> watches_;
  Lineage lineage_;  ///< after the first shard's answer the others are held to it
};

Status Pursuit::start() {
  const Instant deadline = SystemClock().now() + context_.options.connect_timeout;
  for (const auto& shard : context_.shards) TL_TRY(follow(*shard, deadline));
  return {};
}

Status Pursuit::follow(Shard& shard, Instant deadline) {
  struct Outcome {
    Status status = EngineErrc::closed;
    Lineage lineage;
  };
  const auto outcome = std::make_shared<Outcome>();
  Watch& watch = *watches_.emplace_back(std::make_unique<Watch>(context_, shard));
  const auto start = [this, outcome, owner = &shard, seen = &watch, known = lineage_, deadline] {
    Following& following = owner->pursue(dialer_, *seen);
    outcome->status = following.start(known, deadline);
    outcome->lineage = following.lineage();
  };
  const Duration left = deadline - SystemClock().now();
  TL_TRY(context_.group.run(shard.core(), start, std::max(Duration{0}, left) + kJobTimeout));
  TL_TRY(outcome->status);
  lineage_ = outcome->lineage;
  return {};
}

}  // namespace

std::unique_ptr<Control> make_following(const ControlContext& context) {
  return std::make_unique<Pursuit>(context);
}

}  // namespace tidelock
