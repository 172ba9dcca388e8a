/// A node's part in one shard's group: its log, what it has promised, and which role it has. It judges
/// whoever comes (Door) and whoever it has dialed, and both ends work on its log, one at a time. Who dials
/// whom, and when it asks for an epoch, is not decided here.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/dialer.h>
#include <tidelock/replication/group_log.h>
#include <tidelock/replication/membership.h>
#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>

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

class Member final : public Door, private ReplicaOwner, private PollSource {
 public:
  /// Adds itself and both ends to the reactor. `clock`: what leases go by (CLOCK_BOOTTIME).
  /// Errors:   those of Log, Primary and Replica
  static Result<std::unique_ptr<Member>> create(Reactor& reactor, Clock& clock, const MemberTable& table,
                                                const MemberOptions& options);
  /// No fiber may be waiting in log, primary or replica, and departed().
  ~Member() override;

  [[nodiscard]] MemberRole role() const { return role_; }
  /// Whose history it is, how keys are spread in it, and what this node has promised.
  [[nodiscard]] Lineage lineage() const;
  [[nodiscard]] const Membership& membership() const { return membership_; }
  [[nodiscard]] GroupLog& log() { return *log_; }
  /// Both are always there: the role says which one works.
  [[nodiscard]] Primary& primary() { return *primary_; }
  [[nodiscard]] const Replica& replica() const { return *replica_; }
  /// Called on the loop whenever role() has changed, with the reason. Must not suspend.
  void on_role(std::function<void(MemberRole role, const std::string& why)> handler);

  // ---- who comes ----
  /// Replicas are taken by whoever leads. A candidate that asks for a promise may get it, which ends what
  /// this node did before in this turn; its link lives on to echo stamps.
  Verdict judge(const Hello& theirs) override;
  Status attach(std::unique_ptr<Link> link, const Hello& theirs, const Hello& ours) override;

  // ---- following ----
  /// What it says to whom it would follow.
  [[nodiscard]] Hello hello() const;
  /// Follows whoever answered that.
  /// Errors:   refused, why not; wrong_context, malformed: an answer that is none; peer_busy: what it sent as
  ///           a primary is not gone yet; those of Link::start and Replica::attach. The link is closed
  Status follow(ConnectedPeer peer);
  /// Of another node's hello or refusal: Membership::answered().
  bool answered(std::uint32_t node, HistoryId history, Epoch promised, std::uint32_t c);

  // ---- leading ----
  /// What Membership says, and on success ends what this node did before.
  std::optional<Refusal> stand(std::uint32_t counter, bool released);
  std::optional<Refusal> found(HistoryId history, std::uint64_t routing_seed, std::uint32_t counter);
  /// The epoch that it stood for is its own: enough promises hold, and its log has what they have.
  /// Errors:   those of Primary::lead()
  Status lead(std::uint32_t c);
  /// Ends its epoch, or leaves whom it follows.
  void step_down(const std::string& why);

  /// Says goodbye to all.
  void close(const std::string& why);
  /// Nothing reads its log any more.
  [[nodiscard]] bool departed() const { return primary_->departed(); }

 private:
  Member(Reactor& reactor, Clock& clock, const MemberOptions& options);

  [[nodiscard]] bool memory() const override { return membership_.memory(); }
  void applied(Lsn lsn) override { membership_.applied(lsn); }
  void stamped() override { membership_.stamped(clock_.now()); }

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

  void become(MemberRole role, const std::string& why);
  void end_promise_link(const std::string& why);
  [[nodiscard]] Hello about_itself(NodeRole role) const;
  [[nodiscard]] std::optional<Refusal> check_terms(const Hello& theirs) const;
  [[nodiscard]] std::optional<Refusal> judge_replica(const Hello& theirs);
  Verdict judge_candidate(const Hello& theirs);
  Status empty_table();
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
  std::function<void(MemberRole, const std::string&)> on_role_;
  MemberRole role_ = MemberRole::none;
  std::uint64_t routing_seed_ = 0;
  std::uint32_t generation_ = 0;
  bool told_ = false;  ///< somebody may know of its history

  // The candidate that it has promised, until that leads or is gone.
  std::unique_ptr<Link> promised_link_;
  ControlFrame promise_;  ///< what goes to it
  bool promise_news_ = false;
  bool promise_founds_ = false;
  Instant promise_sent_at_{};
};

}  // namespace tidelock
