// The course of things: what a node does without being asked, and when.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/group_node.h>

namespace tidelock {
namespace {

constexpr Duration kSteerIdle = seconds(60);  ///< a wait for what is notified, again and again
/// Whose number is the least founds first: others wait for so long for each that is before them.
constexpr Duration kFoundingTurn = milliseconds(300);
constexpr Duration kRetryLead = milliseconds(5);
/// After something in the way that does not pass by itself.
constexpr Duration kLeadAgain = seconds(5);

}  // namespace

Result<std::unique_ptr<GroupNode>> GroupNode::create(Reactor& reactor, Clock& clock, const MemberTable& table,
                                                     Dialer& dialer, GroupNodeObserver& observer,
                                                     GroupNodeOptions options) {
  const GroupOptions& group = options.member.group;
  for (const std::uint32_t each : group.nodes) {
    const auto named = std::count_if(options.peers.begin(), options.peers.end(),
                                     [each](const GroupPeer& peer) { return peer.node == each; });
    if (named == (each == group.node ? 0 : 1)) continue;
    return Error::from_errno(EINVAL, "the address of node " + std::to_string(each) +
                                         ": each of the others has one, and this node none");
  }
  std::unique_ptr<GroupNode> node(new GroupNode(reactor, clock, dialer, observer, std::move(options)));
  TL_TRY(node->member_, Member::create(reactor, clock, table, node->options_.member));
  const MemberOptions& member = node->options_.member;
  PromiseLinks::Owner& owner = *node;
  node->links_ = std::make_unique<PromiseLinks>(
      reactor, PromiseLinksOptions{member.group.node, member.shard, member.heartbeat, member.link_timeout},
      owner);
  node->member_->watch(node.get());
  return node;
}

GroupNode::GroupNode(Reactor& reactor, Clock& clock, Dialer& dialer, GroupNodeObserver& observer,
                     GroupNodeOptions options)
    : reactor_(reactor), clock_(clock), dialer_(dialer), observer_(observer), options_(std::move(options)) {}

GroupNode::~GroupNode() {
  TL_ASSERT(stopped(), "it ends after its fibers");
  if (member_) member_->watch(nullptr);
}

Status GroupNode::start() {
  role_since_ = alone_since_ = reactor_.now();
  const auto& nodes = options_.member.group.nodes;
  const auto before = std::lower_bound(nodes.begin(), nodes.end(), options_.member.group.node);
  found_at_ = member_->membership().fresh_until() + kFoundingTurn * (before - nodes.begin());
  for (const GroupPeer& peer : options_.peers) {
    Peer& made = *peers_.emplace_back(std::make_unique<Peer>());
    made.at = peer;
    if (Status begun = spawn(made.fiber, "group peer", &GroupNode::visit, &made); !begun) {
      stop();
      return begun;
    }
  }
  look_again_soon();
  Status begun = spawn(steering_, "group", &GroupNode::steer, nullptr);
  if (!begun) stop();
  return begun;
}

Status GroupNode::spawn(JoinHandle<void>& fiber, const char* name, void (GroupNode::*body)(Peer*),
                        Peer* peer) {
  TL_TRY(fiber, reactor_.spawn(name, [this, body, peer] {
    (this->*body)(peer);
    --fibers_;
  }));
  ++fibers_;
  return {};
}

void GroupNode::stop() {
  stopping_ = true;
  if (steering_.valid()) steering_.cancel();
  for (const auto& peer : peers_) {
    if (peer->fiber.valid()) peer->fiber.cancel();
  }
  changed_.notify_all();
}

Status GroupNode::promote(const PromoteOptions& options, Instant deadline) {
  if (options.c && *options.c > options_.member.group.c) {
    return Error::from_errno(EINVAL, "c is " + std::to_string(*options.c) + ", of the group " +
                                         std::to_string(options_.member.group.c) +
                                         ": to raise it start all nodes with another one");
  }
  if (promoting_) return Error::from_errno(EBUSY, "another call to promote this node is under way");
  promoting_ = true;
  promote_options_ = options;
  obstacle_.clear();
  changed_.notify_all();
  const Status waited = changed_.wait_until([this] { return stopping_ || leads_as_asked(); }, deadline);
  promoting_ = false;
  changed_.notify_all();  // what was attempted for this call ends with it
  if (stopping_) return ReactorErrc::closed;
  if (waited) return {};
  return Error(waited.error().code(), obstacle_.empty() ? "no answer of enough other nodes" : obstacle_);
}

bool GroupNode::leads_as_asked() const {
  if (member_->role() != MemberRole::leading || leads_in_vain()) return false;
  return !promote_options_.c || member_->primary().options().c == promote_options_.c;
}

Status GroupNode::switch_over(std::uint32_t successor, Instant deadline) {
  ++switching_;
  Status over = member_->hand_over(successor, deadline);
  if (over) {
    over = changed_.wait_until([this] { return stopping_ || member_->role() != MemberRole::none; }, deadline);
    if (over && member_->role() == MemberRole::leading)
      over =
          Error(ReplicationErrc::no_replica, "the successor did not come to lead, and this node leads again");
  }
  --switching_;
  return stopping_ ? Status(ReactorErrc::closed) : over;
}

/// It has led for a while, and has too few others for what it leads with: they may follow somebody by now.
bool GroupNode::leads_in_vain() const {
  const Instant since = std::max(role_since_, alone_since_);
  return member_->role() == MemberRole::leading &&
         member_->primary().nodes() < member_->primary().options().c.value_or(0) &&
         reactor_.now() - since >= options_.member.link_timeout;
}

// ---- the steering fiber ---------------------------------------------------------------------------------

void GroupNode::steer(Peer*) {
  while (!ending()) static_cast<void>(changed_.wait(decide()));
  end_attempt("the node is closing");
}

/// Does what is due; returns when to look again, if nothing changes before.
Instant GroupNode::decide() {
  if (attempt_ && outlived(aim())) end_attempt("nobody asks for it any more");
  if (!attempt_ && aim()) begin_attempt();
  if (attempt_) {
    if (attempt_->phase() == AttemptPhase::ready) lead();
  }
  if (attempt_ && attempt_->phase() != AttemptPhase::ready) {
    watch_fetch();
    attempt_->turn(clock_.now());
    attempt_moved();
    if (attempt_->phase() == AttemptPhase::ready) return decide();
    if (attempt_->phase() == AttemptPhase::over) end_attempt("the attempt is over");
  }
  const Instant now = reactor_.now();
  if (attempt_ && attempt_->phase() == AttemptPhase::ready) return now + kRetryLead;
  if (attempt_) return now + std::max(Duration{0}, attempt_->deadline() - clock_.now());
  if (member_->role() == MemberRole::leading) {
    if (!alone()) alone_since_ = now;
    if (looks()) changed_.notify_all();  // that came true by time alone
    return now + options_.member.heartbeat;
  }
  if (member_->role() == MemberRole::following) return now + kSteerIdle;
  if (!member_->membership().memory()) return now + options_.member.heartbeat;
  return now + std::max(options_.member.heartbeat, alone_since_ + options_.member.link_timeout - now);
}

/// What was begun for a call that has returned, or for a reason that has passed, must not come true later. An
/// epoch that was taken may be won in the round that it has, unless it was forced.
bool GroupNode::outlived(std::optional<AttemptAim> wanted) const {
  const AttemptPhase phase = attempt_->phase();
  const bool stands = phase != AttemptPhase::pausing && phase != AttemptPhase::sounding;
  return wanted != attempt_->aim() && (!stands || attempt_->forced());
}

/// What arrives takes its time; what does not has failed. Nothing is left of one that is not wanted any more.
void GroupNode::watch_fetch() {
  const bool fetches = attempt_->phase() == AttemptPhase::fetching;
  if (!fetches) end_fetch();
  const std::uint64_t bytes = member_->replica().stats().batch_bytes.load(std::memory_order_relaxed);
  if (std::exchange(fetched_bytes_, bytes) != bytes && fetches) attempt_->fetching(clock_.now());
}

/// What it is to attempt now, if anything.
std::optional<AttemptAim> GroupNode::aim() const {
  const Membership& membership = std::as_const(*member_).membership();
  const bool asked = promoting_ && !leads_as_asked();
  const Instant now = reactor_.now();
  if (member_->role() == MemberRole::leading) {
    if (!asked) return std::nullopt;
    const bool other_c = promote_options_.c && member_->primary().options().c != promote_options_.c;
    if (promote_options_.force) return AttemptAim::force;
    return other_c ? AttemptAim::take_over : AttemptAim::lead;
  }
  if (!membership.memory()) {
    const bool none = membership.history() == HistoryId{} && membership.heard() == HistoryId{};
    const bool founds = options_.founds && none && clock_.now() >= found_at_ && member_->may_found();
    return founds ? std::optional(AttemptAim::found) : std::nullopt;
  }
  // Who shows in its table what is not in its log is mended by a primary, and is none.
  if (member_->log().spoiled() || now < lead_again_at_) return std::nullopt;
  const bool released = released_ != Epoch{} && membership.promised() == released_ &&
                        member_->log().line().last_epoch() == released_;
  if (released) return AttemptAim::take_over;
  if (asked) return promote_options_.force ? AttemptAim::force : AttemptAim::lead;
  const bool waited_enough = member_->role() == MemberRole::none && !member_->candidate_lives() &&
                             now - alone_since_ >= options_.member.link_timeout;
  return waited_enough && (options_.stands || has_led_) ? std::optional(AttemptAim::lead) : std::nullopt;
}

void GroupNode::begin_attempt() {
  const AttemptAim what = *aim();
  released_ = {};
  obstacle_.clear();
  // Whoever leads, and is to lead otherwise, hands over to itself: its epoch and its leases end first.
  if (member_->role() == MemberRole::leading) member_->step_down("it is to lead anew");
  attempt_ = std::make_unique<Attempt>(member_->membership(), what, options_.attempt, reactor_.random(),
                                       own_log(what), clock_.now());
  attempt_moved();
}

/// After whatever may have moved it: the member ends what the epoch that was taken ends, and the others hear
/// of it.
void GroupNode::attempt_moved() {
  member_->settle("it stands for an epoch");
  attempt_->own_log(own_log(attempt_->aim()));
  switch (attempt_->phase()) {
    case AttemptPhase::confirming:
      links_->stamp(attempt_->round());
      break;
    case AttemptPhase::pausing:
    case AttemptPhase::sounding:
      end_fetch();
      links_->close("the candidate has given this epoch up");
      break;
    default:
      break;
  }
  changed_.notify_all();
}

void GroupNode::end_attempt(const std::string& why) {
  attempt_.reset();
  end_fetch();
  links_->close(why);
}

void GroupNode::end_fetch() {
  if (std::exchange(fetching_from_, std::nullopt))
    member_->end_fetch("the candidate has given this epoch up");
}

/// A founder's is empty, whatever is left here of what came to nothing.
LogEnd GroupNode::own_log(AttemptAim what) const {
  const GroupLog& log = member_->log();
  return what == AttemptAim::found ? LogEnd{} : LogEnd{log.line().last_epoch(), log.last_lsn()};
}

void GroupNode::lead() {
  std::uint32_t c = attempt_->c();
  if (promoting_ && promote_options_.c) c = std::min(c, *promote_options_.c);
  const Status led = member_->lead(attempt_->epoch(), c, attempt_->forced());
  if (!led) {
    obstacle_ = led.error().message();
    if (led.error() == ReplicationErrc::peer_busy) return attempt_->turn(clock_.now());
    observer_.note("cannot lead: " + obstacle_);
    lead_again_at_ = reactor_.now() + kLeadAgain;
    return end_attempt(obstacle_);
  }
  if (attempt_->forced()) {
    observer_.note("FORCED to lead epoch " + std::to_string(attempt_->epoch().counter) +
                   ": what was acknowledged by nodes that did not answer may be lost");
  }
  if (c < options_.member.group.c) {
    observer_.note("leads with c = " + std::to_string(c) + " instead of " +
                   std::to_string(options_.member.group.c) +
                   ": what it acknowledges is lost if others come to lead without this node");
  }
  attempt_->led();
  end_attempt("the candidate leads");
}

/// It has nobody to follow, or leads and too few follow it.
bool GroupNode::alone() const {
  if (member_->role() == MemberRole::none) return true;
  return member_->role() == MemberRole::leading && member_->primary().nodes() < options_.member.group.c;
}

// ---- what it is told ------------------------------------------------------------------------------------

void GroupNode::role_changed(MemberRole role, const std::string& why) {
  if (role != MemberRole::none) has_led_ = role == MemberRole::leading;
  // Who takes every link and drops it again is left alone for longer each time.
  if (role == MemberRole::none && reactor_.now() - role_since_ > options_.member.link_timeout)
    look_again_soon();
  role_since_ = alone_since_ = reactor_.now();
  changed_.notify_all();
  observer_.role_changed(role, why);
}

/// The candidate is about to lead, or to give up: it is the first to be looked at in either case.
void GroupNode::promise_given(std::uint32_t node, Epoch) {
  alone_since_ = reactor_.now();
  sooner(node);
}

void GroupNode::promise_void(std::uint32_t node, Epoch, const std::string&) { sooner(node); }

/// That one ended, and no other: by the time that this node can stand it may follow another.
void GroupNode::asked_to_lead() {
  if (member_->role() != MemberRole::following) return;
  released_ = member_->replica().epoch();
  changed_.notify_all();
}

void GroupNode::fetched() {
  fetching_from_.reset();
  if (!attempt_) return;
  attempt_->fetched({member_->log().line().last_epoch(), member_->log().last_lsn()}, clock_.now());
  changed_.notify_all();  // the steering fiber goes on: this is amid the member's turn
}

void GroupNode::fetch_failed(const std::string& why) {
  const auto node = std::exchange(fetching_from_, std::nullopt);
  if (!attempt_ || !node) return;
  obstacle_ = "node " + std::to_string(*node) + ": " + why;
  attempt_->gone(*node, clock_.now());
  changed_.notify_all();
}

void GroupNode::link_lost(std::uint32_t node, const std::string& reason) {
  observer_.note("lost node " + std::to_string(node) + ": " + reason);
  changed_.notify_all();
}

void GroupNode::echoed(std::uint32_t node, std::uint64_t round) {
  if (!attempt_) return;
  attempt_->echoed(node, round, clock_.now());
  attempt_moved();
}

void GroupNode::gone(std::uint32_t node, const std::string& reason) {
  if (!attempt_) return;
  obstacle_ = "node " + std::to_string(node) + ": " + reason;
  attempt_->gone(node, clock_.now());
  attempt_moved();
}

}  // namespace tidelock
