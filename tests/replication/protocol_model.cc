#include "protocol_model.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include <tidelock/base/check.h>
#include <tidelock/replication/epoch_line.h>

namespace tidelock::model {
namespace {

static_assert(std::has_unique_object_representations_v<ModelState>);

constexpr Byte bit(Byte node) { return static_cast<Byte>(1U << node); }
constexpr Byte counter_of(Byte epoch) { return epoch / 8; }
constexpr Byte epoch_of(unsigned counter, Byte node) { return static_cast<Byte>(counter * 8 + node); }
constexpr Epoch to_epoch(Byte epoch) { return {counter_of(epoch), epoch % 8U}; }
constexpr Byte kCounterMax = 4;  // so that an epoch fits the bits of founding_promises

bool contains(const ModelLog& log, const ModelLog& committed, Byte i) {
  return i < log.size && log.entries[i].id == committed.entries[i].id;
}

EpochLine model_line(const ModelLog& log, Byte size) {
  EpochLine line;
  for (Byte i = 0; i < size; ++i) {
    if (i == 0 || log.entries[i].epoch != log.entries[i - 1].epoch) {
      line.begin(to_epoch(log.entries[i].epoch), Lsn{i + 1U});
    }
  }
  return line;
}

bool promised_founding(const ModelNode& node, Byte epoch) {
  return (node.founding_promises[epoch / 8] >> (epoch % 8) & 1) != 0;
}

}  // namespace

/// One step: reads of the rules and writes to the state.
struct Model::Turn {
  Model& model;
  ModelState& s;
  const Rules& rules = model.rules_;
  const Quorum& quorum = model.quorum_;
  const Byte nodes = model.bounds_.nodes;

  void fail(const char* what) const {
    if (model.fault_ == nullptr) model.fault_ = what;
  }
  ModelNode& node(Byte i) const { return s.nodes[i]; }

  // ---- what a node may do ----

