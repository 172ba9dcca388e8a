/// A candidate's way to lead an epoch, as often as it takes: whom it asks what, when it gives up and how long
/// it pauses, whose log it fetches. It has no links: its owner asks what wanted() says of each node, tells
/// what came of it, and calls turn() at deadline(). README.md, "Groups of nodes", has the rounds.
/// Thread:   owner core
/// Suspends: never
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include <tidelock/reactor/random.h>
#include <tidelock/replication/candidacy.h>
#include <tidelock/replication/membership.h>

namespace tidelock {

enum class AttemptAim : std::uint8_t {
  lead,   ///< the history that this node has
  found,  ///< a new one, of which it has none
  /// To lead, with the promises that there are in a round, be it none. An operator's explicit choice: what is
  /// only on nodes that did not answer is lost, and a primary that lives there goes on. Whoever answers that
  /// it has granted a lease stops it all the same.
  force,
  take_over,  ///< the primary said `lead`: it has ended its epoch, and this node has all that it wrote
};

enum class AttemptPhase : std::uint8_t {
  pausing,     ///< until deadline()
  sounding,    ///< asks who would promise
  asking,      ///< has taken an epoch, asks for promises
  confirming,  ///< has enough of them, stamps their links
  fetching,    ///< enough have echoed; one of them has what this node lacks
  ready,       ///< the owner is to take the no-op into its log and call led() in this turn
  over,        ///< it leads, follows somebody new, or there is a history that it is to join
};

/// What a node is to be asked.
enum class AttemptAsk : std::uint8_t { nothing, would, promise, stamp, fetch };

struct AttemptOptions {
  /// A round that takes longer has failed. Above a round trip, and a restart's worth of it.
  Duration round = seconds(1);
  /// One that is forced lasts as long as that, for whoever has not answered by then is left out.
  Duration forced_round = seconds(3);
  /// Between attempts, at random up to twice that, and up to twice as long after each in vain. Several that
  /// stand at once must differ by more than what a round takes, or none would ever be through.
  Duration pause = milliseconds(100);
  Duration pause_max = seconds(4);
};

class Attempt {
 public:
  /// `own`: where this node's log ends. It begins at once.
  Attempt(Membership& member, AttemptAim aim, const AttemptOptions& options, Random& random, LogEnd own,
          Instant now);

  [[nodiscard]] AttemptPhase phase() const { return phase_; }
  /// A node that has refused, or is gone, is asked again in the next attempt only.
  [[nodiscard]] AttemptAsk wanted(std::uint32_t node) const;
  /// In the hello: what it stands for, or would.
  [[nodiscard]] Epoch epoch() const { return epoch_; }
  [[nodiscard]] HistoryId history() const { return history_; }
  [[nodiscard]] bool founding() const { return aim_ == AttemptAim::found; }
  [[nodiscard]] bool forced() const { return aim_ == AttemptAim::force; }
  [[nodiscard]] bool released() const { return aim_ == AttemptAim::take_over; }
  /// What a stamp of now says, and its echo: whatever is above 0 and grows with each round.
  [[nodiscard]] std::uint64_t round() const;
  /// The epoch's, once it leads.
  [[nodiscard]] std::uint32_t c() const { return candidacy_ ? candidacy_->c() : 0; }
  /// turn() has something to do then.
  [[nodiscard]] Instant deadline() const { return deadline_; }

  void would(std::uint32_t node, Instant now);
  /// `end`: of its log, if it has memory; nothing else counts.
  void promised(std::uint32_t node, const LogEnd& end, std::uint32_t c, Instant now);
  void refused(std::uint32_t node, const Refusal& refusal, Instant now);
  void echoed(std::uint32_t node, std::uint64_t round, Instant now);
  /// Its link is gone, or it was not to be reached. Whatever it had promised may be forgotten.
  void gone(std::uint32_t node, Instant now);
  /// Where this node's log ends now: to be told whenever it may have moved, since it follows or leads beside
  /// an attempt that sounds or pauses.
  void own_log(LogEnd own) { own_ = own; }
  [[nodiscard]] AttemptAim aim() const { return aim_; }
  /// Some of the donor's log has arrived: the round takes as long as that goes on.
  void fetching(Instant now);
  /// The donor's log is this node's now.
  void fetched(LogEnd own, Instant now);
  /// Also after whatever may have changed the member: it promised another, follows, or heard of a history.
  void turn(Instant now);
  /// In phase `ready`. The epoch is this node's, and the member says so.
  void led();

 private:
  void begin(Instant now);
  void ask(Instant now);
  void advance(Instant now);
  /// The member has promised another, follows, or heard of a history: this attempt is over or pauses.
  bool overtaken(Instant now);
  void pause(Instant now);
  [[nodiscard]] Duration round_time() const { return forced() ? options_.forced_round : options_.round; }
  /// Of a forced attempt: somebody may still answer in this round.
  [[nodiscard]] bool waits_for_more(Instant now) const;

  Membership& member_;
  AttemptAim aim_;
  AttemptOptions options_;
  Random& random_;
  LogEnd own_;
  AttemptPhase phase_ = AttemptPhase::pausing;
  Instant deadline_{};
  Duration pause_;
  Instant not_before_{};  ///< a lease runs until then, here or there
  std::uint32_t heard_ = 0;
  Epoch epoch_{};
  HistoryId history_{};
  Epoch followed_{};          ///< whom it followed already when it began
  std::uint64_t rounds_ = 0;  ///< of earlier attempts
  std::optional<Candidacy> candidacy_;
  std::optional<std::uint32_t> donor_;
  std::set<std::uint32_t> outbid_;            ///< in this round: who has named a higher epoch
  std::map<std::uint32_t, AttemptAsk> done_;  ///< by node: the last that it answered; `nothing`: it refused
};

}  // namespace tidelock
