#include "group_host.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <tidelock/base/check.h>

#include "sim_dialer.h"
#include "sim_link.h"
#include "values.h"

namespace tidelock::sim {
namespace {

constexpr std::uint32_t kLookBytes = 64 * 1024;

}  // namespace

EntryTree& Histories::of(HistoryId id) {
  for (const auto& tree : all_) {
    if (tree->id() == id) return *tree;
  }
  return *all_.emplace_back(std::make_unique<EntryTree>(all_.size(), id, keys_));
}

// ---- the table ------------------------------------------------------------------------------------------

GroupTable::GroupTable(const Scene& scene, std::uint32_t node)
    : scene_(scene), node_(node), table_(scene.planted.table) {}

template <class Take>
void GroupTable::each_whole(std::span<const EntryView> entries, std::string& piece, const Take& take) {
  if (before_apply) before_apply();
  for (const EntryView& entry : entries) {
    if (entry.kind == EntryKind::noop) continue;
    if (entry.kind != EntryKind::fragment) {
      take(entry, entry.key, entry.value);
      continue;
    }
    piece += as_text(entry.value);
    if (!entry.last_fragment()) continue;
    const Bytes whole = as_bytes(piece);
    if (whole.size() != std::size_t{entry.key_bytes} + entry.value_bytes) {
      scene_.world.fail("applied_once", fmt::format("node {}: a put whose pieces do not add up", node_));
    } else {
      take(entry, whole.first(entry.key_bytes), whole.subspan(entry.key_bytes));
    }
    piece.clear();
  }
}

Status GroupTable::apply(std::span<const EntryView> entries) {
  each_whole(entries, piece_, [this](const EntryView& entry, Bytes key, Bytes value) {
    entry.kind == EntryKind::erase ? table_.erase(key) : table_.put(key, value, entry.lsn);
  });
  return {};
}

Status GroupTable::begin_shadow() {
  if (table_.has_shadow())
    scene_.world.fail("snapshot", fmt::format("node {}: a snapshot begins while one is under way", node_));
  table_.begin_shadow();
  return {};
}

Status GroupTable::apply_live(std::span<const EntryView> entries) {
  each_whole(entries, shadow_piece_, [this](const EntryView& entry, Bytes key, Bytes value) {
    entry.kind == EntryKind::erase ? table_.erase_older(key, entry.lsn)
                                   : table_.put_newer(key, value, entry.lsn);
  });
  return {};
}

Status GroupTable::add_records(std::span<const EntryView> entries) {
  each_whole(entries, record_piece_, [this](const EntryView& entry, Bytes key, Bytes value) {
    table_.put_newer(key, value, entry.lsn);
  });
  return {};
}

void GroupTable::swap_shadow(Lsn lsn) {
  table_.swap_shadow();
  swapped_ = lsn;
  piece_ = std::exchange(shadow_piece_, {});
  record_piece_.clear();
  if (lsn != Lsn{}) ++scene_.syncs.whole;
}

void GroupTable::drop_shadow() {
  ++scene_.syncs.broken;
  table_.drop_shadow();
  shadow_piece_.clear();
  record_piece_.clear();
}

// ---- the node -------------------------------------------------------------------------------------------

GroupHost::GroupHost(const Scene& scene, Histories& histories, std::uint32_t number)
    : scene_(scene), histories_(histories), node_(scene.world, number, scene.shape.node) {}

void GroupHost::start(Dialer& dialer) {
  node_.start();
  life_ = std::make_unique<GroupLife>();
  life_->table = std::make_unique<GroupTable>(scene_, number());
  const Shape& shape = scene_.shape;
  GroupNodeOptions options;
  options.member.group.node = number();
  for (std::uint32_t other = 1; other <= shape.replicas + 1; ++other) {
    options.member.group.nodes.push_back(other);
    if (other != number()) options.peers.push_back({other, SimDialer::address_of(other)});
  }
  options.member.group.c = *shape.c;
  options.member.group.lease = shape.group.lease;
  options.member.group.group_bytes_max =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(shape.log_bytes / 4, kEntryBytesMax));
  options.member.log_bytes = shape.log_bytes;
  options.member.ring_bytes = shape.wire.ring_bytes;
  options.member.heartbeat = shape.heartbeat;
  options.member.link_timeout = shape.link_timeout;
  options.member.routing_seed = number();
  options.stands = shape.group.stands;
  options.attempt.round = shape.group.round;
  options.attempt.pause = shape.group.pause;
  options.attempt.pause_max = shape.group.pause_max;
  GroupTable& table = *life_->table;
  GroupNodeObserver& observer = *this;
  auto made = GroupNode::create(node_.core().reactor(), node_.clock(), {table, &table, &table.table()},
                                dialer, observer, options);
  TL_ASSERT(made, "a simulated node has what it needs");
  life_->node = *std::move(made);
  table.before_apply = [this] {
    const Link* const link = member().replica().link();
    if (link != nullptr) static_cast<const SimLink*>(link)->wire().scribble_now();
  };
  node_.core().watch([this] {
    const Link* const link = std::as_const(member()).replica().link();
    bool waits = link != nullptr && link->has_work();
    member().primary().each_link([&](const Link& each) { waits = waits || each.has_work(); });
    return waits;
  });
  node_.after_turn([this](Core&, Duration) { after_turn(); });
  TL_ASSERT(life_->node->start(), "a simulated node has the fibers that it needs");
}