  [[nodiscard]] bool lease_runs(const ModelNode& x, Byte released) const {
    if (s.now >= x.lease_until) return false;
    return released == 0 || (rules.release_of_own_epoch && x.lease_epoch != released);
  }
  [[nodiscard]] bool fresh(const ModelNode& x) const {
    return rules.fresh_waits_lease && s.now < x.fresh_until;
  }
  /// Enough nodes have told it of that.
  [[nodiscard]] bool heard(const ModelNode& x, Byte history) const {
    const auto tell = std::count(x.answers.begin(), x.answers.end(), history);
    const auto none = std::count(x.answers.begin(), x.answers.end(), kNoMemory);
    return tell >= answers_needed() || (tell > 0 && none > 0 && tell + none + 1 == nodes);
  }
  [[nodiscard]] bool heard_of_any(const ModelNode& x) const {
    return std::any_of(x.answers.begin(), x.answers.end(),
                       [&](Byte answer) { return answer != 0 && answer != kNoMemory && heard(x, answer); });
  }
  [[nodiscard]] Byte answers_needed() const {
    return static_cast<Byte>(quorum.answers_needed() - (rules.asks_enough ? 0 : 1));
  }
  [[nodiscard]] unsigned promises_needed(const ModelNode& x) const {
    if (x.founding != 0) return quorum.founders_needed() - (rules.all_found ? 0 : 1);
    return quorum.promises_needed() - (rules.promises_suffice ? 0 : 1);
  }
  [[nodiscard]] unsigned leases_needed() const {
    return quorum.leases_needed() - (rules.leases_suffice ? 0 : 1);
  }
  [[nodiscard]] Byte counter_max() const {
    Byte most = 0;
    for (Byte i = 0; i < nodes; ++i) most = std::max(most, counter_of(node(i).promised));
    return most;
  }
  [[nodiscard]] bool candidate(const ModelNode& x) const {
    return x.role == ModelRole::asking || x.role == ModelRole::confirming;
  }
  [[nodiscard]] bool serves(const ModelNode& x) const {
    return x.role == ModelRole::primary && x.commit >= x.noop;
  }
  [[nodiscard]] Byte epoch_of_primary(const ModelNode& x) const { return s.leads[x.lead - 1].epoch; }
  [[nodiscard]] bool may_stand(const ModelNode& x) const {
    return x.memory != 0 && x.role != ModelRole::primary && s.candidacies < model.bounds_.candidacies &&
           !(rules.candidate_heeds_lease && lease_runs(x, 0));
  }
  /// It takes part in a founding.
  [[nodiscard]] bool may_begin(const ModelNode& x) const {
    return x.memory == 0 && x.history == 0 && !heard_of_any(x);
  }
  [[nodiscard]] bool may_found(const ModelNode& x) const {
    return may_begin(x) && s.foundings < model.bounds_.foundings && !candidate(x);
  }
  [[nodiscard]] bool may_promise(Byte i, Byte to) const {
    const ModelNode& y = node(i);
    const ModelNode& x = node(to);
    if (i == to || !candidate(x) || y.promised > x.promised || x.promise_life[i] == y.life) return false;
    if ((x.confirmed & bit(i)) != 0 || in_bag(ModelKind::promise, i, to)) return false;
    if (x.founding != 0) return may_begin(y);
    if (y.memory == 0 || y.history != x.history) return false;
    if (y.following != 0 && y.promised == x.promised) return false;
    return !(rules.promise_heeds_lease && lease_runs(y, x.released));
  }
  [[nodiscard]] bool may_confirm(Byte i, Byte to) const {
    const ModelNode& x = node(to);
    if (x.founding != 0 && node(i).asked_founding != x.promised) return false;
    return x.role == ModelRole::confirming && x.promise_life[i] == node(i).life &&
           (x.confirmed & bit(i)) == 0;
  }
  [[nodiscard]] bool greater(Byte epoch, Byte size, Byte than_epoch, Byte than_size) const {
    if (!rules.epoch_before_lsn) return size > than_size;
    return epoch != than_epoch ? epoch > than_epoch : size > than_size;
  }
  /// Whose log a candidate lacks; itself if nobody's.
  [[nodiscard]] Byte donor_of(Byte i) const {
    const ModelNode& x = node(i);
    Byte donor = i, epoch = x.log.last_epoch(), size = x.log.size;
    for (Byte from = 0; from < nodes; ++from) {
      if ((x.confirmed & bit(from)) == 0 || from == i) continue;
      if (!greater(x.promise_epoch[from], x.promise_size[from], epoch, size)) continue;
      donor = from, epoch = x.promise_epoch[from], size = x.promise_size[from];
    }
    return donor;
  }
  [[nodiscard]] bool confirmed_enough(const ModelNode& x) const {
    return x.role == ModelRole::confirming &&
           static_cast<unsigned>(std::popcount(x.confirmed)) >= promises_needed(x);
  }
  [[nodiscard]] bool may_lead(Byte i) const {
    const ModelNode& x = node(i);
    return confirmed_enough(x) && x.log.size < kEntriesMax && s.leads[kLeadsMax - 1].epoch == 0 &&
           (!rules.greatest_adopted || donor_of(i) == i);
  }
  [[nodiscard]] bool may_fetch(Byte i, Byte from) const {
    const ModelNode& x = node(i);
    const ModelNode& y = node(from);
    return confirmed_enough(x) && rules.greatest_adopted && donor_of(i) == from && from != i &&
           y.life == x.promise_life[from] && y.promised == x.promised;
  }
  [[nodiscard]] bool may_attach(Byte i, Byte to) const {
    const ModelNode& x = node(i);
    const ModelNode& p = node(to);
    if (i == to || p.role != ModelRole::primary || x.promised > epoch_of_primary(p)) return false;
    if (x.following == p.lead && p.peer_life[i] == x.life) return false;
    if (x.memory != 0
            ? x.history != p.history
            : !promised_founding(x, s.founded_by[p.history]) && (fresh(x) || !heard(x, p.history))) {
      return false;
    }
    return x.lease_epoch == epoch_of_primary(p) || !rules.follow_heeds_lease || !lease_runs(x, 0);
  }
  [[nodiscard]] static Byte told_by(const ModelNode& y) { return y.memory != 0 ? y.history : kNoMemory; }
  [[nodiscard]] bool may_answer(Byte i, Byte to) const {
    const ModelNode& x = node(to);
    const ModelNode& y = node(i);
    if (y.memory == 0 && (rules.only_memory_answers || s.lost == 0)) return false;
    return i != to && x.memory == 0 && x.answers[i] != told_by(y) &&
           (!fresh(x) || promised_founding(x, s.founded_by[y.history])) && !in_bag(ModelKind::answer, i, to);
  }
  [[nodiscard]] bool may_send(Byte i, Byte to) const {
    const ModelNode& p = node(i);
    const ModelNode& x = node(to);
    if (p.role != ModelRole::primary || i == to || p.peer_life[to] != x.life || x.following != p.lead)
      return false;
    if (in_bag(ModelKind::data, i, to)) return false;
    const bool news = x.log.size != p.log.size || x.log.last_epoch() != p.log.last_epoch() ||
                      x.commit < p.commit || p.applied[to] < p.log.size;
    const bool stamp = serves(p) && model.bounds_.reads > 0 && p.echo[to] != s.now + 1;
    return news || stamp;
  }
  /// What was before its no-op, and that not yet.
  [[nodiscard]] bool may_send_part(Byte i, Byte to) const {
    const ModelNode& p = node(i);
    const ModelNode& x = node(to);
    return s.parts < model.bounds_.parts && p.role == ModelRole::primary && i != to &&
           p.peer_life[to] == x.life && x.following == p.lead && x.log.size + 1 < p.noop &&
           !in_bag(ModelKind::data, i, to);
  }
  /// A founder's hello arrives once more, when that one leads.
  [[nodiscard]] bool may_promise_again(Byte i, Byte to) const {
    const ModelNode& y = node(i);
    const ModelNode& p = node(to);
    return s.repeats < model.bounds_.repeats && i != to && p.role == ModelRole::primary &&
           s.founded_by[p.history] == epoch_of_primary(p) && y.promised <= epoch_of_primary(p) &&
           may_begin(y);
  }
  [[nodiscard]] bool may_hand_over(Byte i, Byte to) const {
    const ModelNode& p = node(i);
    return i != to && s.handovers < model.bounds_.handovers && serves(p) &&
           p.peer_life[to] == node(to).life && p.applied[to] == p.log.size;
  }
  [[nodiscard]] bool may_crash(Byte i) const {
    const Byte lost = node(i).memory != 0 ? s.lost | bit(i) : s.lost;
    return s.crashes < model.bounds_.crashes && std::popcount(lost) <= model.bounds_.losses;
  }

