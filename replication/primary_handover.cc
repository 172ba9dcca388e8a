// A group's primary hands its epoch over: writes wait meanwhile, reads go on.
#include <algorithm>

#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

Status Primary::hand_over(std::uint32_t successor, Instant deadline, const std::string& reason) {
  return state_->hand_over(successor, deadline, reason);
}

Status Primary::State::hand_over(std::uint32_t successor, Instant deadline, const std::string& reason) {
  if (closed) return ReactorErrc::closed;
  if (group == nullptr || !leads) return ReplicationErrc::not_primary;
  if (handing_over != nullptr)
    return Error(ReplicationErrc::peer_busy, "it hands over to another node already");
  if (whole_peer(successor) == nullptr) return no_successor(successor);
  HandoverWait wait;
  wait.successor = successor;
  wait.until = deadline;
  handing_over = &wait;
  while (step_handover() == Handover::Step::hold) {
    const Wakeup wakeup = wait.queue.wait(deadline);
    // What has ended the wait may have ended the primary, too: nothing of it is touched then.
    if (wait.outcome.has_value()) return *std::move(wait.outcome);
    if (wakeup == Wakeup::notified) continue;
    handing_over = nullptr;
    wake_room();
    return to_status(wakeup);
  }
  const bool ends = step_handover() == Handover::Step::end;
  const bool gone = whole_peer(successor) == nullptr;
  handing_over = nullptr;
  if (ends) {
    depose(reason, successor);
    return {};
  }
  wake_room();
  return gone ? Status(no_successor(successor)) : Status(ReactorErrc::deadline_exceeded);
}

Error Primary::State::no_successor(std::uint32_t node) {
  return Error(ReplicationErrc::no_replica,
               "node " + std::to_string(node) + " does not follow this one, or does not count yet");
}

const Sender::Peer* Primary::State::whole_peer(std::uint32_t node) const {
  const std::vector<Peer>& peers = sender.peers();
  const auto found = std::find_if(peers.begin(), peers.end(), [node](const Peer& peer) {
    return peer.node() == node && peer.counts() && peer.link->state() == LinkState::ready;
  });
  return found == peers.end() ? nullptr : &*found;
}

/// A large put that is half in goes on first. What the successor has is committed before the end, so that
/// nobody who waits for that is left without an answer.
Handover::Step Primary::State::step_handover() {
  HandoverWait& wait = *handing_over;
  if (fragmenting) return Handover::Step::hold;
  if (!wait.handover) wait.handover.emplace(wait.successor, log.last_lsn(), wait.until);
  Handover& handover = *wait.handover;
  const Peer* const peer = whole_peer(wait.successor);
  if (peer == nullptr) return handover.gone(wait.successor);
  if (serves() && group->commit_lsn() >= log.last_lsn()) handover.applied(wait.successor, peer->applied);
  return handover.turn(reactor.now());
}

void Primary::State::end_handover() {
  if (handing_over == nullptr) return;
  HandoverWait& wait = *std::exchange(handing_over, nullptr);
  wait.outcome = closed ? Status(ReactorErrc::closed) : Status(ReplicationErrc::not_primary);
  wait.queue.notify_one();
}

}  // namespace tidelock
