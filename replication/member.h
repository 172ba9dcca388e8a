/// A node's part in one shard's group: its log, what it has promised, and which role it has. It judges
/// whoever comes (Door) and whoever it has dialed, and both ends work on its log, one at a time. Who dials
/// whom, and when it asks for an epoch, is not decided here.
/// Thread:   owner core
/// Suspends: never, but for hand_over()
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/dialer.h>
#include <tidelock/replication/group_log.h>
#include <tidelock/replication/membership.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>
#include <tidelock/replication/routing_seed.h>

namespace tidelock {

struct MemberOptions {
  GroupOptions group;  ///< group_bytes_max at most a quarter of log_bytes
  ShardId shard{};
  std::uint16_t shard_count = 1;
  std::uint64_t log_bytes = 16ULL << 20;
  std::uint64_t ring_bytes = 4ULL << 20;           ///< of links made here
  std::uint32_t value_bytes_max = kValueBytesMax;  ///< the same at all nodes
  Duration heartbeat = milliseconds(100);
  Duration link_timeout = seconds(3);
  std::uint64_t routing_seed = 0;      ///< of a history that this node begins
  const RoutingSeed* seeds = nullptr;  ///< in its stead, and judges those of others. Outlives the member
};

/// The node's table. All outlive the member.
struct MemberTable {
  Applier& applier;
  SnapshotTarget* target = nullptr;        ///< null: it takes no snapshots
  const SnapshotSource* source = nullptr;  ///< null: it sends none
};

enum class MemberRole : std::uint8_t {
  none,       ///< follows nobody
  following,  ///< appends what a primary sends
  leading,    ///< appends what is written here
};

/// Is told what happens to a member, on the loop and amid whatever did it: it must neither suspend nor call
/// the member; a fiber that it wakes does.
class MemberWatcher {
 public:
  virtual ~MemberWatcher() = default;
  virtual void role_changed(MemberRole role, const std::string& why) = 0;
  /// It has promised a candidate that epoch. What comes of it, if anything, role_changed() or promise_void()
  /// tells.
  virtual void promise_given(std::uint32_t node, Epoch epoch) = 0;
  /// The link of that promise is gone, and not because the node did something else: the candidate is gone, or
  /// silent. Or none has come of it within link_timeout.
  virtual void promise_void(std::uint32_t node, Epoch epoch, const std::string& why) = 0;
  /// The primary that it follows has ended its epoch, and this node has all that it wrote.
  virtual void asked_to_lead() = 0;
  /// What Member::fetch() was to bring is here.
  virtual void fetched() = 0;
  /// It broke before that.
  virtual void fetch_failed(const std::string& why) = 0;
  /// The link of a node that followed this one is gone. (Of whom this one followed role_changed() tells.)
  virtual void link_lost(std::uint32_t node, const std::string& reason) = 0;
};

class Member final : public Door, private ReplicaOwner, private PollSource {
 public:
  /// Adds itself and both ends to the reactor. `clock`: what leases go by (CLOCK_BOOTTIME).
  /// Errors:   those of Log, Primary and Replica; EINVAL: groups of entries may be larger than a quarter of the log
  static Result<std::unique_ptr<Member>> create(Reactor& reactor, Clock& clock, const MemberTable& table,
                                                const MemberOptions& options);
  /// No fiber may be waiting in log, primary or replica, and departed().
  ~Member() override;

  [[nodiscard]] MemberRole role() const { return role_; }
  /// Whose history it is, how keys are spread in it, and what this node has promised.
  [[nodiscard]] Lineage lineage() const;
  [[nodiscard]] const Membership& membership() const { return membership_; }
  /// For an Attempt: settle() in the turn in which it has changed anything.
  [[nodiscard]] Membership& membership() { return membership_; }
  /// What belongs to an epoch that is no longer the one promised ends: role, links, a promise.
  void settle(const std::string& why);
  [[nodiscard]] GroupLog& log() { return *log_; }
  /// Both are always there: the role says which one works.
  [[nodiscard]] Primary& primary() { return *primary_; }
  [[nodiscard]] const Replica& replica() const { return *replica_; }
  /// null: nobody. It outlives the member, or what it was told of before.
  void watch(MemberWatcher* watcher) { watcher_ = watcher; }

  // ---- who comes ----
  /// Replicas are taken by whoever leads. A candidate that asks for a promise may get it, which ends what
  /// this node did before in this turn; its link lives on to echo stamps.
  Verdict judge(const Hello& theirs) override;
  Status attach(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) override;

  // ---- following ----
  /// What it says to whom it would follow, in this turn.
  [[nodiscard]] Said hello() const;
  /// Follows whoever answered `said`, a hello() of before.
  /// Errors:   refused, why not; wrong_context: what it said is not so any more, say it again; link_closed;
  ///           malformed: an answer that is none; peer_busy: what it sent as a primary is not gone yet; those
  ///           of Link::start and Replica::attach. The link is closed
  Status follow(ConnectedPeer peer, const Said& said);
  /// Of another node's hello or refusal, which answered `said`: Membership::answered(), and what that ends.
  bool answered(std::uint32_t node, HistoryId history, Epoch promised, std::uint32_t c, const Said& said);