  // ---- messages ----

  [[nodiscard]] bool in_bag(ModelKind kind, Byte from, Byte to) const {
    return std::any_of(s.bag.begin(), s.bag.end(), [&](const ModelMessage& message) {
      return message.kind == kind && message.from == from && message.to == to;
    });
  }
  /// A message that finds no room is lost.
  void put(const ModelMessage& message) const {
    if (s.bag[0].kind == ModelKind::none) s.bag[0] = message;
    std::sort(s.bag.begin(), s.bag.end());
  }
  /// Nobody takes it any more.
  [[nodiscard]] bool is_dead(const ModelMessage& message) const {
    const ModelNode& to = node(message.to);
    if (to.life != message.to_life) return true;
    switch (message.kind) {
      case ModelKind::promise:
        return !candidate(to) || to.promised != message.epoch;
      case ModelKind::data:
        return to.following != message.epoch;
      case ModelKind::ack:
        return to.role != ModelRole::primary || to.lead != message.epoch ||
               to.peer_life[message.from] != message.from_life;
      case ModelKind::answer:
        return to.memory != 0;
      case ModelKind::lead_now:
        return to.promised != message.epoch || to.role != ModelRole::idle ||
               counter_of(to.promised) == kCounterMax;
      case ModelKind::none:
        break;
    }
    return false;
  }

  // ---- steps ----

  void rest(ModelNode& x) const {
    x.role = ModelRole::idle;
    x.founding = x.released = x.confirmed = x.lead = x.noop = x.following = x.shadow = 0;
    x.asked_founding = 0;
    if (x.memory == 0) x.history = x.target = x.target_lead = 0;
    x.promise_life = x.promise_epoch = x.promise_size = {};
    x.peer_life = x.applied = x.echo = {};
    x.reading = x.read_size = x.read_need = x.read_at = x.read_leased = 0;
  }

