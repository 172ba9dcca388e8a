#include <algorithm>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/promise_links.h>

#include "link_errors.h"
#include "liveness.h"

namespace tidelock {

PromiseLinks::PromiseLinks(Reactor& reactor, const PromiseLinksOptions& options, Owner& owner)
    : reactor_(reactor), options_(options), owner_(owner) {
  reactor.add_source(*this);
}

PromiseLinks::~PromiseLinks() {
  close("the candidacy has ended");
  reactor_.remove_source(*this);
}

Status PromiseLinks::add(ConnectedPeer peer) {
  const Hello& theirs = peer.hello;
  const auto refuse = [&peer](const Error& error) {
    peer.link->close(error.message());
    return error;
  };
  if (theirs.role != NodeRole::replica || !theirs.flags.promise || theirs.epoch.node != options_.node) {
    return refuse({ReplicationErrc::malformed, "an answer that promises nothing to this candidate"});
  }
  if (const Status started = peer.link->start(reactor_); !started) return refuse(started.error());
  std::erase_if(links_, [&](const Giver& giver) {
    if (giver.node == theirs.node) giver.link->close("its node has promised anew");
    return giver.node == theirs.node;
  });
  std::erase_if(events_, [&](const Event& event) { return event.node == theirs.node; });
  Giver giver;
  giver.node = theirs.node;
  giver.link = std::move(peer.link);
  giver.says.history = theirs.history;
  giver.says.epoch = theirs.epoch;
  giver.says.shard = options_.shard;
  links_.push_back(std::move(giver));
  arm_tick();
  return {};
}

void PromiseLinks::stamp(std::uint64_t round) {
  for (Giver& giver : links_) {
    TL_ASSERT(round > 0 && round >= giver.says.stamp(), "a round is no earlier than the one before");
    giver.news = giver.news || round != giver.says.stamp();
    giver.says.set_stamp(round);
  }
}

void PromiseLinks::close(const std::string& reason) {
  for (const Giver& giver : links_) giver.link->close(reason);
  links_.clear();
  events_.clear();
  heartbeat_.disarm();
}

std::uint32_t PromiseLinks::poll(std::uint32_t budget) {
  std::uint32_t done = 0;
  for (Giver& giver : links_) done += giver.link->poll(budget) + take_echoes(giver, budget);
  done += take_out_closed();
  while (!events_.empty()) {  // what it tells may take some of them back
    const Event event = std::move(events_.front());
    events_.erase(events_.begin());
    event.round != 0 ? owner_.echoed(event.node, event.round) : owner_.gone(event.node, event.reason);
  }
  return done;
}

std::uint32_t PromiseLinks::take_echoes(Giver& giver, std::uint32_t budget) {
  std::uint32_t taken = 0;
  for (; taken < budget; ++taken) {
    const auto frame = giver.link->receive_control();
    if (!frame) break;
    Status said = check_sender(*frame, NodeRole::replica);
    if (said && (frame->epoch != giver.says.epoch || frame->echo() > giver.says.stamp()))
      said = Error(ReplicationErrc::malformed, "an echo of another epoch, or of what was not stamped");
    if (!said) {
      giver.link->close(said.error().message());
      break;
    }
    if (frame->echo() <= giver.echoed) continue;
    giver.echoed = frame->echo();
    events_.push_back({giver.node, giver.echoed, {}});
  }
  return taken;
}

std::uint32_t PromiseLinks::take_out_closed() {
  const std::size_t before = links_.size();
  for (const Giver& giver : links_) {
    if (giver.link->state() == LinkState::closed)
      events_.push_back({giver.node, 0, giver.link->close_reason()});
  }
  std::erase_if(links_, [](const Giver& giver) { return giver.link->state() == LinkState::closed; });
  return static_cast<std::uint32_t>(before - links_.size());
}

void PromiseLinks::flush() {
  for (Giver& giver : links_) {
    const bool due = reactor_.now() - giver.sent_at >= Duration{options_.heartbeat.ns / 2};
    if (giver.news || due) {
      const Status sent = giver.link->send_control(giver.says);
      if (!sent) close_unless_passing(*giver.link, sent.error());
      giver.news = giver.news && !sent;
      if (sent) giver.sent_at = reactor_.now();
    }
    giver.link->flush();
  }
}

void PromiseLinks::arm() {
  for (const Giver& giver : links_) giver.link->arm();
}
void PromiseLinks::disarm() {
  for (const Giver& giver : links_) giver.link->disarm();
}
bool PromiseLinks::has_work() const {
  return std::any_of(links_.begin(), links_.end(), [](const Giver& giver) {
    return giver.link->has_work() || giver.link->state() == LinkState::closed;
  });
}

void PromiseLinks::arm_tick() {
  if (links_.empty() || heartbeat_.armed()) return;
  reactor_.timers().arm(heartbeat_, reactor_.now() + Duration{options_.heartbeat.ns / 2});
}

/// Heartbeats leave in the flush of the same turn; who is silent is told of by the next poll.
void PromiseLinks::tick() {
  for (const Giver& giver : links_) {
    if (reactor_.now() - giver.link->last_heard() > options_.link_timeout)
      giver.link->close("it said nothing for " + milliseconds_text(options_.link_timeout));
  }
  arm_tick();
}

}  // namespace tidelock
