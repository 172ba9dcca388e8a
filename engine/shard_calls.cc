// Calls from other threads and cores, started on the loop. See shard.h and call.h.
#include <new>
#include <utility>

#include <tidelock/engine/errc.h>

#include "inside.h"
#include "shard.h"

namespace tidelock {
namespace {

BatchItem item_of(const Call& call) {
  return {call.kind == CallKind::put, call.hash, as_bytes(call.key), as_bytes(call.value)};
}

bool large(const Call& call) {
  if (call.kind == CallKind::write) return false;
  const EntryKind kind = call.kind == CallKind::put ? EntryKind::put : EntryKind::erase;
  return entry_bytes(kind, call.key.size(), call.value.size()) > kEntryBytesMax;
}

}  // namespace

void Shard::start(Call& call) {
  ++inside_;
  if (shut_) return finish(call, EngineErrc::closed);
  switch (call.kind) {
    case CallKind::put:
    case CallKind::erase:
    case CallKind::write:
      return start_write(call);
    case CallKind::wait:
      return start_wait(call);
    case CallKind::get:
      return start_read(call);
    case CallKind::scan:
      return start_scan(call);
    case CallKind::digest:
      return start_digest(call);
  }
}

void Shard::finish(Call& call, Status status) {
  call.status = std::move(status);
  --inside_;
  call.completed(call);
}

// ---- writes -----------------------------------------------------------------------------------------

void Shard::start_write(Call& call) {
  if (writes_head_ == nullptr && try_start_write(call)) return;
  call.next_write = nullptr;
  // A caller's writes keep their order: while one waits, those behind it wait, too.
  if (writes_head_ != nullptr) return enqueue_write(call);
  writes_head_ = writes_tail_ = &call;
  const Status spawned = reactor_.spawn_detached("engine writes", [this] { drain_writes(); });
  if (spawned) return;
  writes_head_ = nullptr;
  finish(call, spawned);
}

void Shard::enqueue_write(Call& call) {
  writes_tail_->next_write = &call;
  writes_tail_ = &call;
  if (!overdue_.armed() || call.deadline < overdue_.deadline())
    reactor_.timers().arm(overdue_, call.deadline);
}

/// Ends those whose time is up behind the one in work, which sees to its own.
void Shard::expire_writes() {
  if (writes_head_ == nullptr) return;
  const Instant now = reactor_.now();
  Instant next = Instant::never();
  Call* expired = nullptr;
  Call** expired_end = &expired;
  Call* last = writes_head_;
  while (Call* call = last->next_write) {
    if (call->deadline > now) {
      if (call->deadline < next) next = call->deadline;
      last = call;
      continue;
    }
    last->next_write = std::exchange(call->next_write, nullptr);
    *expired_end = call;
    expired_end = &call->next_write;
  }
  writes_tail_ = last;
  if (next != Instant::never()) reactor_.timers().arm(overdue_, next);
  if (expired == nullptr) return;
  const Error late(ReactorErrc::deadline_exceeded);
  const Error error = large(*writes_head_) ? not_written(late, kLargePut) : no_turn(late);
  while (expired != nullptr) finish(*std::exchange(expired, expired->next_write), error);
}

/// False if the call has to wait for its turn.
bool Shard::try_start_write(Call& call) {
  if (Status status = writable({call.level, call.replicas}); !status) {
    finish(call, std::move(status));
    return true;
  }
  if (large(call)) return false;
  const auto lsn = call.kind == CallKind::write ? try_write_all(call.items) : try_write(item_of(call));
  if (lsn) {
    await_level(call, *lsn);
    return true;
  }
  if (lsn.error() == ReplicationErrc::log_full) return false;
  finish(call, lsn.error());
  return true;
}

/// One fiber appends what had to wait, in order, and ends when nothing waits any more.
void Shard::drain_writes() {
  const Inside inside(inside_);
  while (writes_head_ != nullptr) {
    Call& call = *writes_head_;
    const AckNeed need{call.level, call.replicas};
    const auto lsn = call.kind == CallKind::write ? append_all(call.items, need, call.deadline)
                                                  : append(item_of(call), need, call.deadline);
    writes_head_ = call.next_write;
    if (lsn) {
      await_level(call, *lsn);
    } else {
      finish(call, lsn.error());
    }
  }
}

void Shard::await_level(Call& call, Lsn lsn) {
  call.receipt = receipt(lsn);
  if (level_now({call.level, call.replicas}) == AckLevel::local) return finish(call, {});
  call.lsn = lsn;
  call.replicas = need_now({call.level, call.replicas}).replicas;
  call.done = &level_reached;
  primary_->add_waiter(call);
}

void Shard::level_reached(AckWaiter& waiter, Status status) {
  Call& call = static_cast<Call&>(waiter);
  call.shard->finish(call, std::move(status));
}

void Shard::start_wait(Call& call) {
  Status status = primary_here();
  if (status) status = check_receipt(call.after);
  if (!status) return finish(call, std::move(status));
  await_level(call, call.after.lsn);
}

// ---- reads ------------------------------------------------------------------------------------------

/// Then get() does not suspend, but for a lease that it may have to wait for.
bool Shard::readable_at_once(const Call& call, ReadLevel level) const {
  if (node_) {
    const bool held = call.after.lsn == Lsn{} || stands_for(call.after);
    const bool foreign =
        call.after.history != HistoryId{} && call.after.history != member().lineage().history;
    if (!has_memory() || !held || foreign) return false;
    if (level != ReadLevel::any && member().log().spoiled()) return false;
  } else if (call.after.lsn != Lsn{} && primary_ == nullptr && replica_->applied_lsn() < call.after.lsn) {
    return false;
  }
  Table::Found found;
  const bool there = table_->find(call.hash, as_bytes(call.key), found);
  if (there && found.value.size() > kCopyBytes) return false;
  return level == ReadLevel::any || seen_of(there ? found.lsn : member().log().last_lsn()).committed;
}

void Shard::start_read(Call& call) {
  const auto level = asked_level(call.read_level);
  if (!level) return finish(call, level.error());
  const bool direct = readable_at_once(call, *level);
  if (direct && *level == ReadLevel::linearizable && seed_fits()) {
    Seen seen;
    const auto lsn = get_here(call.hash, as_bytes(call.key), call.value, seen);
    // After the capture. Without a lease it is looked at again, by a fiber that can wait for one.
    if (primary_->lease_held()) {
      if (lsn) call.receipt.lsn = *lsn;
      return finish(call, lsn ? Status{} : Status(lsn.error()));
    }
  }
  const auto read = [this, &call] {
    auto lsn = get(call.hash, as_bytes(call.key), call.value, call.after, call.read_level, call.deadline);
    if (lsn) call.receipt.lsn = *lsn;
    finish(call, lsn ? Status{} : Status(lsn.error()));
  };
  if (direct && *level != ReadLevel::linearizable) return read();
  if (const Status spawned = reactor_.spawn_detached("engine read", read); !spawned) finish(call, spawned);
}

void Shard::start_digest(Call& call) {
  const Status spawned = reactor_.spawn_detached("engine digest", [this, &call] {
    auto digest = this->digest(call.deadline);
    if (digest) {
      call.digest = digest->first;
      call.receipt.lsn = digest->second;
    }
    finish(call, digest ? Status{} : Status(digest.error()));
  });
  if (!spawned) finish(call, spawned);
}

void Shard::start_scan(Call& call) {
  const Status spawned = reactor_.spawn_detached("engine scan", [this, &call] {
    Status status;
    try {
      status = copy_page(call);
    } catch (const std::bad_alloc&) {
      status = Error(EngineErrc::out_of_memory, "no memory for a page of a scan; ask for fewer keys");
    }
    finish(call, std::move(status));
  });
  if (!spawned) finish(call, spawned);
}

// ---- the user's fibers ------------------------------------------------------------------------------

void Shard::spawn(std::function<void()> body) {
  spawn_backlog_.push_back(std::move(body));
  spawn_some(1);
}

bool Shard::has_work() const {
  return spawn_backlog_.size() > spawn_starting_ || has_memory_to_free() || has_group_news();
}

std::uint32_t Shard::poll(std::uint32_t budget) {
  const bool freeing = has_memory_to_free();
  if (freeing) free_some_memory();
  if (has_group_news()) publish_group();
  unbroken_calls_ = 0;
  unbroken_bytes_ = 0;
  return spawn_some(budget) + (freeing ? 1 : 0);
}

/// A call that needs nobody's answer (a read, a write with ack local) has no reason to suspend, and a fiber
/// that makes only such calls would keep its core from everything else: so every so often a call begins with
/// a yield. `bytes` are about to be copied. Suspends: yes (fiber)
Wakeup Shard::let_others_run(std::size_t bytes) {
  constexpr std::uint32_t kCalls = 128;
  constexpr std::size_t kCopiedBytes = 64 * 1024;  // no more between two looks at the fiber quota
  unbroken_bytes_ += bytes;
  if (++unbroken_calls_ < kCalls && unbroken_bytes_ < kCopiedBytes) return Wakeup::notified;
  unbroken_calls_ = 0;
  unbroken_bytes_ = 0;
  return this_fiber::yield();
}

/// A fiber takes its body when it runs, so that a body for which there is no fiber yet stays in the backlog.
std::uint32_t Shard::spawn_some(std::uint32_t budget) {
  std::uint32_t spawned = 0;
  for (; spawned < budget && spawn_backlog_.size() > spawn_starting_; ++spawned) {
    const Status started = reactor_.spawn_detached("user", [this] {
      const Inside inside(inside_);
      --spawn_starting_;
      const auto body = std::move(spawn_backlog_.front());
      spawn_backlog_.pop_front();
      body();
    });
    if (!started) break;
    ++spawn_starting_;
  }
  return spawned;
}

}  // namespace tidelock