  void crash(Byte i) const {
    ModelNode& x = node(i);
    ++s.crashes;
    if (x.memory != 0) s.lost |= bit(i);
    const Byte life = x.life, history = x.history;
    x = ModelNode{};
    x.life = life + 1;
    x.fresh_until = s.now + kLease;
    if (!rules.memory_is_lost) x.memory = 1, x.history = history;
  }

  void regain(Byte i) const {
    ModelNode& x = node(i);
    if (x.memory != 0) return;
    x.memory = 1;
    x.answers = {};
    x.target = x.target_lead = 0;
    if (rules.memory_ends_promise) x.asked_founding = 0;
    for (const ModelNode& other : s.nodes) {
      if (other.memory != 0 && other.history != x.history) fail("two histories are held at once");
    }
    if ((s.lost & bit(i)) != 0) ++model.reached_.regained;
    s.lost &= static_cast<Byte>(~bit(i));
  }

  void stand(Byte i, Byte epoch, Byte released, Byte founding) const {
    ModelNode& x = node(i);
    rest(x);
    x.promised = epoch;
    x.role = ModelRole::asking;
    x.released = released;
    if (released != 0) x.lease_epoch = x.lease_until = 0;
    x.founding = founding;
    x.confirmed = bit(i);
    x.promise_life[i] = x.life;
    ask_further(i);
  }
  /// The second round begins once there are enough promises.
  void ask_further(Byte i) const {
    ModelNode& x = node(i);
    const auto promises = static_cast<unsigned>(
        std::count_if(x.promise_life.begin(), x.promise_life.end(), [](Byte life) { return life != 0; }));
    if (x.role == ModelRole::asking && promises >= promises_needed(x)) x.role = ModelRole::confirming;
    if (x.role == ModelRole::confirming && !rules.second_round) {
      for (Byte from = 0; from < nodes; ++from) {
        if (x.promise_life[from] != 0) x.confirmed |= bit(from);
      }
    }
    for (Byte from = 0; from < nodes; ++from) {
      if (x.promise_life[from] != 0 && x.promise_life[from] != node(from).life)
        ++model.reached_.void_promises;
    }
  }
  void found(Byte i) const {
    ++s.foundings;
    ModelNode& x = node(i);
    const Byte epoch = epoch_of(counter_max() + 1U, i);
    x.founding_promises[epoch / 8] |= bit(epoch % 8);
    stand(i, epoch, 0, ++s.histories);
  }

  void promise(Byte i, Byte to) const {
    ModelNode& y = node(i);
    const ModelNode& x = node(to);
    const bool deposed = y.role != ModelRole::primary || rules.promise_deposes;
    const Byte following = y.following;
    if (deposed) rest(y);
    if (!rules.old_epoch_refused) y.following = following;
    y.promised = x.promised;
    if (x.founding != 0) y.asked_founding = x.promised;
    if (x.released != 0) y.lease_epoch = y.lease_until = 0;
    put({ModelKind::promise, i, y.life, to, x.life, x.promised, y.log.last_epoch(), y.log.size, 0});
  }

  void promise_again(Byte i, Byte to) const {
    ModelNode& y = node(i);
    ++s.repeats;
    rest(y);
    y.promised = y.asked_founding = epoch_of_primary(node(to));
    if (!rules.founding_is_stamped) y.founding_promises[y.promised / 8] |= bit(y.promised % 8);
  }
  /// A stamp of its second round goes there and back.
  void confirm(Byte i, Byte to) const {
    ModelNode& y = node(i);
    ModelNode& x = node(to);
    x.confirmed |= bit(i);
    if (x.founding == 0) return;
    y.founding_promises[x.promised / 8] |= bit(x.promised % 8);
    if (!rules.echo_voids_answers) return;
    for (ModelMessage& message : s.bag) {
      if (message.kind == ModelKind::answer && message.to == i) message = {};
    }
  }

  void fetch(Byte i, Byte from) const {
    node(i).log = node(from).log;
    ++model.reached_.fetches;
  }

