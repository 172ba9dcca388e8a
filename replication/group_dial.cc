// A fiber for each of the others: what that one is asked, and what its answers mean.
#include <algorithm>
#include <utility>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/group_node.h>

namespace tidelock {
namespace {

constexpr Duration kLookTimeout = seconds(2);
constexpr Duration kLookPause = milliseconds(10);
constexpr Duration kLookPauseMax = milliseconds(500);
/// Between two dials of a node that wants an operator.
constexpr Duration kHopelessPause = seconds(5);
constexpr Duration kVisitIdle = seconds(60);

}  // namespace

void GroupNode::visit(Peer* peer) {
  while (!ending()) {
    const Errand what = errand(*peer);
    const bool later = what == Errand::look && reactor_.now() < peer->next_at;
    if (what == Errand::nothing || later) {
      static_cast<void>(changed_.wait(later ? peer->next_at : reactor_.now() + kVisitIdle));
    } else if (what == Errand::look) {
      look(*peer);
    } else {
      ask(*peer, what);
    }
  }
}

GroupNode::Errand GroupNode::errand(const Peer& peer) const {
  if (attempt_) {
    switch (attempt_->wanted(peer.at.node)) {
      case AttemptAsk::would:
        return Errand::would;
      case AttemptAsk::promise:
        return Errand::promise;
      case AttemptAsk::fetch:
        return fetching_from_ == peer.at.node ? Errand::nothing : Errand::fetch;
      default:
        break;
    }
    if (attempt_->phase() != AttemptPhase::pausing) return Errand::nothing;
  }
  return looks() ? Errand::look : Errand::nothing;
}

bool GroupNode::looks() const {
  switch (member_->role()) {
    case MemberRole::none:
      return true;
    case MemberRole::leading:
      return alone() && reactor_.now() - alone_since_ >= options_.member.link_timeout;
    default:
      return false;
  }
}

/// Whoever leads there is followed.
void GroupNode::look(Peer& peer) {
  const Said said = member_->hello();
  std::optional<Refusal> refusal;
  auto answer = dialer_.dial(peer.at.address, said, reactor_.now() + kLookTimeout, &refusal);
  if (ending()) return;
  if (answer) return met(peer, *std::move(answer), said);
  if (refusal) return refused(peer, *refusal, said);
  failed(peer, answer.error().code().message(), answer.error().message());
}

void GroupNode::met(Peer& peer, ConnectedPeer answer, const Said& said) {
  const Hello theirs = answer.hello;
  if (theirs.node != peer.at.node) {
    answer.link->close("it is not the node that was looked for");
    const std::string why = "its address leads to node " + std::to_string(theirs.node);
    return failed(peer, why, why, kHopelessPause);
  }
  if (theirs.flags.memory) member_->answered(theirs.node, theirs.history, theirs.epoch, theirs.c, said);
  if (!looks() || (attempt_ && attempt_->phase() != AttemptPhase::pausing))
    return answer.link->close("it was looked for no longer");
  const Status followed = member_->follow(std::move(answer), said);
  if (!followed) return failed(peer, followed.error().code().message(), followed.error().message());
  peer.failure.clear();
  pause(peer);  // in case that it is lost at once
}

void GroupNode::refused(Peer& peer, const Refusal& refusal, const Said& said) {
  const std::string why = describe(refusal);
  const std::string cause = "refusal " + std::to_string(static_cast<unsigned>(refusal.reason));
  switch (refusal.reason) {
    case RefusalReason::not_primary: {
      const Epoch theirs = epoch_of_value(refusal.ours);
      member_->answered(peer.at.node, HistoryId{refusal.theirs}, theirs, options_.member.group.c, said);
      failed(peer, cause, why);
      heard_of(theirs);
      // Once for each: the one that is named may have said by when it is worth another look.
      if (theirs > std::exchange(peer.named, std::max(peer.named, theirs)) && theirs.node != peer.at.node)
        sooner(theirs.node);
      return;
    }
    case RefusalReason::no_memory:
      member_->answered(peer.at.node, HistoryId{}, Epoch{}, options_.member.group.c, said);
      return failed(peer, cause, why);
    case RefusalReason::busy:
    case RefusalReason::lease:
      return failed(peer, cause, why,
                    milliseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(refusal.ours, 10'000))));
    case RefusalReason::promised:
      heard_of(epoch_of_value(refusal.ours));
      return failed(peer, cause, why);
    default:
      return failed(peer, cause, why, kHopelessPause);
  }
}

void GroupNode::ask(Peer& peer, Errand what) {
  const Epoch epoch = attempt_->epoch();
  HelloFlags flags;
  flags.promise = what == Errand::promise;
  flags.fetch = what == Errand::fetch;
  flags.founding = attempt_->founding();
  flags.released = attempt_->released() && what != Errand::fetch;
  const Said said = member_->candidate_hello(epoch, attempt_->history(), flags);
  const Instant deadline = reactor_.now() + std::max(Duration{0}, attempt_->deadline() - clock_.now());
  std::optional<Refusal> refusal;
  auto answer = dialer_.dial(peer.at.address, said, deadline, &refusal);
  if (ending()) return;
  // An answer to an attempt that is over counts for nothing; in another phase it judges that itself.
  if (!attempt_ || attempt_->epoch() != epoch) {
    if (answer) answer->link->close("the candidate has given this epoch up");
    return;
  }
  if (answer) return answered(peer, *std::move(answer), what, said);
  obstacle_ = "node " + std::to_string(peer.at.node) + ": " + answer.error().message();
  refusal ? attempt_->refused(peer.at.node, *refusal, clock_.now())
          : attempt_->gone(peer.at.node, clock_.now());
  attempt_moved();
}

void GroupNode::answered(Peer& peer, ConnectedPeer answer, Errand what, const Hello& said) {
  const Hello theirs = answer.hello;
  const std::uint32_t node = peer.at.node;
  // Who holds something promises no founding, and who holds nothing promises nothing else.
  const bool promises = theirs.flags.promise && theirs.epoch == said.epoch &&
                        theirs.flags.founding == said.flags.founding &&
                        theirs.flags.memory != said.flags.founding && theirs.history == said.history;
  const bool legal = theirs.node == node && theirs.group_sum == options_.member.group.sum() &&
                     theirs.c == options_.member.group.c &&
                     theirs.role == (what == Errand::fetch ? NodeRole::primary : NodeRole::replica) &&
                     (what != Errand::promise || promises);
  if (!legal) {
    answer.link->close("it does not answer what it was asked");
    obstacle_ = "node " + std::to_string(node) + " does not answer what it was asked";
    attempt_->gone(node, clock_.now());
  } else if (what == Errand::fetch) {
    if (attempt_->wanted(node) != AttemptAsk::fetch)
      return answer.link->close("the candidate has given this epoch up");
    if (const Status begun = member_->fetch(std::move(answer), said); begun) {
      fetching_from_ = node;
      observer_.takes_line(member_->lineage());
    } else {
      obstacle_ = "node " + std::to_string(node) + ": " + begun.error().message();
      attempt_->gone(node, clock_.now());
    }
  } else if (what == Errand::would) {
    answer.link->close("it has answered");
    attempt_->would(node, clock_.now());
  } else if (attempt_->wanted(node) != AttemptAsk::promise) {
    answer.link->close("its promise comes too late");
  } else if (const Status added = links_->add(std::move(answer)); !added) {
    attempt_->gone(node, clock_.now());
  } else {
    const LogEnd end = theirs.flags.memory ? LogEnd{theirs.last_epoch, theirs.last_lsn} : LogEnd{};
    attempt_->promised(node, end, theirs.c, clock_.now());
  }
  attempt_moved();
}

/// Whoever leads an epoch that others have gone beyond is no primary any more.
void GroupNode::heard_of(Epoch epoch) {
  const Membership& membership = std::as_const(*member_).membership();
  if (member_->role() != MemberRole::leading || epoch <= member_->primary().epoch() ||
      membership.too_far(epoch))
    return;
  member_->step_down("others have promised epoch " + std::to_string(epoch.counter) + "." +
                     std::to_string(epoch.node));
}

/// It is looked at again after a time that grows.
void GroupNode::pause(Peer& peer, Duration least) {
  const auto jitter =
      static_cast<std::int64_t>(reactor_.random().below(static_cast<std::uint64_t>(peer.pause.ns) + 1));
  peer.not_before = reactor_.now() + least;
  peer.next_at = std::max(peer.not_before, reactor_.now() + peer.pause + Duration{jitter});
  peer.pause = std::min(peer.pause * 2, kLookPauseMax);
}

/// `cause`: what does not change with time, as numbers in the text may.
void GroupNode::failed(Peer& peer, const std::string& cause, const std::string& why, Duration least) {
  pause(peer, least);
  if (std::exchange(peer.failure, cause) != cause)
    observer_.note("node " + std::to_string(peer.at.node) + ": " + why);
}

void GroupNode::sooner(std::uint32_t node) {
  for (const auto& peer : peers_) {
    if (peer->at.node != node) continue;
    peer->pause = kLookPause;
    peer->next_at = std::max(peer->not_before, std::min(peer->next_at, reactor_.now() + kLookPause));
  }
  changed_.notify_all();
}

void GroupNode::look_again_soon() {
  for (const auto& peer : peers_) {
    peer->pause = kLookPause;
    peer->next_at = reactor_.now();
  }
}

}  // namespace tidelock
