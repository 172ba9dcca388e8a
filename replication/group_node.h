/// A node of a group at work: the fibers that look for a primary, learn again what an earlier life may have
/// promised, begin a history where there is none, and stand for an epoch, around a Member, which judges. One
/// a shard. README.md, "Groups of nodes", has the rules; this is who dials whom, and when.
/// Thread:   owner core
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/sync.h>
#include <tidelock/replication/attempt.h>
#include <tidelock/replication/dialer.h>
#include <tidelock/replication/member.h>
#include <tidelock/replication/promise_links.h>

namespace tidelock {

struct GroupPeer {
  std::uint32_t node = 0;
  std::string address;  ///< in the dialer's terms
};

struct GroupNodeOptions {
  MemberOptions member;
  std::vector<GroupPeer> peers;  ///< the other nodes of the group, all of them
  /// It begins a new history when all nodes of the group are there and none holds anything.
  bool founds = true;
  /// It stands by itself, once it has had no primary for link_timeout. Else only when it is told to, or when
  /// it has led and was deposed for nobody.
  bool stands = false;
  AttemptOptions attempt;
};

/// What an operator may ask for beside the rule, each of which may cost what was acknowledged. README.md,
/// "Two nodes".
struct PromoteOptions {
  /// It leads with the promises that it gets, and without those of nodes that do not answer.
  bool force = false;
  /// It leads with this c, at most the group's, until another epoch is led: with 0 it writes alone.
  std::optional<std::uint32_t> c;
};

/// What becomes of it, for whoever acts on it and for people. On the loop; must not suspend, nor call the
/// node.
class GroupNodeObserver {
 public:
  virtual ~GroupNodeObserver() = default;
  virtual void role_changed(MemberRole role, const std::string& why) = 0;
  /// What comes from now on is of that line, in whichever role: before anything of it is applied.
  virtual void takes_line(const Lineage& lineage) { static_cast<void>(lineage); }
  /// Once for each cause, as attempts repeat for as long as it takes.
  virtual void note(const std::string& what) = 0;
};

class GroupNode final : private MemberWatcher, private PromiseLinks::Owner {
 public:
  /// All outlive it. `clock`: what leases go by (CLOCK_BOOTTIME).
  /// Errors:   those of Member::create(); EINVAL: `peers` are not the other nodes of the group
  static Result<std::unique_ptr<GroupNode>> create(Reactor& reactor, Clock& clock, const MemberTable& table,
                                                   Dialer& dialer, GroupNodeObserver& observer,
                                                   GroupNodeOptions options);
  /// It has stopped(), and the member departed().
  ~GroupNode() override;

  /// Its door is the member itself. What leads, follows or promises is not to be told to do so there while
  /// this runs.
  [[nodiscard]] Member& member() { return *member_; }

  /// Begins to look for whom to follow. Once.
  /// Errors:   out_of_fibers: stopped() comes true soon after
  Status start();
  /// Stands for an epoch until it leads one. A primary that serves is not deposed: its leases keep it. Who
  /// leads already has nothing to do, but if `options.c` is another than what it leads with, or if it has had
  /// too few others for a while: then it leads anew. What was not reached by the deadline is not attempted
  /// any longer, but for a round that is under way.
  /// Suspends: yes (fiber)
  /// Errors:   deadline_exceeded, with what stood in the way; EINVAL for `options.c`; EBUSY: another call is
  ///           under way; closed; cancelled
  Status promote(const PromoteOptions& options, Instant deadline);
  /// Hands its epoch over to that node, once it has all that was written here, and follows it. Writes are
  /// held back meanwhile, and go on here if that comes to nothing. Suspends: yes (fiber)
  /// Errors:   those of Member::hand_over(); deadline_exceeded: it has handed over, and does not follow yet
  Status switch_over(std::uint32_t successor, Instant deadline);
  /// Ends the fibers; stopped() comes true soon after. The member's links are its owner's to close.
  void stop();
  [[nodiscard]] bool stopped() const { return fibers_ == 0 && !promoting_ && switching_ == 0; }

