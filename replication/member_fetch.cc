// A candidate that has its promises, and lacks what one of the givers has: that one sends it as a primary
// would, in the candidate's epoch, and what is acknowledged counts for nothing.
#include <utility>

#include <tidelock/replication/candidacy.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/member.h>

namespace tidelock {

// ---- the giver ------------------------------------------------------------------------------------------

/// Its log stands still for as long as it follows and leads nobody, so what it says here is what comes.
std::optional<Refusal> Member::judge_fetch(const Hello& theirs) const {
  const bool promised = promised_link_ != nullptr && promised_node_ == theirs.node &&
                        promise_.epoch == theirs.epoch && membership_.promised() == theirs.epoch &&
                        role_ == MemberRole::none;
  if (!promised) {
    return Refusal{RefusalReason::promised, epoch_value(membership_.promised()), epoch_value(theirs.epoch)};
  }
  if (!membership_.memory() || theirs.history != membership_.history())
    return Refusal{RefusalReason::history, membership_.history().value, theirs.history.value};
  // A table that shows what is not in the log is nothing to make a snapshot of.
  if (needs_snapshot(theirs) && (log_->spoiled() || !primary_->sends_snapshots()))
    return Refusal{RefusalReason::behind_log, log_->log().first_lsn().value, theirs.last_lsn.value};
  return std::nullopt;
}

Status Member::attach_fetch(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) {
  const auto refuse = [&link](const Error& error) {
    link->close(error.message());
    return error;
  };
  if (const auto refusal = judge_fetch(theirs)) return refuse(to_error(*refusal));
  if (needs_snapshot(theirs) != ours.flags.snapshot) {
    return refuse(
        {ReplicationErrc::peer_busy, "the log no longer reaches back to where the stream was to begin"});
  }
  Follower follower{theirs.node, theirs.last_lsn, theirs.history, theirs.epoch};
  follower.counts = false;
  follower.last_epoch = theirs.last_epoch;
  Sender& sender = primary_->sender();
  return ours.flags.snapshot ? sender.attach_snapshot(std::move(link), follower)
                             : sender.attach(std::move(link), follower);
}

// ---- the candidate --------------------------------------------------------------------------------------

Status Member::fetch(ConnectedPeer peer, const Hello& said) {
  const Hello& theirs = peer.hello;
  const auto refuse = [&peer](const Error& error) {
    peer.link->close(error.message());
    return error;
  };
  if (theirs.role != NodeRole::primary || theirs.history != membership_.history() ||
      theirs.epoch != said.epoch) {
    return refuse({ReplicationErrc::malformed, "whoever was asked for its log does not send it"});
  }
  if (const auto refusal = check_terms(theirs)) return refuse(to_error(*refusal));
  const Hello now = candidate_hello(said.epoch, said.history, said.flags);
  const bool still_so = said.flags == now.flags && said.last_lsn == now.last_lsn &&
                        said.last_epoch == now.last_epoch && membership_.promised() == said.epoch;
  if (!still_so || role_ != MemberRole::none) {
    return refuse({ReplicationErrc::wrong_context, "this node does not stand for that epoch any more"});
  }
  // Entries here that the giver has not may be committed.
  const LogEnd own{log_->line().last_epoch(), log_->last_lsn()};
  if (!(own < LogEnd{theirs.last_epoch, theirs.last_lsn}))
    return refuse({ReplicationErrc::malformed, "whoever was asked for its log has nothing that is not here"});
  if (!primary_->departed() || primary_->fragmenting()) {
    return refuse({ReplicationErrc::peer_busy, "what this node sent as a primary is not gone yet"});
  }
  if (const Status taken = check_seed(theirs); !taken) return refuse(taken.error());
  if (const Status started = peer.link->start(reactor_); !started) return refuse(started.error());
  routing_seed_ = theirs.routing_seed;
  log_->cut_to_whole();
  fetched_ = false;
  fetch_to_ = theirs.last_lsn;
  TL_TRY(replica_->attach(std::move(peer.link), theirs.history, theirs.epoch, theirs.flags.snapshot));
  fetching_ = true;
  if (!theirs.flags.snapshot) applied(log_->last_lsn());
  return {};
}

void Member::end_fetch(const std::string& why) {
  if (!std::exchange(fetching_, false)) return;
  fetched_ = false;
  replica_->close(why);
}

/// Of its link, or of all that was to come; in poll().
void Member::tell_of_fetch() {
  if (!std::exchange(fetched_, false)) return;
  end_fetch("the candidate has what it lacked");
  if (watcher_ != nullptr) watcher_->fetched();
}

}  // namespace tidelock
