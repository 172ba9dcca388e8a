#include <algorithm>

#include <tidelock/base/check.h>
#include <tidelock/replication/attempt.h>

namespace tidelock {

Attempt::Attempt(Membership& member, AttemptAim aim, const AttemptOptions& options, Random& random,
                 LogEnd own, Instant now)
    : member_(member), aim_(aim), options_(options), random_(random), own_(own), pause_(options.pause) {
  begin(now);
}

AttemptAsk Attempt::wanted(std::uint32_t node) const {
  if (node == member_.options().node || phase_ == AttemptPhase::pausing || phase_ == AttemptPhase::over)
    return AttemptAsk::nothing;
  const auto found = done_.find(node);
  const bool asked = found != done_.end();
  if (asked && found->second == AttemptAsk::nothing) return AttemptAsk::nothing;
  const bool has_promised = asked && found->second == AttemptAsk::promise;
  switch (phase_) {
    case AttemptPhase::sounding:
      return asked ? AttemptAsk::nothing : AttemptAsk::would;
    case AttemptPhase::asking:
      return has_promised ? AttemptAsk::nothing : AttemptAsk::promise;
    case AttemptPhase::confirming:
      return has_promised ? AttemptAsk::stamp : AttemptAsk::nothing;
    case AttemptPhase::fetching:
      return donor_ == node ? AttemptAsk::fetch : AttemptAsk::nothing;
    default:
      return AttemptAsk::nothing;
  }
}

std::uint64_t Attempt::round() const { return rounds_ + (candidacy_ ? candidacy_->round() : 0); }

// ---- what came of it ------------------------------------------------------------------------------------

void Attempt::would(std::uint32_t node, Instant now) {
  if (phase_ != AttemptPhase::sounding || wanted(node) != AttemptAsk::would) return;
  done_[node] = AttemptAsk::would;
  candidacy_->would(node);
  advance(now);
}

void Attempt::promised(std::uint32_t node, const LogEnd& end, std::uint32_t c, Instant now) {
  // One that comes later is as if it had been lost: it would only begin the next round anew.
  if (phase_ != AttemptPhase::asking || wanted(node) != AttemptAsk::promise) return;
  done_[node] = AttemptAsk::promise;
  candidacy_->promised(node, end, c);
  advance(now);
}

void Attempt::refused(std::uint32_t node, const Refusal& refusal, Instant now) {
  if (phase_ == AttemptPhase::pausing || phase_ == AttemptPhase::over) return;
  bool again = false;
  if (refusal.reason == RefusalReason::promised || refusal.reason == RefusalReason::not_primary) {
    const Epoch theirs = epoch_of_value(refusal.ours);
    // One peer must not use up the counter, nor have itself asked without end.
    if (!member_.too_far(theirs)) {
      again = phase_ == AttemptPhase::sounding && theirs.counter > heard_ && outbid_.insert(node).second;
      heard_ = std::max(heard_, theirs.counter);
    }
    if (again) epoch_.counter = std::max(epoch_.counter, heard_ + (heard_ < 0xffff'ffff ? 1 : 0));
  }
  if (refusal.reason == RefusalReason::lease) {
    const auto most = static_cast<std::uint64_t>(member_.options().lease.ns / 1'000'000 + 1);
    not_before_ =
        std::max(not_before_,
                 now + milliseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(refusal.ours, most))));
  }
  if (again) return;
  gone(node, now);
  // The primary that it was granted to is alive, or was a moment ago.
  if (forced() && refusal.reason == RefusalReason::lease && phase_ != AttemptPhase::over) pause(now);
}

void Attempt::echoed(std::uint32_t node, std::uint64_t round, Instant now) {
  if (phase_ != AttemptPhase::confirming || round < rounds_) return;
  candidacy_->confirmed(node, round - rounds_);
  advance(now);
}

void Attempt::gone(std::uint32_t node, Instant now) {
  if (phase_ == AttemptPhase::pausing || phase_ == AttemptPhase::over) return;
  const auto found = done_.find(node);
  if (phase_ == AttemptPhase::sounding && found != done_.end()) return;  // it had answered
  done_[node] = AttemptAsk::nothing;
  candidacy_->lost(node);
  advance(now);
}

void Attempt::fetching(Instant now) {
  if (phase_ == AttemptPhase::fetching) deadline_ = std::max(deadline_, now + round_time());
}

void Attempt::fetched(LogEnd own, Instant now) {
  own_ = own;
  if (phase_ != AttemptPhase::fetching) return;
  phase_ = AttemptPhase::confirming;
  advance(now);
}

bool Attempt::overtaken(Instant now) {
  const bool found_one = founding() && (member_.history() != HistoryId{} || member_.heard() != HistoryId{});
  // Who follows may ask beside whether it would get promises; what it follows ends when it takes an epoch.
  const bool joined = member_.following() && member_.promised() != followed_;
  if (joined || found_one || (!founding() && !member_.memory())) {
    phase_ = AttemptPhase::over;
    return true;
  }
  const bool stands = phase_ != AttemptPhase::pausing && phase_ != AttemptPhase::sounding;
  if (!stands || member_.promised() == epoch_) return false;
  pause(now);
  return true;
}

void Attempt::turn(Instant now) {
  if (phase_ == AttemptPhase::over || overtaken(now) || now < deadline_) return;
  if (phase_ == AttemptPhase::pausing) return begin(now);
  const bool goes_on = forced() && (phase_ == AttemptPhase::asking || phase_ == AttemptPhase::confirming);
  goes_on ? advance(now) : pause(now);
}

void Attempt::led() {
  TL_ASSERT(phase_ == AttemptPhase::ready, "an epoch that is won is led at once");
  member_.lead(epoch_, history_);
  phase_ = AttemptPhase::over;
}

// ---- its course -----------------------------------------------------------------------------------------

void Attempt::begin(Instant now) {
  rounds_ = round();
  candidacy_.emplace(member_.options().quorum(), founding(), forced());
  done_.clear();
  outbid_.clear();
  donor_.reset();
  followed_ = member_.following() ? member_.promised() : Epoch{};
  deadline_ = now + round_time();
  history_ = founding() ? HistoryId{random_.next() | 1} : member_.history();
  const std::uint32_t most = std::max(member_.promised().counter, heard_);
  epoch_ = {most + (most < 0xffff'ffff ? 1 : 0), member_.options().node};
  if (released() || forced()) return ask(now);
  phase_ = AttemptPhase::sounding;
  advance(now);
}

/// Takes the epoch: from here on this node is bound by it.
void Attempt::ask(Instant now) {
  const auto refusal = founding() ? member_.found(history_, heard_) : member_.stand(heard_, released(), now);
  if (refusal) {
    if (refusal->reason == RefusalReason::lease)
      not_before_ = now + milliseconds(static_cast<std::int64_t>(refusal->ours));
    return pause(now);
  }
  epoch_ = member_.promised();
  phase_ = AttemptPhase::asking;
  deadline_ = now + round_time();
  advance(now);
}

void Attempt::advance(Instant now) {
  if (overtaken(now)) return;
  const auto& nodes = member_.options().nodes;
  const auto may = std::count_if(nodes.begin(), nodes.end(), [&](std::uint32_t node) {
    const auto found = done_.find(node);
    return found == done_.end() || found->second != AttemptAsk::nothing;
  });
  if (static_cast<std::uint32_t>(may) < candidacy_->needed()) return pause(now);
  switch (phase_) {
    case AttemptPhase::sounding:
      if (candidacy_->enough_would()) ask(now);
      return;
    case AttemptPhase::asking:
      if (!candidacy_->enough_promised() || waits_for_more(now)) return;
      phase_ = AttemptPhase::confirming;
      deadline_ = now + round_time();
      return advance(now);
    case AttemptPhase::confirming:
      if (!candidacy_->enough_promised()) {
        phase_ = AttemptPhase::asking;
        return;
      }
      if (!candidacy_->enough_confirmed() || waits_for_more(now)) return;
      donor_ = candidacy_->donor(own_);
      phase_ = donor_ ? AttemptPhase::fetching : AttemptPhase::ready;
      deadline_ = now + round_time();
      return;
    case AttemptPhase::fetching:
      if (!candidacy_->enough_confirmed() || candidacy_->donor(own_) != donor_) pause(now);
      return;
    default:
      return;
  }
}

bool Attempt::waits_for_more(Instant now) const {
  if (!forced() || now >= deadline_) return false;
  if (phase_ == AttemptPhase::confirming) return !candidacy_->all_confirmed();
  return done_.size() < member_.options().nodes.size() - 1;
}

void Attempt::pause(Instant now) {
  phase_ = AttemptPhase::pausing;
  if (released()) aim_ = AttemptAim::lead;  // what was released was for the epoch that was asked for just now
  const Duration jitter{static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(pause_.ns) + 1))};
  deadline_ = std::max(now, not_before_) + pause_ + jitter;
  pause_ = std::min(pause_ + pause_, options_.pause_max);
}

}  // namespace tidelock
