// Who may come, whom it follows, and what a change of role ends.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <tidelock/replication/errc.h>
#include <tidelock/replication/member.h>

namespace tidelock {
namespace {

Error refused_with(const Refusal& refusal) { return Error(ReplicationErrc::refused, describe(refusal)); }

std::string text_of(Epoch epoch) { return std::to_string(epoch.counter) + "." + std::to_string(epoch.node); }

}  // namespace

Result<std::unique_ptr<Member>> Member::create(Reactor& reactor, Clock& clock, const MemberTable& table,
                                               const MemberOptions& options) {
  if (options.group.group_bytes_max >
      options.log_bytes / 4) {  // others would hold it to what its log does not take
    return Error::from_errno(EINVAL, "groups of up to " + std::to_string(options.group.group_bytes_max) +
                                         " bytes need a log of four times that, not " +
                                         std::to_string(options.log_bytes));
  }
  std::unique_ptr<Member> member(new Member(reactor, clock, options));
  const std::uint32_t buffers = table.source != nullptr ? Sender::kSnapshotBufferBytes : 0;
  TL_TRY(auto ring, Log::create(options.log_bytes, buffers));
  member->target_ = table.target;
  member->log_ = std::make_unique<GroupLog>(std::move(ring));

  PrimaryOptions primary;
  primary.shard = options.shard;
  primary.shard_count = options.shard_count;
  primary.node = options.group.node;
  primary.group_bytes_max = options.group.group_bytes_max;
  primary.heartbeat = options.heartbeat;
  primary.link_timeout = options.link_timeout;
  primary.c = options.group.c;
  primary.snapshots = table.source;
  primary.lease_clock = &clock;
  primary.lease = options.group.lease;
  primary.others = options.group.quorum().n;
  TL_TRY(member->primary_, Primary::create(reactor, primary, *member->log_));

  ReplicaOptions replica;
  replica.shard = options.shard;
  replica.heartbeat = options.heartbeat;
  replica.link_timeout = options.link_timeout;
  replica.snapshot = table.target;
  replica.group_bytes_max = options.group.group_bytes_max;
  replica.group = member->log_.get();
  replica.owner = member.get();
  TL_TRY(member->replica_, Replica::create(reactor, table.applier, replica));
  Member* const its = member.get();
  member->replica_->on_link_lost([its](const std::string& reason) {
    if (std::exchange(its->fetching_, false)) {
      its->fetched_ = false;
      if (its->watcher_ != nullptr) its->watcher_->fetch_failed(reason);
      return;
    }
    its->membership_.unfollow();
    its->become(MemberRole::none, reason);
  });
  member->primary_->on_link_lost([its](std::uint32_t node, const std::string& reason) {
    if (its->watcher_ != nullptr) its->watcher_->link_lost(node, reason);
  });
  reactor.add_source(*member);
  return member;
}

Member::Member(Reactor& reactor, Clock& clock, const MemberOptions& options)
    : reactor_(reactor), clock_(clock), options_(options), membership_(options.group, clock.now()) {}

Member::~Member() {
  if (!replica_) return;  // create() failed
  close("the node has ended");
  reactor_.remove_source(*this);
}

Lineage Member::lineage() const { return {membership_.history(), routing_seed_, membership_.promised()}; }

/// Readers judge again: with the role it changes who tells them of entries.
void Member::become(MemberRole role, const std::string& why) {
  if (role == std::exchange(role_, role)) return;
  log_->line_changed();
  if (watcher_ != nullptr) watcher_->role_changed(role, why);
}

void Member::step_down(const std::string& why) {
  primary_->depose(why);
  fetching_ = fetched_ = false;
  replica_->close(why);
  membership_.unfollow();
  become(MemberRole::none, why);
}

void Member::settle(const std::string& why) {
  const Epoch promised = membership_.promised();
  if (promise_.epoch != promised) end_promise_link(why);
  const bool leads = role_ == MemberRole::leading && primary_->epoch() == promised;
  const bool follows =
      role_ == MemberRole::following && membership_.following() && replica_->epoch() == promised;
  if (role_ != MemberRole::none && !leads && !follows) step_down(why);
  if (replica_->epoch() != promised) end_fetch(why);
}

void Member::asked_to_lead() {
  if (watcher_ != nullptr) watcher_->asked_to_lead();
}

void Member::close(const std::string& why) {
  end_promise_link(why);
  step_down(why);
  log_->close();
}

// ---- what it says ---------------------------------------------------------------------------------------

Hello Member::about_itself(NodeRole role) const {
  Hello ours;
  ours.role = role;
  ours.node = options_.group.node;
  ours.c = static_cast<std::uint16_t>(options_.group.c);
  ours.group_sum = options_.group.sum();
  ours.shard = options_.shard;
  ours.shard_count = options_.shard_count;
  ours.history = membership_.history();
  ours.routing_seed = routing_seed_;
  ours.epoch = membership_.promised();
  ours.ring_bytes = options_.ring_bytes;
  ours.value_bytes_max = options_.value_bytes_max;
  ours.flags.memory = membership_.memory();
  if (ours.history == HistoryId{}) return ours;  // LSNs are of a history
  ours.last_lsn = log_->last_lsn();
  ours.last_epoch = log_->line().last_epoch();
  ours.commit_lsn = log_->commit_lsn();
  const auto commit_epoch = log_->line().epoch_of(ours.commit_lsn);
  ours.commit_epoch = commit_epoch.value_or(Epoch{});
  if (!commit_epoch) ours.commit_lsn = {};  // too long ago: it cannot be said of which epoch it is
  return ours;
}

Hello Member::replica_hello() const {
  Hello ours = about_itself(NodeRole::replica);
  ours.flags.snapshot = replica_->takes_snapshots();
  if (log_->spoiled()) {  // as if its log were no prefix: that gets it a snapshot
    ours.last_epoch = ours.commit_epoch = {};
    ours.commit_lsn = {};
  }
  return ours;
}

Said Member::hello() const { return membership_.say(replica_hello()); }

Said Member::candidate_hello(Epoch epoch, HistoryId history, const HelloFlags& flags) const {
  Hello ours = about_itself(NodeRole::candidate);
  ours.flags.promise = flags.promise;
  ours.flags.released = flags.released;
  ours.flags.founding = flags.founding;
  ours.flags.fetch = flags.fetch;
  ours.epoch = epoch;
  ours.history = history;
  return membership_.say(ours);
}

// ---- who comes ------------------------------------------------------------------------------------------

Verdict Member::judge(const Hello& theirs) {
  if (const auto refusal = check_terms(theirs)) return *refusal;
  if (theirs.role == NodeRole::candidate) return judge_candidate(theirs);
  if (theirs.role != NodeRole::replica) {
    return Refusal{RefusalReason::role, static_cast<std::uint64_t>(NodeRole::primary),
                   static_cast<std::uint64_t>(theirs.role)};
  }
  if (const auto refusal = judge_replica(theirs)) return *refusal;
  Hello ours = about_itself(NodeRole::primary);
  ours.flags.forced = forced_;
  ours.generation = {++generation_};
  ours.first_lsn = log_->log().first_lsn();
  ours.flags.snapshot = needs_snapshot(theirs);
  return ours;
}

std::optional<Refusal> Member::check_terms(const Hello& theirs) const {
  const auto range = [](std::uint16_t least, std::uint16_t most) {
    return std::uint64_t{least} << 16 | most;
  };
  if (theirs.version_min > kWireVersionMax || theirs.version_max < kWireVersionMin) {
    return Refusal{RefusalReason::version, range(kWireVersionMin, kWireVersionMax),
                   range(theirs.version_min, theirs.version_max)};
  }
  if (theirs.shard_count != options_.shard_count)
    return Refusal{RefusalReason::shard_count, options_.shard_count, theirs.shard_count};
  if (theirs.shard != options_.shard)
    return Refusal{RefusalReason::malformed, options_.shard_count, theirs.shard.value};
  if (theirs.group_sum != options_.group.sum())
    return Refusal{RefusalReason::group, options_.group.sum(), theirs.group_sum};
  if (theirs.node == options_.group.node || !options_.group.has(theirs.node))
    return Refusal{RefusalReason::node, options_.group.node, theirs.node};
  if (theirs.key_bytes_max < kKeyBytesMax)
    return Refusal{RefusalReason::limits, kKeyBytesMax, theirs.key_bytes_max};
  if (theirs.value_bytes_max < options_.value_bytes_max)
    return Refusal{RefusalReason::limits, options_.value_bytes_max, theirs.value_bytes_max};
  return std::nullopt;
}

std::optional<Refusal> Member::judge_replica(const Hello& theirs) {
  if (auto refusal = membership_.visited(theirs)) return refusal;
  if (role_ == MemberRole::leading && theirs.epoch > membership_.promised())
    step_down("node " + std::to_string(theirs.node) + " has promised epoch " + text_of(theirs.epoch));
  if (role_ != MemberRole::leading)
    return Refusal{RefusalReason::not_primary, epoch_value(membership_.promised()),
                   membership_.history().value};
  if (diverged(theirs))
    return Refusal{RefusalReason::diverged, log_->last_lsn().value, theirs.commit_lsn.value};

  Duration left{};
  const Sender::Claim claim = primary_->sender().claim(theirs.node, left);
  const bool snapshot = needs_snapshot(theirs);
  if (claim == Sender::Claim::free && snapshot) {
    const bool possible = theirs.flags.snapshot && primary_->sends_snapshots();
    if (!possible)
      return Refusal{RefusalReason::behind_log, log_->log().first_lsn().value, theirs.last_lsn.value};
    left = primary_->snapshot_wait(theirs.node);
  }
  if (claim == Sender::Claim::free && left == Duration{}) return std::nullopt;
  const auto left_ms = static_cast<std::uint64_t>((left.ns + 999'999) / 1'000'000);
  return Refusal{RefusalReason::busy, claim == Sender::Claim::taken ? 0 : left_ms, theirs.shard.value};
}

/// What it knows to be committed is not in this line: one of the two has lost its history.
bool Member::diverged(const Hello& theirs) const {
  if (theirs.commit_lsn == Lsn{}) return false;
  if (theirs.commit_lsn > log_->last_lsn()) return true;
  const auto ours = log_->line().epoch_of(theirs.commit_lsn);
  return ours && *ours != theirs.commit_epoch;
}

bool Member::needs_snapshot(const Hello& theirs) const {
  return !log_->line().prefix(theirs.last_epoch, theirs.last_lsn, log_->last_lsn()) ||
         theirs.last_lsn.next() < log_->log().first_lsn();
}

Verdict Member::judge_candidate(const Hello& theirs) {
  if (theirs.flags.fetch) {
    if (const auto refusal = judge_fetch(theirs)) return *refusal;
    Hello ours = about_itself(NodeRole::primary);
    ours.generation = {++generation_};
    ours.first_lsn = log_->log().first_lsn();
    ours.flags.snapshot = needs_snapshot(theirs);
    return ours;
  }
  if (const auto refusal = membership_.asked(theirs, primary_->stamped_lately(), clock_.now()))
    return *refusal;
  if (theirs.flags.promise) {
    const std::string why =
        "it has promised epoch " + text_of(theirs.epoch) + " to node " + std::to_string(theirs.node);
    end_promise_link(why);
    step_down(why);
    promised_node_ = theirs.node;
    promise_.epoch = theirs.epoch;
    link_to_come_ = true;
    promised_at_ = reactor_.now();
    arm_tick();
    if (watcher_ != nullptr) watcher_->promise_given(theirs.node, theirs.epoch);
  }
  Hello ours = about_itself(NodeRole::replica);
  ours.generation = {++generation_};
  ours.flags.promise = theirs.flags.promise;
  ours.flags.founding = theirs.flags.promise && theirs.flags.founding;
  // Of a link's frames; a history that is to begin has none here yet.
  ours.history = theirs.history;
  return ours;
}

Status Member::attach(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) {
  const auto refuse = [&link](const Error& error) {
    link->close(error.message());
    return error;
  };
  if (const Status started = link->start(reactor_); !started) return refuse(started.error());
  if (theirs.flags.fetch) return attach_fetch(std::move(link), theirs, ours);
  if (ours.role == NodeRole::primary) return attach_replica(std::move(link), theirs, ours);
  if (!theirs.flags.promise) {
    link->close("it has its answer");
    return {};
  }
  if (membership_.promised() != theirs.epoch || membership_.following()) {
    return refuse(refused_with(
        {RefusalReason::promised, epoch_value(membership_.promised()), epoch_value(theirs.epoch)}));
  }
  end_promise_link("another link takes over");
  promised_link_ = std::move(link);
  promised_node_ = theirs.node;
  promise_ = {};
  promise_.history = theirs.history;
  promise_.epoch = theirs.epoch;
  promise_.shard = options_.shard;
  promise_news_ = true;
  arm_tick();
  return {};
}

Status Member::attach_replica(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) {
  const auto refuse = [&link](const Error& error) {
    link->close(error.message());
    return error;
  };
  if (const auto refusal = judge_replica(theirs)) return refuse(refused_with(*refusal));
  if (ours.epoch != primary_->epoch()) {
    return refuse(refused_with(
        {RefusalReason::not_primary, epoch_value(membership_.promised()), membership_.history().value}));
  }
  if (needs_snapshot(theirs) != ours.flags.snapshot) {
    return refuse(
        {ReplicationErrc::peer_busy, "the log no longer reaches back to where the stream was to begin"});
  }
  if (ours.flags.snapshot) return primary_->attach_snapshot(std::move(link), theirs.node, theirs.last_lsn);
  return primary_->attach(std::move(link), theirs.node, theirs.last_lsn, theirs.last_epoch);
}

// ---- following ------------------------------------------------------------------------------------------

/// Whoever answered that went by it: a log that goes on is held to be a prefix of the primary's.
bool Member::still_so(const Hello& said) const {
  const Hello now = replica_hello();
  return said.role == now.role && said.history == now.history && said.flags == now.flags &&
         said.last_lsn == now.last_lsn && said.last_epoch == now.last_epoch;
}

Status Member::follow(ConnectedPeer peer, const Said& said) {
  const Hello& theirs = peer.hello;
  const auto refuse = [&peer](const Error& error) {
    peer.link->close(error.message());
    return error;
  };
  if (theirs.role != NodeRole::primary) {
    return refuse({ReplicationErrc::malformed, "whoever is to be followed does not say that it leads"});
  }
  if (!still_so(said) || !membership_.stands(said)) {
    return refuse(
        {ReplicationErrc::wrong_context,
         "what this node has, or has told others, has changed since its hello: it has to be said anew"});
  }
  if (peer.link->state() == LinkState::closed)
    return Error(ReplicationErrc::link_closed, peer.link->close_reason());
  if (const auto refusal = check_terms(theirs)) return refuse(refused_with(*refusal));
  if (const Status taken = check_seed(theirs); !taken) return refuse(taken.error());
  if (const auto refusal = membership_.may_follow(theirs, said, clock_.now()))
    return refuse(refused_with(*refusal));
  const std::string why = "it follows node " + std::to_string(theirs.node);
  if (role_ == MemberRole::leading) step_down(why);
  if (!primary_->departed() || primary_->fragmenting()) {
    become(MemberRole::none, why);
    return refuse({ReplicationErrc::peer_busy, "what this node sent as a primary is not gone yet"});
  }
  if (const Status started = peer.link->start(reactor_); !started) return refuse(started.error());
  end_promise_link(why);
  // What an empty log cannot tell needs no snapshot to be mended.
  const bool mend = log_->spoiled() && log_->last_lsn() == Lsn{} && !theirs.flags.snapshot;
  if (membership_.history() == HistoryId{} || mend) {
    if (const Status forgotten = forget_history(); !forgotten) return refuse(forgotten.error());
  }
  fetching_ = fetched_ = false;  // its link ends with the one that comes
  membership_.follow(theirs);
  routing_seed_ = theirs.routing_seed;
  log_->cut_to_whole();
  Status attached =
      replica_->attach(std::move(peer.link), theirs.history, theirs.epoch, theirs.flags.snapshot);
  if (!attached) {
    membership_.unfollow();
    become(MemberRole::none, attached.error().message());
    return attached;
  }
  if (!theirs.flags.snapshot) membership_.applied(log_->last_lsn());
  become(MemberRole::following, why);
  return {};
}

/// It has had a history that came to nothing, or has lost its memory's beginnings: what is here would be
/// taken for the next one's. Nothing reads the log.
Status Member::forget_history() {
  log_->cut_to_whole();
  if (log_->last_lsn() != Lsn{} || log_->spoiled()) {
    if (target_ == nullptr) {
      return Error(ReplicationErrc::gap,
                   "entries of no history are here, and no other table can take their place");
    }
    TL_TRY(target_->begin_shadow());
    target_->swap_shadow({});
  }
  replica_->close("its history has come to nothing");
  replica_->forget();
  log_->forget();
  routing_seed_ = 0;
  return {};
}

bool Member::answered(std::uint32_t node, HistoryId history, Epoch promised, std::uint32_t c,
                      const Said& said) {
  const bool counted = membership_.answered(node, history, promised, c, said, clock_.now());
  settle("node " + std::to_string(node) + " has promised epoch " + text_of(promised));
  return counted;
}

// ---- leading --------------------------------------------------------------------------------------------

std::optional<Refusal> Member::stand(std::uint32_t counter, bool released) {
  if (auto refusal = membership_.stand(counter, released, clock_.now())) return refusal;
  end_promise_link("it stands for an epoch itself");
  step_down("it stands for epoch " + text_of(membership_.promised()));
  return std::nullopt;
}

std::optional<Refusal> Member::found(HistoryId history, std::uint32_t counter) {
  if (auto refusal = membership_.found(history, counter)) return refusal;
  settle("it would found a history itself");
  return std::nullopt;
}

/// What comes from there is placed by its seed, like what stays here.
Status Member::check_seed(const Hello& theirs) const {
  const bool goes_on = log_->last_lsn() != Lsn{} && !theirs.flags.snapshot;
  if (goes_on && membership_.history() == theirs.history && routing_seed_ != theirs.routing_seed)
    return Error(ReplicationErrc::malformed, "one history, and it spreads keys by two seeds");
  if (options_.seeds == nullptr || options_.seeds->takes(theirs.routing_seed)) return {};
  return Error(
      ReplicationErrc::refused,
      "its history spreads keys by another seed than this node's other shards do: restart this node, it "
      "then takes all that it has from the others");
}

Status Member::lead(Epoch epoch, std::uint32_t c, bool forced) {
  const bool founds = membership_.founding() != HistoryId{};
  const bool led = !founds && epoch <= log_->line().last_epoch();
  if (epoch != membership_.promised() || epoch.node != options_.group.node || role_ != MemberRole::none ||
      led) {
    return Error(ReplicationErrc::old_epoch,
                 "epoch " + text_of(epoch) + " is not this node's to begin: " +
                     (led ? "it has led it" : "it has promised " + text_of(membership_.promised())));
  }
  if (!founds && !membership_.memory())
    return Error(ReplicationErrc::not_primary, "this node is of no history that it could lead");
  if (c > options_.group.quorum().n)
    return Error::from_errno(EINVAL, "c is " + std::to_string(c) + ": the group has fewer others");
  // Who came by its memory without ever following, and of nobody's log, knows no seed: nothing is written by
  // one.
  const bool draws = founds || (routing_seed_ == 0 && log_->last_lsn() == Lsn{});
  if (!draws && routing_seed_ == 0)
    return Error(ReplicationErrc::not_primary, "by which seed its history spreads keys is not known here");
  if (draws) {
    if (!primary_->departed() || primary_->fragmenting())
      return Error(ReplicationErrc::peer_busy, "what this node sent as a primary is not gone yet");
    const RoutingSeed* const seeds = options_.seeds;
    const std::uint64_t seed =
        seeds == nullptr ? options_.routing_seed : seeds->to_found(options_.shard, clock_.now());
    if (seeds != nullptr && seed == 0)
      return Error(ReplicationErrc::not_primary, "there is no routing seed yet to begin a history with");
    TL_TRY(forget_history());
    routing_seed_ = seed;
  }
  const HistoryId history = founds ? membership_.founding() : membership_.history();
  TL_TRY(primary_->lead({history, routing_seed_, epoch, c}));
  membership_.lead(epoch, history);
  forced_ = forced;
  become(MemberRole::leading, "it leads epoch " + text_of(epoch));
  return {};
}

Status Member::hand_over(std::uint32_t successor, Instant deadline) {
  const std::string why = "it has handed over to node " + std::to_string(successor);
  TL_TRY(primary_->hand_over(successor, deadline, why));
  step_down(why);  // in the turn in which the epoch has ended
  return {};
}

// ---- the candidate that it has promised -----------------------------------------------------------------

void Member::end_promise_link(const std::string& why) {
  link_to_come_ = false;
  if (promised_link_) promised_link_->close(why);
  promised_link_.reset();
  // Who fetched did so for the sake of that promise.
  if (role_ != MemberRole::leading && !primary_->departed()) primary_->sender().dismiss_all(why);
}

void Member::promise_came_to_nothing(const std::string& why) {
  link_to_come_ = false;
  promised_link_.reset();
  if (watcher_ != nullptr) watcher_->promise_void(promised_node_, promise_.epoch, why);
}

void Member::arm_tick() {
  if ((!promised_link_ && !link_to_come_) || heartbeat_.armed()) return;
  reactor_.timers().arm(heartbeat_, reactor_.now() + Duration{options_.heartbeat.ns / 2});
}

/// Of a core that is otherwise parked. The promise's heartbeat leaves in the flush of the same turn; a link
/// that is closed is found by the next poll.
void Member::tick() {
  const Instant now = reactor_.now();
  if (promised_link_ && now - promised_link_->last_heard() > options_.link_timeout)
    promised_link_->close("the candidate said nothing");
  if (link_to_come_ && now - promised_at_ > options_.link_timeout)
    promise_came_to_nothing("no link came of it");
  arm_tick();
}

std::uint32_t Member::poll(std::uint32_t budget) {
  tell_of_fetch();
  // Enough nodes know by now: who restarts asks round again, like everywhere.
  if (forced_ && role_ == MemberRole::leading &&
      primary_->nodes() + 1 >= options_.group.quorum().answers_needed())
    forced_ = false;
  if (!promised_link_) return 0;
  std::uint32_t done = promised_link_->poll(budget);
  for (; done < budget; ++done) {
    const auto frame = promised_link_->receive_control();
    if (!frame) break;
    const Status said = check_sender(*frame, NodeRole::candidate);
    if (!said || frame->epoch != promise_.epoch) {
      promised_link_->close(said ? "a control frame of another epoch" : said.error().message());
      break;
    }
    if (frame->stamp() == 0) continue;
    if (!membership_.echo(promise_.epoch, promise_.history)) {
      promised_link_->close("the promise does not hold any more");
      break;
    }
    promise_.set_echo(frame->stamp());
    promise_news_ = true;
  }
  if (promised_link_->state() != LinkState::closed) return done;
  promise_came_to_nothing(promised_link_->close_reason());
  return done + 1;
}

void Member::flush() {
  if (!promised_link_) return;
  const bool due = reactor_.now() - promise_sent_at_ >= Duration{options_.heartbeat.ns / 2};
  if ((promise_news_ || due) && promised_link_->send_control(promise_)) {
    promise_news_ = false;
    promise_sent_at_ = reactor_.now();
  }
  promised_link_->flush();
}

void Member::arm() {
  if (promised_link_) promised_link_->arm();
}
void Member::disarm() {
  if (promised_link_) promised_link_->disarm();
}
bool Member::has_work() const {
  if (fetched_) return true;
  return promised_link_ &&
         (promise_news_ || promised_link_->has_work() || promised_link_->state() == LinkState::closed);
}

}  // namespace tidelock