void GroupHost::kill() {
  if (!up()) return;
  life_->dying = true;
  count();
  node_.kill([this] { life_->node.reset(); });
}

void GroupHost::count() {
  const PrimaryStats& stats = member().primary().stats();
  scene_.syncs.snapshots += stats.snapshots.load(std::memory_order_relaxed);
  scene_.syncs.ranges += stats.ranges.load(std::memory_order_relaxed);
  scene_.syncs.drops += stats.backlog_drops.load(std::memory_order_relaxed);
}

void GroupHost::farewell() {
  life_->node->stop();
  member().close("the run is over");
}

void GroupHost::role_changed(MemberRole role, const std::string& why) {
  if (life_->dying) return;
  constexpr const char* kRoles[] = {"follows nobody", "follows", "leads"};
  scene_.world.trace().mix(static_cast<std::uint64_t>(role) << 8 | number());
  scene_.world.trace().note(
      [&] { return fmt::format("  {} {}: {}", name(), kRoles[static_cast<int>(role)], why); });
}

void GroupHost::note(const std::string& what) {
  scene_.world.trace().note([&] { return fmt::format("  {} notes: {}", name(), what); });
}

// ---- what its log is ------------------------------------------------------------------------------------

void GroupHost::after_turn() {
  look_at_log();
  const GroupLog& log = member().log();
  scene_.world.trace().mix(log.last_lsn().value << 32 ^ log.commit_lsn().value);
}

void GroupHost::look_at_log() {
  GroupLife& life = *life_;
  const GroupLog& log = member().log();
  const HistoryId history = membership().history();
  const auto swapped = life.table->swapped();
  if (history != HistoryId{} && (life.tree == nullptr || life.tree->id() != history)) {
    life.tree = &histories_.of(history);
    life.last = EntryTree::kRoot;
    life.commit = Lsn{};
    life.position = log.log().begin();
  }
  if (life.tree == nullptr) return;
  if (swapped) {
    const auto epoch = log.line().epoch_of(*swapped);
    const auto index = life.tree->find(epoch.value_or(Epoch{}), *swapped);
    life.position = log.log().begin();
    life.last = index.value_or(EntryTree::kRoot);
    if (!index) {
      scene_.world.fail("snapshot", fmt::format("{}: a snapshot of LSN {}, and no node ever had that", name(),
                                                swapped->value));
    } else if (*swapped == Lsn{}) {
      life.commit = Lsn{};
    } else {
      life.tree->holds(number(), life.last);
    }
  }
  check_winner();
  follow_log(log);
  if (swapped && *swapped != Lsn{}) check_table("after a snapshot");
  follow_commit(log);
  check_leads();
}

void GroupHost::follow_log(const GroupLog& log) {
  GroupLife& life = *life_;
  bool skipped = life.position < log.log().begin();  // more than the log holds came since the last look
  if (skipped) life.position = log.log().begin();
  while (life.position < log.log().end()) {
    const Log::Run run = log.log().run_at(life.position, kLookBytes, kGroupBytesMax);
    if (run.entries == 0) return;
    for (EntryReader reader(run.bytes); !reader.at_end();) {
      const auto entry = reader.next();
      if (!entry)
        return scene_.world.fail("log_prefix",
                                 fmt::format("{}: the log is damaged: {}", name(), entry.error().message()));
      if (entry->kind == EntryKind::fragment) {
        if (!entry->last_fragment()) continue;
      }
      if (std::exchange(skipped, false)) {
        // Whoever wrote it had what is before it.
        const auto known = life.tree->find(entry->epoch, entry->lsn);
        if (!known)
          return scene_.world.fail("log_prefix", fmt::format("{}: LSN {}, and its primary never had that",
                                                             name(), entry->lsn.value));
        life.last = life.tree->at(*known).before;
        life.tree->holds(number(), life.last);
      }
      EntryTree::Entry made{entry->epoch, entry->lsn, entry->kind};
      if (entry->kind == EntryKind::put || entry->kind == EntryKind::erase)
        made.key = key_of(entry->key).value_or(~0U);
      if (entry->kind == EntryKind::put) {
        made.value = number_of(entry->value).value_or(0);
        made.bytes = entry->value.size();
        if (made.value == 0)
          scene_.world.fail("log_prefix",
                            fmt::format("{}: the value at LSN {} is damaged", name(), entry->lsn.value));
      }
      Violation wrong;
      life.last = life.tree->add(number(), life.last, made, wrong);
      scene_.check("log_prefix", name(), wrong);
    }
    life.position = run.next;
  }
}