 private:
  struct Peer {
    GroupPeer at;
    Instant next_at{};  ///< looked at no sooner
    Duration pause{};
    Instant not_before{};  ///< named by the node itself
    Epoch named{};         ///< the newest that it named
    std::string failure;   ///< as it was noted
    JoinHandle<void> fiber;
  };
  enum class Errand : std::uint8_t { nothing, look, would, promise, fetch };

  GroupNode(Reactor& reactor, Clock& clock, Dialer& dialer, GroupNodeObserver& observer,
            GroupNodeOptions options);

  // MemberWatcher
  void role_changed(MemberRole role, const std::string& why) override;
  void promise_given(std::uint32_t node, Epoch epoch) override;
  void promise_void(std::uint32_t node, Epoch epoch, const std::string& why) override;
  void asked_to_lead() override;
  void fetched() override;
  void fetch_failed(const std::string& why) override;
  void link_lost(std::uint32_t node, const std::string& reason) override;
  // PromiseLinks::Owner
  void echoed(std::uint32_t node, std::uint64_t round) override;
  void gone(std::uint32_t node, const std::string& reason) override;

  // group_node.cc: the course of things, a fiber
  Status spawn(JoinHandle<void>& fiber, const char* name, void (GroupNode::*body)(Peer*), Peer* peer);
  void steer(Peer*);
  Instant decide();
  void begin_attempt();
  [[nodiscard]] bool leads_as_asked() const;
  [[nodiscard]] bool leads_in_vain() const;
  [[nodiscard]] bool outlived(std::optional<AttemptAim> wanted) const;
  [[nodiscard]] LogEnd own_log(AttemptAim what) const;
  [[nodiscard]] std::optional<AttemptAim> aim() const;
  void attempt_moved();
  void end_attempt(const std::string& why);
  void lead();
  void watch_fetch();
  void end_fetch();
  [[nodiscard]] bool ending() const { return stopping_ || this_fiber::cancelled(); }
  [[nodiscard]] bool alone() const;
  void look_again_soon();

  // group_dial.cc: a fiber for each of the others
  void visit(Peer* peer);
  [[nodiscard]] Errand errand(const Peer& peer) const;
  [[nodiscard]] bool looks() const;
  void look(Peer& peer);
  void met(Peer& peer, ConnectedPeer answer, const Said& said);
  void refused(Peer& peer, const Refusal& refusal, const Said& said);
  void ask(Peer& peer, Errand what);
  void answered(Peer& peer, ConnectedPeer answer, Errand what, const Hello& said);
  void failed(Peer& peer, const std::string& cause, const std::string& why, Duration least = {});
  void pause(Peer& peer, Duration least = {});
  void sooner(std::uint32_t node);
  void heard_of(Epoch epoch);

  Reactor& reactor_;
  Clock& clock_;
  Dialer& dialer_;
  GroupNodeObserver& observer_;
  const GroupNodeOptions options_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<PromiseLinks> links_;
  std::unique_ptr<Attempt> attempt_;
  std::vector<std::unique_ptr<Peer>> peers_;
  JoinHandle<void> steering_;
  std::uint32_t fibers_ = 0;
  bool stopping_ = false;
  Condition changed_;  ///< anything that a fiber here may wait for

  bool promoting_ = false;  ///< a call of promote() is under way
  PromoteOptions promote_options_;
  std::uint32_t switching_ = 0;  ///< calls of switch_over() under way
  Epoch released_{};             ///< that it was asked to take over from
  Instant lead_again_at_{};
  bool has_led_ = false;  ///< the newest role that was one
  Instant role_since_{};
  Instant alone_since_{};  ///< it has had no primary, or as one too few others
  Instant found_at_{};     ///< by `clock_`
  std::optional<std::uint32_t> fetching_from_;
  std::uint64_t fetched_bytes_ = 0;  ///< when it was looked at last
  std::string obstacle_;             ///< what stood in the way of the newest attempt
};

}  // namespace tidelock
