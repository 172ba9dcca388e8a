#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/replication/membership.h>

namespace tidelock {
namespace {

/// A hostile peer founds again and again; nobody else does so often.
constexpr std::size_t kFoundingsMax = 1024;
/// A candidate takes one more than the highest that it has heard of, so epochs that others know differ by how
/// often somebody stood in vain. What is far beyond would use up the counter for everybody.
constexpr std::uint32_t kCounterStepMax = 1U << 20;
constexpr std::uint32_t kCounterMax = 0xffff'ffff;

std::uint64_t milliseconds_left(Instant until, Instant now) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, (until - now).ns) + 999'999) / 1'000'000;
}

template <class T>
std::uint32_t chain(std::uint32_t sum, T value) {
  std::array<std::byte, sizeof(T)> bytes{};
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
  return crc32c(sum, bytes);
}

}  // namespace

bool GroupOptions::has(std::uint32_t other) const {
  return std::binary_search(nodes.begin(), nodes.end(), other);
}

std::uint32_t GroupOptions::sum() const {
  std::uint32_t sum = 0;
  for (const std::uint32_t each : nodes) sum = chain(sum, each);
  sum = chain(sum, static_cast<std::uint64_t>(lease.ns / 1'000));
  sum = chain(sum, group_bytes_max);
  sum = chain(sum, c);
  return sum == 0 ? 1 : sum;
}

Membership::Membership(GroupOptions options, Instant now)
    : options_(std::move(options)), fresh_until_(now + options_.lease) {
  TL_ASSERT(std::is_sorted(options_.nodes.begin(), options_.nodes.end()) && options_.has(options_.node) &&
                options_.c < options_.nodes.size() &&
                std::adjacent_find(options_.nodes.begin(), options_.nodes.end()) == options_.nodes.end(),
            "a group's nodes ascend, and this one is among them");
}

// ---- asked by a candidate -------------------------------------------------------------------------------

std::optional<Refusal> Membership::asked(const Hello& candidate, bool serves, Instant now) {
  if (auto refusal = judge_group(candidate)) return refusal;
  tell(candidate);
  if (candidate.epoch.node != candidate.node) {  // else two candidates could stand for one epoch
    return Refusal{RefusalReason::malformed, candidate.node, candidate.epoch.node};
  }
  if (too_far(candidate.epoch)) {
    return Refusal{RefusalReason::malformed, epoch_value(promised_), epoch_value(candidate.epoch)};
  }
  const bool founding = candidate.flags.founding;
  if (auto refusal = founding ? judge_founder(candidate) : judge_candidate(candidate, serves, now))
    return refusal;
  if (!candidate.flags.promise) return std::nullopt;
  if (candidate.flags.released && !founding) lease_until_ = {};
  promise(candidate.epoch);
  given_ = {candidate.epoch, candidate.history, founding};
  return std::nullopt;
}

std::optional<Refusal> Membership::judge_group(const Hello& theirs) const {
  if (theirs.group_sum != options_.sum())
    return Refusal{RefusalReason::group, options_.sum(), theirs.group_sum};
  if (theirs.node == options_.node || !options_.has(theirs.node))
    return Refusal{RefusalReason::malformed, options_.node, theirs.node};
  return std::nullopt;
}

/// Leases are no matter: if all promise, nobody holds anything, and who granted one had a primary that did.
std::optional<Refusal> Membership::judge_founder(const Hello& candidate) const {
  const HistoryId known = history_ != HistoryId{} ? history_ : heard();
  if (known != HistoryId{}) return Refusal{RefusalReason::history, known.value, candidate.history.value};
  if (candidate.history == HistoryId{}) return Refusal{RefusalReason::malformed, 0, 0};
  if (promised_ > candidate.epoch)
    return Refusal{RefusalReason::promised, epoch_value(promised_), epoch_value(candidate.epoch)};
  return std::nullopt;
}

std::optional<Refusal> Membership::judge_candidate(const Hello& candidate, bool serves, Instant now) const {
  if (!memory_) return Refusal{RefusalReason::no_memory, epoch_value(promised_), candidate.node};
  if (candidate.history != history_)
    return Refusal{RefusalReason::history, history_.value, candidate.history.value};
  // Whoever follows an epoch's primary is past promising it: that one leads already.
  if (promised_ > candidate.epoch || (promised_ == candidate.epoch && following_))
    return Refusal{RefusalReason::promised, epoch_value(promised_), epoch_value(candidate.epoch)};
  if (serves) return Refusal{RefusalReason::lease, milliseconds_left(now + options_.lease, now), 0};
  // The successor has applied all that its primary wrote, so the released epoch is its last entry's.
  return lease_runs(candidate.flags.released ? candidate.last_epoch : Epoch{}, now);
}

std::optional<Refusal> Membership::lease_runs(Epoch except, Instant now) const {
  if (now >= lease_until_ || (except != Epoch{} && lease_epoch_ == except)) return std::nullopt;
  return Refusal{RefusalReason::lease, milliseconds_left(lease_until_, now), epoch_value(lease_epoch_)};
}

std::optional<Refusal> Membership::fresh(Instant now) const {
  if (now >= fresh_until_) return std::nullopt;
  return Refusal{RefusalReason::lease, milliseconds_left(fresh_until_, now), 0};
}

void Membership::promise(Epoch epoch) {
  promised_ = epoch;
  founding_ = {};
  given_ = {};
  unfollow();
}

bool Membership::echo(Epoch epoch, HistoryId history) {
  if (given_.epoch != epoch || given_.history != history || epoch == Epoch{}) return false;
  if (!given_.founding) return true;
  // What is not remembered must not be echoed: the founder would count it.
  if (founded_.size() >= kFoundingsMax && !founded_.contains(history.value)) return false;
  founded_.insert(history.value);
  ++told_;  // that it holds nothing
  return true;
}

/// Who has memory has counted its answers.
void Membership::tell(const Hello& asker) {
  if (memory_ && !asker.flags.memory) ++told_;
}

// ---- asked by a replica ---------------------------------------------------------------------------------

std::optional<Refusal> Membership::visited(const Hello& replica) {
  if (auto refusal = judge_group(replica)) return refusal;
  if (!memory_) return Refusal{RefusalReason::no_memory, epoch_value(promised_), replica.node};
  tell(replica);
  const bool none = replica.history == HistoryId{};
  if ((!none && replica.history != history_) || (none && replica.last_lsn > Lsn{}))
    return Refusal{RefusalReason::history, history_.value, replica.history.value};
  if (too_far(replica.epoch))
    return Refusal{RefusalReason::malformed, epoch_value(promised_), epoch_value(replica.epoch)};
  heard_counter_ = std::max(heard_counter_, replica.epoch.counter);
  return std::nullopt;
}

// ---- following ------------------------------------------------------------------------------------------

std::optional<Refusal> Membership::may_follow(const Hello& primary, const Said& said, Instant now) const {
  if (auto refusal = judge_group(primary)) return refusal;
  if (!stands(said)) return Refusal{RefusalReason::busy, 0, primary.node};
  if (primary.history == HistoryId{} || !primary.flags.memory)
    return Refusal{RefusalReason::no_memory, 0, primary.node};
  if (primary.epoch.node != primary.node || (memory_ && too_far(primary.epoch)))
    return Refusal{RefusalReason::malformed, epoch_value(promised_), epoch_value(primary.epoch)};
  if (primary.epoch < promised_)
    return Refusal{RefusalReason::promised, epoch_value(promised_), epoch_value(primary.epoch)};
  if (history_ != HistoryId{} && primary.history != history_)
    return Refusal{RefusalReason::history, history_.value, primary.history.value};
  if (!memory_ && !founded_.contains(primary.history.value)) {
    if (auto refusal = fresh(now)) return refusal;
    // What it may have promised is void where an operator has said that this primary leads whatever was.
    if (!primary.flags.forced && !answers_suffice(primary.history))
      return Refusal{RefusalReason::no_memory, 0, primary.node};
  }
  return lease_runs(primary.epoch, now);
}

void Membership::follow(const Hello& primary) {
  promise(primary.epoch);
  following_ = true;
  if (!memory_ && founded_.contains(primary.history.value)) regain(primary.history);
  if (!memory_) {
    history_ = primary.history;
    target_ = primary.last_lsn;
  }
}

void Membership::unfollow() {
  following_ = false;
  if (memory_) return;
  history_ = {};
  target_.reset();
}

void Membership::applied(Lsn lsn) {
  if (!memory_ && following_ && target_ && lsn >= *target_) regain(history_);
}

void Membership::stamped(Instant now) {
  if (!following_) return;
  lease_epoch_ = promised_;
  lease_until_ = std::max(lease_until_, now + options_.lease);
}

// ---- without memory -------------------------------------------------------------------------------------

bool Membership::answered(std::uint32_t node, HistoryId history, Epoch promised, std::uint32_t c,
                          const Said& said, Instant now) {
  if (memory_ || node == options_.node || !options_.has(node) || !stands(said)) return false;
  if (now < fresh_until_ && !founded_.contains(history.value)) return false;
  for (auto each = answers_.begin(); each != answers_.end();) {
    each->second.nodes.erase(node);
    each =
        each->second.nodes.empty() && each->first != history.value ? answers_.erase(each) : std::next(each);
  }
  if (history == HistoryId{}) return false;
  Answers& answers = answers_[history.value];
  answers.nodes.insert(node);
  answers.c = std::max(answers.c, c);
  if (promised > promised_) promise(promised);
  if (answers_suffice(history)) founding_ = {};
  // What it follows it has not applied yet: nothing of another history is any use to it.
  if (!following_ && founded_.contains(history.value)) regain(history);
  return true;
}

std::uint32_t Membership::answers_needed(std::uint32_t their_c) const {
  const Quorum own = options_.quorum();
  return Quorum{own.n, std::min(own.n, std::max(own.c, their_c))}.answers_needed();
}

bool Membership::answers_suffice(HistoryId history) const {
  const auto answers = answers_.find(history.value);
  return answers_needed(0) == 0 ||
         (answers != answers_.end() && answers->second.nodes.size() >= answers_needed(answers->second.c));
}

HistoryId Membership::heard() const {
  for (const auto& [history, answers] : answers_) {
    if (answers.nodes.size() >= answers_needed(answers.c)) return {history};
  }
  return {};
}

void Membership::regain(HistoryId history) {
  history_ = history;
  memory_ = true;
  founding_ = {};
  given_ = {};  // a founding that was promised is of another: whoever has memory keeps that from beginning
  target_.reset();
  answers_.clear();
}

// ---- a candidate itself ---------------------------------------------------------------------------------

std::optional<Refusal> Membership::stand(std::uint32_t counter, bool released, Instant now) {
  if (!memory_) return Refusal{RefusalReason::no_memory, epoch_value(promised_), options_.node};
  if (auto refusal = lease_runs(released ? promised_ : Epoch{}, now)) return refusal;
  const auto next = next_counter(counter);
  if (!next) return Refusal{RefusalReason::promised, epoch_value(promised_), 0};
  if (released) lease_until_ = {};
  promise({*next, options_.node});
  return std::nullopt;
}

/// What others say of epochs far beyond counts only so far.
std::optional<std::uint32_t> Membership::next_counter(std::uint32_t heard) const {
  const std::uint32_t own = promised_.counter;
  if (own == kCounterMax) return std::nullopt;
  const std::uint32_t most = own + std::min(kCounterStepMax, kCounterMax - own) - 1;
  return std::max(own, std::min(std::max(heard, heard_counter_), most)) + 1;
}

bool Membership::too_far(Epoch epoch) const {
  return epoch.counter > promised_.counter && epoch.counter - promised_.counter > kCounterStepMax;
}

std::optional<Refusal> Membership::found(HistoryId history, std::uint32_t counter) {
  const HistoryId known = history_ != HistoryId{} ? history_ : heard();
  if (known != HistoryId{}) return Refusal{RefusalReason::history, known.value, history.value};
  const auto next = next_counter(counter);
  if (!next) return Refusal{RefusalReason::promised, epoch_value(promised_), 0};
  promise({*next, options_.node});
  founding_ = history;
  return std::nullopt;
}

void Membership::lead(Epoch epoch, HistoryId history) {
  TL_ASSERT(epoch == promised_ && history != HistoryId{} &&
                (founding_ == history || (memory_ && history_ == history)),
            "what is led is what was stood for");
  if (founding_ != HistoryId{}) regain(founding_);
  following_ = false;
}

}  // namespace tidelock