void GroupHost::follow_commit(const GroupLog& log) {
  GroupLife& life = *life_;
  const Lsn commit = log.commit_lsn();
  if (membership().history() != life.tree->id()) return;  // of none now
  if (commit == life.commit) return;
  if (commit < life.commit) {
    scene_.world.fail("one_commit", fmt::format("{}: the commit LSN fell from {} to {}", name(),
                                                life.commit.value, commit.value));
  }
  life.commit = commit;
  if (commit > life.tree->at(life.last).lsn)
    return scene_.world.fail("one_commit", fmt::format("{}: commit LSN {}, and its log ends with {}", name(),
                                                       commit.value, life.tree->name(life.last)));
  const std::size_t index = life.tree->ancestor(life.last, commit);
  if (scene_.shape.group.beyond) {
    static_cast<void>(life.tree->commit(index));
    return;
  }
  if (member().role() == MemberRole::leading) {
    const std::uint32_t have = life.tree->others_with(index, number());
    if (have < *scene_.shape.c) {
      scene_.world.fail("one_commit",
                        fmt::format("{}: {} is committed, and {} of the {} others that it takes have it",
                                    name(), life.tree->name(index), have, *scene_.shape.c));
    }
    // A candidate may have heard of it from whom it fetched, in the turn in which it began to lead.
    const bool goes_on = life.led == member().primary().epoch();
    if (goes_on && life.tree->at(index).epoch != life.led)
      scene_.world.fail("one_commit",
                        fmt::format("{}: {} is committed without an entry of the epoch that it leads", name(),
                                    life.tree->name(index)));
  }
  scene_.check("one_line", name(), life.tree->commit(index));
  for (const auto& other : histories_.all()) {
    if (other.get() != life.tree && other->committed() != EntryTree::kRoot)
      scene_.world.fail("one_line",
                        fmt::format("{}: commits in a history, and another one has commits, too", name()));
  }
}

bool GroupHost::begins_to_lead() {
  return member().role() == MemberRole::leading && member().primary().epoch() != life_->led;
}

/// Where all others are needed to commit, a node may lead an epoch that nobody hears of, forget it, and lead
/// it again: it is then as if the first had never been.
void GroupHost::check_winner() {
  if (!begins_to_lead()) return;
  EntryTree& tree = *life_->tree;
  const Epoch epoch = member().primary().epoch();
  if (histories_.led(tree.id(), epoch) || scene_.shape.group.beyond) return;
  if (*scene_.shape.c == scene_.shape.replicas && tree.forget_unheard(epoch, number())) return;
  scene_.world.fail("one_winner",
                    fmt::format("{}: epoch {}.{} has been led before", name(), epoch.counter, epoch.node));
}

/// At the first look after it began to lead.
void GroupHost::check_leads() {
  GroupLife& life = *life_;
  if (!begins_to_lead()) return;
  life.led = member().primary().epoch();
  if (scene_.shape.group.beyond) return;
  scene_.check("one_line", name(), life.tree->check_leads(life.last));
  check_table("when it begins to lead");
}

void GroupHost::check_table(const char* when) {
  const GroupLife& life = *life_;
  if (life.tree == nullptr) return;
  const std::vector<std::uint64_t> should = life.tree->table_at(life.last);
  for (std::uint32_t key = 0; key < should.size(); ++key) {
    const auto found = life.table->table().at(key);
    if (found == should[key]) continue;
    scene_.world.fail(
        "snapshot", fmt::format("{}, {}: write {} stands under \"{}\", and {} should after {}", name(), when,
                                found.value_or(0), key_text(key), should[key], life.tree->name(life.last)));
    return;
  }
}

}  // namespace tidelock::sim
