#include "workload.h"

#include <algorithm>

#include <fmt/format.h>

#include <tidelock/base/check.h>
#include <tidelock/reactor/fiber.h>

#include "values.h"

namespace tidelock::sim {

namespace {

/// A write that was appended. Only these two leave open what becomes of it: whatever else a caller is told,
/// it may count on its not having happened.
Outcome outcome_of_failed(const Status& acked, bool dying) {
  const bool open =
      dying || acked.error() == ReplicationErrc::outcome_unknown || acked.error() == ReactorErrc::cancelled;
  return open ? Outcome::unknown : Outcome::not_done;
}

}  // namespace

Workload::Workload(const Scene& scene, PrimaryHost& primary,
                   std::vector<std::unique_ptr<ReplicaHost>>& replicas, History& history)
    : scene_(scene),
      primary_(primary),
      replicas_(replicas),
      history_(history),
      target_(scene.world.add(*this)),
      calls_left_(scene.shape.calls) {}

Workload::~Workload() { scene_.world.remove(target_); }

void Workload::primary_started() {
  for (std::uint32_t i = 0; i < scene_.shape.clients; ++i) {
    const Random random =
        scene_.world.stream("client", std::uint64_t{primary_.node().incarnation()} << 32 | i);
    primary_.node().spawn(0, "client", [this, random] { client(primary_.life(), random); });
  }
}

void Workload::replica_started(std::size_t replica) {
  ReplicaHost& host = *replicas_[replica];
  const Random random =
      scene_.world.stream("poller", std::uint64_t{host.node().incarnation()} << 32 | host.node().number());
  host.node().spawn(0, "poller", [this, &host, random] { poller(host, host.life(), random); });
}

// ---- at the primary -------------------------------------------------------------------------------------

void Workload::client(PrimaryLife& life, Random random) {
  // So that the calls are spread over the time in which there are faults.
  const Duration pause{3 * scene_.shape.faults_until.ns * scene_.shape.clients / scene_.shape.calls};
  while (!life.dying && !stopping_ && calls_left_ > 0) {
    --calls_left_;
    if (random.below(100) < 20) {
      get(life, random);
    } else {
      write(life, random);
    }
    // Now and then a burst.
    if (!life.dying && !one_in(random, 3)) this_fiber::sleep_for(draw(random, Duration{0}, pause));
  }
}

void Workload::snapshot_begins() {
  if (!scene_.shape.heavy || stopping_) return;
  const Random random = scene_.world.stream("storm", ++storms_);
  primary_.node().spawn(0, "storm", [this, random] { storm(primary_.life(), random); });
}

/// Writes, most of which wait for nobody.
void Workload::storm(PrimaryLife& life, Random random) {
  constexpr std::int64_t kWritesMost = 100;
  for (std::int64_t left = draw(random, 10, kWritesMost); left > 0 && !life.dying && !stopping_; --left) {
    write(life, random, true);
    if (!life.dying) this_fiber::sleep_for(draw_magnitude(random, microseconds(1), milliseconds(20)));
  }
}

void Workload::get(PrimaryLife& life, Random& random) {
  const auto key = static_cast<std::uint32_t>(random.below(scene_.shape.keys));
  const std::size_t call = history_.begin(CallKind::get, life.line->number(), key, 0);
  if (one_in(random, 2)) static_cast<void>(this_fiber::yield());
  const auto found = life.table->at(key);
  if (!found) scene_.world.fail("log_prefix", "node 1: the value of \"" + key_text(key) + "\" is damaged");
  history_.found(call, found.value_or(0));
  scene_.world.trace().mix(found.value_or(0));
  history_.end(call, life.dying ? Outcome::unknown : Outcome::ok);
}

std::optional<std::uint32_t> Workload::large_key(Random& random) const {
  if (large_keys_.empty()) return std::nullopt;
  return large_keys_[random.below(large_keys_.size())];
}

Workload::Write Workload::make_write(PrimaryLife& life, Random& random, std::size_t bytes, bool erases,
                                     std::optional<std::uint32_t> key) {
  Write write;
  const auto drawn = static_cast<std::uint32_t>(random.below(scene_.shape.keys));
  write.key = key.value_or(drawn);
  write.key_bytes = key_text(write.key);
  write.kind = erases ? EntryKind::erase : EntryKind::put;
  if (!erases) {
    write.number = ++numbers_;
    write.value = make_value(write.number, bytes);
  }
  write.call =
      history_.begin(erases ? CallKind::erase : CallKind::put, life.line->number(), write.key, write.number);
  return write;
}

void Workload::write(PrimaryLife& life, Random& random, bool storms) {
  constexpr AckLevel kLevels[] = {AckLevel::local, AckLevel::received, AckLevel::applied, AckLevel::applied};
  const bool heavy = scene_.shape.heavy;
  const bool waits = !storms || one_in(random, 8);
  const AckLevel level = waits ? kLevels[random.below(4)] : AckLevel::local;
  // Mostly as many as it takes to commit.
  const auto replicas =
      one_in(random, 4) ? static_cast<std::uint32_t>(1 + random.below(scene_.shape.replicas)) : 0U;
  const Instant deadline =
      primary_.node().clock().now() + draw_magnitude(random, milliseconds(1), seconds(4));
  const std::uint64_t kind = random.below(100);
  std::vector<Write> writes;
  bool written = false;
  if (kind < (heavy ? 6U : 2U)) {
    writes.push_back(make_write(
        life, random, kLargeValueBytesLeast + random.below(kLargeValueBytesMost - kLargeValueBytesLeast),
        false));
    written = append_large(life, writes[0], deadline);
  } else {
    const std::uint64_t count = kind < 12 ? 2 + random.below(4) : 1;
    // The smallest log takes groups of 16 KiB.
    const std::uint64_t bytes_most = !one_in(random, heavy ? 2 : 8) ? 200 : count > 1 ? 2'000 : 4'000;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = kValueBytesLeast + random.below(bytes_most);
      // Of a large value many pieces are on their way in a snapshot: then is the time to take it away.
      if (storms && one_in(random, 3)) {
        writes.push_back(make_write(life, random, bytes, one_in(random, 2), large_key(random)));
        continue;
      }
      writes.push_back(make_write(life, random, bytes, one_in(random, heavy ? 4 : 10)));
    }
    written = append(life, writes, deadline);
  }
  if (!written) return end_all(writes, Outcome::not_done);
  const Lsn last = writes.back().lsn;
  const Status acked =
      life.dying ? Status(ReactorErrc::cancelled) : life.primary->wait(last, level, deadline, replicas);
  if (!acked && !life.dying && acked.error() != ReactorErrc::cancelled)
    scene_.check("waits", "node 1", check_expired(last, life.primary->reached(last, level, replicas)));
  if (!acked || life.dying) return end_all(writes, outcome_of_failed(acked, life.dying));
  scene_.check(
      "acked", "node 1",
      check_acked(*life.line, last, level, replicas != 0 ? replicas : life.primary->replicas_needed()));
  end_all(writes, Outcome::ok);
  for (const Write& each : writes) notify(life, random, each);
}

