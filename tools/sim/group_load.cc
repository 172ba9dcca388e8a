#include "group_load.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <tidelock/reactor/fiber.h>

#include "values.h"

namespace tidelock::sim {

GroupLoad::GroupLoad(const Scene& scene, std::vector<std::unique_ptr<GroupHost>>& nodes, History& history)
    : scene_(scene), nodes_(nodes), history_(history), calls_left_(scene.shape.calls) {}

void GroupLoad::started(GroupHost& host) {
  const std::uint64_t entity = std::uint64_t{host.node().incarnation()} << 32 | host.number() << 8;
  for (std::uint32_t i = 0; i < scene_.shape.clients; ++i) {
    host.node().spawn(0, "client", [this, &host, random = scene_.world.stream("group client", entity + i)] {
      client(host, host.life(), random);
    });
  }
  host.node().spawn(0, "reader", [this, &host, random = scene_.world.stream("group reader", entity)] {
    reader(host, host.life(), random);
  });
}

// ---- at whoever leads -----------------------------------------------------------------------------------

void GroupLoad::client(GroupHost& host, GroupLife& life, Random random) {
  const Duration even{2 * scene_.shape.faults_until.ns * scene_.shape.clients / scene_.shape.calls};
  const Duration pause = std::min(even, seconds(5));  // less than what is left for the end
  while (!life.dying && !stopping_ && calls_left_ > 0) {
    if (life.node->member().role() != MemberRole::leading) {
      this_fiber::sleep_for(draw(random, milliseconds(5), milliseconds(50)));
      continue;
    }
    --calls_left_;
    if (one_in(random, 4)) {
      get(host, life, random);
    } else {
      write(host, life, random);
    }
    if (!life.dying && !one_in(random, 3)) this_fiber::sleep_for(draw(random, Duration{0}, pause));
  }
}

GroupLoad::Write GroupLoad::make_write(const GroupLife& life, std::uint32_t key, std::size_t bytes,
                                       bool erases) {
  Write write;
  write.key = key;
  write.key_bytes = key_text(key);
  write.kind = erases ? EntryKind::erase : EntryKind::put;
  if (!erases) {
    write.number = ++numbers_;
    write.value = make_value(write.number, bytes);
  }
  write.call =
      history_.begin(erases ? CallKind::erase : CallKind::put, life.tree->number(), key, write.number);
  return write;
}

GroupLoad::Write GroupLoad::make_fence() {
  Write write;
  write.key = scene_.shape.keys;
  write.key_bytes = key_text(write.key);
  write.number = ++numbers_;
  write.value = make_value(write.number, kValueBytesLeast);
  write.fence = true;
  return write;
}

/// One group, all or nothing. `reads`: gets what `read_key` held in the same turn.
bool GroupLoad::append(GroupHost& host, GroupLife& life, std::vector<Write>& writes, Instant deadline,
                       std::uint64_t* reads, std::uint32_t read_key) {
  Primary& primary = life.node->member().primary();
  std::uint32_t left = 0;
  for (const Write& each : writes) left += entry_bytes(each.kind, each.key_bytes.size(), each.value.size());
  const Status room = primary.wait_for_room(left, deadline);
  if (!room && room.error() == ReplicationErrc::no_replica) ++scene_.syncs.below_c;
  if (!room || life.dying) return false;
  if (reads != nullptr) *reads = life.table->table().at(read_key).value_or(0);
  for (Write& each : writes) {
    left -= entry_bytes(each.kind, each.key_bytes.size(), each.value.size());
    const auto lsn = primary.try_append(each.kind, as_bytes(each.key_bytes), as_bytes(each.value), left);
    if (!lsn) {
      scene_.world.fail(
          "room", host.name() + ": what wait_for_room() promised was not there: " + lsn.error().message());
      return false;
    }
    each.lsn = *lsn;
    if (each.kind == EntryKind::erase) {
      life.table->table().erase(as_bytes(each.key_bytes));
    } else {
      life.table->table().put(as_bytes(each.key_bytes), as_bytes(each.value), *lsn);
    }
  }
  return true;
}

/// Waits for that; what is true of whoever is told so is checked.
bool GroupLoad::acknowledged(GroupHost& host, GroupLife& life, const Write& last, AckLevel level,
                             Instant deadline, std::uint32_t replicas) {
  host.look_at_log();
  EntryTree& tree = *life.tree;
  const std::size_t index = tree.ancestor(life.last, last.lsn);
  const Status acked = life.node->member().primary().wait(last.lsn, level, deadline, replicas);
  if (!acked || life.dying) return false;
  if (level != AckLevel::applied || scene_.shape.group.beyond) return true;
  host.look_at_log();
  const std::uint32_t needed = replicas != 0 ? replicas : *scene_.shape.c;
  const std::uint32_t have = tree.others_with(index, host.number());
  if (have < needed) {
    scene_.world.fail("acked",
                      fmt::format("{}: {} was acknowledged as applied by {}, and {} other nodes have it",
                                  host.name(), tree.name(index), needed, have));
  }
  if (needed < *scene_.shape.c) return true;
  if (!tree.is_committed(index)) {
    scene_.world.fail(
        "acked", fmt::format("{}: {} was acknowledged, and is not committed", host.name(), tree.name(index)));
  }
  tree.acknowledged(index);
  return true;
}

void GroupLoad::end_all(const std::vector<Write>& writes, Outcome outcome) {
  for (const Write& each : writes) {
    if (!each.fence) history_.end(each.call, outcome);
    scene_.world.trace().mix(each.lsn.value << 8 | static_cast<std::uint64_t>(outcome));
  }
}

void GroupLoad::write(GroupHost& host, GroupLife& life, Random& random) {
  constexpr AckLevel kLevels[] = {AckLevel::local, AckLevel::received, AckLevel::applied, AckLevel::applied};
  host.look_at_log();
  const AckLevel level = kLevels[random.below(4)];
  const auto replicas =
      one_in(random, 4) ? static_cast<std::uint32_t>(1 + random.below(scene_.shape.replicas)) : 0U;
  const Instant deadline = host.node().clock().now() + draw_magnitude(random, milliseconds(1), seconds(2));
  const std::uint64_t count = one_in(random, 8) ? 2 + random.below(3) : 1;
  const std::uint64_t bytes_most = scene_.shape.heavy ? 1'800 : one_in(random, 8) ? 1'000 : 100;
  std::vector<Write> writes;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto key = static_cast<std::uint32_t>(random.below(scene_.shape.keys));
    const std::uint64_t bytes = kValueBytesLeast + random.below(bytes_most);
    writes.push_back(make_write(life, key, bytes, one_in(random, 10)));
  }
  if (!append(host, life, writes, deadline, nullptr, 0))
    return end_all(writes, life.dying ? Outcome::unknown : Outcome::not_done);
  // Whoever is told less than that it will stay has been told nothing that holds once another leads.
  const bool told = acknowledged(host, life, writes.back(), level, deadline, replicas);
  const bool stays = told && level == AckLevel::applied && (replicas == 0 || replicas >= *scene_.shape.c);
  end_all(writes, stays ? Outcome::ok : Outcome::unknown);
}

