/// What a node of a group remembers of epochs and leases, and what it may therefore say to whom. It only
/// knows and judges: links, logs and roles are its owner's, who acts on what it says in the same turn.
/// README.md, "Groups of nodes", has the rules and why they hold.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/time.h>
#include <tidelock/replication/quorum.h>
#include <tidelock/replication/wire.h>

namespace tidelock {

struct GroupOptions {
  std::uint32_t node = 0;
  std::vector<std::uint32_t> nodes;  ///< all of them, this one, too; ascending
  /// 0 to nodes.size() - 1. The same at all nodes: who commits with fewer than a candidate thinks would be
  /// overtaken by it.
  std::uint32_t c = 0;
  Duration lease = seconds(2);
  std::uint32_t group_bytes_max = kEntryBytesMax;

  [[nodiscard]] Quorum quorum() const { return {static_cast<std::uint32_t>(nodes.size()) - 1, c}; }
  [[nodiscard]] bool has(std::uint32_t other) const;
  /// Hello::group_sum: nodes whose sums differ are not of one group. Never 0.
  [[nodiscard]] std::uint32_t sum() const;
};

/// What a node says to whom it dials, and what it had told others by then: what comes of it is judged by
/// both. Only Membership::say() makes one.
class Said {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): it is that hello, and is dialed with
  operator const Hello&() const { return hello_; }
  [[nodiscard]] const Hello& hello() const { return hello_; }

 private:
  friend class Membership;
  Said(const Hello& hello, std::uint64_t told) : hello_(hello), told_(told) {}
  Hello hello_;
  std::uint64_t told_;
};

class Membership {
 public:
  /// `now`: by the clock that leases go by, also in what follows. Whoever starts may have granted a lease in
  /// an earlier life, and waits until that would have ended.
  Membership(GroupOptions options, Instant now);

  [[nodiscard]] const GroupOptions& options() const { return options_; }
  [[nodiscard]] HistoryId history() const { return history_; }  ///< 0: none yet
  /// Nothing below it is accepted, acknowledged or promised.
  [[nodiscard]] Epoch promised() const { return promised_; }
  /// False from a start, until it is known again what an earlier life may have promised.
  [[nodiscard]] bool memory() const { return memory_; }

  /// So far beyond what is known here that it cannot be true: who believed it would use up the counter.
  [[nodiscard]] bool too_far(Epoch epoch) const;

  // ---- what it says, and what comes of that ----
  /// In the turn in which `hello` leaves. What answers it is void once this node has told somebody without
  /// memory what it knows, or has echoed a founder: what it heard before, but has not acted on, was not in
  /// that.
  [[nodiscard]] Said say(const Hello& hello) const { return {hello, told_}; }
  [[nodiscard]] bool stands(const Said& said) const { return said.told_ == told_; }

  // ---- asked by a replica ----
  /// Why it does not follow this node, whoever leads; none: it may, if this node does. What is answered, this
  /// or whatever else, has been told then. Why not: no_memory, history; malformed: its epoch is too far
  /// beyond what is known here to be true
  std::optional<Refusal> visited(const Hello& replica);

  // ---- asked by a candidate ----
  /// Why not; none: it may lead, as far as this node is concerned. `serves`: this node is a primary that
  /// stamps. If the hello asks for a promise, that is given from then on: the owner closes its old link, or
  /// deposes itself, in this turn.
  std::optional<Refusal> asked(const Hello& candidate, bool serves, Instant now);
  /// A stamp of the candidate came by the link on which it promised that one last. True: it may be echoed.
  /// False: the promise holds no more (of a founding: this node has memory by now), and the link is closed.
  [[nodiscard]] bool echo(Epoch epoch, HistoryId history);

  // ---- following ----
  /// Why it must not follow the primary that answers this to what was said; none: it may, now.
  /// Why not: busy: what was said is void, and is to be said anew; what anybody refuses, too
  [[nodiscard]] std::optional<Refusal> may_follow(const Hello& primary, const Said& said, Instant now) const;
  /// It does, after may_follow() in the same turn.
  void follow(const Hello& primary);
  [[nodiscard]] bool following() const { return following_; }
  /// Its link is gone. Without memory it is of no history again, and of its log nothing counts.
  void unfollow();
  /// What it follows has brought it to `lsn`, in log and table.
  void applied(Lsn lsn);
  /// A stamp came from the primary that it follows. `now` was read after that.
  void stamped(Instant now);