  void lead(Byte i) const {
    ModelNode& x = node(i);
    const Byte founding = x.founding, epoch = x.promised;
    rest(x);
    if (founding != 0) {
      x.history = founding;
      s.founded_by[founding] = epoch;
      regain(i);
      ++model.reached_.founded;
    }
    x.role = ModelRole::primary;
    const auto free =
        std::find_if(s.leads.begin(), s.leads.end(), [](auto& lead) { return lead.epoch == 0; });
    x.lead = static_cast<Byte>(free - s.leads.begin() + 1);
    x.noop = x.log.size + 1;
    *free = {epoch, x.history, x.log};
    append(i);
    ++model.reached_.leads;
    for (Byte e = 0; e < s.committed.size; ++e) {
      if (s.committed.entries[e].epoch < epoch && !contains(x.log, s.committed, e)) {
        fail("a committed entry is not in the log of a later primary");
      }
    }
  }
  void append(Byte i) const {
    ModelNode& x = node(i);
    x.log.entries[x.log.size++] = {epoch_of_primary(x), s.next_id++};
    s.leads[x.lead - 1].log = x.log;
    commit(i);
  }

  void commit(Byte i) const {
    ModelNode& x = node(i);
    const Byte epoch = epoch_of_primary(x);
    Byte lsn = x.log.size;
    if (quorum.c > 0) {
      std::array<AppliedLsn, kNodesMax> applied;
      for (Byte peer = 0; peer < nodes; ++peer) applied[peer] = {peer, {peer == i ? 0U : x.applied[peer]}};
      lsn = static_cast<Byte>(kth_applied(std::span(applied).first(nodes), quorum.c).value);
    }
    if (lsn <= x.commit || (lsn < x.noop && rules.commit_needs_noop)) return;
    for (Byte e = 0; e < lsn; ++e) {
      if (e < s.committed.size) {
        if (!contains(x.log, s.committed, e)) fail("two commit in conflict");
        continue;
      }
      s.committed.entries[e] = {epoch, x.log.entries[e].id};
      s.committed.size = e + 1;
      ++model.reached_.commits;
      if (counter_of(epoch) > 1) ++model.reached_.commits_of_later_epochs;
      // Of those that still live: a primary that restarted before anyone heard of its epoch is as if it had
      // never been (with c = n that may be), and had anyone, a lead or a commit in conflict would show it.
      for (const ModelNode& later : s.nodes) {
        if (later.role == ModelRole::primary && epoch_of_primary(later) > epoch &&
            !contains(later.log, s.committed, e)) {
          fail("committed although a later primary lacks it");
        }
      }
    }
    x.commit = lsn;
    settle_read(i);
  }

  void attach(Byte i, Byte to) const {
    ModelNode& x = node(i);
    ModelNode& p = node(to);
    const bool founder = x.memory == 0 && promised_founding(x, s.founded_by[p.history]);
    rest(x);
    x.promised = epoch_of_primary(p);
    x.history = p.history;
    x.following = p.lead;
    if (founder || !rules.memory_needs_log) regain(i);
    if (x.memory == 0) x.target = p.log.size, x.target_lead = p.lead;
    p.peer_life[i] = x.life;
    p.applied[i] = p.echo[i] = 0;
    if (!rules.hello_counts_not) {
      p.applied[i] = x.log.size;
      commit(to);
    }
  }

  void send(Byte i, Byte to) const {
    const ModelNode& p = node(i);
    const Byte stamp = serves(p) && model.bounds_.reads > 0 ? s.now + 1 : 0;
    put({ModelKind::data, i, p.life, to, node(to).life, p.lead, p.log.size, p.commit, stamp});
  }

  void send_part(Byte i, Byte to) const {
    const ModelNode& p = node(i);
    ++s.parts;
    const Byte size = p.noop - 1;
    put({ModelKind::data, i, p.life, to, node(to).life, p.lead, size, std::min(p.commit, size), 0});
  }

