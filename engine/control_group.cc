// A group's links: this node listens for all others, and its shards dial all of them. Who is followed is
// each shard's to find out (GroupNode), and is told to people here.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <tidelock/reactor/clock.h>

#include "control.h"
#include "job.h"
#include "thread_dialer.h"

namespace tidelock {
namespace {

/// Shards that dial one node at a time.
constexpr std::uint32_t kGroupDialersMax = 16;

std::vector<std::string> other_addresses(const Options& options) {
  std::vector<std::string> addresses;
  for (const NodeAddress& node : options.nodes) {
    if (node.node != options.node) addresses.push_back(node.address);
  }
  return addresses;
}

/// What a shard's node tells, for people.
class GroupWatch final : public GroupNodeObserver {
 public:
  GroupWatch(const ControlContext& context, Shard& shard) : context_(context), shard_(shard) {}

  void role_changed(MemberRole role, const std::string& why) override {
    context_.board.lost(shard_, why);
    const ShardRole now = shard_.role();
    switch (role) {
      case MemberRole::none:
        return tell("has no primary: " + why);
      case MemberRole::leading:
        return tell("leads: " + why);
      case MemberRole::following:
        // Of its own the node has one link at a time.
        shard_.each_link([&](const Link& link) {
          context_.board.attached(shard_.id(), now.leader, Generation{++generation_}, link);
        });
        return tell("follows node " + std::to_string(now.leader) + ", epoch " +
                    std::to_string(now.epoch.counter) + "." + std::to_string(now.epoch.node));
    }
  }
  void note(const std::string& what) override {
    context_.board.lost(shard_, what);
    tell(what);
  }

 private:
  void tell(const std::string& what) {
    context_.events.add("shard " + std::to_string(shard_.id().value) + ": " + what);
  }
  ControlContext context_;
  Shard& shard_;
  std::uint32_t generation_ = 0;
};

class Group final : public Control {
 public:
  explicit Group(const ControlContext& context)
      : context_(context),
        reception_(make_admission(context, {})),
        dialer_(context.group, context.transport, other_addresses(context.options),
                std::min(context.options.shards, kGroupDialersMax)) {}

  Status start() override;
  void stop() override {
    reception_->stop();
    dialer_.stop();
  }
  [[nodiscard]] Lineage lineage() const override { return {}; }

 private:
  [[nodiscard]] std::string missing() const;

  ControlContext context_;
  std::vector<std::unique_ptr<GroupWatch>> watches_;
  std::unique_ptr<Control> reception_;
  ThreadDialer dialer_;
};

/// Others may be started later, by hand: that not all is there is no error.
Status Group::start() {
  const Instant deadline = SystemClock().now() + context_.options.connect_timeout;
  TL_TRY(reception_->start());
  for (const auto& shard : context_.shards) {
    GroupWatch& watch = *watches_.emplace_back(std::make_unique<GroupWatch>(context_, *shard));
    const auto join = [this, owner = shard.get(), seen = &watch](Reactor&) {
      return owner->join(dialer_, *seen);
    };
    TL_TRY(run_job(context_.group, shard->core(), join, kJobTimeout));
  }
  std::string waits = missing();
  while (!waits.empty() && SystemClock().now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    waits = missing();
  }
  if (!waits.empty()) context_.events.add(waits + "; it goes on looking");
  return {};
}

/// Of the shards that neither lead nor follow with all that they need, the first; else nothing.
std::string Group::missing() const {
  for (const auto& shard : context_.shards) {
    const ShardRole role = shard->role();
    if (role.memory && role.role != GroupRole::none) continue;
    std::string text = "shard " + std::to_string(role.shard.value) + ": ";
    if (role.role != GroupRole::none) {
      text += "follows, and has not yet all that it may have promised";
    } else if (role.memory) {
      text += "no primary was found; promote a node if none will come back";
    } else {
      text += "no primary was found, and no history; one begins once all ";
      text += std::to_string(context_.options.nodes.size());
      text += " nodes are there";
    }
    return text;
  }
  return {};
}

}  // namespace

std::unique_ptr<Control> make_group(const ControlContext& context) {
  return std::make_unique<Group>(context);
}

}  // namespace tidelock