/// One group, all or nothing.
bool Workload::append(PrimaryLife& life, std::vector<Write>& writes, Instant deadline) {
  std::uint32_t left = 0;
  for (const Write& each : writes) left += entry_bytes(each.kind, each.key_bytes.size(), each.value.size());
  const Status room = life.primary->wait_for_room(left, deadline);
  if (!room && room.error() == ReplicationErrc::no_replica) ++scene_.syncs.below_c;
  if (!room || life.dying) return false;
  for (Write& each : writes) {
    scene_.check("below_c", "node 1", check_enough(primary_.whole_nodes(), scene_.shape.c.value_or(0)));
    left -= entry_bytes(each.kind, each.key_bytes.size(), each.value.size());
    const auto lsn =
        life.primary->try_append(each.kind, as_bytes(each.key_bytes), as_bytes(each.value), left);
    if (!lsn) {
      scene_.world.fail("room", "what wait_for_room() promised was not there: " + lsn.error().message());
      return false;
    }
    stand(life, each, *lsn);
  }
  return true;
}

/// In fragments. Others cannot write meanwhile, so its LSN comes after theirs when it is whole.
bool Workload::append_large(PrimaryLife& life, Write& write, Instant deadline) {
  const auto lsn = life.primary->append_fragments(as_bytes(write.key_bytes), as_bytes(write.value), deadline);
  if (!lsn) return false;
  stand(life, write, *lsn);
  constexpr std::size_t kLargeKeysMost = 4;
  large_keys_.push_back(write.key);
  if (large_keys_.size() > kLargeKeysMost) large_keys_.pop_front();
  return true;
}

/// What it takes up in the log, counted without asking the log.
std::uint64_t Workload::log_bytes_of(const Write& write) const {
  const std::uint64_t body = write.key_bytes.size() + write.value.size();
  if (body + kEntryHeaderBytes <= kEntryBytesMax)
    return entry_bytes(write.kind, write.key_bytes.size(), write.value.size());
  const std::uint64_t piece = std::min<std::uint64_t>(kEntryBytesMax, scene_.shape.log_bytes / 4);
  const std::uint64_t pieces = body / (piece - kFragmentHeaderBytes) + 1;
  return body + pieces * (kFragmentHeaderBytes + kEntryAlignment);
}