  void take_data(const ModelMessage& message) const {
    ModelNode& x = node(message.to);
    const ModelLead& from = s.leads[message.epoch - 1];
    if (rules.old_epoch_refused && x.promised != from.epoch) return;
    const Byte size = message.a;
    const Byte last = x.log.last_epoch();
    if (message.c != 0) {
      x.lease_epoch = from.epoch;
      x.lease_until = std::max<Byte>(x.lease_until, s.now + kLease);
    }
    // A message may be late, or end before what this node has of that primary already.
    const EpochLine line = model_line(from.log, from.log.size);
    const bool prefix = rules.fork_by_epoch ? line.prefix(to_epoch(last), Lsn{x.log.size}, Lsn{from.log.size})
                                            : x.log.size <= size;
    if (prefix) {
      for (Byte e = x.log.size; e < size; ++e) x.log.entries[e] = from.log.entries[e];
      x.log.size = std::max(x.log.size, size);
    } else {
      if (!rules.commit_of_prefix) check_commit(x, std::min(message.b, x.log.size));
      if (x.shadow != message.epoch) {  // what it had stays, and is what it promises by, until all has come
        x.shadow = message.epoch;
        const Byte counts = rules.only_whole_count ? Byte{0} : x.memory;
        return put({ModelKind::ack, message.to, x.life, message.from, message.from_life, message.epoch, size,
                    counts, message.c});
      }
      ++model.reached_.forks;
      x.shadow = 0;
      x.log = from.log;
      for (Byte e = size; e < kEntriesMax; ++e) x.log.entries[e] = {};
      x.log.size = size;
    }
    check_commit(x, std::min(message.b, x.log.size));
    if (x.memory == 0 && x.target_lead == message.epoch && x.log.size >= x.target) regain(message.to);
    put({ModelKind::ack, message.to, x.life, message.from, message.from_life, message.epoch, x.log.size,
         x.memory, message.c});
  }
  void check_commit(ModelNode& x, Byte commit) const {
    x.commit = std::max(x.commit, commit);
    for (Byte e = 0; e < x.commit; ++e) {
      if (e >= s.committed.size || !contains(x.log, s.committed, e)) {
        fail("a node takes for committed what is not");
      }
    }
  }

  void take_ack(const ModelMessage& message) const {
    ModelNode& p = node(message.to);
    if (message.b != 0) p.applied[message.from] = std::max(p.applied[message.from], message.a);
    p.echo[message.from] = std::max(p.echo[message.from], message.c);
    commit(message.to);
    settle_read(message.to);
  }

  void take_answer(const ModelMessage& message) const {
    ModelNode& x = node(message.to);
    x.answers[message.from] = message.epoch;
    if (message.epoch == kNoMemory) return;
    const bool founder = promised_founding(x, s.founded_by[message.epoch]);
    // A founder that hears of enough of a history joins it, and one that promised is bound by the higher.
    if (founder || heard(x, message.epoch) || message.a > x.promised) {
      if (candidate(x)) rest(x);
    }
    x.promised = std::max(x.promised, message.a);
    if (!founder) return;
    x.history = message.epoch;
    regain(message.to);
  }

  void take(const ModelMessage& message) const {
    ModelNode& x = node(message.to);
    switch (message.kind) {
      case ModelKind::promise:
        x.promise_life[message.from] = message.from_life;
        x.promise_epoch[message.from] = message.a;
        x.promise_size[message.from] = message.b;
        ask_further(message.to);
        break;
      case ModelKind::data:
        take_data(message);
        break;
      case ModelKind::ack:
        take_ack(message);
        break;
      case ModelKind::answer:
        take_answer(message);
        break;
      case ModelKind::lead_now:
        ++model.reached_.handovers;
        stand(message.to, epoch_of(counter_of(x.promised) + 1U, message.to), x.promised, 0);
        break;
      case ModelKind::none:
        break;
    }
  }