/// What is appended right behind it is committed: so the read was no older than any other primary's writes.
void GroupLoad::get(GroupHost& host, GroupLife& life, Random& random) {
  host.look_at_log();
  const auto key = static_cast<std::uint32_t>(random.below(scene_.shape.keys));
  const Instant deadline = host.node().clock().now() + draw_magnitude(random, milliseconds(1), seconds(2));
  const std::size_t call = history_.begin(CallKind::get, life.tree->number(), key, 0);
  std::vector<Write> fence;
  fence.push_back(make_fence());
  std::uint64_t found = 0;
  const bool read = append(host, life, fence, deadline, &found, key) &&
                    acknowledged(host, life, fence.back(), AckLevel::applied, deadline, 0);
  history_.found(call, found);
  scene_.world.trace().mix(found);
  history_.end(call, read ? Outcome::ok : Outcome::unknown);
}

// ---- at all ---------------------------------------------------------------------------------------------

/// `committed` reads: what was captured, once the node knows that it is committed. Prefixes ascend.
void GroupLoad::reader(GroupHost& host, GroupLife& life, Random random) {
  Lsn floor{};
  const EntryTree* of = nullptr;
  while (!life.dying && !stopping_) {
    this_fiber::sleep_for(draw(random, milliseconds(10), milliseconds(200)));
    if (life.dying || !host.remembers()) continue;
    host.look_at_log();
    if (life.tree == nullptr) continue;
    if (std::exchange(of, life.tree) != life.tree) floor = Lsn{};
    const auto key = static_cast<std::uint32_t>(random.below(scene_.shape.keys));
    const std::size_t captured = life.last;
    const EntryTree::Entry entry = life.tree->at(captured);
    const std::uint64_t found = life.table->table().at(key).value_or(0);
    const Instant deadline = host.node().clock().now() + draw_magnitude(random, milliseconds(1), seconds(1));
    if (entry.lsn == Lsn{}) continue;
    const Status committed = life.node->member().log().wait_committed(entry.epoch, entry.lsn, deadline);
    if (!committed || life.dying) continue;
    history_.read_at_replica();
    scene_.world.trace().mix(found << 8 | key);
    if (scene_.shape.group.beyond) continue;
    host.look_at_log();
    if (!of->is_committed(captured))
      scene_.world.fail("committed_prefix", fmt::format("{}: {} is read as committed, and is not",
                                                        host.name(), of->name(captured)));
    if (entry.lsn < floor)
      scene_.world.fail("committed_prefix",
                        fmt::format("{}: a read of what is committed at {} after one at LSN {}", host.name(),
                                    of->name(captured), floor.value));
    floor = std::max(floor, entry.lsn);
    const std::uint64_t should = of->value_at(captured, key);
    if (found != should)
      scene_.world.fail("committed_prefix",
                        fmt::format("{}: \"{}\" reads as write {} at {}, and was {}", host.name(),
                                    key_text(key), found, of->name(captured), should));
  }
}

// ---- operators, and the end -----------------------------------------------------------------------------

bool GroupLoad::promote(GroupHost& host, Duration timeout) {
  if (!host.up()) return false;
  ++promoting_;
  const bool started = host.node().spawn(0, "operator", [this, &host, timeout] {
    GroupLife& life = host.life();
    if (!life.dying) static_cast<void>(life.node->promote({}, host.node().clock().now() + timeout));
    --promoting_;
  });
  if (!started) --promoting_;
  return started;
}

void GroupLoad::last_put(GroupHost& host, Duration timeout) {
  succeeded_ = false;
  const bool started = host.node().spawn(0, "last put", [this, &host, timeout] {
    GroupLife& life = host.life();
    host.look_at_log();
    std::vector<Write> writes;
    const Instant deadline = host.node().clock().now() + timeout;
    writes.push_back(make_fence());
    if (!append(host, life, writes, deadline, nullptr, 0)) return;
    succeeded_ = acknowledged(host, life, writes.back(), AckLevel::applied, deadline, 0);
  });
  if (!started)
    scene_.world.fail("no_leak", host.name() + " is out of fibers although nobody is at work there");
}

}  // namespace tidelock::sim