void Workload::stand(PrimaryLife& life, Write& write, Lsn lsn) {
  life.line->append({write.key, write.number, life.epoch, write.value.size()}, log_bytes_of(write));
  if (life.line->last() != lsn) {
    scene_.world.fail("log_prefix", fmt::format("a write got LSN {}, and {} were written before", lsn.value,
                                                life.line->last().value - 1));
  }
  write.lsn = lsn;
  if (write.kind == EntryKind::erase) {
    life.table->erase(as_bytes(write.key_bytes));
  } else {
    life.table->put(as_bytes(write.key_bytes), as_bytes(write.value), lsn);
  }
  history_.written(write.call, lsn);
}

void Workload::end_all(const std::vector<Write>& writes, Outcome outcome) {
  for (const Write& each : writes) {
    history_.end(each.call, outcome);
    scene_.world.trace().mix(each.lsn.value << 8 | static_cast<std::uint64_t>(outcome));
  }
}

void Workload::last_put(Duration timeout) {
  succeeded_ = false;
  const bool started = primary_.node().spawn(0, "last put", [this, timeout] {
    PrimaryLife& life = primary_.life();
    Random random = scene_.world.stream("last put", 0);
    const Instant deadline = primary_.node().clock().now() + timeout;
    std::vector<Write> writes;
    writes.push_back(make_write(life, random, 100, false));
    if (!append(life, writes, deadline)) return end_all(writes, Outcome::not_done);
    const Status acked = life.primary->wait(writes[0].lsn, AckLevel::applied, deadline);
    end_all(writes, acked ? Outcome::ok : Outcome::unknown);
    succeeded_ = acked.has_value();
  });
  if (!started) scene_.world.fail("no_leak", "node 1 is out of fibers although nobody is at work there");
}

// ---- notifications, and those who read ------------------------------------------------------------------

void Workload::notify(const PrimaryLife& life, Random& random, const Write& write) {
  const auto replica = static_cast<std::size_t>(random.below(replicas_.size()));
  // By write, so that what befalls one receipt moves no other's draws.
  Random channel = scene_.world.stream("receipt", std::uint64_t{life.line->number()} << 40 | write.lsn.value);
  // Most overtake everything that the link does; some come late.
  const Duration delay = draw_magnitude(channel, nanoseconds(500), milliseconds(50));
  const Duration timeout = draw_magnitude(channel, milliseconds(1), seconds(2));
  receipts_.push_back({replica, {life.line->id(), write.lsn, write.key, timeout}});
  scene_.world.schedule(scene_.world.now() + delay, target_, receipt_comes, receipts_.size() - 1);
}

void Workload::on_event(const Event& event) {
  const auto& [replica, receipt] = receipts_[event.a];
  ReplicaHost& host = *replicas_[replica];
  if (!host.up()) return;
  // Out of fibers: nobody reads. The load goes on.
  static_cast<void>(
      host.node().spawn(0, "reader", [this, &host, copy = receipt] { reader(host, host.life(), copy); }));
}

std::string Workload::describe(const Event& event) const {
  const auto& [replica, receipt] = receipts_[event.a];
  return fmt::format("replica {} is notified of LSN {} \"{}\"", replica, receipt.lsn.value,
                     key_text(receipt.key));
}

void Workload::reader(ReplicaHost& host, ReplicaLife& life, const Receipt& receipt) {
  if (life.replica->history() != receipt.history) return;
  const Status visible = life.replica->wait_applied(receipt.lsn, host.node().clock().now() + receipt.timeout);
  if (life.dying) return;
  if (!visible) {
    if (visible.error() == ReactorErrc::deadline_exceeded)
      scene_.check("waits", host.name(),
                   check_expired(receipt.lsn, receipt.lsn <= life.replica->applied_lsn()));
    return;
  }
  history_.read_after_receipt();
  read(host, life, receipt.key, receipt.lsn, "notified of");
}

void Workload::poller(ReplicaHost& host, ReplicaLife& life, Random random) {
  while (!life.dying && !stopping_) {
    this_fiber::sleep_for(draw_magnitude(random, microseconds(100), milliseconds(100)));
    if (life.dying || life.applier->line() == nullptr) continue;
    const auto key = static_cast<std::uint32_t>(random.below(scene_.shape.keys));
    read(host, life, key, Lsn{}, "nothing asked for");
  }
}

/// A read of any state: it must not be older than what the node has published as applied.
void Workload::read(const ReplicaHost& host, const ReplicaLife& life, std::uint32_t key, Lsn floor,
                    const char* why) {
  const Lsn published = life.replica->applied_lsn();
  const std::uint64_t found = life.applier->at(key);
  history_.read_at_replica();
  scene_.world.trace().mix(found << 8 | key);
  const auto violation = check_read(*life.applier->line(), key, found, std::max(floor, published));
  if (!violation) return;
  scene_.world.fail("no_older_read", fmt::format("{}: {} ({} LSN {}, published {})", host.name(), *violation,
                                                 why, floor.value, published.value));
}

}  // namespace tidelock::sim