  // ---- leading ----
  /// Else there is no seed yet that a history could begin with.
  [[nodiscard]] bool may_found() const {
    return options_.seeds == nullptr || options_.seeds->to_found(options_.shard, clock_.now()) != 0;
  }
  /// What it says as a candidate for that epoch. `flags`: promise, released, fetch, and founding, which says
  /// whether `history` is one that it would begin.
  [[nodiscard]] Said candidate_hello(Epoch epoch, HistoryId history, const HelloFlags& flags) const;
  /// What Membership says, and on success ends what this node did before. (An Attempt asks that itself, and
  /// its owner calls settle().)
  std::optional<Refusal> stand(std::uint32_t counter, bool released);
  std::optional<Refusal> found(HistoryId history, std::uint32_t counter);
  /// It has its promises, and takes into its log what that giver has and it has not: whoever answered `said`,
  /// a candidate_hello() with `fetch`. MemberWatcher tells how that ends.
  /// Errors:   wrong_context: it does not stand for that epoch any more; those of follow(). The link is closed
  Status fetch(ConnectedPeer peer, const Hello& said);
  /// Nothing comes of that any more, and nobody is told.
  void end_fetch(const std::string& why);
  /// The epoch that it stood for is its own: enough promises hold, and its log has what they have; or an
  /// operator has `forced` it, which its hellos say. On success
  /// an Attempt is told led(). A founder's log and table are emptied first.
  /// Errors:   old_epoch: it has promised another since, or has led this one; not_primary: it is of no
  ///           history any more; EINVAL: no such c; those of Primary::lead()
  Status lead(Epoch epoch, std::uint32_t c, bool forced = false);
  /// Primary::hand_over(): on success it leads no longer, has granted nobody anything and waits to follow.
  /// Suspends: yes (fiber)
  Status hand_over(std::uint32_t successor, Instant deadline);
  /// Ends its epoch, or leaves whom it follows.
  void step_down(const std::string& why);

  /// Says goodbye to all, and readers that wait in the log hear `closed`.
  void close(const std::string& why);
  /// The candidate that it has promised has not led yet, nor given up.
  [[nodiscard]] bool candidate_lives() const { return promised_link_ != nullptr; }
  /// Nothing reads its log any more.
  [[nodiscard]] bool departed() const { return primary_->departed(); }

 private:
  Member(Reactor& reactor, Clock& clock, const MemberOptions& options);

  [[nodiscard]] bool memory() const override { return membership_.memory(); }
  void applied(Lsn lsn) override {
    membership_.applied(lsn);
    fetched_ = fetching_ && lsn >= fetch_to_;
  }
  void stamped() override { membership_.stamped(clock_.now()); }
  void asked_to_lead() override;

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

  struct OwnedTimer : Timer {
    OwnedTimer(Member& owner, Callback callback) : Timer(callback), member(owner) {}
    Member& member;
  };
  void tick();
  void arm_tick();
  void promise_came_to_nothing(const std::string& why);

  void become(MemberRole role, const std::string& why);
  void end_promise_link(const std::string& why);
  [[nodiscard]] Hello about_itself(NodeRole role) const;
  [[nodiscard]] std::optional<Refusal> check_terms(const Hello& theirs) const;
  [[nodiscard]] std::optional<Refusal> judge_replica(const Hello& theirs);
  Verdict judge_candidate(const Hello& theirs);
  // member_fetch.cc
  [[nodiscard]] std::optional<Refusal> judge_fetch(const Hello& theirs) const;
  Status attach_fetch(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours);
  void tell_of_fetch();
  [[nodiscard]] Hello replica_hello() const;
  [[nodiscard]] bool still_so(const Hello& said) const;
  [[nodiscard]] Status check_seed(const Hello& theirs) const;
  Status forget_history();
  [[nodiscard]] bool diverged(const Hello& theirs) const;
  [[nodiscard]] bool needs_snapshot(const Hello& theirs) const;
  Status attach_replica(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours);

  Reactor& reactor_;
  Clock& clock_;
  SnapshotTarget* target_ = nullptr;
  const MemberOptions options_;
  Membership membership_;
  std::unique_ptr<GroupLog> log_;
  std::unique_ptr<Primary> primary_;
  std::unique_ptr<Replica> replica_;
  MemberWatcher* watcher_ = nullptr;
  MemberRole role_ = MemberRole::none;
  std::uint64_t routing_seed_ = 0;
  std::uint32_t generation_ = 0;
  bool forced_ = false;  ///< what it leads

  // The candidate that it has promised, until that leads or is gone.
  bool link_to_come_ = false;  ///< of its promise
  Instant promised_at_{};
  std::unique_ptr<Link> promised_link_;
  ControlFrame promise_;  ///< what goes to it
  std::uint32_t promised_node_ = 0;
  bool promise_news_ = false;
  Instant promise_sent_at_{};
  OwnedTimer heartbeat_{*this, [](Timer& timer) { static_cast<OwnedTimer&>(timer).member.tick(); }};

  // As a candidate: what it takes from a giver.
  bool fetching_ = false;
  bool fetched_ = false;  ///< all of it is here, and nobody was told
  Lsn fetch_to_{};
};

}  // namespace tidelock