  void read(Byte i) const {
    ModelNode& p = node(i);
    ++s.reads;
    p.reading = 1;
    p.read_size = p.log.size;
    p.read_need = s.committed.size;
    p.read_at = s.now;
    const Byte clock = s.now - (rules.lease_is_timed || s.now == 0 ? 0 : 1);
    p.read_leased = echoes(p, [&](Byte stamp) { return clock < stamp + kLease; }) >= leases_needed();
    settle_read(i);
  }
  template <class Wanted>
  [[nodiscard]] unsigned echoes(const ModelNode& p, Wanted&& wanted) const {
    return static_cast<unsigned>(std::count_if(p.echo.begin(), p.echo.end(), [&](Byte echo) {
      return echo != 0 && wanted(static_cast<Byte>(echo - 1));
    }));
  }
  void settle_read(Byte i) const {
    ModelNode& p = node(i);
    if (p.reading == 0 || (p.commit < p.read_size && rules.reads_wait_for_commit)) return;
    const bool echoed = echoes(p, [&](Byte stamp) {
                          return stamp > p.read_at || !rules.echo_after_capture;
                        }) >= leases_needed();
    if (p.read_leased == 0 && !echoed) return;
    ++(p.read_leased != 0 ? model.reached_.reads_leased : model.reached_.reads_echoed);
    for (Byte e = 0; e < p.read_need; ++e) {
      if (e >= p.read_size || !contains(p.log, s.committed, e)) fail("a stale read");
    }
    for (Byte e = 0; e < p.read_size; ++e) {
      if (e >= s.committed.size || !contains(p.log, s.committed, e)) fail("a read of what is not committed");
    }
    p.reading = p.read_size = p.read_need = p.read_at = p.read_leased = 0;
  }

  void hand_over(Byte i, Byte to) const {
    ++s.handovers;
    const Byte epoch = node(i).promised, life = node(i).life;
    if (rules.handover_ends_epoch) rest(node(i));
    put({ModelKind::lead_now, i, life, to, node(to).life, epoch, 0, 0, 0});
  }