  // ---- without memory ----
  /// What a node with memory promised, and its c, as its answer to `said` says. A higher promise ends what
  /// this node followed. A node counts for the history that it told of last. If this node echoed a stamp of
  /// that history's founder it has memory from now on: all that it promised in that it promised in this life.
  /// If so, or if enough tell of one history, what it would found itself ends. `history` 0: the node has no
  /// memory (any more), and counts no longer for what it told of. False: it came before fresh_until()
  /// and is not of such a founder, what was said is void, or there is nothing to learn: it is not counted.
  bool answered(std::uint32_t node, HistoryId history, Epoch promised, std::uint32_t c, const Said& said,
                Instant now);
  /// Of which enough nodes have told, by the greatest c of theirs: what this one may have promised in it is
  /// known. 0: of none.
  [[nodiscard]] HistoryId heard() const;
  /// Until then nobody without memory may do anything but found a history.
  [[nodiscard]] Instant fresh_until() const { return fresh_until_; }

  // ---- a candidate itself ----
  /// Takes an epoch above all that it has heard of: `counter` is the highest of others. `released`: the
  /// primary that it followed has ended its epoch for it.
  /// Why not: no_memory, lease; promised if no counter is left
  std::optional<Refusal> stand(std::uint32_t counter, bool released, Instant now);
  /// The same for a history that this node would begin; `history` is nobody else's.
  /// Why not: history (there is one); promised
  std::optional<Refusal> found(HistoryId history, std::uint32_t counter);
  /// It leads the epoch that it stood for, in this history: what it knew when it won. In the same turn.
  void lead(Epoch epoch, HistoryId history);
  /// While it stands for one: the history that it would begin; 0: none.
  [[nodiscard]] HistoryId founding() const { return founding_; }

 private:
  [[nodiscard]] std::optional<Refusal> judge_group(const Hello& theirs) const;
  [[nodiscard]] std::optional<Refusal> judge_founder(const Hello& candidate) const;
  [[nodiscard]] std::optional<Refusal> judge_candidate(const Hello& candidate, bool serves,
                                                       Instant now) const;
  /// Of another epoch than `except`, if one runs.
  [[nodiscard]] std::optional<Refusal> lease_runs(Epoch except, Instant now) const;
  [[nodiscard]] std::optional<Refusal> fresh(Instant now) const;
  /// It answers that one with what it knows.
  void tell(const Hello& asker);
  [[nodiscard]] std::uint32_t answers_needed(std::uint32_t their_c) const;
  [[nodiscard]] bool answers_suffice(HistoryId history) const;
  /// One above what is promised here and there; none if no counter is left.
  [[nodiscard]] std::optional<std::uint32_t> next_counter(std::uint32_t heard) const;
  void promise(Epoch epoch);
  void regain(HistoryId history);

  GroupOptions options_;
  HistoryId history_{};
  Epoch promised_{};
  std::uint32_t heard_counter_ = 0;  ///< of epochs that it has not promised
  bool memory_ = false;
  bool following_ = false;  ///< the primary of `promised_`
  Epoch lease_epoch_{};     ///< whose primary it granted its last lease
  Instant lease_until_{};
  Instant fresh_until_{};
  HistoryId founding_{};
  struct Given {
    Epoch epoch{};
    HistoryId history{};
    bool founding = false;
  };
  std::uint64_t told_ = 0;           ///< how often it told what those go by who cannot ask it again
  Given given_;                      ///< its last promise, as long as that may be echoed
  std::set<std::uint64_t> founded_;  ///< of whose founders it echoed a stamp, in this life
  struct Answers {
    std::set<std::uint32_t> nodes;
    std::uint32_t c = 0;  ///< the greatest of theirs
  };
  std::map<std::uint64_t, Answers> answers_;  ///< by history
  std::optional<Lsn> target_;                 ///< without memory: what it has to apply of whom it follows
};

}  // namespace tidelock