  void normalise() const {
    for (ModelMessage& message : s.bag) {
      if (message.kind != ModelKind::none && is_dead(message)) message = {};
    }
    std::sort(s.bag.begin(), s.bag.end());
    for (Byte i = 0; i < nodes; ++i) {  // what is past is past
      ModelNode& x = node(i);
      if (x.lease_until <= s.now) x.lease_until = x.lease_epoch = 0;
      if (x.fresh_until <= s.now) x.fresh_until = 0;
    }
  }
};

Model::Model(const Bounds& bounds, const Rules& rules)
    : bounds_(bounds), rules_(rules), quorum_{bounds.nodes - 1U, bounds.c} {
  TL_ASSERT(bounds.nodes <= kNodesMax && bounds.c < bounds.nodes, "a group that the model has room for");
}

ModelState Model::start() const {
  ModelState state;
  if (!bounds_.founded) return state;
  const Byte epoch = epoch_of(1, 0);
  state.histories = 1;
  state.founded_by[1] = epoch;
  for (Byte i = 0; i < bounds_.nodes; ++i) {
    ModelNode& x = state.nodes[i];
    x.history = x.memory = x.following = 1;
    x.promised = epoch;
    x.log.size = 1;
    x.log.entries[0] = {epoch, 1};
    x.commit = 1;
  }
  ModelNode& primary = state.nodes[0];
  primary.role = ModelRole::primary;
  primary.following = 0;
  primary.lead = primary.noop = 1;
  for (Byte i = 1; i < bounds_.nodes; ++i) primary.peer_life[i] = primary.applied[i] = 1;
  state.leads[0] = {epoch, 1, primary.log};
  state.committed = primary.log;
  state.next_id = 2;
  return state;
}

std::vector<Move> Model::moves(ModelState& state) {
  std::vector<Move> all;
  const Turn turn{*this, state};
  const auto add = [&](bool may, Step step, Byte a, Byte b = 0) {
    if (may) all.push_back({step, a, b});
  };
  add(state.now < bounds_.ticks, Step::tick, 0);
  for (Byte i = 0; i < kBagMax; ++i) add(state.bag[i].kind != ModelKind::none, Step::deliver, i);
  for (Byte i = 0; i < bounds_.nodes; ++i) {
    const ModelNode& x = state.nodes[i];
    const Byte most = turn.counter_max();
    add(turn.may_crash(i), Step::crash, i);
    if (turn.may_stand(x)) {
      add(counter_of(x.promised) < kCounterMax, Step::stand, i, counter_of(x.promised) + 1);
      add(most < kCounterMax && most > counter_of(x.promised), Step::stand, i, most + 1);
    }
    add(turn.may_found(x) && most < kCounterMax, Step::found, i);
    add(turn.may_lead(i), Step::lead, i);
    add(turn.serves(x) && x.log.size < kEntriesMax && state.writes < bounds_.writes, Step::write, i);
    add(turn.serves(x) && x.reading == 0 && state.reads < bounds_.reads, Step::read, i);
    for (Byte to = 0; to < bounds_.nodes; ++to) {
      add(turn.may_promise(i, to), Step::promise, i, to);
      add(turn.may_confirm(i, to), Step::confirm, i, to);
      add(turn.may_fetch(i, to), Step::fetch, i, to);
      add(turn.may_attach(i, to), Step::attach, i, to);
      add(turn.may_send(i, to), Step::send, i, to);
      add(turn.may_answer(i, to), Step::answer, i, to);
      add(turn.may_hand_over(i, to), Step::hand_over, i, to);
      add(turn.may_send_part(i, to), Step::send_part, i, to);
      add(turn.may_promise_again(i, to), Step::promise_again, i, to);
    }
  }
  return all;
}

ModelState Model::after(const ModelState& state, const Move& move) {
  fault_ = nullptr;
  ++reached_.steps[static_cast<std::size_t>(move.step)];
  ModelState next = state;
  const Turn turn{*this, next};
  ModelNode& x = next.nodes[move.a < kNodesMax ? move.a : 0];
  switch (move.step) {
    case Step::tick:
      ++next.now;
      break;
    case Step::crash:
      turn.crash(move.a);
      break;
    case Step::stand:
      ++next.candidacies;
      turn.stand(move.a, epoch_of(move.b, move.a), 0, 0);
      break;
    case Step::found:
      turn.found(move.a);
      break;
    case Step::promise:
      turn.promise(move.a, move.b);
      break;
    case Step::confirm:
      turn.confirm(move.a, move.b);
      break;
    case Step::fetch:
      turn.fetch(move.a, move.b);
      break;
    case Step::lead:
      turn.lead(move.a);
      break;
    case Step::write:
      ++next.writes;
      turn.append(move.a);
      break;
    case Step::attach:
      turn.attach(move.a, move.b);
      break;
    case Step::send:
      turn.send(move.a, move.b);
      break;
    case Step::deliver: {
      const ModelMessage message = next.bag[move.a];
      next.bag[move.a] = {};
      std::sort(next.bag.begin(), next.bag.end());
      turn.take(message);
      break;
    }
    case Step::answer:
      turn.put({ModelKind::answer, move.a, x.life, move.b, next.nodes[move.b].life, Turn::told_by(x),
                x.promised, 0, 0});
      break;
    case Step::read:
      turn.read(move.a);
      break;
    case Step::hand_over:
      turn.hand_over(move.a, move.b);
      break;
    case Step::send_part:
      turn.send_part(move.a, move.b);
      break;
    case Step::promise_again:
      turn.promise_again(move.a, move.b);
      break;
    case Step::count:
      break;
  }
  turn.normalise();
  return next;
}

std::string Model::describe(const ModelState& state, const Move& move) {
  static constexpr std::array<const char*, static_cast<std::size_t>(Step::count)> kNames{
      "tick",   "crash", "stand",   "found",  "promise", "confirm",   "fetch",     "lead",         "write",
      "attach", "send",  "deliver", "answer", "read",    "hand over", "send part", "promise again"};
  std::string text = kNames[static_cast<std::size_t>(move.step)];
  const auto number = [](Byte value) { return std::to_string(value); };
  if (move.step == Step::deliver) {
    static constexpr std::array<const char*, 6> kKinds{"nothing", "promise", "data", "ack", "answer", "lead"};
    const ModelMessage& message = state.bag[move.a];
    return text + " " + kKinds[static_cast<std::size_t>(message.kind)] + " " + number(message.from) + " -> " +
           number(message.to) + " (" + number(message.a) + ", " + number(message.b) + ")";
  }
  return text + " " + number(move.a) + " " + number(move.b);
}

}  // namespace tidelock::model
